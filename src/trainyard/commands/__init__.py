"""What verbs do that join several parts; `cli.py` has their flags and help."""
