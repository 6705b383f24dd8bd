"""What a snapshot would upload that hardly anyone means to: secrets, a repository's history, links, huge files."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from trainyard.foundation.files import files_beneath
from trainyard.foundation.quantities import memory
from trainyard.project_files import beginning_of, is_within_root
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

    Azure ML's client follows links to wherever they lead; these are named, and not entered.
    """
    if not is_within_root(code) or not code.is_dir():
        return []
    try:
        is_ignored, can_prune = ignore_rule(code)
    except (OSError, ValueError):
        return []  # what it leaves out is not known
    top = os.path.realpath(code)
    found: list[Upload] = []

    def enters(place: str) -> bool:
        name = place.rpartition("/")[2]
        if name == _CLIENT_DROPS or (can_prune and is_ignored(place + "/")):
            return False
        if name == ".git":
            if not is_ignored(place + "/HEAD"):
                found.append(Upload(place, "the history of a repository"))
            return False
        if leads := _leads_outside(os.path.join(code, place), top):
            if not is_ignored(place + "/file"):
                found.append(Upload(place, leads))
            return False
        return True

    count = 0
    # What cannot be read, or a pattern that nobody understands, is a finding of its own.
    with suppress(OSError, re.error):
        for file, place in files_beneath(code, enters):
            if is_ignored(place):
                continue
            count += 1
            if count > _MOST_FILES:
                found.append(Upload(".", f"more than {_MOST_FILES:,} files"))
                break
            found += (Upload(place, reason) for reason in _reasons(file, top))
    return sorted(found)


def _reasons(file: Path, top: str) -> Iterator[str]:
    if leads := _leads_outside(file, top):
        yield leads
    elif _SECRET_FILE.fullmatch(file.name) or (_KEY_FILE.fullmatch(file.name) and _is_private_key(file)):
        yield "secrets"
    elif (size_bytes := os.stat(file).st_size) > _LARGE_BYTES:
        yield memory(size_bytes)


def _leads_outside(path: str | Path, top: str) -> str:
    """Return where a link leads, as a reason; nothing for what is not a link, or stays in the snapshot."""
    if not stat.S_ISLNK(os.lstat(path).st_mode):
        return ""
    target = os.path.realpath(path)
    return "" if target.startswith(top.rstrip(os.sep) + os.sep) else f"a link to {target}"


def _is_private_key(file: Path) -> bool:
    try:
        return b"PRIVATE KEY-----" in beginning_of(file, _KEY_BEGINS_WITHIN_BYTES)
    except OSError:
        return False
