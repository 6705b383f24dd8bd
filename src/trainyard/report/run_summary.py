"""What a run came to, in a few lines for a terminal: the headline figure, and where everything lies."""

from __future__ import annotations

import os
from pathlib import Path

from trainyard.report.job_results import read_job_results
from trainyard.report.run_record import read_run_record

Line = tuple[str, str]


def summarise(run_folder: Path) -> list[Line]:
    """Pairs of a label and a text: accuracy, report, model, confusion matrix, logs – those that there are."""
    run = read_run_record(run_folder)
    figures: list[Line] = []
    files: list[Line] = []
    for job in run.jobs.values():
        folders = {port: run_folder / path for port, path in job.outputs.items()}
        evaluation = read_job_results(folders).evaluation
        if evaluation is not None and evaluation.accuracy is not None:
            right = round(evaluation.accuracy * evaluation.samples)
            text = f"{evaluation.accuracy:.4f} ({right} of {evaluation.samples} right)"
            figures.append((f"{evaluation.split} accuracy", text))
        for folder in folders.values():
            if (folder / "model.safetensors").is_file():
                files.append(("model", shown(folder)))
            if (folder / "confusion_matrix.png").is_file():
                files.append(("confusion matrix", shown(folder / "confusion_matrix.png")))
    report = run_folder / "report.html"
    written = [("report", shown(report))] if report.is_file() else []
    return [*figures, *written, *files, ("logs", shown(run_folder / "jobs") + "/*/user_logs/")]


def shown(path: Path) -> str:
    """A path as a person would type it: relative to the working directory where it lies below it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
