"""What is left out of a snapshot: the rules of its `.amlignore` or `.gitignore`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath

# azure-ai-ml 1.35.2, _utils/_asset_utils.py get_ignore_file: only the root's file counts, and .amlignore comes first.
_IGNORE_FILES = (".amlignore", ".gitignore")


def ignore_file(folder: Path) -> Path | None:
    """Return the file that says what is left out of a folder's snapshot, or None."""
    return next((folder / name for name in _IGNORE_FILES if os.path.isfile(folder / name)), None)


def ignore_rule(folder: Path) -> tuple[Callable[[str], bool], bool]:
    """Return whether a relative path is ignored, and whether ignored folders need not be looked into.

    As in the client, the last pattern that matches a file or a folder it is in decides; so with a negated pattern a
    file within an ignored folder can come back, unlike in git.
    """
    file = ignore_file(folder)
    if file is None:
        return (lambda _: False), True
    import pathspec  # only where there is an ignore file: it takes 20 ms

    lines = [line.rstrip() for line in file.read_text(encoding="utf-8").splitlines()]
    patterns = [each for each in pathspec.PathSpec.from_lines("gitignore", lines).patterns if each.include is not None]

    def is_ignored(path: str) -> bool:
        places = (path, *(folder.as_posix() for folder in PurePosixPath(path).parents[:-1]))
        return next((bool(each.include) for each in reversed(patterns) if any(map(each.match_file, places))), False)

    return is_ignored, not any(line.startswith("!") for line in lines)
