"""What both sides may import: the standard library only, nothing else of ours."""
