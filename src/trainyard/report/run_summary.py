"""The results of a run in a few lines for a terminal: the main figure, and where the files are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trainyard import printing
from trainyard.report.job_results import Evaluation, read_job_results
from trainyard.report.run_report import evaluation_figures
from trainyard.settings.quantities import duration
from trainyard.settings.run_record import RunRecord

Line = tuple[str, str]

_EXPORT = "export_model"
"""The component whose files are the trained model once more, for other programs."""
_LONGEST_SAMPLE = 96
"""How many characters of generated text fit on a line of a terminal, beside its label."""


def summarise(run: RunRecord) -> list[Line]:
    """Return pairs of a label and a text, as far as they exist: figures of evaluations, attempts, files.

    The files are models and confusion matrices; of a run without these, the outputs of the pipeline.
    """
    figures: list[Line] = []
    files: list[Line] = []
    for job in run.jobs.values():
        folders = job.output_folders(run.folder)
        evaluation = read_job_results(folders).evaluation
        if evaluation is not None:
            figures += _figures(evaluation)
        for folder in folders.values():
            if (folder / "model.safetensors").is_file():
                files.append(("export" if job.component == _EXPORT else "model", _short(folder)))
            if (folder / "confusion_matrix.png").is_file():
                files.append(("confusion matrix", _short(folder / "confusion_matrix.png")))
            if (folder / "autotune.json").is_file():
                files.append(("fastest settings", _short(folder / "profile.yaml")))
    if not files:
        files = [("output", f"{name}: {_short(run.folder / path)}") for name, path in run.outputs.items()]
    report = run.folder / "report.html"
    written = [("report", _short(report))] if report.is_file() else []
    return [*figures, *_restarts(run), *written, *files, ("logs", _short(run.folder / "jobs") + "/*/user_logs/")]


def _restarts(run: RunRecord) -> Iterator[Line]:
    for name, job in run.jobs.items():
        if len(job.attempts) < 2:
            continue
        repeated = [attempt.repeated_steps for attempt in job.attempts if attempt.repeated_steps is not None]
        lost = [attempt.lost_s for attempt in job.attempts if attempt.lost_s is not None]
        costs = [f"{sum(repeated)} steps repeated"] if repeated else []
        costs += [f"{duration(sum(lost))} until it was where it had been"] if lost else []
        yield "attempts", f"{name}: {len(job.attempts)}" + (f"; {', '.join(costs)}" if costs else "")


def _figures(evaluation: Evaluation) -> Iterator[Line]:
    figures, split = evaluation.figures, evaluation.split
    if "accuracy" in figures:
        right = round(figures["accuracy"] * evaluation.samples)
        yield f"{split} accuracy", f"{figures['accuracy']:.4f} ({right} of {evaluation.samples} correct)"
    elif "perplexity" in figures:
        bits = f" ({figures['bits_per_byte']:.3f} bits per byte)" if "bits_per_byte" in figures else ""
        yield f"{split} perplexity", f"{figures['perplexity']:.2f}{bits}"
    elif figures:
        yield split, ", ".join(f"{figure.label} {figure.value}" for figure in evaluation_figures(evaluation))
    if evaluation.generated is not None:
        yield "it writes", "…" + _on_one_line(evaluation.generated.continuation)


def _on_one_line(text: str) -> str:
    """Return the beginning of a text, printable and short enough for a terminal."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= _LONGEST_SAMPLE else line[:_LONGEST_SAMPLE] + "…"


def _short(path: Path) -> str:
    return str(printing.short(path))
