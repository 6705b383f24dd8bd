"""The flags that a Python script takes, read from its source without running it.

Supports `argparse` with sub-commands, `click`, `typer`, `HfArgumentParser`, and the dataclasses of `trainyard.steps`.
If a script builds its parser in ways that cannot be read (loops, other modules), the result is None, and the script is
not checked.
"""

from __future__ import annotations

from pathlib import Path

from trainyard.lint.scripts.argparse_flags import from_argparse
from trainyard.lint.scripts.click_flags import from_click, from_typer
from trainyard.lint.scripts.dataclass_flags import from_dataclass, from_hf_dataclass
from trainyard.lint.scripts.flags import ScriptFlags
from trainyard.lint.scripts.syntax import parse


def read_flags(file: Path, root: Path) -> ScriptFlags | None:
    """Return the flags of a script in a snapshot whose folder is `root`; None if they cannot be determined."""
    syntax = parse(file)
    if syntax is None:
        return None
    for reader in (from_dataclass, from_hf_dataclass, from_click, from_typer, from_argparse):
        found = reader(syntax, file, root)
        if found is not None:
            return found if isinstance(found, ScriptFlags) else None
    return None
