"""What a sweep tries: what each trial runs, with values drawn from the search space.

The functions are those of https://learn.microsoft.com/azure/machine-learning/how-to-tune-hyperparameters. Draws follow
from the sweep's seed alone (0 without one), so that a sweep that is run again tries the same.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any

from trainyard.rehearse.errors import error_at
from trainyard.spec.documents import Value
from trainyard.spec.literals import ParameterValue
from trainyard.spec.model import Component, Sweep

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
    found = _random(spaces, sweep)
    if sweep.sampling == "grid":
        combinations = itertools.product(*(map(_as_parameter, space["values"]) for space in spaces.values()))
        found = (dict(zip(spaces, values, strict=True)) for values in combinations)
    return list(itertools.islice(found, sweep.max_total_trials))


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
