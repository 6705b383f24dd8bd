"""What runs of this project took, as multiples of what was predicted: later plans of trainings alike are corrected."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median

from trainyard.errors import UsageError
from trainyard.plan.estimate.estimator import Estimate
from trainyard.plan.estimate.intervals import kind_of
from trainyard.plan.estimate.step_time import StepTime
from trainyard.printing import json_text
from trainyard.project_files import text_or_empty, write_text
from trainyard.settings.quantities import counted

FILE = "measured_runs.json"

Runs = Mapping[str, Mapping[str, float]]
"""By what is alike, and by the run: measured seconds of a step, as a multiple of the uncorrected prediction."""


def kept_runs(folder: Path) -> Runs:
    """Return what is kept in a folder. UsageError for a file of another form."""
    try:
        document = json.loads(text_or_empty(folder / FILE) or "{}")
        kept = {alike: {run: float(ratio) for run, ratio in runs.items()} for alike, runs in document.items()}
        if all(0 < ratio < math.inf for runs in kept.values() for ratio in runs.values()):
            return kept
        raise ValueError("no multiple of a time")
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise UsageError(f"{folder / FILE}: no measured runs can be read from it; delete it to plan without") from None


def keep(folder: Path, run: str, found: Estimate, ratio: float) -> str:
    """Keep what a run took, in place of an earlier measurement of it; return what it is a correction of."""
    alike, runs = _alike(found), kept_runs(folder)
    write_text(folder / FILE, json_text({**runs, alike: {**runs.get(alike, {}), run: ratio}}), folder)
    return alike


def corrected(found: Estimate, runs: Runs) -> Estimate:
    """Return an estimate whose times are multiplied by the median of what runs of trainings alike took of theirs."""
    ratios = runs.get(_alike(found), {}).values()
    if not ratios or found.time is None:
        return found
    time = StepTime(**{name: median(ratios) * seconds for name, seconds in vars(found.time).items()})
    reason = f"corrected by {median(ratios):.2f} × from {counted(len(ratios), 'run')} of this project"
    return replace(found, time=time, time_reason=reason)


def _alike(found: Estimate) -> str:
    """Return the kind of model, the GPU, the precision, and if it is compiled: what an estimate errs alike on."""
    training = found.training
    settings = f"{training.precision}{', compiled' if training.compiled else ''}"
    return f"{kind_of(training)} on {training.machines.gpu.name}, {settings}"
