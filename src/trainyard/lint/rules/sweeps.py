"""Sweeps: settings that contradict each other, and what is drawn against what the trial takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trainyard.lint.context import LintContext
from trainyard.lint.rules.bindings import UNUSED_INPUT
from trainyard.spec.diagnostic import Diagnostic, Related
from trainyard.spec.documents import Document, Node
from trainyard.spec.kinds import Kind
from trainyard.spec.parsed import ParsedPipeline
from trainyard.spec.rule import Example, Rule

SWEEP_CONTRADICTION = Rule(
    "AML313",
    "sweep-contradiction",
    "warning",
    "A sweep's settings contradict each other.",
    "The client sends them as they are; the service refuses the sweep, or does less than was meant. `grid` takes "
    "`choice` alone, `bayesian` `choice`, `uniform` and `quniform`; trials at a time are no more than trials in all, "
    "and a trial ends before its sweep.",
    Example("""\
type: sweep
trial:
  command: python -m train --rate ${{search_space.rate}}
  environment: azureml:torch:3
compute: azureml:cpus
sampling_algorithm: ‹grid⇒random›
search_space:
  rate: {type: uniform, min_value: 0.1, max_value: 0.5}
objective: {goal: minimize, primary_metric: loss}
limits: {max_total_trials: 20, max_concurrent_trials: 4}
"""),
)
RULES = (SWEEP_CONTRADICTION,)

# https://learn.microsoft.com/azure/machine-learning/how-to-tune-hyperparameters
_TYPES_OF_SAMPLING = {
    "grid": frozenset({"choice"}),
    "bayesian": frozenset({"choice", "uniform", "quniform"}),
}
_CONTINUOUS = frozenset(f"{q}{name}" for name in ("uniform", "loguniform", "normal", "lognormal") for q in ("", "q"))
_KNOWN_TYPES = _CONTINUOUS | {"choice", "randint"}
# What is no more than what.
_LIMITS = (
    ("max_concurrent_trials", "max_total_trials", "trials at a time", "trials in all"),
    ("trial_timeout", "timeout", "seconds for a trial", "seconds for the sweep"),
)


def check_document(document: Document, kind: Kind, context: LintContext) -> Iterator[Diagnostic]:
    """A sweep that is a file of its own."""
    if kind == "sweep_job":
        yield from _check(document.root)


def check_pipeline(seen: ParsedPipeline, context: LintContext) -> Iterator[Diagnostic]:
    """The sweeps among a pipeline's jobs."""
    for job in seen.scope.jobs.values():
        if _text(job.node, "type") == "sweep":
            yield from _check(job.node)


def _check(sweep: Node) -> Iterator[Diagnostic]:
    yield from _sampling(sweep)
    yield from _limits(sweep.get("limits"))
    for name, space in _search_space(sweep).items():
        least, most = _number(space.get("min_value")), _number(space.get("max_value"))
        if least is not None and most is not None and least >= most:
            node = space.get("min_value")
            assert node is not None
            message = f"'{name}' has a min_value of {node.text}, which is not below its max_value"
            yield SWEEP_CONTRADICTION.at(node.span, message, "Swap them, or mend the wrong one.")
    yield from _unused(sweep)


def _sampling(sweep: Node) -> Iterator[Diagnostic]:
    algorithm = sweep.get("sampling_algorithm")
    named = algorithm.get("type") if algorithm is not None and algorithm.is_mapping else algorithm
    if named is None or not named.is_text:
        return
    suited = _TYPES_OF_SAMPLING.get(named.text.lower())
    unsuited = [
        (name, kind)
        for name, space in _search_space(sweep).items()
        if (kind := space.get("type")) is not None and suited is not None and kind.text.lower() in _KNOWN_TYPES - suited
    ]
    if suited is not None and unsuited:
        name, kind = unsuited[0]
        # One that does not fit is itself the mistake where others do.
        is_alone = len(unsuited) == 1 < len(_search_space(sweep))
        place, other = (kind, named) if is_alone else (named, kind)
        message = f"{named.text} sampling draws from {', '.join(sorted(suited))}, and '{name}' is {kind.text}"
        hint = "Write `sampling_algorithm: random`, or `type: choice` with values."
        related = [Related(other.span, "it is said here")]
        yield SWEEP_CONTRADICTION.at(place.span, message, hint, related)


def _limits(limits: Node | None) -> Iterator[Diagnostic]:
    if limits is None or not limits.is_mapping:
        return
    for smaller, larger, what, whole in _LIMITS:
        part, most = limits.get(smaller), limits.get(larger)
        part_number, most_number = _number(part), _number(most)
        if part is None or most is None or part_number is None or most_number is None or part_number <= most_number:
            continue
        message = f"{part.text} {what} are more than the {most.text} {whole}"
        related = [Related(most.span, f"'{larger}' is said here")]
        yield SWEEP_CONTRADICTION.at(part.span, message, f"Write {most.text} or less.", related)


def _unused(sweep: Node) -> Iterator[Diagnostic]:
    """What is drawn, and no trial gets: the command of a trial that is written in place does not name it."""
    trial = sweep.get("trial")
    command = trial.get("command") if trial is not None and trial.is_mapping else None
    if trial is None or command is None or not command.is_text or trial.get("inputs") is not None:
        return
    space = sweep.get("search_space")
    for name, entry in space.entries.items() if space is not None and space.is_mapping else ():
        if f"search_space.{name}" not in command.text:
            message = f"'{name}' is searched, and the trial's command never uses it"
            hint = f"Put ${{{{search_space.{name}}}}} into the command, or remove '{name}'."
            yield UNUSED_INPUT.at(entry.key.span, message, hint)


def _search_space(sweep: Node) -> Mapping[str, Node]:
    space = sweep.get("search_space")
    if space is None or not space.is_mapping:
        return {}
    return {name: entry.value for name, entry in space.entries.items() if entry.value.is_mapping}


def _number(node: Node | None) -> float | None:
    if node is None or isinstance(node.data, (bool, dict, list)) or node.data is None:
        return None
    try:
        return float(node.text)
    except ValueError:
        return None


def _text(node: Node, key: str) -> str:
    found = node.get(key)
    return found.text.lower() if found is not None and found.is_text else ""
