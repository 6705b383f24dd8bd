"""What an input or output declares about itself: limits that contradict each other, and modes."""

from __future__ import annotations

from collections.abc import Iterator

from trainyard.lint.checks import LintedFile, check
from trainyard.lint.context import LintContext
from trainyard.spec.diagnostic import Diagnostic, Related, Severity
from trainyard.spec.documents import Node
from trainyard.spec.model import Value
from trainyard.spec.parsed import ParsedCommand, ParsedPipeline
from trainyard.spec.rule import Rule

# What the REST contract (InputDeliveryMode, OutputDeliveryMode) has for the other side alone.
_MODES_OF_OTHER_SIDE = {
    "inputs": frozenset({"upload"}),
    "outputs": frozenset({"ro_mount", "download", "eval_mount", "eval_download"}),
}
_WITHOUT_EVAL = {"eval_mount": "ro_mount", "eval_download": "download"}


LIMITS_CONTRADICT = Rule("AML311", "limits-contradict", "error").explained(
    summary="A min is above its max.",
    why="No value satisfies both, and Azure ML checks neither. The same goes for the instance counts of a cluster.",
    example="""\
type: command
name: train
command: python -m train --epochs ${{inputs.epochs}}
environment: azureml:torch:3
inputs:
  epochs: {type: integer, min: ‹100⇒1›, max: 10}
""",
)


@check("command")
def _limits_contradict(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    for port in command.component.inputs.values():
        least, most = _number(port.minimum), _number(port.maximum)
        if port.minimum is None or port.maximum is None or least is None or most is None or least <= most:
            continue
        message = f"'{port.name}' has a min of {port.minimum.text}, above its max of {port.maximum.text}"
        default = _number(port.default)
        # If the default agrees with the min, the max is the one that is wrong.
        if default is not None and default >= least:
            wrong, related = port.maximum, Related(port.minimum.span, "the min is here")
        else:
            wrong, related = port.minimum, Related(port.maximum.span, "the max is here")
        yield LIMITS_CONTRADICT.at(wrong.span, message, "Swap them, or fix the wrong one.", [related])


@check("file")
def _instance_counts(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    least, most = file.document.root.get("min_instances"), file.document.root.get("max_instances")
    if file.kind != "compute" or least is None or most is None:
        return
    if type(least.data) is type(most.data) is int and least.data > most.data:
        message = f"min_instances is {least.data}, above max_instances of {most.data}"
        yield LIMITS_CONTRADICT.at(least.span, message, "Swap them, or fix the wrong one.")


MODE_UNSUITED = Rule("AML312", "mode-unsuited", "warning").explained(
    summary="This type of data does not have this mode.",
    why="Inputs are `ro_mount`, `rw_mount`, `download` or `direct`; outputs are `rw_mount`, `upload` or `direct`. "
    "`eval_mount` and `eval_download` evaluate an mltable.",
    example="""\
type: command
name: train
command: ls '${{inputs.data}}'
environment: azureml:torch:3
inputs:
  data: {type: uri_folder, mode: ‹eval_mount⇒ro_mount›}
""",
)


@check("command")
def _mode_unsuited(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    for key, wrong_modes in _MODES_OF_OTHER_SIDE.items():
        for entry in command.node.entries_of(key).values():
            mode = entry.value.get("mode")
            text = mode.text.lower() if mode is not None else ""
            if mode is not None and text in wrong_modes:
                suited = "ro_mount, download or direct" if key == "inputs" else "rw_mount, upload or direct"
                message = f"'{mode.text}' is not a mode of {key}"
                yield MODE_UNSUITED.at(mode.span, message, f"Write {suited}.")
            yield from _evaluated(entry.value, None if command.is_component else "error")


@check("pipeline")
def _modes_of_jobs(pipeline: ParsedPipeline, context: LintContext) -> Iterator[Diagnostic]:
    """The same for jobs without a command, whose inputs Azure ML's client checks alike."""
    for job in pipeline.scope.jobs.values():
        for entry in job.node.entries_of("inputs").values() if job.node.get("command") is None else ():
            if entry.value.is_mapping:
                yield from _evaluated(entry.value, "error")


def _evaluated(port: Node, severity: Severity | None) -> Iterator[Diagnostic]:
    """A mode that evaluates an mltable, of something else."""
    mode, kind = port.get("mode"), port.get("type")
    text = mode.text.lower() if mode is not None else ""
    if mode is not None and kind is not None and kind.text.lower() != "mltable" and text.startswith("eval_"):
        right = _WITHOUT_EVAL.get(text, "ro_mount")
        message = f"the mode '{mode.text}' requires an mltable, but this is {kind.text}"
        yield MODE_UNSUITED.at(mode.span, message, f"Write `mode: {right}`.", replacement=right, severity=severity)


def _number(value: Value | None) -> float | None:
    return float(value.data) if value is not None and type(value.data) in (int, float) else None
