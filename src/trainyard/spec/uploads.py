"""Which files are uploaded with a job's code: what its ignore files say, and what should hardly be uploaded."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trainyard.project_files import beginning_of, is_within_root, read_text
from trainyard.settings.quantities import memory
from trainyard.settings.regex import regex

if TYPE_CHECKING:
    from pathspec import PathSpec, Pattern

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
        from pathspec import PathSpec
        from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

        return PathSpec.from_lines(GitIgnoreSpecPattern, lines)

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


SECRETS = "secrets"
"""The reason that files of secrets have."""
_LARGE_BYTES = 200 << 20
_LARGE_CHECKPOINT_BYTES = 10 << 20
_LARGE_SNAPSHOT_BYTES = 300_000_000
_MOST_FILES = 20_000
_CLIENT_DROPS = "__pycache__"

# Names that are examples, as in `.env.example`, hold no secrets.
_SECRET_FILE = regex(
    r"\.env(?:\.(?!example$|sample$|template$|dist$)\w+)?|id_(?:rsa|dsa|ecdsa|ed25519)|\.netrc|\.git-credentials|"
    r"\.pypirc|.+\.(?:pfx|p12|kdbx)"
)
_KEY_FILE = regex(r".+\.(?:pem|key)")
_CHECKPOINT_FILE = regex(r".+\.(?:ckpt|pt|pth|safetensors|distcp)")
_KEY_BEGINS_WITHIN_BYTES = 4096


class Upload(NamedTuple):
    """A file or folder, its place in the snapshot, and why it should hardly be there."""

    place: str
    reason: str


def doubtful_uploads(code: Path) -> list[Upload]:
    """Return what should hardly be uploaded of a code folder, as far as its ignore file leaves it in, by place.

    A file that is included alone is at its name. Azure ML's client follows links to wherever they lead; those that
    lead outside are named, and not entered.
    """
    if is_within_root(code) and code.is_file():
        return [Upload(code.name, reason)] if (reason := _reason(code, code.stat().st_size)) else []
    if not is_within_root(code) or not code.is_dir():
        return []
    # What cannot be read, or a pattern that nobody understands, is a finding of its own.
    with suppress(OSError, ValueError, re.error):
        is_ignored, can_prune = ignore_rule(code)
        return sorted(_Walk(os.path.realpath(code), is_ignored, can_prune).all_found(str(code)))
    return []


class _Walk:
    """A code folder is walked at every lint: a file is looked at closely only if its name, size or kind is suspect."""

    def __init__(self, top: str, is_ignored: Callable[[str], bool], can_prune: bool) -> None:
        self._top, self._is_ignored, self._can_prune = top, is_ignored, can_prune
        self._count = 0
        self._sizes: list[tuple[str, int]] = []

    def all_found(self, folder: str) -> Iterator[Upload]:
        """Yield what is doubtful in a code folder, and whether all of it together is."""
        yield from self._found(folder, "")
        # Patterns are matched only where that can matter.
        if sum(size for _, size in self._sizes) > _LARGE_SNAPSHOT_BYTES:
            total = sum(size for place, size in self._sizes if not self._is_ignored(place))
            if total > _LARGE_SNAPSHOT_BYTES:
                yield Upload(".", f"{memory(total)} in all")

    def _found(self, folder: str, prefix: str) -> Iterator[Upload]:
        folders = []
        with os.scandir(folder) as entries:
            for entry in entries:
                place = prefix + entry.name
                self._count += 1
                if self._count == _MOST_FILES:
                    yield Upload(".", f"more than {_MOST_FILES:,} files")
                if self._count >= _MOST_FILES:
                    return
                if entry.is_symlink() and (leads := self._leads_outside(entry.path)):
                    if not self._is_ignored(place) and not self._is_ignored(f"{place}/file"):
                        yield Upload(place, leads)
                elif entry.is_dir(follow_symlinks=False):
                    folders.append((entry.path, place))
                elif os.path.isfile(entry):
                    size_bytes = entry.stat().st_size
                    self._sizes.append((place, size_bytes))
                    if (reason := _reason(entry, size_bytes)) and not self._is_ignored(place):
                        yield Upload(place, reason)
        for path, place in folders:
            if path.endswith("/.git"):
                if not self._is_ignored(f"{place}/HEAD"):
                    yield Upload(place, "the history of a repository")
            elif not path.endswith(f"/{_CLIENT_DROPS}") and not (self._can_prune and self._is_ignored(f"{place}/")):
                yield from self._found(path, f"{place}/")

    def _leads_outside(self, path: str) -> str:
        """Return where a link leads, as a reason; nothing for one that stays in the snapshot, or leads nowhere."""
        target = os.path.realpath(path)
        is_inside = target.startswith(self._top.rstrip(os.sep) + os.sep)
        return "" if is_inside or not os.path.exists(target) else f"a link to {target}"


def _reason(entry: os.DirEntry[str] | Path, size_bytes: int) -> str:
    if _SECRET_FILE.fullmatch(entry.name) or (_KEY_FILE.fullmatch(entry.name) and _is_private_key(Path(entry))):
        return SECRETS
    if size_bytes > _LARGE_BYTES:
        return memory(size_bytes)
    is_checkpoint = size_bytes > _LARGE_CHECKPOINT_BYTES and _CHECKPOINT_FILE.fullmatch(entry.name)
    return f"a checkpoint of {memory(size_bytes)}" if is_checkpoint else ""


def _is_private_key(file: Path) -> bool:
    try:
        return b"PRIVATE KEY-----" in beginning_of(file, _KEY_BEGINS_WITHIN_BYTES)
    except OSError:
        return False
