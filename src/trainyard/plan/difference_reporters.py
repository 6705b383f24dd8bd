"""The difference between two plans as text, as Markdown for a pull request, as JSON, and as rows for a page."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from typing import Any

from trainyard import printing
from trainyard.errors import UsageError
from trainyard.plan import markdown
from trainyard.plan.difference import FigureChange, PlanDifference
from trainyard.plan.job_plans import JobPlan, UnplannedJob
from trainyard.plan.pipeline_settings import Change
from trainyard.settings.quantities import duration, number
from trainyard.spec.secrets import redacted

FORMAT = "trainyard.plan_difference/1"

NOTHING = "no figure and no setting changes"
_LONGEST = 60
_PLAN_COLUMNS = ("Job", "", "Before", "After", "")
_SETTING_COLUMNS = ("Setting", "Before", "After", "Where")


def as_text(found: PlanDifference) -> str:
    """Return the difference as indented lines: figures by job, then settings."""
    lines = [f"{found.after.pipeline}   {found.after.file}, against {found.against}"]
    if found.is_empty:
        return "\n".join([*lines, f"  {NOTHING}"])
    lines += [f"  job {job.name}   {text}" for job, text in _jobs(found)]
    for title, figures in _sections(found):
        rows = [_figure_row(figure) for figure in figures]
        arrows = [(label, f"{before} → {after}   {ratio}".rstrip()) for label, before, after, ratio in rows]
        lines += [f"  {title}", *printing.table(arrows, indent=4)]
    if found.changes:
        lines += ["  settings", *settings_as_text(found.changes, 4)]
    lines += [f"  ! new: {job}: {finding}" for job, finding in found.new_findings]
    lines += [f"  solved: {job}: {finding}" for job, finding in found.solved_findings]
    return "\n".join(lines)


def settings_as_text(changes: Sequence[Change], indent: int = 2) -> list[str]:
    """Return a line for each setting that differs."""
    rows = [(_name(change), " → ".join(shortened(change))) for change in changes]
    return printing.table(rows, indent=indent)


def as_markdown(found: PlanDifference) -> str:
    """Return the difference as tables, as a comment on a pull request shows it."""
    title = f"### What changes in {markdown.code(found.after.file)}, against {markdown.prose(found.against)}"
    if found.is_empty:
        return f"{title}\n\n{NOTHING.capitalize()}."
    figures = [(title, *_figure_row(figure)) for title, changes in _sections(found) for figure in changes]
    # As text, underscores and asterisks of values would be read as emphasis.
    rows = map(_setting_row, found.changes)
    settings = [tuple(cell if cell in ("", "–") else markdown.code(cell) for cell in cells) for cells in rows]
    blocks = [
        [f"- job {markdown.code(job.name)}: {markdown.prose(text)}" for job, text in _jobs(found)],
        markdown.table(_PLAN_COLUMNS, figures) if figures else [],
        markdown.table(_SETTING_COLUMNS, settings) if settings else [],
    ]
    for heading, findings in (("To look at, new:", found.new_findings), ("Solved:", found.solved_findings)):
        if findings:
            blocks += [[heading], markdown.findings(findings)]
    return "\n\n".join([title, *("\n".join(block) for block in blocks if block)])


def as_json(found: PlanDifference) -> str:
    """Return the difference as one JSON object of the format trainyard.plan_difference/1."""
    document = {
        "format": FORMAT,
        "pipeline": found.after.pipeline,
        "file": found.after.file,
        "against": found.against,
        "jobs_added": [job.name for job in found.added],
        "jobs_removed": [job.name for job in found.removed],
        "figures": {job: _figures_as_json(figures) for job, figures in found.figures.items()},
        "at_one_time": _figures_as_json(found.totals),
        "whole_run": _figures_as_json(found.run_totals),
        "settings": [_setting_as_json(change) for change in found.changes],
        "findings": {
            "new": [{"job": job, "message": finding} for job, finding in found.new_findings],
            "solved": [{"job": job, "message": finding} for job, finding in found.solved_findings],
        },
    }
    return printing.json_text(document)


def _figures_as_json(figures: Sequence[FigureChange]) -> dict[str, Any]:
    return {figure.figure.name: {"before": figure.before, "after": figure.after} for figure in figures}


def rows_of(found: PlanDifference) -> dict[str, Any]:
    """Return what a page of the difference shows: the jobs that are new or gone, the figures by section, settings."""
    sections = [(name, [_figure_row(figure) for figure in figures]) for name, figures in _sections(found)]
    return {"jobs": _jobs(found), "sections": sections, "settings": list(map(_setting_row, found.changes))}


FORMATTERS: dict[str, Callable[[PlanDifference], str]] = {"text": as_text, "markdown": as_markdown, "json": as_json}


def several(found: Sequence[PlanDifference], against: str, output_format: str, broken: Sequence[str] = ()) -> str:
    """Return the differences of several pipelines one after another, as JSON in a list. UsageError for html.

    Text and Markdown begin with a line for each pipeline in `broken`, which says why it can no longer be planned.
    """
    if output_format == "html":
        raise UsageError("--format html takes one FILE")
    texts = [FORMATTERS[output_format](each) for each in found]
    if output_format == "json":
        return printing.json_text([json.loads(text) for text in texts])
    mark, prose = ("- ", markdown.prose) if output_format == "markdown" else ("", str)
    lines = [f"{mark}can no longer be planned: {prose(each)}" for each in broken]
    blocks = ["\n".join(lines), *texts] if lines else texts
    return "\n\n".join(blocks) or f"against {against}: {NOTHING} in any pipeline"


def _sections(found: PlanDifference) -> list[tuple[str, Sequence[FigureChange]]]:
    sections: list[tuple[str, Sequence[FigureChange]]] = list(found.figures.items())
    sections += [("at one time, at most", found.totals), ("a whole run", found.run_totals)]
    return [(title, figures) for title, figures in sections if figures]


def _jobs(found: PlanDifference) -> list[tuple[JobPlan | UnplannedJob, str]]:
    changes = (("new", found.added), ("removed", found.removed))
    return [(job, f"{what}: {_summary(job)}") for what, jobs in changes for job in jobs]


def _summary(job: JobPlan | UnplannedJob) -> str:
    """Return what a job takes, in a line."""
    if isinstance(job, UnplannedJob):
        return ", ".join(part for part in (job.component, job.reason) if part)
    machine = f"{job.kind.machines} × {job.sku.name}" if job.sku else "machine not known"
    parts = [machine, str(job.processes)]
    if job.on_demand is not None:
        parts.append(f"${job.on_demand.usd_per_hour:,.2f} an hour")
    if job.step_seconds is not None:
        parts.append(f"{duration(job.step_seconds)} a step")
    return ", ".join(parts)


def times(figure: FigureChange) -> str:
    """Return `+25 %`, or `× 4` from twice as much on; nothing where there is nothing to compare."""
    ratio = figure.ratio
    if ratio is None:
        return ""
    if ratio >= 2:
        return f"× {number(float(f'{ratio:.3g}'))}"
    return f"{ratio - 1:+.0%}".replace("%", " %")


def _figure_row(figure: FigureChange) -> tuple[str, str, str, str]:
    return figure.figure.label, *figure.texts, times(figure)


def _setting_row(change: Change) -> tuple[str, str, str, str]:
    place = f"{os.path.relpath(change.place.file)}:{change.place.line}" if change.place else ""
    return _name(change), *shortened(change), place


def _setting_as_json(change: Change) -> dict[str, Any]:
    before, after = _redacted(change)
    return {
        "key": change.key,
        "jobs": list(change.jobs),
        "before": before,
        "after": after,
        "file": os.path.relpath(change.place.file) if change.place else None,
        "line": change.place.line if change.place else None,
    }


def _name(change: Change) -> str:
    """Return `inputs.epochs (train)`: the key, and the jobs that take it."""
    return f"{change.key} ({', '.join(change.jobs)})" if change.jobs else change.key


def shortened(change: Change) -> tuple[str, str]:
    """Return both values of a setting, without secrets; of long ones only the words that differ."""
    before, after = _redacted(change)
    if before is None or after is None:
        return _cut(before), _cut(after)
    if max(len(before), len(after)) <= _LONGEST:
        return before, after
    old, new = before.split(), after.split()
    opcodes = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    removed = [" ".join(old[start:end]) for kind, start, end, _, _ in opcodes if kind != "equal"]
    added = [" ".join(new[start:end]) for kind, _, _, start, end in opcodes if kind != "equal"]
    return _cut(" … ".join(filter(None, removed)) or None), _cut(" … ".join(filter(None, added)) or None)


def _redacted(change: Change) -> tuple[str | None, str | None]:
    """Return both values without secrets: a comment on a pull request is read by more people than its files."""
    before, after = (None if text is None else redacted(text, change.key) for text in (change.before, change.after))
    return before, after


def _cut(text: str | None) -> str:
    if text is None:
        return "–"
    return text if len(text) <= 3 * _LONGEST else f"{text[: 3 * _LONGEST]}…"
