"""The code of Trainyard's steps as one file, `src/trainyard.zip`, which travels into the jobs of a project.

The same bytes on every machine and Python: sorted, without times, and not compressed, since zlib's output differs
between its versions. Git compresses it anyway, and keeps of the next version only what has changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import zipfile

from trainyard.project_files import read_bytes
from trainyard.resources import PACKAGE

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
    return _listed(before, changed), _listed(after, changed)


def _digests(archive: bytes | None) -> dict[str, str]:
    """Return the digest of each file of an archive by its name; of another file that of the whole."""
    if archive is None:
        return {}
    with contextlib.suppress(zipfile.BadZipFile, RuntimeError), zipfile.ZipFile(io.BytesIO(archive)) as files:
        # A stranger's could be compressed, to fill the memory.
        if all(entry.compress_type == zipfile.ZIP_STORED for entry in files.infolist()):
            return {name: hashlib.sha256(files.read(name)).hexdigest() for name in files.namelist()}
    return {"(not written by Trainyard)": hashlib.sha256(archive).hexdigest()}


def _listed(digests: dict[str, str], names: list[str]) -> str:
    return "".join(f"{name} {digests[name]}\n" for name in names if name in digests)
