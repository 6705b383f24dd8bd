"""What is left out of a snapshot: the rules of its `.amlignore` or `.gitignore`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

# azure-ai-ml 1.35.2, _utils/_asset_utils.py get_ignore_file: only the root's file counts, and .amlignore comes first.
_IGNORE_FILES = (".amlignore", ".gitignore")


def ignore_file(folder: Path) -> Path | None:
    """Return the file that says what is left out of a folder's snapshot, or None."""
    return next((folder / name for name in _IGNORE_FILES if os.path.isfile(folder / name)), None)


def ignore_rule(folder: Path) -> tuple[Callable[[str], bool], bool]:
    """Return whether a relative path is ignored, and whether ignored folders need not be looked into.

    As in the client, patterns are matched against files, with the folders above them, and the last match wins; so with
    a negated pattern a file within an ignored folder can come back.
    """
    file = ignore_file(folder)
    if file is None:
        return (lambda _: False), True
    from pathspec import PathSpec  # only where there is an ignore file: it takes 20 ms
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    lines = [line.rstrip() for line in file.read_text(encoding="utf-8").splitlines()]
    specification = PathSpec.from_lines(GitIgnoreSpecPattern, lines)
    return specification.match_file, not any(line.startswith("!") for line in lines)
