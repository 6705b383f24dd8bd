"""A run as one page that needs no network, report.html, and its results in a few lines for a terminal."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import trainyard
from trainyard.errors import UsageError
from trainyard.printing import last_lines, short
from trainyard.report.curves import draw_charts, draw_tracked_charts
from trainyard.report.drawings import (
    MOST_CLASSES_DRAWN,
    HeatMap,
    draw_graphs,
    draw_timeline,
    most_frequent_mistakes,
)
from trainyard.report.job_results import (
    Evaluation,
    JobResults,
    Metrics,
    Tracked,
    read_job_results,
    read_tracked,
)
from trainyard.report.machine_use import machine_uses
from trainyard.report.page_templates import page_templates
from trainyard.report.speed import Figure, speed_figures
from trainyard.report.sweeps import SweepView
from trainyard.settings import quantities
from trainyard.settings.files import replace_text
from trainyard.settings.run_record import InvalidRunRecord, JobRecord, RunRecord, read_run_record
from trainyard.spec.secrets import redacted

_MAIN_FIGURES = ("accuracy", "perplexity", "loss")

LINE_CHARACTERS = 120
"""What the page shows of a job's last line."""

LONG_SILENCE_SECONDS = 300
"""A job that has said nothing for so long stands out."""

_LOG_LINES, _LOG_LINE_CHARACTERS = 30, 300
_MOST_LOGS = 64
"""Of a run with more logs, those of the jobs that did not complete come first; the others are linked only."""

_EXPORT = "export_model"
"""The component whose files are the trained model once more, for other programs."""
_NAMED_FILES = (
    ("model.safetensors", "model", ""),
    ("confusion_matrix.png", "confusion matrix", "confusion_matrix.png"),
    ("autotune.json", "fastest settings", "profile.yaml"),
)
"""What an output is known by, what that is called, and the path that is named."""
_MINI_BATCHES, _LINES_SEARCHED = re.compile(r"\d{1,12} of \d{1,12} mini-batch(es)?, "), 400
_LONGEST_SAMPLE = 96
"""How many characters of generated text fit on a line of a terminal, beside its label."""


class Input(NamedTuple):
    """An input of a job: its value, and the `job.port` that wrote it if another job did."""

    name: str
    value: str
    origin: str


class JobView:
    """A job on the page: its record, its results, and the drawings of these."""

    def __init__(self, job: JobRecord, origins: dict[str, str], run_folder: Path) -> None:
        self.record = job
        self.results = results = read_job_results(job.output_folders(run_folder))
        self.inputs = [_input(name, value, origins, run_folder) for name, value in job.inputs.items()]
        self.charts = draw_charts(results.metrics) if results.metrics else []
        self.speed = list(speed_figures(results.metrics)) if results.metrics else []
        self.figures = evaluation_figures(results.evaluation) if results.evaluation else []
        confusion = results.confusion_matrix
        self.heat_map = HeatMap(confusion) if confusion and len(confusion.classes) <= MOST_CLASSES_DRAWN else None
        self.mistakes = most_frequent_mistakes(confusion) if confusion else []
        self.sweep = SweepView(job) if job.trials else None
        logs = job.log_files(run_folder).values() if job.processes == 1 else ()
        said = [line for log in logs for line in last_lines(log, _LINES_SEARCHED) if _MINI_BATCHES.match(line)]
        self.mini_batches = said[-1] if said else ""  # how far a parallel job's program is
        self.tracked = _tracked(job, results, run_folder)
        self.tracked_charts = draw_tracked_charts(self.tracked.metrics) if self.tracked else []


class Headline(NamedTuple):
    """The main figure of the run."""

    label: str
    value: str
    detail: str


class RunningJob(NamedTuple):
    """A job that runs: when its attempt began, when any of its ranks last said something, and the last line."""

    name: str
    attempt: int
    began: datetime | None
    said_at: datetime | None
    last_line: str
    logs: tuple[str, ...]


class LogTail(NamedTuple):
    """A log's path beneath the run folder, a title, and its last lines."""

    path: str
    title: str
    lines: tuple[str, ...]


def write_report(run_folder: Path) -> Path:
    """Write report.html into the folder of a run in any state, and return its path.

    The page is made from run.json and the jobs' outputs, and says what is missing there. The same files always give the
    same page. Raise `UsageError` when run.json is missing or invalid, `OSError` when the page cannot be written.
    """
    try:
        run = read_run_record(run_folder)
    except InvalidRunRecord as error:
        raise UsageError(str(error)) from error
    file = run_folder / "report.html"
    # It can be made again, and a busy disk takes a second to be waited for.
    replace_text(file, run_page(run, run_folder), is_durable=False)
    return file


def run_page(run: RunRecord, run_folder: Path, *, is_live: bool = False, has_index: bool = False) -> str:
    """Return the page of a run: as it is kept, or live, with a script that follows the run; with a link to an index."""
    templates = page_templates(run_folder)
    origins = {
        os.path.realpath(run_folder / path): f"{job.name}.{port}"
        for job in run.jobs.values()
        for port, path in job.outputs.items()
    }
    jobs = [JobView(job, origins, run_folder) for job in run.jobs.values()]
    logs = _log_tails(run, run_folder, with_lines=not is_live)
    carried: dict[tuple[str, str], list[str]] = {}
    for job in jobs:
        for value in job.inputs:
            source, _, port = value.origin.partition(".")
            carried.setdefault((source, job.record.name), []).append(f"{port} → {value.name}")
    page = templates.get_template("run.html.j2").render(
        run=run,
        jobs=jobs,
        headline=_headline(jobs),
        graphs=draw_graphs(run, carried) if jobs else {},
        timeline=draw_timeline(run),
        machine_uses=machine_uses(run, run_folder),
        is_live=is_live,
        has_index=has_index,
        running=running_jobs(run, run_folder) if is_live and run.status == "running" else [],
        line_characters=LINE_CHARACTERS,
        long_silence_seconds=LONG_SILENCE_SECONDS,
        logs=logs,
        version=trainyard.__version__,
    )
    return redacted(page)


def _tracked(job: JobRecord, results: JobResults, run_folder: Path) -> Tracked | None:
    """Return what a job logged with MLflow beyond what its outputs hold: our steps log the same to both.

    None where that is nothing.
    """
    folder = job.tracked_folder(run_folder)
    if folder is None:
        return None
    found = read_tracked(folder)
    known = set(results.metrics.series if results.metrics else ())
    if results.evaluation:
        known |= {f"{results.evaluation.split}_{name}" for name in results.evaluation.figures}
    parameters = {} if results.settings else found.parameters
    series = {name: points for name, points in found.metrics.series.items() if name not in known}
    if not (parameters or series or found.images or found.tags or found.tables):
        return None
    return replace(found, parameters=parameters, metrics=Metrics(series))


def _input(name: str, value: Any, origins: dict[str, str], run_folder: Path) -> Input:
    text = quantities.as_text(value)
    # A word may look like a path; only one with a folder can be another job's output.
    is_path = isinstance(value, str) and "/" in value
    return Input(name, text, origins.get(os.path.realpath(run_folder / text), "") if is_path else "")


def _headline(jobs: list[JobView]) -> Headline | None:
    """Return the main figure of the last evaluation; without one, the last figure of the last training."""
    for job in reversed(jobs):
        evaluation = job.results.evaluation
        if evaluation is not None and evaluation.figures:
            first = evaluation_figures(evaluation)[0]
            samples, tokens = evaluation.samples, evaluation.tokens
            extent = quantities.counted(samples, "sample") if tokens is None else quantities.counted(tokens, "token")
            detail = ", ".join(filter(None, (extent, first.before)))
            return Headline(f"{evaluation.split} {first.label}", first.value, detail)
    for job in reversed(jobs):
        series = job.results.metrics.series if job.results.metrics else {}
        for name in ("validation_accuracy", "validation_perplexity", "validation_loss", "loss"):
            if name in series:
                step, value = series[name][-1]
                label = "training loss" if name == "loss" else name.replace("_", " ")
                return Headline(label, quantities.figure(name, value), f"at step {quantities.count(step)}")
    return None


def running_jobs(run: RunRecord, run_folder: Path) -> list[RunningJob]:
    """Return the jobs that run, in the order of the pipeline; times are UTC."""
    found = []
    for job in run.jobs.values():
        if job.status != "running":
            continue
        began = job.attempts[-1].started_at if job.attempts else None
        files = job.log_files(run_folder)
        written = {file: file.stat() for file in files.values()}
        spoken = {file: status.st_mtime for file, status in written.items() if status.st_size}
        latest = max(spoken, key=lambda file: spoken[file], default=None)
        lines = last_lines(latest, 1) if latest else []
        found.append(
            RunningJob(
                job.name,
                max(1, len(job.attempts)),
                began,
                datetime.fromtimestamp(spoken[latest], timezone.utc) if latest else began,
                lines[0][:LINE_CHARACTERS] if lines else "",
                tuple(job.logs),
            )
        )
    return found


def _log_tails(run: RunRecord, run_folder: Path, *, with_lines: bool) -> dict[str, list[LogTail]]:
    """Return the logs by job: the last lines of at most 64, or all without lines, for a page that fills them in."""
    jobs = sorted(run.jobs.values(), key=lambda job: job.status == "completed")
    left = _MOST_LOGS if with_lines else sum(len(job.logs) for job in jobs)
    tails: dict[str, list[LogTail]] = {}
    for job in jobs:
        shown = job.logs[:left]
        left -= len(shown)
        files = job.log_files(run_folder) if with_lines else {}
        titles = [f"Log of rank {rank}" for rank in range(len(shown))] if len(job.logs) > 1 else ["Log"]
        lines = {path: last_lines(file, _LOG_LINES) for path, file in files.items() if path in shown}
        tails[job.name] = [
            LogTail(path, title, tuple(line[:_LOG_LINE_CHARACTERS] for line in lines.get(path, ())))
            for path, title in zip(shown, titles, strict=False)
        ]
    return tails


def evaluation_figures(evaluation: Evaluation) -> list[Figure]:
    """Return what an evaluation measured, the figure that people look for first."""
    found = evaluation.figures
    names = [name for name in _MAIN_FIGURES if name in found]
    names += [name for name in found if name not in _MAIN_FIGURES]
    before = {
        name: f"{evaluation.compared_with}: {quantities.figure(name, value)}"
        for name, value in evaluation.before.items()
    }
    return [
        Figure(name.replace("_", " "), quantities.figure(name, found[name]), before.get(name, "")) for name in names
    ]


def summarise(run: RunRecord) -> list[tuple[str, str]]:
    """Return pairs of a label and its text, as far as they exist: figures of evaluations, attempts, files.

    The files are models and confusion matrices; of a run without these, the outputs of the pipeline.
    """
    figures: list[tuple[str, str]] = []
    files: list[tuple[str, str]] = []
    for job in run.jobs.values():
        folders = job.output_folders(run.folder)
        results = read_job_results(folders)
        if results.evaluation is not None:
            figures += _evaluation_lines(results.evaluation)
        if results.speeds:
            slowest, fastest = (f"{quantities.number(results.speeds[which])} samples/s" for which in (0, -1))
            figures.append(("fastest", f"{fastest} (the slowest that fits: {slowest})"))
        for folder in folders.values():
            for mark, label, shown in _NAMED_FILES:
                if (folder / mark).is_file():
                    is_export = label == "model" and job.component == _EXPORT
                    files.append(("export" if is_export else label, str(short(folder / shown))))
    if not files:
        files = [("output", f"{name}: {short(run.folder / path)}") for name, path in run.outputs.items()]
    report = run.folder / "report.html"
    written = [("report", str(short(report)))] if report.is_file() else []
    return [*figures, *_restarts(run), *written, *files, ("logs", f"{short(run.folder / 'jobs')}/*/user_logs/")]


def _restarts(run: RunRecord) -> Iterator[tuple[str, str]]:
    for name, job in run.jobs.items():
        if len(job.attempts) < 2:
            continue
        repeated = [attempt.repeated_steps for attempt in job.attempts if attempt.repeated_steps is not None]
        lost = [attempt.lost_s for attempt in job.attempts if attempt.lost_s is not None]
        costs = [f"{sum(repeated)} steps repeated"] if repeated else []
        costs += [f"{quantities.duration(sum(lost))} until it was where it had been"] if lost else []
        yield "attempts", f"{name}: {len(job.attempts)}" + (f"; {', '.join(costs)}" if costs else "")


def _evaluation_lines(evaluation: Evaluation) -> Iterator[tuple[str, str]]:
    figures, split = evaluation.figures, evaluation.split
    shown = evaluation_figures(evaluation)
    before = f"; {shown[0].before}" if shown and shown[0].before else ""
    if "accuracy" in figures:
        right = round(figures["accuracy"] * evaluation.samples)
        yield f"{split} accuracy", f"{figures['accuracy']:.4f} ({right} of {evaluation.samples} correct{before})"
    elif "perplexity" in figures:
        bits = f"{figures['bits_per_byte']:.3f} bits per byte" if "bits_per_byte" in figures else ""
        detail = (bits + before).removeprefix("; ")
        yield f"{split} perplexity", f"{figures['perplexity']:.2f}" + (f" ({detail})" if detail else "")
    elif figures:
        texts = (f"{each.label} {each.value}" + (f" ({each.before})" if each.before else "") for each in shown)
        yield split, ", ".join(texts)
    if evaluation.generated is not None:
        printable = "".join(c if c.isprintable() else " " for c in evaluation.generated.continuation)
        yield "it writes", "…" + quantities.cut(" ".join(printable.split()), _LONGEST_SAMPLE + 1)
