"""A sweep: the values that its trials try, the trials side by side, each a job of its own, and the best one's outputs.

The functions of search spaces are those of
https://learn.microsoft.com/azure/machine-learning/how-to-tune-hyperparameters. Draws follow from the sweep's seed alone
(0 without one), so that a sweep that is run again tries the same.
"""

from __future__ import annotations

import itertools
import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from trainyard.rehearse.attempts import Attempt, AttemptEnd, lose_what_a_preemption_takes, make_folders
from trainyard.rehearse.cancellation import Cancellation
from trainyard.rehearse.errors import cannot_write, error_at
from trainyard.rehearse.launcher import launch
from trainyard.rehearse.machine import available_processors
from trainyard.rehearse.rank_processes import ProcessesEnded
from trainyard.rehearse.reuse import link_or_copy
from trainyard.rehearse.tracking_store import TrackingStore
from trainyard.settings.run_record import TrialRecord
from trainyard.spec.literals import ParameterValue
from trainyard.spec.model import Component, Sweep, Value

_NUMBERS_OF: dict[str, Callable[[Random, float, float], float]] = {
    "uniform": lambda random, least, most: random.uniform(least, most),
    "loguniform": lambda random, least, most: math.exp(random.uniform(least, most)),
    "normal": lambda random, mean, deviation: random.gauss(mean, deviation),
    "lognormal": lambda random, mean, deviation: math.exp(random.gauss(mean, deviation)),
}
"""What is drawn with the two numbers of a function; with a `q` in front, it is rounded to steps."""
_KINDS = ("choice", "randint", *_NUMBERS_OF, *(f"q{kind}" for kind in _NUMBERS_OF))


def _drawn(space: Mapping[str, Any], random: Random) -> ParameterValue:
    kind = space["type"]
    if kind == "choice":
        return _as_parameter(random.choice(space["values"]))
    if kind == "randint":
        return random.randrange(int(space["upper"]))
    first, second, *step = (float(space[key]) for key in _keys_of(kind))
    drawn = _NUMBERS_OF[kind.removeprefix("q")](random, first, second)
    return round(drawn / step[0]) * step[0] if step else drawn


def trial_component(job_component: Component, sweep: Sweep) -> Component:
    """Return what a trial runs: the trial as written, with the inputs and outputs as the sweep's job has them."""
    return sweep.trial._replace(
        inputs={**sweep.trial.inputs, **job_component.inputs},
        outputs=job_component.outputs,
        task=None,
    )


def trials(sweep: Sweep) -> list[dict[str, ParameterValue]]:
    """Return the values that each trial gets, at most `max_total_trials`; no trial is repeated where values are few.

    `grid` tries every combination in order; `random` draws, and so does `bayesian`, which on Azure ML learns from the
    trials before. Raise `SpecError` at a part of the search space that cannot be drawn from.
    """
    spaces = {name: _checked(name, value, sweep.sampling) for name, value in sweep.search_space.items()}
    found = _grid(spaces) if sweep.sampling == "grid" else _random(spaces, sweep)
    return list(itertools.islice(found, sweep.max_total_trials))


def _grid(spaces: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, ParameterValue]]:
    for values in itertools.product(*(space["values"] for space in spaces.values())):
        yield {name: _as_parameter(value) for name, value in zip(spaces, values, strict=True)}


def _random(spaces: Mapping[str, Mapping[str, Any]], sweep: Sweep) -> Iterator[dict[str, ParameterValue]]:
    random = Random(sweep.seed or 0)
    combinations = math.prod(_number_of_values(space) for space in spaces.values())
    seen: set[tuple[ParameterValue, ...]] = set()
    while len(seen) < combinations:
        drawn = {name: _drawn(space, random) for name, space in spaces.items()}
        key = tuple(drawn.values())
        if key not in seen or math.isinf(combinations):
            seen.add(key)
            yield drawn


def _number_of_values(space: Mapping[str, Any]) -> float:
    if space["type"] == "choice":
        return len({json.dumps(value, sort_keys=True) for value in space["values"]})
    return int(space["upper"]) if space["type"] == "randint" else math.inf


def _as_parameter(value: object) -> ParameterValue:
    """A value of a choice; what is not a literal is given as JSON."""
    return value if isinstance(value, (str, int, float)) else json.dumps(value)


def _checked(name: str, value: Value, sampling: str) -> Mapping[str, Any]:
    space = value.data
    kind = str(space.get("type", "")).lower() if isinstance(space, dict) else ""
    if kind not in _KINDS:
        expected = f"expected one of {', '.join(_KINDS)}"
        raise error_at(value.span, f"search space of {name!r}: unknown type {kind!r}", expected)
    if sampling == "grid" and kind != "choice":
        message = f"search space of {name!r}: {kind} cannot be enumerated by sampling_algorithm grid"
        raise error_at(value.span, message, "use choice, or sampling_algorithm random")
    for key in _keys_of(kind):
        given = space.get(key)
        if key == "values":
            is_right, expected = bool(given) and isinstance(given, list), "a list of values"
        else:
            is_right, expected = isinstance(given, (int, float)), "a number"
        if not is_right:
            raise error_at(value.span, f"search space of {name!r}: {key} of {kind}: expected {expected}")
    return {**space, "type": kind}


def _keys_of(kind: str) -> list[str]:
    """The keys that a function of a search space needs."""
    if kind == "choice":
        return ["values"]
    if kind == "randint":
        return ["upper"]
    keys = ["mu", "sigma"] if "normal" in kind else ["min_value", "max_value"]
    return [*keys, "q"] if kind.startswith("q") else keys


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
