"""What verbs do, where they join several packages; `cli/` has their flags and help."""
