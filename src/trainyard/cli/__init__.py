"""The command line: flags and help, one file per group of verbs; what the verbs do lies in `commands/`."""

from trainyard.cli.entry import main

__all__ = ["main"]
