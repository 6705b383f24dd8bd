"""What a project keeps copies of: the code of Trainyard's steps, which travels into its jobs, and the JSON Schemas.

`trainyard.lock` names the version they are from and holds a digest of each. `trainyard render` brings them up to date
with the installed version; a project without that file is left alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard import __version__
from trainyard.project_files import read_text
from trainyard.render import rules
from trainyard.render.header import digest
from trainyard.render.project import Project
from trainyard.resources import PACKAGE, shipped
from trainyard.spec.diagnostic import Span, SpecError

LOCK_FILE = "trainyard.lock"
JOB_CODE = ("__init__.py", "tasks.py", "settings", "steps")
"""What of the package `trainyard` runs inside a job."""

_FORMAT = "trainyard.lock/1"


@dataclass(frozen=True)
class StaleCopy:
    """A copy that differs from the installed version's. `old` is None where it is missing, `new` where it is gone."""

    path: Path
    reason: str
    old: str | None
    new: str | None
    is_edited: bool


def current_copies() -> dict[str, str]:
    """Return the text of every copy as in the installed version, by its path in a project; the lock file last."""
    roots = [PACKAGE / name for name in JOB_CODE]
    code = sorted(file for root in roots for file in ([root] if root.is_file() else root.rglob("*.py")))
    copies = {f"src/trainyard/{file.relative_to(PACKAGE).as_posix()}": file for file in code}
    copies |= {f"schemas/{file.name}": file for file in sorted(shipped("schemas").glob("*.schema.json"))}
    texts = {path: file.read_text(encoding="utf-8") for path, file in copies.items()}
    lock = {"format": _FORMAT, "trainyard": __version__, "files": {path: digest(text) for path, text in texts.items()}}
    return {**texts, LOCK_FILE: json.dumps(lock, indent=1) + "\n"}


def stale_copies(project: Project) -> list[StaleCopy]:
    """Return the copies of a project that differ from the installed version's; none in a project without a lock file.

    Raise SpecError for a lock file that cannot be read.
    """
    lock_file = project.root / LOCK_FILE
    if not lock_file.is_file():
        return []
    lock = _read_lock(lock_file)
    current = current_copies()
    stale = []
    for path in sorted({*lock["files"], *current}):
        file = project.root / path
        old = read_text(file, errors="replace") if file.is_file() else None
        new = current.get(path)
        if old == new:
            continue
        is_edited = old is not None and path != LOCK_FILE and lock["files"].get(path) != digest(old)
        if is_edited:
            reason = f"was edited by hand; delete {LOCK_FILE} to keep your own version of the copies"
        elif old is None:
            reason = "is missing"
        else:
            reason = f"is from Trainyard {lock['trainyard']}; {__version__} is installed"
        stale.append(StaleCopy(file, reason, old, new, is_edited))
    return stale


def _read_lock(file: Path) -> dict[str, Any]:
    try:
        lock = json.loads(read_text(file))
        if lock["format"] == _FORMAT and isinstance(lock["files"], dict) and isinstance(lock["trainyard"], str):
            return dict(lock)
    except (ValueError, KeyError, TypeError):
        pass
    hint = f"Restore it from git; or delete it, and {LOCK_FILE}'s files are yours to maintain."
    raise SpecError(rules.NOT_OURS.at(Span(file), f"expected the format {_FORMAT}", hint=hint))
