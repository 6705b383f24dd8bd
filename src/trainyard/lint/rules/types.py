"""What is passed to what: literals, parameters and data ports. Literals are checked in `spec/literals.py`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from trainyard.lint.context import LintContext
from trainyard.spec.bindings import Scope, UsedJob
from trainyard.spec.diagnostic import Diagnostic, Related, Span
from trainyard.spec.documents import Node
from trainyard.spec.expressions import Binding, only_binding
from trainyard.spec.model import PORT_TYPES, Component, Port, Value
from trainyard.spec.parsed import ParsedCommand, ParsedPipeline
from trainyard.spec.ports import UNKNOWN_TYPE
from trainyard.spec.resolution import Resolution, Wrong
from trainyard.spec.rule import Example, Rule
from trainyard.spec.rules.keys import OUT_OF_BOUNDS
from trainyard.spec.rules.values import (
    LITERAL_NOT_A_CHOICE,
    LITERAL_OUT_OF_RANGE,
)

_TRAIN = """\
=== train.yaml
type: command
name: train
command: python -m train --epochs ${{inputs.epochs}} --precision '${{inputs.precision}}' --model '${{outputs.model}}'
environment: azureml:torch:3
inputs:
  epochs: {type: integer, min: 1}
  precision: {type: string, enum: [fp32, bf16], default: fp32}
outputs:
  model: {type: uri_folder}
"""


_SCORE = """\
=== score.yaml
type: command
name: score
command: python -m score --table '${{inputs.table}}' --limit ${{inputs.limit}}
environment: azureml:torch:3
inputs:
  table: {type: uri_file}
  limit: {type: integer, default: 10}
"""
DATA_TYPE_MISMATCH = Rule(
    "AML307",
    "data-type-mismatch",
    "warning",
    "A port is bound to a port of another kind of data.",
    "The client does not compare them. A script that expects a file gets a folder, or the other way round; an mltable "
    "is a folder with an MLTable file in it.",
    Example(
        """\
type: pipeline
settings: {default_compute: azureml:cpus}
inputs:
  table: {type: ‹uri_folder⇒uri_file›, path: azureml:table:1}
jobs:
  score:
    component: ./score.yaml
    inputs:
      table: ‸${{parent.inputs.table}}
"""
        + _SCORE
    ),
)
PARAMETER_FOR_DATA = Rule(
    "AML308",
    "parameter-for-data",
    "error",
    "A parameter is bound to data, or data to a parameter.",
    "The script gets a path where it reads a number, or the text of a number where it opens a file.",
    Example(
        """\
type: pipeline
settings: {default_compute: azureml:cpus}
inputs:
  table: {type: uri_file, path: azureml:table:1}
jobs:
  score:
    component: ./score.yaml
    inputs:
      table: ${{parent.inputs.table}}
      limit: ‹${{parent.inputs.table}}⇒20›
"""
        + _SCORE
    ),
)
LITERAL_FOR_DATA = Rule(
    "AML309",
    "literal-for-data",
    "warning",
    "A literal is given to an input that takes data.",
    "Data is given as `path:` with a `type:`; a plain text is sent as a literal, and numbers name nothing at all.",
    Example(
        """\
type: pipeline
settings: {default_compute: azureml:cpus}
jobs:
  score:
    component: ./score.yaml
    inputs:
      table: ‹azureml:table:1⇒{type: uri_file, path: azureml:table:1}›
"""
        + _SCORE
    ),
)
PARAMETER_TYPE_MISMATCH = Rule(
    "AML310",
    "parameter-type-mismatch",
    "warning",
    "A parameter is bound to a parameter of another type.",
    "The client does not compare them. A text may be no number, and a number with a fraction is no integer.",
    Example(
        """\
=== tail.yaml
type: pipeline
name: tail
inputs:
  rows: {type: ‹string⇒integer›}
  table: {type: uri_file}
jobs:
  score:
    component: ./score.yaml
    inputs:
      table: ${{parent.inputs.table}}
      limit: ‸${{parent.inputs.rows}}
"""
        + _SCORE
    ),
)
LIMITS_CONTRADICT = Rule(
    "AML311",
    "limits-contradict",
    "error",
    "A min is above its max.",
    "No value of the input satisfies both, and Azure ML checks neither. So with the machines of a cluster.",
    Example("""\
type: command
name: train
command: python -m train --epochs ${{inputs.epochs}}
environment: azureml:torch:3
inputs:
  epochs: {type: integer, min: ‹100⇒1›, max: 10}
"""),
)
MODE_UNSUITED = Rule(
    "AML312",
    "mode-unsuited",
    "warning",
    "A mode that this kind of data does not have.",
    "Inputs are `ro_mount`, `download` or `direct`, outputs `rw_mount`, `upload` or `direct`. "
    "`eval_mount` and `eval_download` evaluate an mltable.",
    Example("""\
type: command
name: train
command: ls '${{inputs.data}}'
environment: azureml:torch:3
inputs:
  data: {type: uri_folder, mode: ‹eval_mount⇒ro_mount›}
"""),
)
RULES = (
    DATA_TYPE_MISMATCH,
    PARAMETER_FOR_DATA,
    LITERAL_FOR_DATA,
    PARAMETER_TYPE_MISMATCH,
    LIMITS_CONTRADICT,
    MODE_UNSUITED,
)

# A binding written wrongly, which is another rule's.
_BINDING_SCOPES = re.compile(r"\b(?:parent|inputs|jobs)\.")
_FOLDERS = frozenset({"uri_folder", "custom_model", "mlflow_model", "triton_model"})
# From the first, what may also be read as the second: a model is a folder, and at times a file.
_READABLE_AS = {
    **{(first, second): True for first in _FOLDERS for second in _FOLDERS if second in ("uri_folder", "custom_model")},
    ("uri_folder", "mlflow_model"): True,
    ("uri_folder", "triton_model"): True,
    ("uri_file", "custom_model"): True,
    ("custom_model", "uri_file"): True,
    ("mltable", "uri_folder"): True,
}
_WIDENS_TO = {("integer", "number"), ("integer", "string"), ("number", "string"), ("boolean", "string")}


_LIMIT_RULES = frozenset({LITERAL_OUT_OF_RANGE.id, LITERAL_NOT_A_CHOICE.id, OUT_OF_BOUNDS.id})
_MODES_OF_OTHER_SIDE = {
    "inputs": frozenset({"rw_mount", "mount", "upload"}),
    "outputs": frozenset({"ro_mount", "download", "eval_mount", "eval_download"}),
}


def check_pipeline(seen: ParsedPipeline, context: LintContext) -> Iterator[Diagnostic]:
    """What jobs' inputs and outputs are bound to, type against type."""
    for job in seen.scope.jobs.values():
        for name, node, text in _bound(job, "inputs"):
            port = _target(job, name, node)
            if port is None or port.type == UNKNOWN_TYPE:
                continue
            binding = only_binding(text.text) if text.is_text else None
            if binding is not None:
                yield from _compare(job, node, binding, port, seen)
            elif node.is_mapping and node.get("path") is not None and "${{" not in text.text:
                yield from _compare_said(job, node, port)
            elif not node.is_mapping and "${{" not in text.text and not _BINDING_SCOPES.search(text.text):
                yield from _literal_for_data(node, port)
        for name, _, text in _bound(job, "outputs"):
            yield from _compare_output(job, name, text, seen)


def check_values_within(seen: ParsedPipeline, context: LintContext) -> Iterator[Diagnostic]:
    """Literals that break a job's min, max or enum, or are no count, be it in a pipeline within: each literal once."""
    if context.is_used(seen.model):
        return
    found: dict[Span, Diagnostic] = {}
    for use in Resolution(seen.model).uses.values():
        counts = (use.instance_count, use.processes_per_node) if isinstance(use.job.component, Component) else ()
        for value in (*use.inputs.values(), *counts):
            if isinstance(value, Wrong) and value.diagnostic.rule in _LIMIT_RULES:
                found.setdefault(value.diagnostic.span, value.diagnostic)
    yield from found.values()


def check_command(seen: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    """What an input says of itself: its limits, its mode."""
    for port in seen.component.inputs.values():
        least, most = _number(port.minimum), _number(port.maximum)
        if port.minimum is not None and least is not None and most is not None and least > most:
            assert port.maximum is not None
            message = f"'{port.name}' has the min {port.minimum.text} above its max {port.maximum.text}"
            wrong, other = port.minimum, port.maximum
            default = _number(port.default)
            if default is not None and default >= least:
                wrong, other = other, wrong  # the default agrees with the min
            related = [Related(other.span, f"the {'max' if other is port.maximum else 'min'} is here")]
            yield LIMITS_CONTRADICT.at(wrong.span, message, "Swap them, or mend the wrong one.", related)
    for key in ("inputs", "outputs"):
        ports = seen.node.get(key)
        for entry in ports.entries.values() if ports is not None else ():
            yield from _mode(entry.value, key)


def _mode(node: Node, key: str) -> Iterator[Diagnostic]:
    mode, kind = (node.get("mode"), node.get("type")) if node.is_mapping else (None, None)
    if mode is not None and mode.text.lower() in _MODES_OF_OTHER_SIDE[key]:
        suited = "ro_mount, download or direct" if key == "inputs" else "rw_mount, upload or direct"
        message = f"the mode '{mode.text}' is not for {key}"
        yield MODE_UNSUITED.at(mode.span, message, f"Write {suited}.")
    if mode is None or kind is None or kind.text.lower() == "mltable" or not mode.text.lower().startswith("eval_"):
        return
    right = {"eval_mount": "ro_mount", "eval_download": "download"}.get(mode.text.lower(), "ro_mount")
    message = f"the mode '{mode.text}' is for an mltable, and this is {kind.text}"
    yield MODE_UNSUITED.at(mode.span, message, f"Write `mode: {right}`.", replacement=right)


def _number(value: Value | None) -> float | None:
    return float(value.data) if value is not None and type(value.data) in (int, float) else None


def _bound(job: UsedJob, key: str) -> Iterator[tuple[str, Node, Node]]:
    """Each port that a job sets: its name, what stands beneath it, and the text there that may be a binding."""
    ports = job.node.get(key)
    for name, entry in (ports.entries if ports is not None else {}).items():
        node = entry.value
        text = (node.get("path") or node.get("value")) if node.is_mapping else node
        if text is not None and text.data is not None:
            yield name, node, text


def _target(job: UsedJob, name: str, node: Node) -> Port | None:
    """The declared port that a job's input sets; for a job's own command, what it says itself."""
    if not job.has_own_command:
        return (job.declared_inputs or {}).get(name)
    if not node.is_mapping or node.get("type") is None:
        return None
    return (job.declared_inputs or {}).get(name)


def _compare(job: UsedJob, node: Node, binding: Binding, port: Port, seen: ParsedPipeline) -> Iterator[Diagnostic]:
    source = _source(binding, seen.scope)
    if source is None or source.type in (UNKNOWN_TYPE, port.type):
        return
    text = node.get("path") if node.is_mapping else node
    span = seen.reading.document.span_within(text or node, binding.start, binding.end)
    related = [
        Related(source.key_span, f"'{source.name}' is {_article(source.type)}"),
        Related(port.key_span, f"'{port.name}' is {_article(port.type)}"),
    ]
    given = f"'{port.name}' of the job '{job.name}' takes {_article(port.type)}, and is given {_article(source.type)}"
    if source.is_parameter != port.is_parameter:
        if not _is_plain_literal(source) or source.type != "string":
            yield PARAMETER_FOR_DATA.at(span, given, "Bind it to something of the same type.", related)
        elif source.default is not None and source.default.data is not None:
            yield from _literal_for_data_at(source.default, port, related[1:])
    elif port.is_parameter:
        if (source.type, port.type) not in _WIDENS_TO and not _is_plain_literal(source):
            yield PARAMETER_TYPE_MISMATCH.at(span, given, f"Declare both as {port.type}.", related)
    elif (source.type, port.type) not in _READABLE_AS:
        yield DATA_TYPE_MISMATCH.at(span, given, "Declare both with the same type.", related)


def _compare_said(job: UsedJob, node: Node, port: Port) -> Iterator[Diagnostic]:
    """The type that a job's input says beside its path, against the port's."""
    kind = node.get("type")
    said = kind.text.lower() if kind is not None else port.type
    if kind is None or port.is_parameter or said == port.type or (said, port.type) in _READABLE_AS:
        return
    if said in PORT_TYPES:
        message = f"'{port.name}' of the job '{job.name}' takes {_article(port.type)}, and is given {_article(said)}"
        related = [Related(port.key_span, f"'{port.name}' is {_article(port.type)}")]
        yield DATA_TYPE_MISMATCH.at(kind.span, message, "Declare both with the same type.", related)


def _compare_output(job: UsedJob, name: str, text: Node, seen: ParsedPipeline) -> Iterator[Diagnostic]:
    binding = only_binding(text.text) if text.is_text else None
    port = (job.declared_outputs or {}).get(name)
    if binding is None or port is None or job.has_own_command or binding.path[:2] != ("parent", "outputs"):
        return
    target = seen.scope.outputs.get(".".join(binding.path[2:]))
    if target is None or port.type == target.type or UNKNOWN_TYPE in (port.type, target.type):
        return
    if (port.type, target.type) in _READABLE_AS or not _says_type(target, seen):
        return
    span = seen.reading.document.span_within(text, binding.start, binding.end)
    related = [Related(target.key_span, f"'{target.name}' is {_article(target.type)}"),
               Related(port.key_span, f"'{port.name}' is {_article(port.type)}")]  # fmt: skip
    message = f"the job '{job.name}' writes {_article(port.type)} to an output of type {target.type}"
    yield DATA_TYPE_MISMATCH.at(span, message, "Declare both with the same type.", related)


def _says_type(port: Port, seen: ParsedPipeline) -> bool:
    """Whether an output's type is written down; one with nothing beneath it takes what comes."""
    outputs = seen.body.get("outputs")
    node = outputs.get(port.name) if outputs is not None else None
    return node is not None and node.is_mapping and node.get("type") is not None


def _source(binding: Binding, scope: Scope) -> Port | None:
    path = binding.path
    if path[:2] == ("parent", "inputs"):
        return scope.inputs.get(".".join(path[2:]))
    if path[:2] != ("parent", "jobs") or len(path) < 5 or path[2] not in scope.jobs:
        return None
    job = scope.jobs[path[2]]
    ports: Mapping[str, Port] | None = job.declared_outputs if path[3] == "outputs" else job.declared_inputs
    # What a job's own command writes has the type of what it is bound to, if that says one.
    value = job.outputs.get(".".join(path[4:])) if path[3] == "outputs" else None
    if job.has_own_command and value is not None and isinstance(value.data, str):
        return None
    if job.has_own_command and path[3] == "inputs":
        return None
    port = (ports or {}).get(".".join(path[4:]))
    said = _said_type(job, path[4:]) if path[3] == "outputs" else None
    return replace(port, type=said) if port is not None and said in PORT_TYPES else port


def _said_type(job: UsedJob, path: tuple[str, ...]) -> str | None:
    """The type that a job gives an output of its component, which is what Azure ML is sent."""
    outputs = job.node.get("outputs")
    node = outputs.get(".".join(path)) if outputs is not None and outputs.is_mapping else None
    kind = node.get("type") if node is not None and node.is_mapping else None
    return kind.text.lower() if kind is not None and kind.is_text else None


def _is_plain_literal(port: Port) -> bool:
    """Whether a pipeline's input is a bare value, with no type of its own: that is looked at where it is written."""
    return port.is_parameter and port.default is not None and port.default.span == port.span


def _literal_for_data(node: Node, port: Port) -> Iterator[Diagnostic]:
    yield from _literal_for_data_at(node.value, port, [Related(port.key_span, f"'{port.name}' is declared here")])


def _literal_for_data_at(value: Value, port: Port, related: list[Related]) -> Iterator[Diagnostic]:
    if port.is_parameter or isinstance(value.data, (dict, list)):
        return
    message = f"'{port.name}' takes {_article(port.type)}, and is given the literal '{value.text}'"
    path = value.text if isinstance(value.data, str) else "PATH"
    yield LITERAL_FOR_DATA.at(value.span, message, f"Write {{type: {port.type}, path: {path}}}.", related)


def _article(port_type: str) -> str:
    return f"{'an' if port_type[0] in 'aeio' else 'a'} {port_type}"
