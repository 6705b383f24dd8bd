"""All trials of a search side by side; the fastest one's settings as keys of a profile and as DeepSpeed's file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainyard.settings.quantities import as_text
from trainyard.settings.steps.measurements import CompareConfigs
from trainyard.settings.written_settings import read_candidate
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.files import require_writable, write_json
from trainyard.steps.runtime.pictures import BLUE, INK, SOFT, new_figure, quiet_frame
from trainyard.steps.training.observing.mlflow_log import MlflowLog, experiment_id, open_client
from trainyard.steps.tuning.measurement import CONFIG_FILE, METRIC, MeasuredCandidate, Study, read_measurement

_MOST_TRIALS = 1000
_FORMAT = "trainyard.autotune/1"
PICTURE_FILE = "autotune.svg"
_OTHERS = "#9db7d5"
"""The colour of all candidates but the fastest."""
_GIB = 2**30


def compare(settings: CompareConfigs) -> int:
    """Write profile.yaml, deepspeed.json, autotune.json and autotune.svg. Return the exit code."""
    require_writable([settings.winner], 0)
    study, fastest = read_measurement(settings.fastest)
    if not fastest.fits:
        raise StepError(
            f"every candidate ran out of memory, also {fastest.candidate}; use more GPUs, shorter sequences or a "
            "smaller model"
        )
    others = list(_other_trials(study, fastest))
    measurements = [fastest, *sorted(others, key=lambda each: -each.samples_per_second)]
    candidate = fastest.candidate
    keys = {
        "config": candidate.config,
        "micro_batch_size": candidate.micro_batch_size,
        "accumulation_steps": study.global_batch_size // (candidate.micro_batch_size * study.world_size),
        "activation_checkpointing": candidate.activation_checkpointing,
    }
    lines = "".join(f"    {key}: {as_text(value)}\n" for key, value in keys.items())
    (settings.winner / "profile.yaml").write_text(
        f"# The fastest of {len(measurements)} candidates on {study.world_size} x {study.device}:\n"
        f"# {fastest.samples_per_second:.4g} samples a second. To use it: trainyard render PROFILE --apply THIS_FILE\n"
        f"pipelines:\n  {settings.pipeline}:\n{lines}",
        encoding="utf-8",
    )
    shutil.copyfile(settings.fastest / CONFIG_FILE, settings.winner / CONFIG_FILE)
    document = {"format": _FORMAT, "study": asdict(study), "trials": [asdict(each) for each in measurements]}
    write_json(settings.winner / "autotune.json", document)
    draw_measurements(study, measurements, settings.winner / PICTURE_FILE)
    log = MlflowLog()
    log.artifact(settings.winner / PICTURE_FILE)
    log.close()
    for measurement in measurements:
        figure = f"{measurement.samples_per_second:.4g} samples/s" if measurement.fits else "out of memory"
        print(f"{measurement.candidate}: {figure}")
    print(f"fastest: {fastest.candidate}; {settings.winner / 'profile.yaml'}", flush=True)
    return 0


def _other_trials(study: Study, fastest: MeasuredCandidate) -> Iterator[MeasuredCandidate]:
    """Yield what MLflow knows of the study's other candidates, of each the newest trial."""
    if not os.environ.get("MLFLOW_TRACKING_URI"):
        print("warning: no MLFLOW_TRACKING_URI, so that only the fastest trial is known", flush=True)
        return
    seen = {fastest.candidate}
    client, _ = open_client()
    runs: Sequence[Any] = client.search_runs(
        [experiment_id(client)],
        filter_string=f"params.study = '{study.digest}'",
        order_by=["attributes.start_time DESC"],
        max_results=_MOST_TRIALS,
    )
    for run in runs:
        candidate = read_candidate(run.data.params["candidate"])
        if candidate in seen:
            continue
        seen.add(candidate)
        figures = run.data.metrics
        if METRIC not in figures:
            print(f"warning: {candidate}: its trial ended without a measurement; see its log", flush=True)
            continue
        peak = figures.get("peak_memory_bytes")
        yield MeasuredCandidate(
            candidate, figures[METRIC], figures.get("step_seconds"), None if peak is None else round(peak)
        )


def draw_measurements(study: Study, measurements: Sequence[MeasuredCandidate], file: Path) -> None:
    """Write an SVG; the first measurement is the fastest, and equal measurements give equal bytes."""
    title = f"DeepSpeed on {study.world_size} x {study.device}, {study.global_batch_size} samples a step"
    figure = new_figure(9, 1.4 + 0.34 * len(measurements), title)
    axes = figure.subplots()
    rows = range(len(measurements))
    rates = [each.samples_per_second for each in measurements]
    axes.barh(rows, rates, color=[BLUE, *[_OTHERS] * (len(rates) - 1)], height=0.66)
    for row, each in zip(rows, measurements, strict=True):
        axes.text(each.samples_per_second, row, f"  {_label(each)}", va="center", fontsize=8.5, color=SOFT)
    axes.set_yticks(rows, [_name(each) for each in measurements], fontsize=9, color=INK)
    axes.invert_yaxis()
    axes.set_xlim(0, max(rates) * 1.3)
    axes.set_xlabel("samples a second", color=SOFT)
    quiet_frame(axes)
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "autotune", "svg.fonttype": "none"}):
        figure.savefig(file, format="svg", facecolor="white", metadata={"Date": None})


def _name(measurement: MeasuredCandidate) -> str:
    candidate = measurement.candidate
    checkpointing = ", checkpointing" if candidate.activation_checkpointing else ""
    return f"{candidate.config}, micro-batch {candidate.micro_batch_size}{checkpointing}"


def _label(measurement: MeasuredCandidate) -> str:
    if not measurement.fits:
        return "out of memory"
    memory = measurement.peak_memory_bytes
    return f"{measurement.samples_per_second:.4g}" + ("" if memory is None else f", {memory / _GIB:.2f} GiB")
