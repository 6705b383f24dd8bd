"""A sweep: its trials side by side, each as a job of its own beneath the sweep's folder, and the best one's outputs."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from trainyard.rehearse.attempts import Attempt, AttemptEnd, lose_what_a_preemption_takes, make_folders
from trainyard.rehearse.cancellation import Cancellation
from trainyard.rehearse.errors import cannot_write
from trainyard.rehearse.launcher import launch
from trainyard.rehearse.machine import available_processors
from trainyard.rehearse.rank_processes import ProcessesEnded
from trainyard.rehearse.reuse import link_or_copy
from trainyard.rehearse.search_space import trial_component, trials
from trainyard.rehearse.tracking_store import TrackingStore
from trainyard.settings.run_record import TrialRecord
from trainyard.spec.literals import ParameterValue
from trainyard.spec.model import Sweep


def run_sweep(attempt: Attempt, sweep: Sweep, store: TrackingStore, cancellation: Cancellation) -> AttemptEnd:
    """Run the trials of a sweep, and take over the outputs of the best.

    The sweep fails when all trials fail, or when it has outputs and no trial logged the primary metric.
    """
    from concurrent.futures import ThreadPoolExecutor  # few runs have sweeps

    drawn = trials(sweep)
    at_once = max(1, min(sweep.max_concurrent_trials, max(2, available_processors()) // attempt.job.processes))
    log = attempt.logs[0]
    log.write_text(f"{len(drawn)} trials, {at_once} at a time, sampling: {sweep.sampling}\n", encoding="utf-8")
    limit = Cancellation(cancellation, sweep.timeout_seconds)
    with ThreadPoolExecutor(at_once) as pool:
        futures = [
            pool.submit(_run_trial, attempt, sweep, number, values, store, limit) for number, values in enumerate(drawn)
        ]
        ended = [future.result() for future in futures]
    with log.open("a", encoding="utf-8") as stream:
        stream.writelines(f"{_described(trial, sweep)}\n" for trial in ended)
    processes = ProcessesEnded({trial.number: 0 if trial.reason is None else 1 for trial in ended})
    processes.was_canceled = cancellation.reason is not None
    if processes.was_canceled:
        return AttemptEnd(processes, cancellation.reason, trials=ended)
    if not ended:
        return AttemptEnd(processes, "it has no trials", trials=ended)
    if all(trial.reason is not None for trial in ended):
        why = f"all {len(ended)} trials failed, the first because: {ended[0].reason}"
        return AttemptEnd(processes, why, trials=ended)
    best = _best(ended, sweep)
    if best is None and attempt.job.component.outputs:
        message = f"no trial logged its primary metric {sweep.primary_metric!r} with MLflow, so none is the best"
        return AttemptEnd(processes, message, trials=ended)
    if best is not None:
        best.is_best = True
        _take_over(attempt, best)
        with log.open("a", encoding="utf-8") as stream:
            stream.write(f"best: trial {best.number}\n")
    return AttemptEnd(processes, trials=ended)


def _run_trial(
    attempt: Attempt,
    sweep: Sweep,
    number: int,
    drawn: Mapping[str, ParameterValue],
    store: TrackingStore,
    cancellation: Cancellation,
) -> TrialRecord:
    trial = TrialRecord(number, inputs=dict(drawn), folder=f"trials/{number}", metric_name=sweep.primary_metric)
    if cancellation.reason is not None:
        trial.status, trial.reason = "failed", cancellation.reason
        return trial
    component = trial_component(attempt.job.component, sweep)
    run = replace(attempt.run, run_id=f"{attempt.run.run_id}_{number}")
    own = replace(
        attempt,
        job=replace(attempt.job, trial=component, timeout_seconds=sweep.trial_timeout_seconds),
        job_folder=attempt.job_folder / trial.folder,
        inputs={**attempt.inputs, **drawn},
        run=run,
        number=1,
        tracked=store.folder_of(run),
    )
    store.start_run(run, f"{attempt.job.name} trial {number}")
    with attempt.faults.of_trial(number) if attempt.faults is not None else nullcontext() as faults:
        own = replace(own, faults=faults)
        end = launch(own, make_folders(own), cancellation)
        while end.was_preempted:
            lose_what_a_preemption_takes(own)
            own = replace(own, number=own.number + 1)
            end = launch(own, make_folders(own), cancellation)
    store.end_run(run, "FINISHED" if end.reason is None else "FAILED")
    trial.status = "completed" if end.reason is None else "failed"
    trial.reason, trial.attempts = end.reason, own.number
    logged = store.metric(run, sweep.primary_metric)
    if logged:
        trial.metric = max(logged) if sweep.goal == "maximize" else min(logged)
    return trial


def _best(trials: Sequence[TrialRecord], sweep: Sweep) -> TrialRecord | None:
    measured = {trial.metric: trial for trial in reversed(trials) if trial.reason is None and trial.metric is not None}
    if not measured:
        return None
    return measured[max(measured) if sweep.goal == "maximize" else min(measured)]


def _described(trial: TrialRecord, sweep: Sweep) -> str:
    values = ", ".join(f"{name}={value}" for name, value in trial.inputs.items())
    again = f" ({trial.attempts} attempts)" if trial.attempts > 1 else ""
    how = f"failed: {trial.reason}" if trial.reason else f"{sweep.primary_metric} = {trial.metric}"
    return f"trial {trial.number}: {values}: {how}{again}"


def _take_over(attempt: Attempt, best: TrialRecord) -> None:
    source = attempt.job_folder / best.folder
    try:
        for part in ("outputs", "artifacts"):
            if (source / part).is_dir():
                _replace(source / part, attempt.job_folder / part)
    except OSError as error:
        raise cannot_write(attempt.job_folder, error) from error


def _replace(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, symlinks=True, copy_function=link_or_copy)
