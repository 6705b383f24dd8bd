"""The rules that the readers of `spec` report, a module per subject."""
