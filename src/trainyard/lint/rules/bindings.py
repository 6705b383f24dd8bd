"""`${{…}}` and `$[[ … ]]`. Names are checked while a pipeline is read (`spec/bindings.py`, `spec/graph.py`)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainyard.lint.context import LintContext
from trainyard.spec.bindings import UsedJob, texts_in
from trainyard.spec.diagnostic import Diagnostic, Related
from trainyard.spec.documents import Node
from trainyard.spec.expressions import (
    Binding,
    ExpressionError,
    OptionalPart,
    bindings_in,
    only_binding,
    parse_expressions,
)
from trainyard.spec.parsed import ParsedCommand, ParsedPipeline
from trainyard.spec.rule import Example, Rule
from trainyard.spec.rules.bindings import MALFORMED_EXPRESSION

_TRAIN = """\
=== train.yaml
type: command
name: train
command: python -m train --epochs ${{inputs.epochs}} --model '${{outputs.model}}'
environment: azureml:torch:3
inputs:
  epochs: {type: integer, default: 3}
outputs:
  model: {type: uri_folder}
"""
_EVALUATE = """\
=== evaluate.yaml
type: command
name: evaluate
command: python -m evaluate --model '${{inputs.model}}' --report '${{outputs.report}}'
environment: azureml:torch:3
inputs:
  model: {type: uri_folder}
outputs:
  report: {type: uri_folder}
"""


LEGACY_BINDING = Rule(
    "AML208",
    "legacy-binding",
    "error",
    "A form of binding that Azure ML does not fill in: `$inputs.x`, `{inputs.x}`, `{{inputs.x}}`.",
    "They come from earlier versions and from other programs. The shell gets them as they stand: `$inputs.x` becomes "
    "`.x`. Write `${{inputs.x}}`.",
    Example("""\
type: command
name: train
command: python -m train --epochs ${{inputs.epochs}} --rounds ‹$inputs.epochs⇒${{inputs.epochs}}›
environment: azureml:torch:3
inputs:
  epochs: {type: integer, default: 3}
"""),
)
OPTIONAL_OUTSIDE = Rule(
    "AML209",
    "optional-input-outside",
    "warning",
    "An optional input without a default stands outside `$[[ … ]]`.",
    "When it is not given there is nothing to fill in, and Azure ML refuses the job. Within `$[[ … ]]` the whole part "
    "is left out.",
    Example("""\
type: command
name: train
command: python -m train ‹⇒$[[ ›--max-steps ‸${{inputs.max_steps}}‹⇒ ]]›
environment: azureml:torch:3
inputs:
  max_steps: {type: integer, optional: true}
"""),
)
REQUIRED_INSIDE = Rule(
    "AML210",
    "required-input-inside",
    "warning",
    "A `$[[ … ]]` holds no optional input.",
    "It is left out when an optional input in it is not given; with none in it, it says something that never happens. "
    "Declare the input `optional: true`, or take the brackets away.",
    Example("""\
type: command
name: train
command: python -m train ‹$[[ ⇒›--epochs ${{inputs.epochs}}‹ ]]⇒›
environment: azureml:torch:3
inputs:
  epochs: {type: integer}
"""),
)
UNUSED_INPUT = Rule(
    "AML211",
    "unused-input",
    "warning",
    "An input is declared, and the command does not use it.",
    "Setting it changes nothing, but for a script that reads `AZURE_ML_INPUT_…` from its environment by itself.",
    Example("""\
type: command
name: train
command: python -m train --epochs ${{inputs.epochs}}‹⇒ --seed ${{inputs.seed}}›
environment: azureml:torch:3
inputs:
  epochs: {type: integer, default: 3}
  ‸seed: {type: integer, default: 0}
"""),
    suppressed_by_errors=True,
)
UNWRITTEN_OUTPUT = Rule(
    "AML212",
    "unwritten-output",
    "warning",
    "An output is declared, and the command is not told where it is.",
    "The script cannot write what it has no path of; whoever reads the output finds an empty folder.",
    Example("""\
type: command
name: train
command: python -m train‹⇒ --model '${{outputs.model}}'›
environment: azureml:torch:3
outputs:
  ‸model: {type: uri_folder}
"""),
    suppressed_by_errors=True,
)
UNBOUND_PIPELINE_OUTPUT = Rule(
    "AML213",
    "unbound-pipeline-output",
    "warning",
    "No job writes this output of the pipeline.",
    "An output of the pipeline is what a job's output is bound to: `model: ${{parent.outputs.model}}`.",
    Example(
        """\
type: pipeline
settings: {default_compute: azureml:cpus}
outputs:
  ‸model: {type: uri_folder}
jobs:
  train:
    component: ./train.yaml
‹⇒    outputs: {model: "${{parent.outputs.model}}"}
›"""
        + _TRAIN
    ),
    suppressed_by_errors=True,
)
UNREAD_PIPELINE_INPUT = Rule(
    "AML214",
    "unread-pipeline-input",
    "warning",
    "No job reads this input of the pipeline.",
    "Setting it changes nothing: the jobs keep what they have.",
    Example(
        """\
type: pipeline
settings: {default_compute: azureml:cpus}
inputs:
  ‸epochs: 30
jobs:
  train:
    component: ./train.yaml
    inputs: {epochs: ‹3⇒"${{parent.inputs.epochs}}"›}
"""
        + _TRAIN
    ),
    suppressed_by_errors=True,
)
TEXT_FOR_BINDING = Rule(
    "AML215",
    "text-for-binding",
    "error",
    "A text that was to be a binding.",
    "Without the `$`, or with one brace, Azure ML takes it for the value itself.",
    Example("""\
type: pipeline
settings: {default_compute: azureml:cpus}
jobs:
  train:
    component: azureml:train:1
  evaluate:
    component: azureml:evaluate:1
    inputs:
      model: ‹$parent.jobs.train.outputs.model⇒${{parent.jobs.train.outputs.model}}›
"""),
)
UNREAD_OUTPUT = Rule(
    "AML216",
    "unread-output",
    "info",
    "Nothing reads this output of a job, and it has no place of its own.",
    "It is kept beneath the job's own name in the default datastore, where only those find it who know the job. Bind "
    "it to an output of the pipeline, to another job's input, or give it a `path` or a `name`.",
    Example(
        """\
type: pipeline
settings: {default_compute: azureml:cpus}
‹⇒outputs:
  model: {type: uri_folder}
›jobs:
  train:
    component: ./train.yaml
    outputs:
      ‸model: ‹⇒${{parent.outputs.model}}›
"""
        + _TRAIN
    ),
    suppressed_by_errors=True,
)

OUTPUTS_COLLIDE = Rule(
    "AML217",
    "outputs-collide",
    "warning",
    "Two outputs are bound to one output of the pipeline.",
    "Both write to the same place, and the client says nothing: what one job wrote, the other replaces.",
    Example(
        """\
type: pipeline
settings: {default_compute: azureml:cpus}
outputs:
  model: {type: uri_folder}
‹⇒  second: {type: uri_folder}
›jobs:
  first:
    component: ./train.yaml
    outputs: {model: "${{parent.outputs.model}}"}
  second:
    component: ./train.yaml
    outputs: {model: ‸"${{parent.outputs.‹model⇒second›}}"}
"""
        + _TRAIN
    ),
)

RULES = (
    LEGACY_BINDING,
    OPTIONAL_OUTSIDE,
    REQUIRED_INSIDE,
    UNUSED_INPUT,
    UNWRITTEN_OUTPUT,
    UNBOUND_PIPELINE_OUTPUT,
    UNREAD_PIPELINE_INPUT,
    TEXT_FOR_BINDING,
    UNREAD_OUTPUT,
    OUTPUTS_COLLIDE,
)

_PATH = r"(?:\.[A-Za-z_]\w*)+"
_LEGACY = re.compile(
    rf"(?<![${{\w])\{{\{{?\s*((?:inputs|outputs){_PATH})\s*\}}\}}?|\$[({{]?((?:inputs|outputs){_PATH})[)}}]?"
)
_TEXT_FOR_BINDING = re.compile(
    rf"\$?\s?[({{]{{0,2}}\s*(parent\.(?:inputs|jobs|outputs){_PATH})\s*[)}}]{{0,2}}|"
    rf"\$\(?((?:inputs|outputs|jobs){_PATH})\)?"
)
_BRACKETS_WITHOUT_SIGN = re.compile(r"(?<!\$)\[\[(?=\s*--[A-Za-z])|\$\[(?!\[)(?=\s*--[A-Za-z])")
_PORT_KEYS = ("inputs", "outputs")


def check_command(seen: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    """Bindings of a command that are none, stand in the wrong place, or are missing."""
    command = seen.node.get("command")
    if command is None or not command.is_text:
        return
    try:
        segments = parse_expressions(command.text)
    except ExpressionError:
        return
    yield from _legacy_bindings(command, seen)
    # Brackets of another form are told as that; what stands in them is meant to be optional.
    if seen.is_component and _BRACKETS_WITHOUT_SIGN.search(command.text) is None:
        for segment in segments:
            if isinstance(segment, OptionalPart):
                yield from _without_optional_input(segment, command, seen)
            elif isinstance(segment, Binding):
                yield from _optional_outside(segment, command, seen)
    yield from _unused_ports(seen)


def _legacy_bindings(command: Node, seen: ParsedCommand) -> Iterator[Diagnostic]:
    for match in _LEGACY.finditer(command.text):
        span = seen.reading.document.span_within(command, match.start(), match.end())
        right = f"${{{{{match[1] or match[2]}}}}}"
        message = f"Azure ML fills in nothing for '{match[0]}'"
        yield LEGACY_BINDING.at(span, message, f"Write {right}.", replacement=right)
    for match in _BRACKETS_WITHOUT_SIGN.finditer(command.text):
        span = seen.reading.document.span_within(command, match.start(), match.end())
        message = f"'{match[0]}' begins no optional part: that is '$[['"
        yield MALFORMED_EXPRESSION.at(span, message, hint="Write $[[ … ]].")


def _without_optional_input(part: OptionalPart, command: Node, seen: ParsedCommand) -> Iterator[Diagnostic]:
    inputs = seen.component.inputs
    names = [".".join(s.path[1:]) for s in part.segments if isinstance(s, Binding) and s.path[0] == "inputs"]
    # With no input in it, it is written out as it stands.
    if not names or any(name not in inputs or inputs[name].optional for name in names):
        return
    span = seen.reading.document.span_within(command, part.start, part.start + 3)
    why = f"'{names[0]}' is not optional"
    related = [Related(inputs[name].key_span, f"'{name}' is declared here") for name in names[:1]]
    hint = "Declare it `optional: true`, or remove $[[ and ]]."
    yield REQUIRED_INSIDE.at(span, f"this part is never left out: {why}", hint, related)


def _optional_outside(binding: Binding, command: Node, seen: ParsedCommand) -> Iterator[Diagnostic]:
    port = seen.component.inputs.get(".".join(binding.path[1:])) if binding.path[0] == "inputs" else None
    if port is None or not port.optional or port.default is not None:
        return
    span = seen.reading.document.span_within(command, binding.start, binding.end)
    message = f"'{port.name}' is optional and has no default, so it can only stand within $[[ … ]]"
    related = [Related(port.key_span, f"'{port.name}' is declared here")]
    yield OPTIONAL_OUTSIDE.at(span, message, f"Write $[[ --FLAG {binding.text} ]].", related)


def _unused_ports(seen: ParsedCommand) -> Iterator[Diagnostic]:
    command = seen.component.command.text.lower()
    if not command:
        return
    used = {
        (binding.path[0], ".".join(binding.path[1:]).lower())
        for key, entry in seen.node.entries.items()
        if key not in _PORT_KEYS
        for binding in _bindings(entry.value)
    }
    for kind, ports, rule, verb in (
        ("inputs", seen.component.inputs, UNUSED_INPUT, "uses"),
        ("outputs", seen.component.outputs, UNWRITTEN_OUTPUT, "writes"),
    ):
        for name, port in ports.items():
            if name == "artifacts" and kind == "outputs":
                continue  # Azure ML fills this one with ./outputs by itself
            variable = f"azure_ml_{kind[:-1]}_{name}".lower()
            # A form that is no binding, such as $inputs.x, has been told already.
            if (kind, name.lower()) not in used and variable not in command and f"{kind}.{name}".lower() not in command:
                message = f"the {kind[:-1]} '{name}' is declared, and the command never {verb} it"
                hint = f"Put ${{{{{kind}.{name}}}}} into the command, or remove '{name}'."
                yield rule.at(port.key_span, message, hint)


def check_pipeline(seen: ParsedPipeline, context: LintContext) -> Iterator[Diagnostic]:
    """Ports of a pipeline, and outputs of its jobs, that nothing is bound to; texts that were to be bindings."""
    used = {
        binding.path
        for key, entry in seen.body.entries.items()
        if key != "inputs"
        for binding in _bindings(entry.value)
    }
    all_jobs = seen.body.get("jobs")
    jobs = list(seen.scope.jobs.values())
    for job in jobs:
        yield from _texts_for_bindings(job)
    yield from _collisions(jobs)
    if all_jobs is None or len(jobs) != len(all_jobs.entries):
        return
    for kind, ports, rule, message in (
        ("inputs", seen.scope.inputs, UNREAD_PIPELINE_INPUT, "no job reads the pipeline's input '{}'"),
        ("outputs", seen.scope.outputs, UNBOUND_PIPELINE_OUTPUT, "no job writes the pipeline's output '{}'"),
    ):
        for name, port in ports.items():
            if ("parent", kind, *name.split(".")) not in used:
                hint = f"Bind ${{{{parent.{kind}.{name}}}}} in a job, or remove '{name}'."
                yield rule.at(port.key_span, message.format(name), hint)
    for job in jobs:
        outputs = job.node.get("outputs")
        for name, entry in (outputs.entries if outputs is not None else {}).items():
            is_read = ("parent", "jobs", job.name, "outputs", *name.split(".")) in used
            if entry.value.data is None and not is_read:
                message = f"nothing reads the output '{name}' of the job '{job.name}', and it has no place of its own"
                yield UNREAD_OUTPUT.at(entry.key.span, message, "Bind it to an output of the pipeline.")


def _collisions(jobs: list[UsedJob]) -> Iterator[Diagnostic]:
    taken: dict[tuple[str, ...], tuple[Node, str]] = {}
    for job in jobs:
        outputs = job.node.get("outputs")
        for name, entry in (outputs.entries if outputs is not None else {}).items():
            binding = only_binding(entry.value.text) if entry.value.is_text else None
            if binding is None or binding.path[:2] != ("parent", "outputs"):
                continue
            earlier, other = taken.setdefault(binding.path, (entry.value, f"'{name}' of the job '{job.name}'"))
            if earlier is not entry.value:
                message = f"{other} is bound to the same output of the pipeline"
                related = [Related(earlier.span, f"{other} is bound here")]
                yield OUTPUTS_COLLIDE.at(entry.value.span, message, "Give each an output of its own.", related)


def _texts_for_bindings(job: UsedJob) -> Iterator[Diagnostic]:
    for key in _PORT_KEYS:
        ports = job.node.get(key)
        for name, entry in (ports.entries if ports is not None else {}).items():
            declared = (job.declared_inputs or {}).get(name)
            if declared is not None and declared.is_parameter and declared.type != "string":
                continue
            node = entry.value.get("path") if entry.value.is_mapping else entry.value
            match = _TEXT_FOR_BINDING.fullmatch(node.text.strip()) if node is not None and node.is_text else None
            if node is None or match is None or "${{" in node.text:
                continue
            right = f"${{{{{match[1] or 'parent.' + match[2]}}}}}"
            message = f"'{node.text.strip()}' is a text, not a binding"
            yield TEXT_FOR_BINDING.at(node.span, message, f"Write {right}.", replacement=right)


def _bindings(node: Node) -> Iterator[Binding]:
    for text in texts_in(node):
        try:
            yield from bindings_in(text.text)
        except ExpressionError:
            continue
