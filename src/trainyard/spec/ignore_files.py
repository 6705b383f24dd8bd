"""What is left out of a snapshot: the rules of its `.amlignore` or `.gitignore`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathspec import PathSpec, Pattern

# azure-ai-ml 1.35.2, _utils/_asset_utils.py get_ignore_file: only the root's file counts, and .amlignore comes first.

from trainyard.project_files import read_text

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
    lines = [line.rstrip() for line in read_text(file).splitlines()]
    patterns = [line for line in reversed(lines) if line and not line.startswith("#")]

    @cache
    def specification() -> PathSpec[Pattern]:
        return _specification(lines)

    def is_ignored(path: str) -> bool:
        # Loading pathspec takes a tenth of the time that a pipeline's lint does, and most paths need no look closer.
        names = path.split("/")
        for pattern in patterns:
            if pattern.startswith("!") and _surely_matches(path, pattern[1:]):
                return False
            if not pattern.startswith("!") and _may_match(names, pattern):
                return specification().match_file(path)
        return False

    return is_ignored, not any(line.startswith("!") for line in lines)


def _specification(lines: Sequence[str]) -> PathSpec[Pattern]:
    from pathspec import PathSpec
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    return PathSpec.from_lines(GitIgnoreSpecPattern, lines)


def _may_match(names: Sequence[str], pattern: str) -> bool:
    """Whether a pattern can match the path of these names, or a folder above it: by its own last name."""
    last_name = pattern.rstrip("/").rpartition("/")[2]
    if not last_name or any(hard in last_name for hard in ("\\", "[^", "**")):
        return True
    if not any(character in last_name for character in "*?["):
        return last_name in names
    return any(fnmatchcase(name, last_name) for name in names)


def _surely_matches(path: str, pattern: str) -> bool:
    """Whether a pattern is the place of a file, or of a folder above it, from the root."""
    is_plain = pattern.startswith("/") and not any(character in pattern for character in "*?[\\")
    return is_plain and (path == pattern[1:] or path.startswith(f"{pattern[1:].rstrip('/')}/"))
