"""The snapshot of a component's code: its files, their digest, and the copy that a job runs in."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainyard.rehearse.digests import ContentDigests
from trainyard.rehearse.errors import cannot_write, error_at
from trainyard.settings.files import files_beneath
from trainyard.spec.ignore_files import ignore_rule
from trainyard.spec.model import Component

# Dropped whatever the ignore file says: the client drops the first too, and our runs lie in the second.
_ALWAYS_DROPPED = frozenset({"__pycache__", ".trainyard"})


@dataclass(frozen=True)
class Snapshot:
    """Files and their places in the job's working directory, sorted by place."""

    files: tuple[tuple[Path, str], ...]

    def digest(self, digests: ContentDigests) -> str:
        """Return the digest of the files' content and places."""
        return digests.of_files(self.files)

    def copy_to(self, folder: Path) -> None:
        """Copy the files into a new folder. Raise `RunError` if that fails, after removing the folder."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for file, place in self.files:
                target = folder / place
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file, target)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise cannot_write(folder, error) from error


def snapshot_of(component: Component) -> Snapshot:
    """Return the files that Azure ML would upload for a component: code and additional includes, without ignored ones.

    Raise `SpecError` when the code folder or an include is missing.
    """
    files: dict[str, Path] = {}
    if component.code is not None:
        _must_exist(component, component.code, "code")
        if component.code.is_file():
            files[component.code.name] = component.code
        else:
            files |= {place: file for file, place in _included(component.code)}
    for include in component.additional_includes:
        _must_exist(component, include, "additional_includes")
        if include.is_file():
            files[include.name] = include
        else:
            files |= {f"{include.name}/{place}": file for file, place in _included(include)}
    return Snapshot(tuple((files[place], place) for place in sorted(files)))


def _must_exist(component: Component, path: Path, key: str) -> None:
    if not path.exists():
        raise error_at(component.span, f"{key} of {component.name}: {path} does not exist")


def _included(folder: Path) -> Iterator[tuple[Path, str]]:
    is_ignored, can_prune = ignore_rule(folder)

    def enters(name: str) -> bool:
        dropped = name.rsplit("/", 1)[-1] in _ALWAYS_DROPPED
        return not dropped and not (can_prune and is_ignored(name + "/"))

    for file, place in files_beneath(folder, enters):
        if not is_ignored(place):
            yield file, place
