"""What a rendering changes in meaning, before anything is written: figures and settings of pipelines and clusters."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from trainyard.cli.plan_difference import planned_with_settings
from trainyard.errors import UsageError
from trainyard.plan.difference import PlanDifference
from trainyard.plan.difference_reporters import as_text, settings_as_text
from trainyard.plan.pipeline_settings import Change, changes_between, keys_of
from trainyard.project_files import reading_also
from trainyard.render.limited_rendering import render_limited
from trainyard.render.project import Project
from trainyard.render.rendering import Rendering
from trainyard.spec.diagnostic import SpecError

_ON_DISK = "the files on disk"


@dataclass(frozen=True)
class Meaning:
    """What a rendering changes in one file: a pipeline's plan and settings, or a cluster's keys.

    `note` says that the file is new, or why it cannot be planned.
    """

    file: Path
    note: str = ""
    difference: PlanDifference | None = None
    changes: tuple[Change, ...] = ()

    def __str__(self) -> str:
        if self.note:
            return f"{self.file}   {self.note}"
        if self.difference is not None:
            return as_text(self.difference)
        return "\n".join([str(self.file), *settings_as_text(self.changes)])


def meanings(project: Project, rendering: Rendering) -> Iterator[Meaning]:
    """Yield what differs in each cluster and pipeline of a rendering from the file on disk."""
    with tempfile.TemporaryDirectory(prefix="trainyard-") as temporary, reading_also(Path(temporary)):
        aside = Path(temporary).resolve()
        _write_aside(project, rendering, aside)
        files = sorted(path.relative_to(rendering.root) for path in rendering.files if path.suffix == ".yaml")
        for file in (each for each in files if each.parts[0] == "compute"):
            if changes := _of_cluster(rendering.root, aside, file):
                yield Meaning(file, changes=changes)
        for file in (each for each in files if each.parts[0] == "pipelines"):
            meaning = _of_pipeline(rendering.root, aside, file)
            if meaning.note or (meaning.difference is not None and not meaning.difference.is_empty):
                yield meaning


def _write_aside(project: Project, rendering: Rendering, folder: Path) -> None:
    """Write the same rendering into a folder of its own, where its files refer to each other."""
    profile = rendering.profile
    for path, file in render_limited(project, profile.name, profile.settings, folder).files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text, encoding="utf-8")


def _of_cluster(root: Path, aside: Path, file: Path) -> tuple[Change, ...]:
    before = keys_of(root / file) if (root / file).is_file() else []
    return tuple(changes_between(before, keys_of(aside / file)))


def _of_pipeline(root: Path, aside: Path, file: Path) -> Meaning:
    if not (root / file).is_file():
        return Meaning(file, "new")
    sides = []
    for folder in (root, aside):
        try:
            sides.append(planned_with_settings(folder / file, [folder, root]))
        except (SpecError, UsageError) as error:
            told = str(error).replace(f"{folder}{os.sep}", "").splitlines()[0]
            side = "as rendered" if folder == aside else "as on disk"
            return Meaning(file, f"not planned {side}: {told}")
    (before, old_settings), (after, new_settings) = sides
    changes = tuple(changes_between(old_settings, new_settings))
    return Meaning(file, difference=PlanDifference(before, replace(after, file=before.file), _ON_DISK, changes))
