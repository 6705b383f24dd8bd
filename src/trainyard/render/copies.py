"""What a project keeps copies of: the code of Trainyard's steps, which travels into its jobs, and some JSON Schemas.

`trainyard.lock` names the version they are from and holds a digest of each. `trainyard render` brings them up to date
with the installed version; a project without that file is left alone.

The steps are one file, `src/trainyard.zip`: the same bytes on every machine and Python, sorted, without times, and not
compressed, since zlib's output differs between its versions. Git compresses it anyway, and keeps of the next version
only what has changed. Each schema is a file that needs no other.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard import __version__
from trainyard.project_files import read_bytes, read_text
from trainyard.render import rules
from trainyard.render.project import LOCK_FILE, Project
from trainyard.resources import PACKAGE, STEP_ARCHIVE, schema_file, schema_names
from trainyard.spec.diagnostic import Span, SpecError

JOB_CODE = ("__init__.py", "tasks.py", "unpacking.py", "settings", "steps")
"""What of the package `trainyard` runs inside a job."""

_LONG_AGO = (1980, 1, 1, 0, 0, 0)
_UNIX = 3
_READABLE = 0o100644 << 16


def archive_of_steps() -> bytes:
    """Return the archive of the installed version."""
    roots = [PACKAGE / name for name in JOB_CODE]
    files = sorted(file for root in roots for file in ([root] if root.is_file() else root.rglob("*.py")))
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
        for file in files:
            entry = zipfile.ZipInfo(f"trainyard/{file.relative_to(PACKAGE).as_posix()}", _LONG_AGO)
            entry.create_system, entry.external_attr = _UNIX, _READABLE
            archive.writestr(entry, read_bytes(file))
    return content.getvalue()


def changed_files(old: bytes | None, new: bytes | None) -> tuple[str, str]:
    """Return which files differ between two archives: a line with name and digest for each, in the old and the new."""
    before, after = _digests(old), _digests(new)
    changed = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    old_lines, new_lines = ([f"{name} {each[name]}\n" for name in changed if name in each] for each in (before, after))
    return "".join(old_lines), "".join(new_lines)


def _digests(archive: bytes | None) -> dict[str, str]:
    """Return the digest of each file of an archive by its name; of another file that of the whole."""
    if archive is None:
        return {}
    with contextlib.suppress(zipfile.BadZipFile, RuntimeError), zipfile.ZipFile(io.BytesIO(archive)) as files:
        # A stranger's could be compressed, to fill the memory.
        if all(entry.compress_type == zipfile.ZIP_STORED for entry in files.infolist()):
            return {name: hashlib.sha256(files.read(name)).hexdigest() for name in files.namelist()}
    return {"(not written by Trainyard)": hashlib.sha256(archive).hexdigest()}


_FORMAT = "trainyard.lock/2"
_ARCHIVE_PATH = f"src/{STEP_ARCHIVE}"
_SCHEMAS = "schemas/"
_SCHEMA_SUFFIX = ".schema.json"


@dataclass(frozen=True)
class StaleCopy:
    """A copy that differs from the installed version's. `old` is None where it is missing, `new` where it is gone."""

    path: Path
    reason: str
    old: bytes | None
    new: bytes | None
    is_edited: bool

    def texts(self) -> tuple[str, str]:
        """Return the old and the new text; of an archive the names of its files that differ."""
        if self.path.name == STEP_ARCHIVE:
            return changed_files(self.old, self.new)
        return (self.old or b"").decode(errors="replace"), (self.new or b"").decode()


def current_copies(schemas: Iterable[str]) -> dict[str, bytes]:
    """Return each copy as in the installed version, by its path in a project: steps, these schemas, and the lock file.

    Schemas that this version does not have are left out.
    """
    known = schema_names()
    copies = {_ARCHIVE_PATH: archive_of_steps()}
    copies |= {_schema_path(name): schema_file(name).read_bytes() for name in sorted(schemas) if name in known}
    digests = {path: _digest(content) for path, content in copies.items()}
    lock = {"format": _FORMAT, "trainyard": __version__, "files": digests}
    return {**copies, LOCK_FILE: (json.dumps(lock, indent=1) + "\n").encode()}


def stale_copies(project: Project) -> list[StaleCopy]:
    """Return the copies of a project that differ from the installed version's; none in a project without a lock file.

    Raise SpecError for a lock file that cannot be read.
    """
    lock_file = project.root / LOCK_FILE
    if not lock_file.is_file():
        return []
    lock = _read_lock(lock_file)
    # Of other paths that a stranger's lock file names, nothing is read or removed.
    schemas = [path for path in lock["files"] if path.startswith(_SCHEMAS) and path.endswith(_SCHEMA_SUFFIX)]
    schemas = [path.removeprefix(_SCHEMAS).removesuffix(_SCHEMA_SUFFIX) for path in schemas]
    current = current_copies(schemas)
    stale = []
    for path in sorted({*map(_schema_path, schemas), *current}):
        file = project.root / path
        old = read_bytes(file) if file.is_file() else None
        new = current.get(path)
        if old == new:
            continue
        is_edited = old is not None and path != LOCK_FILE and lock["files"].get(path) != _digest(old)
        if is_edited:
            reason = f"is not what {LOCK_FILE} says; to keep a version of your own, delete {LOCK_FILE}"
        elif old is None:
            reason = "is missing"
        elif lock["trainyard"] != __version__:
            reason = f"is from Trainyard {lock['trainyard']}; {__version__} is installed"
        else:
            reason = f"is not that of the installed Trainyard {__version__}"
        stale.append(StaleCopy(file, reason, old, new, is_edited))
    return stale


def _schema_path(name: str) -> str:
    return f"{_SCHEMAS}{name}{_SCHEMA_SUFFIX}"


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _read_lock(file: Path) -> dict[str, Any]:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        lock = json.loads(read_text(file))
        if lock["format"] == _FORMAT and isinstance(lock["files"], dict) and isinstance(lock["trainyard"], str):
            return dict(lock)
    hint = f"Restore it from git; or delete it, and {LOCK_FILE}'s files are yours to maintain."
    raise SpecError(rules.NOT_OURS.at(Span(file), f"expected the format {_FORMAT}", hint=hint))
