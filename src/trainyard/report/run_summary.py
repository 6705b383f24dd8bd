"""What a run came to, in a few lines for a terminal: the headline figure, and where everything lies."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from trainyard.report.job_results import Evaluation, read_job_results
from trainyard.report.run_record import read_run_record

Line = tuple[str, str]

_LONGEST_SAMPLE = 96
"""Characters of generated text that are shown: one line of a terminal, beside its label."""


def summarise(run_folder: Path) -> list[Line]:
    """Pairs of a label and a text: accuracy or perplexity, report, model, confusion matrix, logs – what there is."""
    run = read_run_record(run_folder)
    figures: list[Line] = []
    files: list[Line] = []
    for job in run.jobs.values():
        folders = {port: run_folder / path for port, path in job.outputs.items()}
        evaluation = read_job_results(folders).evaluation
        if evaluation is not None:
            figures += _figures(evaluation)
        for folder in folders.values():
            if (folder / "model.safetensors").is_file():
                files.append(("model", shown(folder)))
            if (folder / "confusion_matrix.png").is_file():
                files.append(("confusion matrix", shown(folder / "confusion_matrix.png")))
    report = run_folder / "report.html"
    written = [("report", shown(report))] if report.is_file() else []
    return [*figures, *written, *files, ("logs", shown(run_folder / "jobs") + "/*/user_logs/")]


def _figures(evaluation: Evaluation) -> Iterator[Line]:
    if evaluation.accuracy is not None:
        right = round(evaluation.accuracy * evaluation.samples)
        text = f"{evaluation.accuracy:.4f} ({right} of {evaluation.samples} right)"
        yield f"{evaluation.split} accuracy", text
    if evaluation.perplexity is not None:
        bits = f" ({evaluation.bits_per_byte:.3f} bits per byte)" if evaluation.bits_per_byte is not None else ""
        yield f"{evaluation.split} perplexity", f"{evaluation.perplexity:.2f}{bits}"
    if evaluation.generated is not None:
        yield "it writes", "…" + _on_one_line(evaluation.generated.continuation)


def _on_one_line(text: str) -> str:
    """The beginning of a text, printable and short enough for a terminal."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= _LONGEST_SAMPLE else line[:_LONGEST_SAMPLE] + "…"


def shown(path: Path) -> str:
    """A path as a person would type it: relative to the working directory where it lies below it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
