"""What a rendering changes in meaning, before anything is written: figures and settings of pipelines and clusters."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from trainyard.commands.plan_difference import planned_with_settings
from trainyard.errors import UsageError
from trainyard.plan.difference import PlanDifference
from trainyard.plan.difference_reporters import as_text, settings_as_text
from trainyard.plan.pipeline_settings import changes_between, keys_of
from trainyard.project_files import reading_also
from trainyard.render.limited_rendering import render_limited
from trainyard.render.project import Project
from trainyard.render.rendering import Rendering
from trainyard.spec.diagnostic import SpecError

_ON_DISK = "the files on disk"


def meanings(project: Project, rendering: Rendering) -> Iterator[str]:
    """Yield a text for each cluster and pipeline of a rendering that differs in meaning from the file on disk."""
    with tempfile.TemporaryDirectory(prefix="trainyard-") as temporary, reading_also(Path(temporary)):
        aside = Path(temporary).resolve()
        _write_aside(project, rendering, aside)
        files = sorted(path.relative_to(rendering.root) for path in rendering.files if path.suffix == ".yaml")
        for file in (each for each in files if each.parts[0] == "compute"):
            if text := _of_cluster(rendering.root, aside, file):
                yield text
        for file in (each for each in files if each.parts[0] == "pipelines"):
            if text := _of_pipeline(rendering.root, aside, file):
                yield text


def _write_aside(project: Project, rendering: Rendering, folder: Path) -> None:
    """Write the same rendering into a folder of its own, where its files refer to each other."""
    profile = rendering.profile
    for path, file in render_limited(project, profile.name, profile.settings, folder).files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text, encoding="utf-8")


def _of_cluster(root: Path, aside: Path, file: Path) -> str:
    before = keys_of(root / file) if (root / file).is_file() else []
    changes = changes_between(before, keys_of(aside / file))
    return "\n".join([str(file), *settings_as_text(changes)]) if changes else ""


def _of_pipeline(root: Path, aside: Path, file: Path) -> str:
    if not (root / file).is_file():
        return f"{file}   new"
    sides = []
    for folder in (root, aside):
        try:
            sides.append(planned_with_settings(folder / file, [folder, root]))
        except (SpecError, UsageError) as error:
            told = str(error).replace(f"{folder}{os.sep}", "").splitlines()[0]
            return f"{file}   {'as rendered' if folder == aside else 'as it is on disk'}, it cannot be planned: {told}"
    (before, old_settings), (after, new_settings) = sides
    changes = tuple(changes_between(old_settings, new_settings))
    difference = PlanDifference(before, replace(after, file=before.file), _ON_DISK, changes)
    return "" if difference.is_empty else as_text(difference)
