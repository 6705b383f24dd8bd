"""The snapshot of a job: the files that Azure ML would upload as its code, and what changed between two of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from trainyard.rehearse.digests import ContentDigests, write_json
from trainyard.rehearse.errors import error_at, writing
from trainyard.settings.files import files_beneath
from trainyard.settings.quantities import first_names
from trainyard.spec.model import Component
from trainyard.spec.uploads import ignore_rule

# Dropped whatever the ignore file says: the client drops the first too, and our runs lie in the second.
_ALWAYS_DROPPED = frozenset({"__pycache__", ".trainyard"})


class Snapshot(NamedTuple):
    """Files and their places in the job's working directory, sorted by place."""

    files: tuple[tuple[Path, str], ...]

    def digest(self, digests: ContentDigests) -> str:
        """Return the digest of the files' content and places."""
        name = f"the code that begins with {self.files[0][0]}" if self.files else "no code"
        return digests.of_files(self.files, name)

    def copy_to(self, folder: Path) -> None:
        """Copy the files into a new folder. Raise `RunError` if that fails, after removing the folder."""
        with writing(folder), ExitStack() as undone:
            undone.callback(shutil.rmtree, folder, ignore_errors=True)
            folder.mkdir(parents=True, exist_ok=True)
            for file, place in self.files:
                target = folder / place
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file, target)
            undone.pop_all()


def snapshot_of(component: Component) -> Snapshot:
    """Return the files that Azure ML would upload for a component: code and additional includes, without ignored ones.

    Raise `SpecError` when the code folder or an include is missing.
    """
    files: dict[str, Path] = {}
    uploaded = [("code", component.code, "")] if component.code is not None else []
    uploaded += [("additional_includes", include, f"{include.name}/") for include in component.additional_includes]
    for key, path, beneath in uploaded:
        if not path.exists():
            raise error_at(component.span, f"{key} of {component.name}: {path} does not exist")
        if path.is_file():
            files[path.name] = path
        else:
            files |= {f"{beneath}{place}": file for file, place in _included(path)}
    return Snapshot(tuple((files[place], place) for place in sorted(files)))


def _included(folder: Path) -> Iterator[tuple[Path, str]]:
    is_ignored, can_prune = ignore_rule(folder)

    def enters(name: str) -> bool:
        dropped = name.rsplit("/", 1)[-1] in _ALWAYS_DROPPED
        return not dropped and not (can_prune and is_ignored(name + "/"))

    for file, place in files_beneath(folder, enters):
        if not is_ignored(place):
            yield file, place


_MOST_KEPT = 100
_MOST_NAMED = 3


class SnapshotLists:
    """What the snapshots of earlier starts held: one small file for each, by its digest."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def remember(self, digest: str, snapshot: Snapshot, digests: ContentDigests) -> None:
        """Keep the digests of a snapshot's files, unless they are. Raise `RunError` when they cannot be written."""
        file = self._file(digest)
        if file.is_file():
            return
        listed = {place: digests.of_file(path) for path, place in snapshot.files}
        with writing(self._folder), suppress(FileNotFoundError):  # another run may do the same
            kept = sorted(self._folder.glob("*.json"), key=lambda known: known.stat().st_mtime_ns)
            for oldest in kept[: -_MOST_KEPT + 1]:
                oldest.unlink(missing_ok=True)
        write_json(file, listed)

    def changes(self, earlier_digest: str, snapshot: Snapshot, digests: ContentDigests) -> dict[str, str] | None:
        """Return what changed since an earlier snapshot, by place: `changed`, `is new` or `is gone`; None if unknown.

        An empty result is of files that became executable, or no longer are.
        """
        try:
            earlier = dict(json.loads(self._file(earlier_digest).read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return None  # it only explains; without it the digests alone tell of a change
        here = {place: path for path, place in snapshot.files}
        changes = {place: "is gone" for place in earlier if place not in here}
        changes |= {place: "is new" for place in here if place not in earlier}
        same = (place for place in here if place in earlier)
        changes |= {place: "changed" for place in same if digests.of_file(here[place]) != earlier[place]}
        return dict(sorted(changes.items()))

    def _file(self, digest: str) -> Path:
        return self._folder / f"{digest}.json"


def changes_in_words(changes: Mapping[str, str]) -> str:
    """Return `a.py changed, b.py is new and 2 more`."""
    return first_names((f"{place} {how}" for place, how in changes.items()), _MOST_NAMED)
