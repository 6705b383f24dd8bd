"""The command line: one file per verb, with its flags, its help and what it joins."""

from trainyard.cli.entry import main

__all__ = ["main"]
