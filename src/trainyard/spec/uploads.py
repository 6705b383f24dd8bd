"""What a snapshot would upload that hardly anyone means to: secrets, a repository's history, links, huge files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from trainyard.project_files import beginning_of, is_within_root
from trainyard.settings.quantities import memory
from trainyard.spec.ignore_files import ignore_rule

_LARGE_BYTES = 200 << 20
_MOST_FILES = 20_000
_CLIENT_DROPS = "__pycache__"

# Names that are examples, as in `.env.example`, hold no secrets.
_SECRET_FILE = re.compile(
    r"\.env(?:\.(?!example$|sample$|template$|dist$)\w+)?|id_(?:rsa|dsa|ecdsa|ed25519)|\.netrc|\.git-credentials|"
    r"\.pypirc|.+\.(?:pfx|p12|kdbx)"
)
_KEY_FILE = re.compile(r".+\.(?:pem|key)")
_KEY_BEGINS_WITHIN_BYTES = 4096


class Upload(NamedTuple):
    """A file or folder, its place in the snapshot, and why it should hardly be there."""

    place: str
    reason: str


def doubtful_uploads(code: Path) -> list[Upload]:
    """Return what should hardly be uploaded of a code folder, as far as its ignore file leaves it in, by place.

    Azure ML's client follows links to wherever they lead; those that lead outside are named, and not entered.
    """
    if not is_within_root(code) or not code.is_dir():
        return []
    # What cannot be read, or a pattern that nobody understands, is a finding of its own.
    with suppress(OSError, ValueError, re.error):
        is_ignored, can_prune = ignore_rule(code)
        return sorted(_Walk(os.path.realpath(code), is_ignored, can_prune).found(str(code)))
    return []


class _Walk:
    """A code folder is walked at every lint: a file is looked at closely only if its name, size or kind is suspect."""

    def __init__(self, top: str, is_ignored: Callable[[str], bool], can_prune: bool) -> None:
        self._top, self._is_ignored, self._can_prune = top, is_ignored, can_prune
        self._count = 0

    def found(self, folder: str, prefix: str = "") -> Iterator[Upload]:
        """Yield what is doubtful in a folder."""
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
                elif os.path.isfile(entry) and (reason := _reason(entry)) and not self._is_ignored(place):
                    yield Upload(place, reason)
        for path, place in folders:
            if path.endswith("/.git"):
                if not self._is_ignored(f"{place}/HEAD"):
                    yield Upload(place, "the history of a repository")
            elif not path.endswith(f"/{_CLIENT_DROPS}") and not (self._can_prune and self._is_ignored(f"{place}/")):
                yield from self.found(path, f"{place}/")

    def _leads_outside(self, path: str) -> str:
        """Return where a link leads, as a reason; nothing for one that stays in the snapshot, or leads nowhere."""
        target = os.path.realpath(path)
        is_inside = target.startswith(self._top.rstrip(os.sep) + os.sep)
        return "" if is_inside or not os.path.exists(target) else f"a link to {target}"


def _reason(entry: os.DirEntry[str]) -> str:
    if _SECRET_FILE.fullmatch(entry.name) or (_KEY_FILE.fullmatch(entry.name) and _is_private_key(Path(entry.path))):
        return "secrets"
    size_bytes = entry.stat().st_size
    return memory(size_bytes) if size_bytes > _LARGE_BYTES else ""


def _is_private_key(file: Path) -> bool:
    try:
        return b"PRIVATE KEY-----" in beginning_of(file, _KEY_BEGINS_WITHIN_BYTES)
    except OSError:
        return False
