"""Profiles × templates → files: rendering, writing with care, drift, and which line came from where."""
