"""The graph of a run's jobs as shapes: boxes with their state, and arrows between them."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.errors import UsageError
from trainyard.report.graph_layout import BoxCentre, Edge, Layout, Spacing, lay_out
from trainyard.settings.quantities import counted, duration
from trainyard.settings.run_record import JobRecord, RunRecord

_MARGIN = 4
_ARROW = 7


@dataclass(frozen=True)
class _Boxes:
    """The size of boxes, the gaps between them (in the wide drawing), and how long a name may be."""

    width: float
    height: float
    between_layers: float
    within_layer: float
    name_characters: int


_FULL = _Boxes(width=214, height=78, between_layers=64, within_layer=22, name_characters=21)
_COMPACT = _Boxes(width=176, height=34, between_layers=56, within_layer=8, name_characters=18)
_MOST_FULL_BOXES = 40
"""Of more jobs only state and name are drawn, in small boxes; the rest is in their tooltips and details."""


@dataclass(frozen=True)
class JobBox:
    """One job's box: its top left corner and its text."""

    job: JobRecord
    x: float
    y: float
    name: str
    state_line: str
    process_line: str
    tooltip: str


@dataclass(frozen=True)
class Arrow:
    """An SVG path, and the data that the arrow stands for."""

    path: str
    tooltip: str


@dataclass(frozen=True)
class Drawing:
    """A graph in units of one pixel; `direction` is `wide` (left to right) or `tall` (top to bottom)."""

    direction: str
    width: float
    height: float
    box_width: float
    box_height: float
    is_compact: bool
    boxes: tuple[JobBox, ...]
    arrows: tuple[Arrow, ...]


def draw_graph(run: RunRecord, carried: dict[tuple[str, str], list[str]], *, tall: bool) -> Drawing:
    """Draw the jobs of a run from left to right, or (`tall`) from top to bottom for narrow screens.

    `carried` lists the data that goes from one job to another. Raise `UsageError` when jobs depend on each other in a
    cycle.
    """
    depends_on = {name: [source for source in job.depends_on if source in run.jobs] for name, job in run.jobs.items()}
    boxes = _FULL if len(run.jobs) <= _MOST_FULL_BOXES else _COMPACT
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
        box_width=boxes.width,
        box_height=boxes.height,
        is_compact=boxes is _COMPACT,
        boxes=tuple(_box(run.jobs[name], boxes, layout, tall) for name in run.jobs),
        arrows=tuple(
            Arrow(_path(edge, spacing, tall), _tooltip(edge, carried.get((edge.source, edge.target), [])))
            for edge in layout.edges
        ),
    )


def _at(place: BoxCentre, tall: bool) -> tuple[float, float]:
    along, across = place.depth + _MARGIN, place.breadth + _MARGIN
    return (across, along) if tall else (along, across)


def _box(job: JobRecord, boxes: _Boxes, layout: Layout, tall: bool) -> JobBox:
    x, y = _at(layout.places[job.name], tall)
    state_line = job.state if job.duration_s is None else f"{job.state} · {duration(job.duration_s)}"
    if job.state == "reused":
        state_line = "reused, not run again"
    return JobBox(
        job=job,
        x=round(x - boxes.width / 2, 1),
        y=round(y - boxes.height / 2, 1),
        name=_shortened(job.name, boxes.name_characters),
        state_line=state_line,
        process_line=process_counts(job),
        tooltip="\n".join(filter(None, [job.name, job.component, state_line, process_counts(job), job.reason])),
    )


def process_counts(job: JobRecord) -> str:
    """Return `2 processes`, `2 nodes × 8 = 16 processes`, or `3 processes on 2 nodes` that do not have equally many."""
    processes = counted(job.processes, "process")
    if job.nodes == 1:
        return processes
    nodes = counted(job.nodes, "node")
    is_even = job.nodes * job.processes_per_node == job.processes
    return f"{nodes} × {job.processes_per_node} = {processes}" if is_even else f"{processes} on {nodes}"


def _shortened(name: str, most: int) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


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


def _tooltip(edge: Edge, carried: list[str]) -> str:
    return "\n".join([f"{edge.source} → {edge.target}", *carried])
