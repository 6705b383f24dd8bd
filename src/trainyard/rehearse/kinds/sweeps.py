"""A sweep: its trials side by side, each as a job of its own beneath the sweep's folder, and the best one's outputs."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from trainyard.rehearse.attempts import Attempt, AttemptEnd, lose_what_a_preemption_takes, make_folders
from trainyard.rehearse.cache import link_or_copy
from trainyard.rehearse.cancellation import Cancellation, limited
from trainyard.rehearse.errors import cannot_write
from trainyard.rehearse.kinds.sampling import trial_component, trials
from trainyard.rehearse.launcher import launch
from trainyard.rehearse.machine import available_processors
from trainyard.rehearse.processes import ProcessesEnded
from trainyard.rehearse.tracking_store import TrackingStore
from trainyard.settings.run_record import TrialRecord
from trainyard.spec.literals import ParameterValue
from trainyard.spec.model import Sweep


@dataclass(frozen=True)
class Trial:
    """How a trial ended: its inputs as drawn, the best value of the primary metric that it logged, or why it failed."""

    number: int
    drawn: Mapping[str, ParameterValue]
    metric: float | None
    reason: str | None
    attempts: int = 1

    def as_record(self, metric_name: str, best: Trial | None) -> TrialRecord:
        """Return the trial as in run.json."""
        return TrialRecord(
            number=self.number,
            status="completed" if self.reason is None else "failed",
            inputs=dict(self.drawn),
            metric=self.metric,
            reason=self.reason,
            folder=f"trials/{self.number}",
            attempts=self.attempts,
            metric_name=metric_name,
            is_best=self is best,
        )


def run_sweep(attempt: Attempt, sweep: Sweep, store: TrackingStore, cancellation: Cancellation) -> AttemptEnd:
    """Run the trials of a sweep, and take over the outputs of the best.

    The sweep fails when all trials fail, or when it has outputs and no trial logged the primary metric.
    """
    from concurrent.futures import ThreadPoolExecutor  # few runs have sweeps

    drawn = trials(sweep)
    at_once = max(1, min(sweep.max_concurrent_trials, max(2, available_processors()) // attempt.job.processes))
    log = attempt.logs[0]
    log.write_text(f"{len(drawn)} trials, {at_once} at a time, sampling: {sweep.sampling}\n", encoding="utf-8")
    with limited(cancellation, sweep.timeout_seconds) as limit, ThreadPoolExecutor(at_once) as pool:
        futures = [
            pool.submit(_run_trial, attempt, sweep, number, values, store, limit) for number, values in enumerate(drawn)
        ]
        ended = [future.result() for future in futures]
    with log.open("a", encoding="utf-8") as stream:
        stream.writelines(f"{_described(trial, sweep)}\n" for trial in ended)
    completed = [trial for trial in ended if trial.reason is None]
    best = _best(completed, sweep)
    records = [trial.as_record(sweep.primary_metric, best) for trial in ended]
    processes = ProcessesEnded({trial.number: 0 if trial.reason is None else 1 for trial in ended})
    processes.was_canceled = cancellation.requested.is_set()
    if processes.was_canceled:
        return AttemptEnd(processes, cancellation.reason, trials=records)
    if not completed:
        reason = (
            f"all {len(ended)} trials failed, the first because: {ended[0].reason}" if ended else "it has no trials"
        )
        return AttemptEnd(processes, reason, trials=records)
    if best is None and attempt.job.component.outputs:
        message = f"no trial logged its primary metric {sweep.primary_metric!r} with MLflow, so none is the best"
        return AttemptEnd(processes, message, trials=records)
    if best is not None:
        _take_over(attempt, best)
        with log.open("a", encoding="utf-8") as stream:
            stream.write(f"best: trial {best.number}\n")
    return AttemptEnd(processes, trials=records)


def _run_trial(
    attempt: Attempt,
    sweep: Sweep,
    number: int,
    drawn: Mapping[str, ParameterValue],
    store: TrackingStore,
    cancellation: Cancellation,
) -> Trial:
    if cancellation.requested.is_set():
        return Trial(number, drawn, None, cancellation.reason)
    component = trial_component(attempt.job.component, sweep)
    own = replace(
        attempt,
        job=replace(attempt.job, trial=component, timeout_seconds=sweep.trial_timeout_seconds),
        job_folder=attempt.job_folder / "trials" / str(number),
        inputs={**attempt.inputs, **drawn},
        run=replace(attempt.run, run_id=f"{attempt.run.run_id}_{number}"),
        number=1,
        tracked=store.folder_of(replace(attempt.run, run_id=f"{attempt.run.run_id}_{number}")),
    )
    store.start_run(own.run, f"{attempt.job.name} trial {number}")
    with attempt.faults.of_trial(number) if attempt.faults is not None else nullcontext() as faults:
        own = replace(own, faults=faults)
        end = launch(own, make_folders(own), cancellation)
        while end.was_preempted:
            lose_what_a_preemption_takes(own)
            own = replace(own, number=own.number + 1)
            end = launch(own, make_folders(own), cancellation)
    store.end_run(own.run, "FINISHED" if end.reason is None else "FAILED")
    logged = store.metric(own.run, sweep.primary_metric)
    best = (max(logged) if sweep.goal == "maximize" else min(logged)) if logged else None
    return Trial(number, drawn, best, end.reason, own.number)


def _best(completed: Sequence[Trial], sweep: Sweep) -> Trial | None:
    measured = [trial for trial in completed if trial.metric is not None]
    if not measured:
        return None
    sign = -1 if sweep.goal == "maximize" else 1
    return min(measured, key=lambda trial: sign * (trial.metric or 0.0))


def _described(trial: Trial, sweep: Sweep) -> str:
    values = ", ".join(f"{name}={value}" for name, value in trial.drawn.items())
    again = f" ({trial.attempts} attempts)" if trial.attempts > 1 else ""
    how = f"failed: {trial.reason}" if trial.reason else f"{sweep.primary_metric} = {trial.metric}"
    return f"trial {trial.number}: {values}: {how}{again}"


def _take_over(attempt: Attempt, best: Trial) -> None:
    source = attempt.job_folder / "trials" / str(best.number)
    try:
        for part in ("outputs", "artifacts"):
            if (source / part).is_dir():
                _replace(source / part, attempt.job_folder / part)
    except (OSError, shutil.Error) as error:
        reason = error if isinstance(error, OSError) and error.errno else OSError(str(error))
        raise cannot_write(attempt.job_folder, reason) from error


def _replace(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, symlinks=True, copy_function=link_or_copy)
