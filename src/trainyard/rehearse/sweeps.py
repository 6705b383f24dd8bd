"""A sweep: its trials side by side, each as a job of its own beneath the sweep's folder, and the best one's outputs."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace

from trainyard.rehearse.attempts import Attempt, AttemptEnd, lose_what_a_preemption_takes, make_folders
from trainyard.rehearse.cancellation import Cancellation
from trainyard.rehearse.launcher import launch
from trainyard.rehearse.rank_processes import ProcessesEnded
from trainyard.rehearse.reuse import link_parts
from trainyard.rehearse.run_store import now
from trainyard.rehearse.search_space import trial_component, trials
from trainyard.rehearse.tracking_store import TrackingStore
from trainyard.settings.run_record import TrialRecord
from trainyard.settings.this_machine import available_processors
from trainyard.spec.model import Sweep


def run_sweep(
    attempt: Attempt,
    sweep: Sweep,
    store: TrackingStore,
    cancellation: Cancellation,
    on_change: Callable[[list[TrialRecord]], None],
) -> AttemptEnd:
    """Run the trials of a sweep, and take over the outputs of the best. `on_change` gets all trials at each change.

    The sweep fails when all trials fail, or when it has outputs and no trial logged the primary metric: without
    outputs, that is a warning.
    """
    from concurrent.futures import ThreadPoolExecutor  # few runs have sweeps

    drawn = trials(sweep)
    at_once = max(1, min(sweep.max_concurrent_trials, max(2, available_processors()) // attempt.job.processes))
    log = attempt.logs[0]
    log.write_text(f"{len(drawn)} trials, {at_once} at a time, sampling: {sweep.sampling}\n", encoding="utf-8")
    limit = Cancellation(cancellation, sweep.timeout_seconds)
    all_trials = [
        TrialRecord(number, "waiting", dict(values), folder=f"trials/{number}", metric_name=sweep.primary_metric)
        for number, values in enumerate(drawn)
    ]
    changing = threading.Lock()

    def run_trial(trial: TrialRecord) -> None:
        began = time.monotonic()
        trial.status, trial.started = "running", now()
        on_change(all_trials)
        reason = limit.reason
        if reason is None:
            trial.metric, reason = _run_trial(attempt, sweep, trial, store, limit)
        with changing, log.open("a", encoding="utf-8") as stream:
            trial.status, trial.reason = "completed" if reason is None else "failed", reason
            if reason is not None and reason == cancellation.reason:
                trial.status = "canceled"
            trial.duration_s = round(time.monotonic() - began, 3)
            best = _best(all_trials, sweep)
            for each in all_trials:
                each.is_best = each is best
            stream.write(f"{_described(trial, sweep)}\n")
        on_change(all_trials)

    with ThreadPoolExecutor(at_once) as pool:
        for future in [pool.submit(run_trial, trial) for trial in all_trials]:
            future.result()
    processes = ProcessesEnded({trial.number: 0 if trial.reason is None else 1 for trial in all_trials})
    processes.was_canceled = cancellation.reason is not None
    reason = cancellation.reason or _take_over_best(attempt, sweep, all_trials)
    warnings = (_without_metric(sweep),) if reason is None and _best(all_trials, sweep) is None else ()
    return AttemptEnd(processes, reason, warnings=warnings)


def _without_metric(sweep: Sweep) -> str:
    return f"no trial logged its primary metric {sweep.primary_metric!r} with MLflow, so none is the best"


def _take_over_best(attempt: Attempt, sweep: Sweep, ended: Sequence[TrialRecord]) -> str | None:
    """Take over the outputs of the best trial; return why the sweep has failed, if it has."""
    if not ended:
        return "it has no trials"
    if all(trial.reason is not None for trial in ended):
        return f"all {len(ended)} trials failed, the first because: {ended[0].reason}"
    best = _best(ended, sweep)
    if best is None and attempt.job.component.outputs:
        return _without_metric(sweep)
    if best is not None:
        link_parts(attempt.job_folder / best.folder, attempt.job_folder, ("outputs", "artifacts"))
        with attempt.logs[0].open("a", encoding="utf-8") as stream:
            stream.write(f"best: trial {best.number}\n")
    return None


def _run_trial(
    attempt: Attempt, sweep: Sweep, trial: TrialRecord, store: TrackingStore, cancellation: Cancellation
) -> tuple[float | None, str | None]:
    """Run one trial; return the best value that it logged, if it did, and why it failed, if it did."""
    number, drawn = trial.number, trial.inputs
    component = trial_component(attempt.job.component, sweep)
    run = attempt.run._replace(run_id=f"{attempt.run.run_id}_{number}")
    own = attempt._replace(
        job=replace(attempt.job, trial=component, timeout_seconds=sweep.trial_timeout_seconds),
        job_folder=attempt.job_folder / trial.folder,
        inputs={**attempt.inputs, **drawn},
        run=run,
        number=1,
        tracked=store.folder_of(run),
    )
    store.start_run(run, f"{attempt.job.name} trial {number}")
    with attempt.faults.of_trial(number) if attempt.faults is not None else nullcontext() as faults:
        own = own._replace(faults=faults)
        while (end := launch(own, make_folders(own, cancellation), cancellation)).was_preempted:
            lose_what_a_preemption_takes(own)
            own = own._replace(number=own.number + 1)
    store.end_run(run, "FINISHED" if end.reason is None else "FAILED")
    trial.attempts = own.number
    logged = [value for value in store.metric(run, sweep.primary_metric) if math.isfinite(value)]
    return (_best_of(sweep)(logged) if logged else None), end.reason


def _best(trials: Sequence[TrialRecord], sweep: Sweep) -> TrialRecord | None:
    """Return the best of the trials that have completed, of equal ones the first."""
    completed = [trial for trial in reversed(trials) if trial.status == "completed"]
    measured = {trial.metric: trial for trial in completed if trial.metric is not None}
    return measured[_best_of(sweep)(measured)] if measured else None


def _best_of(sweep: Sweep) -> Callable[[Iterable[float]], float]:
    return max if sweep.goal == "maximize" else min


def _described(trial: TrialRecord, sweep: Sweep) -> str:
    values = ", ".join(f"{name}={value}" for name, value in trial.inputs.items())
    again = f" ({trial.attempts} attempts)" if trial.attempts > 1 else ""
    how = f"failed: {trial.reason}" if trial.reason else f"{sweep.primary_metric} = {trial.metric}"
    return f"trial {trial.number}: {values}: {how}{again}"
