"""Sweeps: settings that contradict each other, and search spaces that the trial does not use."""

from __future__ import annotations

import ast
import math
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from trainyard.lint.checks import LintContext, LintedFile, check, contradicting_limits, jobs_in, known_words, number_of
from trainyard.lint.rules.command_ports import UNUSED_INPUT
from trainyard.lint.scripts.syntax import parse
from trainyard.settings.suggestions import did_you_mean
from trainyard.spec.diagnostic import Diagnostic, Related
from trainyard.spec.documents import Node, shorten
from trainyard.spec.job_types import python_files
from trainyard.spec.parsed import ParsedCommand
from trainyard.spec.rule import Rule

_TYPES_OF_SAMPLING: dict[str, list[str]] = known_words("distributions_of_sampling")
_CONTINUOUS = frozenset(f"{q}{name}" for name in ("uniform", "loguniform", "normal", "lognormal") for q in ("", "q"))
_KNOWN_TYPES = _CONTINUOUS | {"choice", "randint"}


SWEEP_CONTRADICTION = Rule("AML313", "sweep-contradiction", "warning").explained(
    summary="A sweep's settings contradict each other.",
    why="The client sends them as they are; the service rejects the sweep, or does less than was meant. `grid` takes "
    "only `choice`; `bayesian` takes `choice`, `uniform` and `quniform`; concurrent trials may not exceed the total, "
    "nor a trial's timeout that of the sweep. A bandit policy has one slack. `loguniform` takes the logarithms of the "
    "least and the largest value. By the reference of the first SDK (`BayesianParameterSampling`) Bayesian sampling "
    "supports no early termination; a module of Microsoft's training recommends the two, so together they are a note.",
)


@check("file")
def _sweep_contradiction(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    for sweep in file.jobs_of("sweep"):
        yield from _sampling(sweep)
        yield from contradicting_limits(sweep, SWEEP_CONTRADICTION)
        yield from _policy(sweep)
        for name, entry in sweep.entries_of("search_space").items():
            yield from chain(_range(name, entry.value), _tried_twice(name, entry.value))
        yield from _unused(sweep)


def draws_fractions(drawn: Node) -> bool:
    """Whether a distribution of a search space gives numbers that are not whole."""
    named, step = drawn.word("type"), number_of(drawn.get("q"))
    return named in _CONTINUOUS and (not named.startswith("q") or (step is not None and step % 1 != 0))


def _tried_twice(name: str, drawn: Node) -> Iterator[Diagnostic]:
    """A value that stands among the choices twice."""
    seen: dict[str, Node] = {}
    for item in drawn.items_of("values"):
        earlier = seen.setdefault(f"{type(item.data).__name__} {item.text}", item)
        if earlier is not item and item.text:
            message = f"'{name}' has the choice {item.text} twice"
            yield SWEEP_CONTRADICTION.at(item.span, message, "Remove it, or write another one.")


def _range(name: str, drawn: Node) -> Iterator[Diagnostic]:
    """Bounds in the wrong order, or those of a power of e itself, and steps so large that one or two values remain."""
    kind, least, step = drawn.word("type"), drawn.get("min_value"), drawn.get("q")
    low, high, size = (number_of(drawn.get(key)) for key in ("min_value", "max_value", "q"))
    if least is None or low is None or high is None:
        return
    if low >= high:
        message = f"'{name}' has a min_value of {least.text}, not below its max_value"
        yield SWEEP_CONTRADICTION.at(least.span, message, "Swap them, or fix the wrong one.")
    elif kind in ("loguniform", "qloguniform") and 0 < low < high <= 1:
        message = f"'{name}' is drawn from {math.exp(low):.3g} to {math.exp(high):.3g}: {kind} takes exponents of e"
        hint = f"Write min_value: {math.log(low):.3g} and max_value: {math.log(high):.3g}."
        yield SWEEP_CONTRADICTION.at(least.span, message, hint)
    elif step is not None and kind == "quniform" and size and high < low + size:
        message = f"'{name}' is rounded to steps of {step.text}, and its range is only {high - low:g} wide"
        yield SWEEP_CONTRADICTION.at(step.span, message, "Write a smaller q.")


def _sampling(sweep: Node) -> Iterator[Diagnostic]:
    named = sweep.find_text("sampling_algorithm") or sweep.find_text("sampling_algorithm", "type")
    suited = _TYPES_OF_SAMPLING.get(named.text.lower()) if named is not None else None
    if named is None or suited is None:
        return
    space = sweep.entries_of("search_space")
    unsuited = [
        (name, kind)
        for name, entry in space.items()
        if (kind := entry.value.get("type")) is not None and kind.text.lower() in _KNOWN_TYPES.difference(suited)
    ]
    if unsuited:
        name, kind = unsuited[0]
        # A single type that does not fit is the mistake itself, if others do fit.
        is_alone = len(unsuited) == 1 < sum(entry.value.is_mapping for entry in space.values())
        place, other = (kind, named) if is_alone else (named, kind)
        message = f"{named.text} sampling supports {', '.join(sorted(suited))}, but '{name}' is {kind.text}"
        hint = "Write `sampling_algorithm: random`, or `type: choice` with values."
        yield SWEEP_CONTRADICTION.at(place.span, message, hint, [Related(other.span, f"{other.text} is set here")])


def _policy(sweep: Node) -> Iterator[Diagnostic]:
    """Settings of the rule that gives trials up: exactly one slack, and a share of the trials; what it is used with."""
    policy = sweep.get("early_termination")
    kind = policy.get("type") if policy is not None else None
    if policy is None or kind is None:
        return
    if "bayesian" in (sweep.word("sampling_algorithm"), sweep.word("sampling_algorithm", "type")):
        message = "bayesian sampling learns from the final scores of trials, and this policy ends trials before"
        hint = "Microsoft's reference names no policy that works with it: remove this, or sample at random."
        yield SWEEP_CONTRADICTION.at(kind.span, message, hint, severity="info")
    factor, amount, share = (policy.get(key) for key in ("slack_factor", "slack_amount", "truncation_percentage"))
    is_bandit = kind.text.lower() == "bandit"
    if is_bandit and factor is not None and amount is not None:
        message = "a bandit policy has either a slack_factor or a slack_amount, not both"
        related = [Related(factor.span, "slack_factor is set here")]
        yield SWEEP_CONTRADICTION.at(policy.key_span("slack_amount"), message, "Remove one of them.", related)
    elif is_bandit and factor is None and amount is None and share is None:
        message = "a bandit policy needs a slack_factor or a slack_amount: how much worse than the best a trial may be"
        yield SWEEP_CONTRADICTION.at(kind.span, message, "Write `slack_factor: 0.1`.")


def _unused(sweep: Node) -> Iterator[Diagnostic]:
    """Parameters of the search space that the command of an inline trial does not use."""
    trial, command = sweep.get("trial"), sweep.find_text("trial", "command")
    if trial is None or command is None or trial.get("inputs") is not None:
        return
    for name, entry in sweep.entries_of("search_space").items():
        if f"search_space.{name}" not in command.text:
            message = f"the trial's command does not use '{name}' of the search space"
            hint = f"Put ${{{{search_space.{name}}}}} into the command, or remove '{name}'."
            yield UNUSED_INPUT.at(entry.key.span, message, hint)


_LOG_NOTHING: frozenset[str] = frozenset(known_words("packages_that_log_nothing"))
_OF_ONE_METRIC = frozenset({"log_metric", "log_list", "log_row"})
_OF_MANY_METRICS = frozenset({"log_metrics", "log_dict"})
# `run.log("loss", …)` of SDK v1's run; `math.log(x)` is something else.
_RUNS = frozenset({"run", "run_logger", "ws_run", "aml_run", "_run"})
_MOST_FILES = 100


METRIC_NOT_LOGGED = Rule("AML507", "metric-not-logged", "warning").explained(
    summary="The trial's scripts log metrics, but not the one that the sweep compares.",
    why="A sweep reads `primary_metric` from each trial's run by its exact name; without it all trials are the same. "
    "Only reported if the scripts log metrics by literal names, and nothing in the code can log others (`autolog`, "
    "names that are put together, packages that log by themselves).",
)


@check("command")
def _metric_not_logged(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    for sweep in sweeps_of(command, context):
        metric = sweep.find_text("objective", "primary_metric")
        if metric is None or "${{" in metric.text or not metric.text:
            continue
        logged = _logged(command, context)
        if logged is None or not logged.names or metric.text in logged.texts:
            continue
        message = f"the trial does not log '{shorten(metric.text)}'"
        yield METRIC_NOT_LOGGED.at(metric.span, message, did_you_mean(metric.text, sorted(logged.names)))


def sweeps_of(command: ParsedCommand, context: LintContext) -> Iterator[Node]:
    """The sweeps whose trial a command is: written in place, or a component that they name by its file."""
    for holder in jobs_in(command.reading.document.root):
        if holder.get("trial") is command.node:
            yield holder
    if command.is_root and command.is_component:
        yield from context.cached("sweeps by trial", lambda: _sweeps_by_trial(context)).get(command.reading.file, ())


def _sweeps_by_trial(context: LintContext) -> dict[Path, list[Node]]:
    """The sweeps of all pipelines by the file of their trial."""
    found: dict[Path, list[Node]] = {}
    for pipeline in context.parsed.pipelines:
        for job in pipeline.model.jobs.values():
            trial = job.node.find_text("trial")
            if trial is not None:
                found.setdefault(pipeline.reading.path(trial.text), []).append(job.node)
    return found


class _Logged(NamedTuple):
    """The metrics that code logs by literal names, and every text in it."""

    names: frozenset[str]
    texts: frozenset[str]


def _logged(command: ParsedCommand, context: LintContext) -> _Logged | None:
    """What the scripts of a command log; None if that cannot be told."""
    root = command.component.code
    if root is None or command.component.additional_includes:
        return None
    if not any(called.file is not None for called in context.calls_of(command)):
        return None
    return context.cached(("metrics", root), lambda: _logged_in(root))


def _logged_in(root: Path) -> _Logged | None:
    names: set[str] = set()
    texts: set[str] = set()
    files = list(python_files(root))
    own = {Path(name).parts[0].removesuffix(".py") for name in files} | {Path(name).stem for name in files}
    for name in files if len(files) <= _MOST_FILES else ():
        syntax = parse(root / name)
        if syntax is None:
            return None
        for node in syntax.nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.add(node.value)
            elif isinstance(node, (ast.Import, ast.ImportFrom)) and not _logs_nothing(node, own):
                return None
            elif isinstance(node, ast.Call):
                found = _names_in(node)
                if found is None:
                    return None
                names |= found
    return _Logged(frozenset(names), frozenset(texts))


def _logs_nothing(node: ast.Import | ast.ImportFrom, own: set[str]) -> bool:
    if isinstance(node, ast.ImportFrom):
        modules = [node.module or ""] if not node.level else []
    else:
        modules = [alias.name for alias in node.names]
    tops = {module.split(".")[0] for module in modules}
    return tops <= own | _LOG_NOTHING | sys.stdlib_module_names


def _names_in(call: ast.Call) -> set[str] | None:
    """The metrics that a call logs, usually none; None if their names cannot be read."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name == "autolog":
        return None
    on_run = isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id in _RUNS
    if name in _OF_ONE_METRIC or (name == "log" and on_run):
        first = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg in ("key", "name")), None)
        return {first.value} if isinstance(first, ast.Constant) and isinstance(first.value, str) else None
    if name in _OF_MANY_METRICS:
        given = call.args[0] if call.args else None
        keys = [key.value for key in given.keys if isinstance(key, ast.Constant)] if isinstance(given, ast.Dict) else []
        if not isinstance(given, ast.Dict) or len(keys) != len(given.keys):
            return None
        return {str(key) for key in keys}
    return set()
