"""What the page draws besides curves: the graph of a run's jobs, their timeline, and the confusion matrix."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from trainyard.errors import UsageError
from trainyard.printing import shortened
from trainyard.report.graph_layout import BoxCentre, Edge, Layout, Spacing, lay_out
from trainyard.report.job_results import ConfusionMatrix
from trainyard.settings.quantities import counted, duration
from trainyard.settings.run_record import JobRecord, RunRecord, Status

# Beyond the first, cells are too small for their count; beyond the second, too small to distinguish.
MOST_CLASSES_WITH_COUNTS = 24
MOST_CLASSES_DRAWN = 120
_CELL_SIZES = ((12, 36.0), (MOST_CLASSES_WITH_COUNTS, 28.0), (MOST_CLASSES_DRAWN, 6.0))
"""Up to how many classes a cell has which size."""

_MOST_MISTAKES = 5

_MOST_UNFOLDED = 20
_WORST_FIRST: tuple[Status, ...] = ("failed", "running", "canceled", "waiting", "skipped", "completed")
_MARGIN = 4
_ARROW = 7


class _Boxes(NamedTuple):
    """The size of boxes, the gaps between them (in the wide drawing), and how long a name may be."""

    width: float
    height: float
    between_layers: float
    within_layer: float
    name_characters: int


_FULL = _Boxes(width=214, height=78, between_layers=64, within_layer=22, name_characters=19)
_COMPACT = _Boxes(width=0, height=46, between_layers=56, within_layer=8, name_characters=36)  # as wide as its names
_MOST_FULL_BOXES = 40
"""Of more jobs only state and name are drawn, in small boxes; the rest is in their tooltips and details."""


class JobBox(NamedTuple):
    """One job's box: its top left corner and its text; `pipeline` is the one within that it belongs to, if any."""

    job: JobRecord
    x: float
    y: float
    pipeline: str
    name: str


class Arrow(NamedTuple):
    """An SVG path, and the data that the arrow stands for."""

    path: str
    tooltip: str


class Drawing(NamedTuple):
    """A graph in units of one pixel; `direction` is `wide` (left to right) or `tall` (top to bottom).

    `captions` are in place of the states of jobs, by their names, where nothing has run.
    """

    direction: str
    width: float
    height: float
    size: _Boxes
    is_compact: bool
    boxes: tuple[JobBox, ...]
    arrows: tuple[Arrow, ...]
    captions: Mapping[str, str]


def draw_graphs(run: RunRecord, carried: dict[tuple[str, str], list[str]]) -> dict[str, tuple[Drawing, Drawing]]:
    """Draw all jobs, wide and tall; of many, first each pipeline within as one box, then the jobs of each, by its name.

    Raise `UsageError` when jobs depend on each other in a cycle.
    """
    within: dict[str, dict[str, JobRecord]] = {}
    for name, job in run.jobs.items():
        within.setdefault(name.partition(".")[0], {})[name] = job
    pipelines = {name: jobs for name, jobs in within.items() if name not in jobs}
    is_folded = pipelines and len(run.jobs) > _MOST_UNFOLDED
    parts = {"": {name: _as_one(name, jobs) for name, jobs in within.items()}} | pipelines if is_folded else {}
    drawings: dict[str, tuple[Drawing, Drawing]] = {}
    for name, jobs in {**parts, "all jobs": run.jobs}.items():
        with suppress(UsageError) if name != "all jobs" else nullcontext():  # jobs of pipelines may wait for each other
            drawings[name] = (draw_graph(jobs, carried, tall=False), draw_graph(jobs, carried, tall=True))
    return drawings


def _as_one(name: str, jobs: dict[str, JobRecord]) -> JobRecord:
    """A job itself, or one in place of a pipeline's, in the worst of their states."""
    sources = dict.fromkeys(source.partition(".")[0] for job in jobs.values() for source in job.depends_on)
    depends_on = [source for source in sources if source != name]
    if name in jobs:
        return replace(jobs[name], depends_on=depends_on)
    status = min((job.status for job in jobs.values()), key=_WORST_FIRST.index)
    return JobRecord(name, status, depends_on=depends_on, nodes=0, world_size=len(jobs))


def draw_graph(
    jobs: Mapping[str, JobRecord],
    carried: Mapping[tuple[str, str], list[str]],
    *,
    tall: bool,
    captions: Mapping[str, str] = MappingProxyType({}),
) -> Drawing:
    """Draw the jobs of a run or a plan from left to right, or (`tall`) from top to bottom for narrow screens.

    `carried` lists the data that goes from one job to another. Raise `UsageError` when jobs depend on each other in a
    cycle.
    """
    depends_on = {name: [source for source in job.depends_on if source in jobs] for name, job in jobs.items()}
    boxes = _FULL
    if len(jobs) > _MOST_FULL_BOXES:
        longest = max(len(part) for job in jobs.values() for part in _names(job))
        boxes = _COMPACT._replace(width=44 + 7.6 * min(longest, _COMPACT.name_characters))
    spacing = (
        Spacing(boxes.height, boxes.width, gap_between_layers=40, gap_within_layer=18)
        if tall
        else Spacing(boxes.width, boxes.height, boxes.between_layers, boxes.within_layer)
    )
    try:
        layout = lay_out(depends_on, spacing)
    except ValueError as error:
        raise UsageError(f"run.json: the graph of its jobs cannot be drawn: {error}") from error
    width, height = _at(BoxCentre(layout.depth, layout.breadth), tall)
    return Drawing(
        direction="tall" if tall else "wide",
        width=round(width + _MARGIN, 1),
        height=round(height + _MARGIN, 1),
        size=boxes,
        is_compact=boxes is not _FULL,
        boxes=tuple(_box(jobs[name], boxes, layout, tall) for name in jobs),
        arrows=tuple(
            Arrow(
                path=_path(edge, spacing, tall),
                tooltip="\n".join([f"{edge.source} → {edge.target}", *carried.get((edge.source, edge.target), [])]),
            )
            for edge in layout.edges
        ),
        captions=captions,
    )


def _at(place: BoxCentre, tall: bool) -> tuple[float, float]:
    along, across = place.depth + _MARGIN, place.breadth + _MARGIN
    return (across, along) if tall else (along, across)


def _box(job: JobRecord, boxes: _Boxes, layout: Layout, tall: bool) -> JobBox:
    x, y = _at(layout.places[job.name], tall)
    pipeline, name = ("", job.title) if boxes is _FULL else _names(job)
    most = boxes.name_characters
    left, top = round(x - boxes.width / 2, 1), round(y - boxes.height / 2, 1)
    return JobBox(job, left, top, shortened(pipeline, most), shortened(name, most))


def _names(job: JobRecord) -> tuple[str, str]:
    """The pipeline within that a job belongs to, and the job's title there."""
    pipeline, _, name = job.name.rpartition(".")
    return pipeline, job.display_name or name


def process_counts(job: JobRecord) -> str:
    """Return `2 processes`, `2 nodes × 8 = 16 processes`, or `3 processes on 2 nodes` that do not have equally many."""
    processes = counted(job.processes, "process")
    if job.nodes <= 1:
        return processes if job.nodes else counted(job.processes, "job")
    nodes = counted(job.nodes, "node")
    is_even = job.nodes * job.processes_per_node == job.processes
    return f"{nodes} × {job.processes_per_node} = {processes}" if is_even else f"{processes} on {nodes}"


def _path(edge: Edge, spacing: Spacing, tall: bool) -> str:
    """Return the path from the source's edge to the target's: straight past a layer, smooth between layers."""
    half = spacing.box_depth / 2
    here = BoxCentre(edge.through[0].depth + half, edge.through[0].breadth)
    parts = [f"M{_point(here, tall)}"]
    for stop, place in enumerate(edge.through[1:], start=1):
        is_last = stop == len(edge.through) - 1
        there = BoxCentre(place.depth - half - (_ARROW if is_last else 0), place.breadth)
        middle = (here.depth + there.depth) / 2
        controls = f"{_point(BoxCentre(middle, here.breadth), tall)} {_point(BoxCentre(middle, there.breadth), tall)}"
        parts.append(f"C{controls} {_point(there, tall)}")
        here = BoxCentre(place.depth + half, place.breadth)
        if not is_last:
            parts.append(f"L{_point(here, tall)}")
    return " ".join(parts)


def _point(place: BoxCentre, tall: bool) -> str:
    x, y = _at(place, tall)
    return f"{x:.1f},{y:.1f}"


class Bar(NamedTuple):
    """One attempt: its start and its length, in percent of the timeline."""

    start: float
    length: float
    tooltip: str


class JobBars(NamedTuple):
    """One job's bars."""

    job: JobRecord
    bars: tuple[Bar, ...]


class Timeline(NamedTuple):
    """All jobs that ran, in the order of their start, over `seconds`."""

    rows: tuple[JobBars, ...]
    seconds: float


def draw_timeline(run: RunRecord) -> Timeline | None:
    """Return the timeline of a run, or None if fewer than two jobs have a known start and duration."""
    spans: dict[str, list[tuple[float, float, str, str]]] = {}
    for job in run.jobs.values():
        for number, attempt in enumerate(job.attempts, start=1):
            if attempt.started_at is not None and attempt.duration_s is not None and job.reused_from is None:
                which = f"{job.title}, attempt {number} of {len(job.attempts)}" if len(job.attempts) > 1 else job.title
                why = f"; {attempt.reason}" if attempt.reason else ""
                spans.setdefault(job.name, []).append((attempt.started_at.timestamp(), attempt.duration_s, which, why))
    if len(spans) < 2:
        return None
    origin = min(start for of_job in spans.values() for start, *_ in of_job)
    total = max(0.001, *(start + seconds - origin for of_job in spans.values() for start, seconds, *_ in of_job))

    def bar(start: float, seconds: float, which: str, why: str) -> Bar:
        tooltip = f"{which}: began after {duration(start - origin)}, took {duration(seconds)}{why}"
        return Bar(round((start - origin) / total * 100, 3), round(seconds / total * 100, 3), tooltip)

    rows = [JobBars(run.jobs[name], tuple(bar(*span) for span in of_job)) for name, of_job in spans.items()]
    return Timeline(tuple(sorted(rows, key=lambda row: row.bars[0].start)), total)


@dataclass(frozen=True)
class Cell:
    """One count; `heat` is the strength of its colour, 0…1."""

    row: int
    column: int
    heat: float
    count: int
    tooltip: str


@dataclass(frozen=True)
class Confusion:
    """How often one class was predicted as another, and the share of that class."""

    true: str
    predicted: str
    count: int
    share: float


class HeatMap:
    """The drawn matrix, in units of one pixel; its cells row by row, without empty ones where there are no counts."""

    def __init__(self, confusion: ConfusionMatrix) -> None:
        assert len(confusion.classes) <= MOST_CLASSES_DRAWN
        self.classes, number = confusion.classes, len(confusion.classes)
        self.has_counts = number <= MOST_CLASSES_WITH_COUNTS
        self.cell_size = next(size for most, size in _CELL_SIZES if number <= most)
        longest = max(len(name) for name in confusion.classes)
        is_slanted = longest > 3 and self.has_counts
        self.left = min(longest, 14) * 7 + 34 if self.has_counts else 30
        self.top = self.left if is_slanted else 46
        # The slanted names of the last columns extend beyond the matrix.
        self.width = self.left + number * self.cell_size + (self.top * 0.6 if is_slanted else 4)
        self.height = self.top + number * self.cell_size + 4
        self.cells = [
            _cell(confusion, row, column)
            for row in range(number)
            for column in range(number)
            if self.has_counts or confusion.matrix[row][column]
        ]


def most_frequent_mistakes(confusion: ConfusionMatrix) -> list[Confusion]:
    """Return the pairs of classes that are most often confused, the most frequent first."""
    mistakes = [
        Confusion(confusion.classes[row], confusion.classes[column], cell, cell / sum(cells))
        for row, cells in enumerate(confusion.matrix)
        for column, cell in enumerate(cells)
        if row != column and cell > 0
    ]
    return sorted(mistakes, key=lambda mistake: -mistake.count)[:_MOST_MISTAKES]


def _cell(confusion: ConfusionMatrix, row: int, column: int) -> Cell:
    count, total = confusion.matrix[row][column], sum(confusion.matrix[row])
    true, predicted = confusion.classes[row], confusion.classes[column]
    # The root makes a few mistakes among many samples visible.
    heat = round(math.sqrt(count / total), 3) if total else 0.0
    return Cell(row, column, heat, count, f"true {true}, predicted {predicted}: {count} of {total}")
