"""Results of a training: checkpoints that survive preemption, outputs that are not reused, names of metrics."""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator

from trainyard.lint.checks import LintContext, LintedFile, check
from trainyard.lint.placements import Placement
from trainyard.lint.scripts.syntax import Syntax, dotted, keyword, line_of
from trainyard.settings.regex import regex
from trainyard.spec.diagnostic import Diagnostic, Span
from trainyard.spec.documents import Node, shorten
from trainyard.spec.parsed import ParsedCommand
from trainyard.spec.rule import Rule

_CHECKPOINT_NAME = regex(r"(?<![a-z])(check_?points?|ckpts?)(?![a-z])", re.IGNORECASE)
# An evaluation of the same model on the same data may well be reused.
_EVALUATION = regex(
    r"(?<![a-z])(?:eval|evaluat\w*|predict\w*|infer\w*|scor(?:e|ing)|validat\w*)(?![a-z])", re.IGNORECASE
)
_PROGRAM = regex(r"python|torchrun|deepspeed|mpirun|horovodrun|accelerate|train|\.(?:sh|py)\b")


SPOT_WITHOUT_CHECKPOINTS = Rule("AML612", "spot-without-checkpoints", "warning").explained(
    summary="A training on Spot machines has no output for checkpoints.",
    why="When a machine is reclaimed, only what is in a mounted output survives; `./outputs` and outputs of mode "
    "`upload` are lost.",
)


@check("placement")
def _spot_without_checkpoints(placement: Placement, context: LintContext) -> Iterator[Diagnostic]:
    if placement.distribution is None or placement.is_component or (spot := _where_spot(placement)) is None:
        return
    ports = (*placement.component.outputs, *placement.outputs, *placement.component.inputs)
    if not any(_CHECKPOINT_NAME.search(name) for name in ports):
        message = "Spot machines can be preempted, and there is no output for checkpoints"
        hint = "Give the step an output such as `checkpoints: {type: uri_folder, mode: rw_mount}`."
        yield SPOT_WITHOUT_CHECKPOINTS.at(spot, message, hint)


def _where_spot(placement: Placement) -> Span | None:
    """Where a job asks for Spot machines: its tier, or the job if its cluster has them; None if it does not."""
    tier, compute = placement.node.find("queue_settings", "job_tier"), placement.known_compute
    if tier is not None and tier.text.lower() == "spot":
        return tier.span
    return placement.head if compute is not None and compute.tier.replace("_", "") == "lowpriority" else None


UPLOADED_CHECKPOINTS = Rule("AML616", "uploaded-checkpoints", "warning").explained(
    summary="Checkpoints are written to an output of mode `upload`.",
    why="Such an output is uploaded when the job ends, and not at all if it is preempted. With `rw_mount`, files are "
    "kept as they are written.",
)


@check("file")
def _uploaded_checkpoints(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    for holder in (part for job in file.jobs for part in (job, job.get("component")) if part is not None):
        for name, entry in holder.entries_of("outputs").items():
            mode = entry.value.get("mode")
            if mode is not None and mode.text.lower() == "upload" and _CHECKPOINT_NAME.search(name):
                message = f"'{name}' is uploaded when the job ends: if the job is preempted, nothing is left"
                yield UPLOADED_CHECKPOINTS.at(mode.span, message, "Write `mode: rw_mount`.", replacement="rw_mount")


def _has_one_process(component: Node) -> bool:
    """Whether a component says that it is one process on one machine."""
    processes = component.find("distribution", "process_count_per_instance")
    machines = component.find("resources", "instance_count")
    return processes is not None and processes.text == "1" and (machines is None or machines.text == "1")


LEFT_DETERMINISTIC = Rule("AML617", "left-deterministic", "info", suppressed_by_errors=True).explained(
    summary="A distributed training does not set `is_deterministic`.",
    why="The default is true: when the job is submitted again unchanged, Azure ML does not run it, but reuses the old "
    "outputs. Write `is_deterministic: false`, or `true` if that is what you want.",
)


@check("command")
def _left_deterministic(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    node, is_distributed = command.node, command.component.distribution is not None
    if not command.is_component or not is_distributed or node.get("is_deterministic") is not None:
        return
    if _has_one_process(node):
        return
    if _PROGRAM.search(command.text) and not _EVALUATION.search(f"{command.component.name} {command.text}"):
        head = node.entries.get("name") or next(iter(node.entries.values()))
        message = "Azure ML considers this training deterministic, and reuses its outputs instead of running it"
        yield LEFT_DETERMINISTIC.at(head.key.span, message, "Add `is_deterministic: false`.")


# Functions of MLflow that take names, with the argument that has them.
_TAKE_NAMES = {"log_metric": "key", "log_metrics": "metrics", "log_param": "key", "log_params": "params"}
_NOT_IN_NAMES = regex(r"[^/\w.\- :]")
_NOT_AT_START = regex(r"\A(?:(?:/|\.\.)+|\.\Z)")


METRIC_NAME = Rule("AML517", "metric-name", "warning").explained(
    summary="A script logs a metric or parameter under a name that MLflow does not allow.",
    why="Names have letters, digits, `_`, `-`, `.`, `:`, spaces and slashes, and lead out of no folder, as `../a` "
    "does (https://github.com/mlflow/mlflow/blob/master/mlflow/utils/validation.py). MLflow's own stores refuse "
    "others, and so does a rehearsal: the script ends there. Only literal names are looked at.",
)


@check("command")
def _metric_name(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    for called, file, syntax in context.scripts_of(command):
        for name, logs in _names_logged(syntax):
            allowed = _NOT_AT_START.sub("", posixpath.normpath(_NOT_IN_NAMES.sub("_", name))) or "metric"
            if allowed != name:
                message = f"{called.name} logs '{shorten(name)}', a name that MLflow does not allow"
                related = [line_of(file, logs, "it is logged here")]
                yield METRIC_NAME.at(called.place, message, f"Write '{shorten(allowed)}'.", related)


def _names_logged(syntax: Syntax) -> Iterator[tuple[str, ast.Constant]]:
    """The literal names of what a script logs with MLflow, with where they are."""
    for call in syntax.calls:
        module, _, function = dotted(call.func, syntax.imported).rpartition(".")
        if module == "mlflow" and function in _TAKE_NAMES:
            given = call.args[0] if call.args else keyword(call, _TAKE_NAMES[function])
            for name in given.keys if isinstance(given, ast.Dict) else [given]:
                if isinstance(name, ast.Constant) and isinstance(name.value, str):
                    yield name.value, name
