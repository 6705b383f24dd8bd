"""Programs that run in a job's own Python: they import the standard library alone, and pandas to read tables."""
