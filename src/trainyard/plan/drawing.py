"""A pipeline's graph in plain text: boxes with lines between them for a terminal, or Mermaid for Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from trainyard.spec.model import KEPT_IN_AZURE_ML, Pipeline
from trainyard.spec.resolution import Resolution


class _Flow(NamedTuple):
    """An output (or input) of one job that an input of another is bound to."""

    source: str
    source_port: str
    target: str
    target_port: str


def as_mermaid(pipeline: Pipeline) -> str:
    """The graph as a Mermaid flowchart, which GitHub draws in a ```mermaid block."""
    resolution = Resolution(pipeline)
    lines = ["flowchart LR"]
    for name in resolution.order(resolution.leaves):
        lines.append(f'  {_mermaid_id(name)}["<b>{name}</b><br>{_subtitle(resolution, name)}"]')
    if pipeline.reference:
        lines.append(f'  {_mermaid_id(pipeline.name)}["<b>{pipeline.name}</b><br>{KEPT_IN_AZURE_ML}"]')
    for flow in _flows(resolution):
        label = " → ".join(dict.fromkeys([flow.source_port, flow.target_port]))
        lines.append(f'  {_mermaid_id(flow.source)} -->|"{label}"| {_mermaid_id(flow.target)}')
    return "\n".join(lines)


def carried_data(pipeline: Pipeline) -> dict[tuple[str, str], list[str]]:
    """Return what goes from one job to another: `output → input` by the names of both."""
    found: dict[tuple[str, str], list[str]] = {}
    for flow in _flows(Resolution(pipeline)):
        found.setdefault((flow.source, flow.target), []).append(f"{flow.source_port} → {flow.target_port}")
    return found


def as_text(pipeline: Pipeline) -> str:
    """The graph as boxes in the order in which jobs can run, with a line from each output to those that read it.

    Every line begins at its output (`▷`) on the right of a box and ends at an input (`◁`) of a box further down.
    """
    resolution = Resolution(pipeline)
    flows = list(_flows(resolution))
    rows = list(_rows(resolution, flows))
    if pipeline.reference:
        rows = [_Row("top", ""), _Row("line", f"{pipeline.name}  {KEPT_IN_AZURE_ML}"), _Row("bottom", "")]
    width = max(len(row.text) for row in rows)
    lanes = _Lanes(rows)
    return "\n".join(_drawn(row, width) + lanes.beside(number) for number, row in enumerate(rows)).rstrip()


def _mermaid_id(job: str) -> str:
    """A job's name behind a prefix, since Mermaid has words of its own, such as `end`, and no dots in names."""
    return f"job_{job.replace('.', '__')}"


def _flows(resolution: Resolution) -> Iterator[_Flow]:
    """What goes from job to job, by target in the order in which they can run."""
    for name in resolution.order(resolution.leaves):
        for port, outputs in resolution.leaves[name].outputs_read.items():
            for output in outputs:
                if output.job in resolution.leaves:
                    yield _Flow(output.job, output.port, name, port)


def _subtitle(resolution: Resolution, name: str) -> str:
    job = resolution.leaves[name]
    if job.job.elsewhere:
        return job.job.elsewhere
    counts = job.processes()
    return f"{job.component.name} · {counts}" if job.component.name else str(counts)


class _Row(NamedTuple):
    """One line within a box or of its border; `begins` or `ends` is the lane that meets it there."""

    kind: str
    text: str
    begins: tuple[str, str] | None = None
    ends: tuple[str, str] | None = None


def _rows(resolution: Resolution, flows: list[_Flow]) -> Iterator[_Row]:
    for name in resolution.order(resolution.leaves):
        yield _Row("top", "")
        yield _Row("line", f"{name}  {_subtitle(resolution, name)}")
        for flow in flows:
            if flow.target == name:
                yield _Row("line", f"  ◁ {flow.target_port}", ends=(flow.source, flow.source_port))
        for port in dict.fromkeys(flow.source_port for flow in flows if flow.source == name):
            yield _Row("line", f"  ▷ {port}", begins=(name, port))
        yield _Row("bottom", "")


def _drawn(row: _Row, width: int) -> str:
    if row.kind == "top":
        return f"┌{'─' * (width + 2)}┐"
    if row.kind == "bottom":
        return f"└{'─' * (width + 2)}┘"
    return f"│ {row.text:<{width}} {'├' if row.begins or row.ends else '│'}"


class _Lanes:
    """The vertical lines to the right of the boxes: one for each output, in the first column that is free."""

    def __init__(self, rows: list[_Row]) -> None:
        self._rows = rows
        self._first = {row.begins: number for number, row in enumerate(rows) if row.begins}
        self._last = {row.ends: number for number, row in enumerate(rows) if row.ends}
        self._column: dict[tuple[str, str], int] = {}
        for lane, first in self._first.items():
            taken = {column for other, column in self._column.items() if self._last[other] >= first}
            self._column[lane] = next(column for column in range(len(self._first)) if column not in taken)

    def beside(self, number: int) -> str:
        """What stands right of one row: two characters for each column."""
        row = self._rows[number]
        meets = row.begins or row.ends
        reach = self._column[meets] if meets else -1
        passing = {self._column[lane] for lane, first in self._first.items() if first < number <= self._last[lane]}
        columns = max(passing | {reach}, default=-1) + 1
        return "".join(self._sign(number, column, reach, column in passing) for column in range(columns))

    def _sign(self, number: int, column: int, reach: int, is_passing: bool) -> str:
        row = self._rows[number]
        if column < reach:
            return "─┼" if is_passing else "──"
        if column == reach:
            if row.begins:
                return "─┐"
            assert row.ends is not None
            return "─┘" if self._last[row.ends] == number else "─┤"
        return " │" if is_passing else "  "
