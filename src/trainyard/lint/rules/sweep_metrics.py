"""The metric that a sweep compares its trials by, and those that the trial's scripts log."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from trainyard.lint.checks import check
from trainyard.lint.context import LintContext
from trainyard.lint.scripts.syntax import parse
from trainyard.settings.suggestions import did_you_mean
from trainyard.spec.diagnostic import Diagnostic
from trainyard.spec.documents import Node, shorten
from trainyard.spec.parsed import ParsedCommand
from trainyard.spec.rule import Rule
from trainyard.spec.script_steps import python_files

# What these log is visible in the calls below; any other package may log by itself.
_LOG_NOTHING = frozenset(
    {"argparse", "click", "typer", "numpy", "pandas", "scipy", "sklearn", "torch", "torchvision", "matplotlib", "PIL"}
    | {"skimage", "timm", "einops", "albumentations", "joblib", "yaml", "tqdm", "mlflow", "azureml", "lightgbm"}
    | {"xgboost", "seaborn", "cv2", "requests"}
)
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
    example="""\
type: sweep
trial:
  code: ./src
  command: python train.py --rate ${{search_space.rate}}
  environment: azureml:torch:3
compute: azureml:cpus
sampling_algorithm: random
search_space:
  rate: {type: uniform, min_value: 0.1, max_value: 0.5}
objective: {goal: minimize, primary_metric: ‹val_los⇒val_loss›}
limits: {max_total_trials: 20}
=== src/train.py
import argparse

import mlflow

parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float)
mlflow.log_metric("val_loss", parser.parse_args().rate)
""",
)


@check("command")
def _metric_not_logged(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    for sweep in sweeps_of(command, context):
        metric = sweep.find("objective", "primary_metric")
        if metric is None or not metric.is_text or "${{" in metric.text or not metric.text:
            continue
        logged = _logged(command, context)
        if logged is None or not logged.names or metric.text in logged.texts:
            continue
        message = f"the trial does not log '{shorten(metric.text)}'"
        yield METRIC_NOT_LOGGED.at(metric.span, message, did_you_mean(metric.text, sorted(logged.names)))


def sweeps_of(command: ParsedCommand, context: LintContext) -> Iterator[Node]:
    """The sweeps whose trial a command is: written in place, or a component that they name by its file."""
    root = command.reading.document.root
    for holder in (root, *(entry.value for entry in root.entries_of("jobs").values() if entry.value.is_mapping)):
        if holder.get("trial") is command.node:
            yield holder
    if command.is_root and command.is_component:
        yield from context.cached("sweeps by trial", lambda: _sweeps_by_trial(context)).get(command.reading.file, ())


def _sweeps_by_trial(context: LintContext) -> dict[Path, list[Node]]:
    """The sweeps of all pipelines by the file of their trial."""
    found: dict[Path, list[Node]] = {}
    for pipeline in context.parsed.pipelines:
        for job in pipeline.scope.jobs.values():
            trial = job.node.get("trial")
            if trial is not None and trial.is_text:
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
    files = python_files(root)
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
