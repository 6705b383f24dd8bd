"""Reports of findings: as text for people, and as JSON, SARIF and GitHub annotations for programs."""
