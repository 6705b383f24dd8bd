"""What a rendering would change: each file's meaning in full, or a summary on one screen."""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from trainyard.cli.plan_difference import planned_with_settings
from trainyard.errors import UsageError
from trainyard.plan.difference import FigureChange, PlanDifference
from trainyard.plan.difference_reporters import as_text, settings_as_text, shortened, times
from trainyard.plan.pipeline_settings import Change, changes_between, keys_of
from trainyard.printing import shortened as shortened_name
from trainyard.printing import table
from trainyard.project_files import reading_also, text_or_empty
from trainyard.render.drift import Drift
from trainyard.render.limited_rendering import render_limited
from trainyard.render.rendering import Rendering
from trainyard.render.settings import as_arguments
from trainyard.settings.quantities import counted
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


def meanings(rendering: Rendering) -> Iterator[Meaning]:
    """Yield what differs in each cluster and pipeline of a rendering from the file on disk."""
    with tempfile.TemporaryDirectory(prefix="trainyard-") as temporary, reading_also(Path(temporary)):
        aside = Path(temporary).resolve()
        # The same rendering in a folder of its own, where its files refer to each other.
        profile = rendering.profile
        for path, written in render_limited(rendering.project, profile.name, profile.settings, aside).files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(written.text, encoding="utf-8")
        files = sorted(path.relative_to(rendering.root) for path in rendering.files if path.suffix == ".yaml")
        for file in (each for each in files if each.parts[0] == "compute"):
            before = keys_of(rendering.root / file) if (rendering.root / file).is_file() else []
            if changes := tuple(changes_between(before, keys_of(aside / file))):
                yield Meaning(file, changes=changes)
        for file in (each for each in files if each.parts[0] == "pipelines"):
            meaning = _of_pipeline(rendering.root, aside, file)
            if meaning.note or (meaning.difference is not None and not meaning.difference.is_empty):
                yield meaning


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


LINES = 40
_MOST_NAMED = 3
_MOST_OF_A_KIND = 5
_WIDEST_TEXT = 30
_WIDEST_LABEL = 42
_FIGURES = frozenset({"sku", "machines_at_one_time", "world_size", "accumulation_steps", "fits"})
"""What the summary has of a job's plan; the other figures are settings, or follow from them."""
_COSTS = frozenset({"on_demand_usd_per_hour", "spot_usd_per_hour"})
_BY_IMPORTANCE = [
    re.compile(pattern)
    for pattern in (
        r"machine$|size$|fits",
        r"machines at one time|max_instances|resources\.instance_count",
        r"processes|distribution\.(worker|parameter_server)_count",
        r".*batch|.*accumulation",
        r".*precision|.*float8",
        r".*deepspeed_config$|.*shard|.*offload|.*strategy",
        r"inputs\.settings$",
        r"environment(?!_variables)",
    )
]


class _Value(NamedTuple):
    """A value that changes alike wherever it changes."""

    label: str
    before: str
    after: str
    times: str = ""


def summary(rendering: Rendering, drifts: Sequence[Drift], meanings: Sequence[Meaning]) -> list[str]:
    """Return at most `LINES` lines about what a rendering changes. What changes alike in several files is one line."""
    profile = rendering.profile
    head = [
        f"{profile.name}{as_arguments(profile.settings)}, against the files on disk:",
        *_file_counts(rendering, drifts),
        *_first(f"{meaning.file} is {meaning.note}" for meaning in meanings if meaning.note),
    ]
    costs = _places(meanings, _costs)
    looks = _first(
        f"! {meaning.file.stem}, {job}: {finding}"
        for meaning in meanings
        for job, finding in (meaning.difference.new_findings if meaning.difference is not None else ())
    )
    values = _places(meanings, _values)
    kinds = {
        value: [kind for kind, pattern in enumerate(_BY_IMPORTANCE) if pattern.match(value.label)] for value in values
    }
    by_importance = sorted(values, key=lambda value: ((kinds[value] or [len(_BY_IMPORTANCE)])[0], -len(values[value])))
    tail = [
        *_section("at one time, at most", _rows(list(costs)[:_MOST_OF_A_KIND], costs)),
        *(["", *looks] if looks else []),
        "",
    ]
    room = LINES - len(head) - len(tail) - len(("", "values", "the hint"))
    shown = by_importance[:room]
    hint = "-v shows every value of each pipeline, and the lines that change"
    if len(shown) < len(by_importance):
        hint = f"{counted(len(by_importance) - len(shown), 'more value')}: {hint}"
    return [*head, *_section("values", _rows(shown, values)), *tail, hint]


def _file_counts(rendering: Rendering, drifts: Sequence[Drift]) -> Iterator[str]:
    """Yield how many files change, are added and are removed, and which of them hold what somebody else wrote."""
    project = rendering.project
    for kind in ("changed", "added", "removed"):
        names = [project.shown(drift.path) for drift in drifts if drift.kind == kind]
        folders = Counter(name.split("/")[0] for name in names)
        where = ", ".join(f"{number} in {folder}/" for folder, number in folders.items())
        if names:
            listed = ", ".join(names) if len(names) <= _MOST_NAMED else where
            yield f"{counted(len(names), 'file')} {kind}: {listed}"
    written = {path for path, file in rendering.files.items() if text_or_empty(path) != file.text}
    if headers := written.difference(drift.path for drift in drifts):
        yield f"and the header line of {counted(len(headers), 'other file')}"
    yield from _first(f"! {project.shown(drift.path)} {drift.reason}" for drift in drifts if drift.is_foreign)


def _places(meanings: Iterable[Meaning], values_of: Callable[[Meaning], Iterator[_Value]]) -> dict[_Value, list[str]]:
    """Return the names of the pipelines and clusters in which each value changes."""
    places: dict[_Value, list[str]] = {}
    for meaning in meanings:
        for value in dict.fromkeys(values_of(meaning)):
            places.setdefault(value, []).append(meaning.file.stem)
    return places


def _values(meaning: Meaning) -> Iterator[_Value]:
    difference = meaning.difference
    for figures in difference.figures.values() if difference is not None else ():
        yield from (_of_figure(figure) for figure in figures if figure.figure.name in _FIGURES)
    for change in difference.changes if difference is not None else meaning.changes:
        yield _Value(change.key, *shortened(change))


def _costs(meaning: Meaning) -> Iterator[_Value]:
    for figure in meaning.difference.totals if meaning.difference is not None else ():
        if figure.figure.name in _COSTS:
            yield _of_figure(figure)


def _of_figure(figure: FigureChange) -> _Value:
    return _Value(figure.figure.label, *figure.texts, times(figure))


def _section(title: str, rows: Sequence[str]) -> list[str]:
    return ["", title, *rows] if rows else []


def _rows(values: Sequence[_Value], places: dict[_Value, list[str]]) -> list[str]:
    """Return a line for each value, in columns: its name, what it becomes, and where."""
    rows = []
    for value in values:
        names = places[value]
        where = ", ".join(names) if len(names) <= _MOST_NAMED else f"{names[0]} and {len(names) - 1} more"
        before, after = (shortened_name(text, _WIDEST_TEXT) for text in (value.before, value.after))
        change = f"{before} → {after}   {value.times}".rstrip()
        rows.append((shortened_name(value.label.removeprefix("inputs."), _WIDEST_LABEL), change, where))
    return table(rows, indent=2) if rows else []


def _first(lines: Iterable[str]) -> list[str]:
    """Return the first of many lines of a kind, and how many more there are."""
    every = list(lines)
    if len(every) <= _MOST_OF_A_KIND:
        return every
    return [*every[: _MOST_OF_A_KIND - 1], f"  and {len(every) - _MOST_OF_A_KIND + 1} more like these"]
