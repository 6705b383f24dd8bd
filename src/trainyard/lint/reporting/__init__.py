"""What was found, as people read it (text), as programs do (JSON, SARIF), and as notes in a pull request (GitHub)."""
