"""Types of what is passed between the jobs of a pipeline: data against data, parameters against parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trainyard.lint.checks import LintContext, LintedFile, check, exceeds, known_words, number_of
from trainyard.spec.diagnostic import Diagnostic, Related, Severity, Span
from trainyard.spec.documents import Node, Value
from trainyard.spec.expressions import Binding, only_binding
from trainyard.spec.literals import LITERAL_NOT_A_CHOICE, LITERAL_OUT_OF_RANGE
from trainyard.spec.model import PORT_TYPES, Component, Job, PipelineComponent, Port
from trainyard.spec.parsed import ParsedCommand, ParsedPipeline
from trainyard.spec.ports import UNKNOWN_TYPE
from trainyard.spec.resolved import Wrong
from trainyard.spec.rule import Rule
from trainyard.spec.rules import OUT_OF_BOUNDS

# Data of the first type can also be read as the second.
_READABLE_AS = {(kind, other) for kind, others in known_words("readable_as").items() for other in others}
# A script that takes the path of a folder gets that of a file: many look whether it is one.
_MAY_BE_READ_AS = ("uri_file", "uri_folder")
_WIDENS_TO = {("integer", "number"), ("integer", "string"), ("number", "string"), ("boolean", "string")}
_LIMIT_RULES = frozenset({LITERAL_OUT_OF_RANGE.id, LITERAL_NOT_A_CHOICE.id, OUT_OF_BOUNDS.id})


DATA_TYPE_MISMATCH = Rule("AML307", "data-type-mismatch", "warning").explained(
    summary="A port is bound to data of another type.",
    why="The client does not compare them. A script that expects a file gets a folder; an mltable is a folder with an "
    "MLTable file in it. A file for a folder is a note: Azure ML passes its path, and some scripts take either.",
)


@check("pipeline")
def _data_type_mismatch(pipeline: ParsedPipeline, context: LintContext) -> Iterator[Diagnostic]:
    for job, port, node, text in _targets(pipeline):
        stated = node.get("type") if node.get("path") is not None else None
        found = stated.text.lower() if stated is not None else port.type
        if stated is None or port.is_parameter or "${{" in text.text or found not in PORT_TYPES:
            continue
        if found != port.type and (found, port.type) not in _READABLE_AS:
            message = f"'{port.name}' of the job '{job.name}' takes {_article(port.type)}, but gets {_article(found)}"
            related = [Related(port.key_span, f"'{port.name}' is {_article(port.type)}")]
            yield _mismatch(found, port.type, stated.span, message, related)
    for job in pipeline.model.jobs.values():
        for name, _, text in _values(job, "outputs"):
            yield from _output_mismatch(job, name, text, pipeline)


def _output_mismatch(job: Job, name: str, text: Node, pipeline: ParsedPipeline) -> Iterator[Diagnostic]:
    binding = only_binding(text.text) if text.is_text else None
    port = (job.declared_outputs or {}).get(name)
    if binding is None or port is None or job.has_own_command:
        return
    target = pipeline.model.outputs.get(binding.name_in("parent.outputs") or "")
    if target is None or port.type == target.type or UNKNOWN_TYPE in (port.type, target.type):
        return
    # A pipeline output without a type takes that of what writes it.
    if (port.type, target.type) in _READABLE_AS or pipeline.body.find("outputs", target.name, "type") is None:
        return
    span = pipeline.reading.document.span_within(text, binding.start, binding.end)
    related = [Related(each.key_span, f"'{each.name}' is {_article(each.type)}") for each in (target, port)]
    message = f"the job '{job.name}' writes {_article(port.type)} to an output of type {target.type}"
    yield _mismatch(port.type, target.type, span, message, related)


def _mismatch(found: str, wanted: str, span: Span, message: str, related: list[Related]) -> Diagnostic:
    severity: Severity | None = "info" if (found, wanted) == _MAY_BE_READ_AS else None
    return DATA_TYPE_MISMATCH.at(span, message, "Declare both with the same type.", related, severity=severity)


PARAMETER_FOR_DATA = Rule("AML308", "parameter-for-data", "error").explained(
    summary="A parameter is bound to data, or data to a parameter.",
    why="The script gets a path where it reads a number, or the text of a number where it opens a file.",
)


LITERAL_FOR_DATA = Rule("AML309", "literal-for-data", "warning").explained(
    summary="A data input is set to a literal.",
    why="Data is written as `path:` with a `type:`. A number names nothing, and Azure ML's client refuses it. What the "
    "pipeline's own input holds is sent as a literal, also where it is a string.",
)


@check("pipeline")
def _check_literal_for_data(pipeline: ParsedPipeline, context: LintContext) -> Iterator[Diagnostic]:
    for _, port, node, text in _targets(pipeline):
        if not node.is_mapping and not text.is_text:
            yield from _literal_for_data(node.value, port, [port.declared])


def _literal_for_data(value: Value, port: Port, related: list[Related]) -> Iterator[Diagnostic]:
    if not port.is_parameter and not isinstance(value.data, (dict, list)):
        message = f"'{port.name}' takes {_article(port.type)}, but is set to the literal '{value.text}'"
        path = value.text if isinstance(value.data, str) else "PATH"
        yield LITERAL_FOR_DATA.at(value.span, message, f"Write {{type: {port.type}, path: {path}}}.", related)


FILE_WITHOUT_TYPE = Rule("AML345", "file-without-type", "error", is_let_pass=True).explained(
    summary="A file is given to an input without `type: uri_file`.",
    why="Without a type, Azure ML's client sends every path as a folder, whatever the component's input is.",
)


@check("pipeline")
def _file_without_type(pipeline: ParsedPipeline, context: LintContext) -> Iterator[Diagnostic]:
    for _, port, node, text in _targets(pipeline):
        has_path = node.get("path") is not None and "${{" not in text.text
        if has_path and port.type == "uri_file" and node.get("type") is None:
            message = f"'{port.name}' is a file, and without a type the client sends a folder"
            yield FILE_WITHOUT_TYPE.at(node.span, message, "Write type: uri_file beside the path.", [port.declared])


PARAMETER_TYPE_MISMATCH = Rule("AML310", "parameter-type-mismatch", "warning").explained(
    summary="A parameter is bound to a parameter of another type.",
    why="The client does not compare them. A string may not be a number, and a number may not be an integer.",
)


@check("pipeline")
def _types_of_bindings(pipeline: ParsedPipeline, context: LintContext) -> Iterator[Diagnostic]:
    for job, target, _, text in _targets(pipeline):
        binding = only_binding(text.text) if text.is_text else None
        source = _source(binding, pipeline.model) if binding is not None else None
        if binding is None or source is None or source.type in (UNKNOWN_TYPE, target.type):
            continue
        span = pipeline.reading.document.span_within(text, binding.start, binding.end)
        message = (
            f"'{target.name}' of the job '{job.name}' takes {_article(target.type)}, but gets {_article(source.type)}"
        )
        related = [Related(port.key_span, f"'{port.name}' is {_article(port.type)}") for port in (source, target)]
        # A bare value without a type of its own is checked where it is written.
        is_literal = source.is_parameter and source.default is not None and source.default.span == source.span
        if not source.is_parameter and not target.is_parameter:
            if (source.type, target.type) not in _READABLE_AS:
                yield _mismatch(source.type, target.type, span, message, related)
        elif source.is_parameter and target.is_parameter:
            if not is_literal and (source.type, target.type) not in _WIDENS_TO:
                hint = f"Declare both as {target.type}."
                yield PARAMETER_TYPE_MISMATCH.at(span, message, hint, related)
        elif not is_literal or source.type != "string":
            hint = "Bind it to something of the same type."
            yield PARAMETER_FOR_DATA.at(span, message, hint, related)
        elif source.default is not None and source.default.data is not None:
            yield from _literal_for_data(source.default, target, related[1:])


@check("pipeline")
def _limits(pipeline: ParsedPipeline, context: LintContext) -> Iterator[Diagnostic]:
    """Literals that break a job's min, max or enum, or are not a count, in nested pipelines too: each literal once."""
    if context.is_used(pipeline.model):
        return
    found: dict[Span, Diagnostic] = {}
    for use in context.resolution_of(pipeline.model).uses.values():
        counts = (use.instance_count, use.processes_per_node) if isinstance(use.job.component, Component) else ()
        for value in (*use.inputs.values(), *counts):
            if isinstance(value, Wrong) and value.diagnostic.rule in _LIMIT_RULES:
                found.setdefault(value.diagnostic.span, value.diagnostic)
    yield from found.values()


def _values(job: Job, key: str) -> Iterator[tuple[str, Node, Node]]:
    """Each port that a job sets: its name, its node, and the text there that may be a binding."""
    for name, entry in job.node.entries_of(key).items():
        node = entry.value
        text = (node.get("path") or node.get("value")) if node.is_mapping else node
        if text is not None and text.data is not None:
            yield name, node, text


def _targets(pipeline: ParsedPipeline) -> Iterator[tuple[Job, Port, Node, Node]]:
    """Each declared input that a job sets, with its node and text."""
    for job in pipeline.model.jobs.values():
        for name, node, text in _values(job, "inputs"):
            port = (job.declared_inputs or {}).get(name)
            # A job's own command gets whatever it is set to, unless it states a type.
            is_stated = node.get("type") is not None
            if port is not None and port.type != UNKNOWN_TYPE and (is_stated or not job.has_own_command):
                yield job, port, node, text


def _source(binding: Binding, scope: PipelineComponent) -> Port | None:
    """The port that a binding names; None if its type is not known."""
    path = binding.path
    if (name := binding.name_in("parent.inputs")) is not None:
        return scope.inputs.get(name)
    if path[:2] != ("parent", "jobs") or len(path) < 5 or path[2] not in scope.jobs:
        return None
    job, name = scope.jobs[path[2]], ".".join(path[4:])
    if path[3] != "outputs":
        return None if job.has_own_command else (job.declared_inputs or {}).get(name)
    # The output of a job's own command has the type of what it is bound to.
    value = job.outputs.get(name)
    if job.has_own_command and value is not None and isinstance(value.data, str):
        return None
    ports: Mapping[str, Port] = job.declared_outputs or {}
    # A job may state another type for an output of its component, and Azure ML gets that.
    stated = job.node.find("outputs", name, "type")
    if name in ports and stated is not None and stated.text.lower() in PORT_TYPES:
        return ports[name]._replace(type=stated.text.lower())
    return ports.get(name)


def _article(port_type: str) -> str:
    return f"{'an' if port_type[0] in 'aeio' else 'a'} {port_type}"


_MODES_OF_OTHER_SIDE: dict[str, list[str]] = known_words("modes_of_other_side")
_WITHOUT_EVAL = {"eval_mount": "ro_mount", "eval_download": "download"}


LIMITS_CONTRADICT = Rule("AML311", "limits-contradict", "error", is_let_pass=True).explained(
    summary="A min is above its max.",
    why="No value satisfies both, and Azure ML checks neither. The same goes for the instance counts of a cluster.",
)


@check("command")
def _limits_contradict(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    for port in command.component.inputs.values():
        least, most = number_of(port.minimum), number_of(port.maximum)
        if port.minimum is None or port.maximum is None or least is None or most is None or least <= most:
            continue
        message = f"'{port.name}' has a min of {port.minimum.text}, above its max of {port.maximum.text}"
        default = number_of(port.default)
        # If the default agrees with the min, the max is the one that is wrong.
        if default is not None and default >= least:
            wrong, related = port.maximum, Related(port.minimum.span, "the min is here")
        else:
            wrong, related = port.minimum, Related(port.maximum.span, "the max is here")
        yield LIMITS_CONTRADICT.at(wrong.span, message, "Swap them, or fix the wrong one.", [related])


@check("file")
def _instance_counts(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    least, most = file.root.get("min_instances"), file.root.get("max_instances")
    if file.kind == "compute" and least is not None and most is not None and exceeds(least, most):
        message = f"min_instances is {least.text}, above max_instances of {most.text}"
        yield LIMITS_CONTRADICT.at(least.span, message, "Swap them, or fix the wrong one.")


MODE_UNSUITED = Rule("AML312", "mode-unsuited", "warning").explained(
    summary="This type of data does not have this mode.",
    why="Inputs are `ro_mount`, `rw_mount`, `download` or `direct`; outputs are `rw_mount`, `upload` or `direct`. "
    "`eval_mount` and `eval_download` evaluate an mltable.",
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
    for job in pipeline.model.jobs.values():
        for entry in job.node.entries_of("inputs").values() if job.node.get("command") is None else ():
            if entry.value.is_mapping:
                yield from _evaluated(entry.value, "error")


def _evaluated(port: Node, severity: Severity | None) -> Iterator[Diagnostic]:
    """A mode that evaluates an mltable, of something else."""
    mode, kind, text = port.get("mode"), port.get("type"), port.word("mode")
    if mode is not None and kind is not None and kind.text.lower() != "mltable" and text.startswith("eval_"):
        right = _WITHOUT_EVAL.get(text, "ro_mount")
        message = f"the mode '{mode.text}' requires an mltable, but this is {kind.text}"
        yield MODE_UNSUITED.at(mode.span, message, f"Write `mode: {right}`.", replacement=right, severity=severity)
