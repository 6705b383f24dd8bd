"""Whether bindings name something that exists, `${{inputs.x}}` in a command and `${{parent.…}}` in a job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from trainyard.settings.suggestions import close_match, did_you_mean, only_close
from trainyard.spec.diagnostic import Diagnostic, Related, Span
from trainyard.spec.documents import Node, Value, shorten
from trainyard.spec.expressions import (
    CYCLE,
    MALFORMED_EXPRESSION,
    UNKNOWN_COMMAND_PORT,
    UNKNOWN_JOB,
    UNKNOWN_JOB_PORT,
    UNKNOWN_PIPELINE_PORT,
    UNKNOWN_SCOPE,
    Binding,
    ExpressionError,
    bindings_in,
    name_bound,
    only_binding,
)
from trainyard.spec.literals import (
    MISSING_INPUT,
    UNKNOWN_INPUT,
    UNKNOWN_OUTPUT,
    WRONG_LITERAL,
    LiteralError,
    typed_literal,
)
from trainyard.spec.model import Job, PipelineComponent, Port
from trainyard.spec.parsed import Reading
from trainyard.spec.ports import check_input_path
from trainyard.spec.rule import Rule
from trainyard.spec.shell_words import settings_port

# What Azure ML itself fills into output paths and names, without a scope.
MACROS = frozenset({"name", "default_datastore", "output_name"})
_SCOPES_OF_COMMANDS = ("inputs", "outputs", "search_space")
# Values under these keys of a job have a scope of their own, or are checked elsewhere.
_KEYS_WITH_OWN_SCOPE = frozenset(
    {"component", "trial", "command", "inputs", "outputs", "type", "jobs", "task", "args", "input_data"}
)

# Of `if_else`, `do_while` and `parallel_for`: they name a whole job, ${{parent.jobs.NAME}}.
_KEYS_THAT_NAME_JOBS = frozenset({"true_block", "false_block", "body"})


def check_command(command: Node, inputs: Mapping[str, Port], outputs: Mapping[str, Port], reading: Reading) -> None:
    """Report bindings of a command that name no declared input or output."""
    for binding in _bindings(command, reading):
        scope, name = binding.path[0], ".".join(binding.path[1:])
        if scope not in _SCOPES_OF_COMMANDS:
            _report_command_scope(command, binding, inputs, outputs, reading)
        elif not name:
            message = f"'{binding.text}' names no {scope.removesuffix('s')}"
            hint = f"Write ${{{{{scope}.NAME}}}}."
            _report(command, binding, 0, UNKNOWN_COMMAND_PORT, message, hint, reading)
        elif scope != "search_space":
            declared = inputs if scope == "inputs" else outputs
            if name not in declared:
                word = scope.removesuffix("s")
                message = f"the command uses the {word} '{shorten(name)}', which is not declared"
                others = outputs if scope == "inputs" else inputs
                hint = did_you_mean(name, declared, f"There are no {scope}; declare it under `{scope}:`.")
                if name in others:
                    hint = f"Did you mean '${{{{{'outputs' if scope == 'inputs' else 'inputs'}.{name}}}}}'?"
                meant = None if name in others else only_close(name, declared)
                _report(command, binding, 1, UNKNOWN_COMMAND_PORT, message, hint, reading, meant=meant)


def check_job(job: Job, scope: PipelineComponent, reading: Reading) -> None:
    """Report what is wrong with how a job is bound: names, literals, missing and unknown inputs."""
    _check_inputs(job, scope, reading)
    _check_outputs(job, scope, reading)
    for key, entry in job.node.entries.items():
        if key in _KEYS_THAT_NAME_JOBS:
            for node in texts_in(entry.value):
                _check_named_jobs(node, scope, reading)
        elif key not in _KEYS_WITH_OWN_SCOPE:
            for node in texts_in(entry.value):
                check_parent_bindings(node, scope, reading)


def find_cycle(waits_for: Mapping[str, frozenset[str]]) -> list[str]:
    """Jobs that wait for each other, in order and with the first again at the end; empty when there are none."""
    try:
        TopologicalSorter({name: sorted(others) for name, others in waits_for.items()}).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle[::-1]
    return []


def cycle_at(span: Span, cycle: list[str], related: Iterable[Related] = ()) -> Diagnostic:
    """The diagnostic of jobs that wait for each other."""
    message = f"the jobs wait for each other: {' → '.join(cycle)}"
    if len(cycle) == 2:
        message = f"the job '{cycle[0]}' waits for itself"
    return CYCLE.at(span, message, "Bind one of them to something else.", related)


def _check_named_jobs(node: Node, scope: PipelineComponent, reading: Reading) -> None:
    for binding in _bindings(node, reading):
        is_of_job = binding.path[:2] == ("parent", "jobs") and len(binding.path) == 3
        if not is_of_job or binding.path[2] not in scope.jobs:
            _check_parent_binding(node, binding, scope, reading)


def check_parent_bindings(node: Node, scope: PipelineComponent, reading: Reading) -> None:
    """Report bindings of a string in a pipeline's job that name nothing."""
    for binding in _bindings(node, reading):
        _check_parent_binding(node, binding, scope, reading)


def texts_in(node: Node) -> Iterator[Node]:
    """All strings in a value that may hold a binding."""
    if node.is_text:
        if "${{" in node.text or "$[[" in node.text:
            yield node
    elif node.is_mapping:
        for entry in node.entries.values():
            yield from texts_in(entry.value)
    else:
        for item in node.items:
            yield from texts_in(item)


def _check_inputs(job: Job, scope: PipelineComponent, reading: Reading) -> None:
    findings = reading.findings
    entries = job.node.entries_of("inputs")
    declared = job.declared_inputs
    settings = settings_port(job.component)
    for name, entry in entries.items():
        for node in texts_in(entry.value):
            check_parent_bindings(node, scope, reading)
        if name != settings:  # without its settings file, a job is refused
            check_input_path(entry.value, reading)
        if declared is None or job.has_own_command:
            continue
        port = declared.get(name)
        if port is not None:
            findings.check_literal(job.inputs.get(name, entry.value.value), port)
            _check_bound_literal(job, entry.value, port, scope, reading)
            continue
        if name in job.node.entries_of("search_space"):
            continue  # the sweep sets it, and is reported there
        what = f"job '{job.name}' sets the input '{shorten(name)}'"
        message = f"{what}, which its component does not have; Azure ML drops it"
        findings.add_undeclared(entry.key, UNKNOWN_INPUT, message, declared, entries, "input")
    if declared is None or job.has_own_command:
        return
    for name, port in declared.items():
        given = entries.get(name)
        if port.default is None and not port.optional and (given is None or given.value.data is None):
            # An input set under a mistyped name is reported once, where it is written.
            if given is None and any(close_match(other, [name]) for other in entries if other not in declared):
                continue
            message = f"job '{job.name}' does not set the required input '{name}'"
            related = (Related(port.key_span, f"'{name}' is declared here, without a default"),)
            hint = f"Write `{name}: …` under the job's `inputs:`."
            span = given.key.span if given is not None else job.key_span
            findings.add(MISSING_INPUT.at(span, message, hint=hint, related=related))


def _check_bound_literal(job: Job, node: Node, port: Port, scope: PipelineComponent, reading: Reading) -> None:
    """Report a literal of the pipeline's inputs that does not suit the parameter it is bound to.

    An input that declares a type is checked against that, where it is declared.
    """
    binding = only_binding(node.text) if node.is_text else None
    source = scope.inputs.get(binding.name_in("parent.inputs") or "") if binding is not None else None
    if binding is None or source is None or source.default is None or source.default.span != source.span:
        return
    span = reading.document.span_within(node, binding.start, binding.end)
    bound_at = [Related(span, f"it is bound to '{port.name}' of the job '{job.name}' here")]
    value = source.default
    if not _has_type(value, port) and _is_meant_elsewhere(source, port, scope):
        # The value is right for others: what is wrong is that it is given to this one.
        bound_at = [Related(value.span, f"'{source.name}' is {shorten(value.text)} here")]
        value = value._replace(span=span)
    reading.findings.check_literal(value, port, bound_at=bound_at)


def _has_type(value: Value, port: Port) -> bool:
    if not port.is_parameter:
        return True
    try:
        typed_literal(value, port)
    except LiteralError as error:
        return error.rule != WRONG_LITERAL
    return True


def _is_meant_elsewhere(source: Port, port: Port, scope: PipelineComponent) -> bool:
    """Whether the pipeline has an input of the parameter's own name, or another parameter takes the source's value."""
    if port.name != source.name and port.name in scope.inputs:
        return True
    assert source.default is not None
    for job in scope.jobs.values():
        for name, entry in job.node.entries_of("inputs").items():
            other = (job.declared_inputs or {}).get(name)
            is_bound = name_bound(entry.value.text, "parent.inputs") == source.name
            if is_bound and other is not None and other.is_parameter and _has_type(source.default, other):
                return True
    return False


def _check_outputs(job: Job, scope: PipelineComponent, reading: Reading) -> None:
    entries = job.node.entries_of("outputs")
    for name, entry in entries.items():
        _check_output_form(entry.value, scope, reading)
        for node in () if name_bound(entry.value.text, "parent.inputs") is not None else texts_in(entry.value):
            for binding in _bindings(node, reading):
                _check_output_binding(node, binding, scope, reading)
        if job.declared_outputs is not None and name not in job.declared_outputs:
            message = f"job '{job.name}' binds the output '{shorten(name)}', which its component does not have"
            findings = reading.findings
            findings.add_undeclared(entry.key, UNKNOWN_OUTPUT, message, job.declared_outputs, entries, "output")


def _check_output_form(node: Node, scope: PipelineComponent, reading: Reading) -> None:
    """Report an output that is bound to an input, or set to a plain string."""
    if not node.is_text:
        return
    binding = only_binding(node.text)
    if binding is not None and binding.name_in("parent.inputs") is not None:
        message = f"an output is bound to an output of the pipeline, and '{binding.text}' is an input"
        hint = f"Write ${{{{parent.outputs.{next(iter(scope.outputs), 'NAME')}}}}}."
        _report(node, binding, 1, UNKNOWN_SCOPE, message, hint, reading)
    elif "${" not in node.text and "parent." not in node.text:
        reading.findings.left_out = True


def _check_output_binding(node: Node, binding: Binding, scope: PipelineComponent, reading: Reading) -> None:
    path = binding.path
    if len(path) == 1 and path[0] in MACROS:
        return
    if path[:2] == ("parent", "outputs") and len(path) > 2:
        _check_pipeline_port(node, binding, "output", scope.outputs, reading)
        return
    if path[:2] == ("parent", "inputs"):
        # A path may be put together from the pipeline's inputs.
        _check_parent_binding(node, binding, scope, reading)
        return
    message = f"a job's output is bound to an output of the pipeline; '{binding.text}' is not one"
    hint = _hint_for_scope(path, "outputs", scope.outputs)
    _report(node, binding, 0, UNKNOWN_SCOPE, message, hint, reading)


def _check_parent_binding(node: Node, binding: Binding, scope: PipelineComponent, reading: Reading) -> None:
    path = binding.path
    if (len(path) == 1 and path[0] in MACROS) or path == ("parent", "name"):
        return
    if path[0] != "parent":
        message = f"'{binding.text}' has no meaning here: a job's inputs are bound through 'parent'"
        hint = _hint_for_scope(path, "inputs", scope.inputs)
        _report(node, binding, 0, UNKNOWN_SCOPE, message, hint, reading)
    elif len(path) > 2 and path[1] == "inputs":
        _check_pipeline_port(node, binding, "input", scope.inputs, reading)
    elif len(path) > 2 and path[1] == "jobs":
        _check_job_binding(node, binding, scope, reading)
    else:
        message = f"'{binding.text}' names no input of the pipeline and no output of a job"
        hint = "Write ${{parent.inputs.NAME}} or ${{parent.jobs.JOB.outputs.NAME}}."
        second = path[1] if len(path) > 1 else ""
        if second not in ("", "inputs", "jobs"):
            hint = f"{did_you_mean(second, ['inputs', 'jobs'])} {hint}"
        _report(node, binding, min(1, len(path) - 1), UNKNOWN_SCOPE, message, hint, reading)


def _check_pipeline_port(node: Node, binding: Binding, kind: str, ports: Mapping[str, Port], reading: Reading) -> None:
    name = ".".join(binding.path[2:])
    if name not in ports:
        message = f"the pipeline has no {kind} '{shorten(name)}'"
        hint = did_you_mean(name, ports, f"The pipeline declares no {kind}s.")
        _report(node, binding, 2, UNKNOWN_PIPELINE_PORT, message, hint, reading, meant=only_close(name, ports))


def _check_job_binding(node: Node, binding: Binding, scope: PipelineComponent, reading: Reading) -> None:
    path = binding.path
    job = scope.jobs.get(path[2])
    if job is None:
        message = f"the pipeline has no job '{shorten(path[2])}'"
        hint = did_you_mean(path[2], scope.jobs)
        _report(node, binding, 2, UNKNOWN_JOB, message, hint, reading, meant=only_close(path[2], scope.jobs))
        return
    if len(path) < 5 or path[3] not in ("inputs", "outputs"):
        message = f"'{binding.text}' names no output of the job '{job.name}'"
        hint = f"Write ${{{{parent.jobs.{job.name}.outputs.NAME}}}}."
        if len(path) > 3 and path[3] not in ("inputs", "outputs"):
            hint = f"{did_you_mean(path[3], ['outputs', 'inputs'])} {hint}"
        _report(node, binding, min(3, len(path) - 1), UNKNOWN_SCOPE, message, hint, reading)
        return
    kind, name = path[3], ".".join(path[4:])
    declared = job.declared_outputs if kind == "outputs" else job.declared_inputs
    if declared is not None and name not in declared:
        message = f"the job '{job.name}' has no {kind.removesuffix('s')} '{shorten(name)}'"
        hint = did_you_mean(name, declared, f"It has no {kind}.")
        related = (Related(job.key_span, f"the job '{job.name}' is here"),)
        meant = only_close(name, declared)
        _report(node, binding, 4, UNKNOWN_JOB_PORT, message, hint, reading, related, meant=meant)


def _hint_for_scope(path: tuple[str, ...], port_kind: str, ports: Mapping[str, Port]) -> str:
    name = ".".join(path[1:])
    if path[0] in ("inputs", "outputs", "jobs") and name:
        return f"Did you mean '${{{{parent.{path[0]}.{name}}}}}'?"
    if path[0] != "parent" and close_match(path[0], ["parent"]):
        return "Did you mean 'parent'?"
    example = next(iter(ports), "NAME")
    return f"Write ${{{{parent.{port_kind}.{example}}}}}."


def _report_command_scope(
    command: Node, binding: Binding, inputs: Mapping[str, Port], outputs: Mapping[str, Port], reading: Reading
) -> None:
    path = binding.path
    message = f"'{binding.text}' has no meaning in a command, which can only use its own inputs and outputs"
    hint = did_you_mean(path[0], _SCOPES_OF_COMMANDS[:2])
    name = path[-1]
    for scope, ports in (("inputs", inputs), ("outputs", outputs)):
        if name in ports and path[0] in ("parent", name):
            hint = f"Did you mean '${{{{{scope}.{name}}}}}'?"
    if path[0] == "parent" and not hint.startswith("Did"):
        hint = "Declare an input, use ${{inputs.NAME}} here, and bind it in the pipeline."
    _report(command, binding, 0, UNKNOWN_SCOPE, message, hint, reading)


def _report(
    node: Node,
    binding: Binding,
    part: int,
    rule: Rule,
    message: str,
    hint: str,
    reading: Reading,
    related: Iterable[Related] = (),
    meant: str | None = None,
) -> None:
    """Report a finding at the `part`-th name of a binding, and all after it where names may contain dots."""
    start, end = binding.part_offsets(part, to_end=rule in _RULES_OF_DOTTED_NAMES)
    span = reading.document.span_within(node, start, end)
    # Where escapes change the spelling, the span is the whole string, and nothing is replaced.
    replacement = meant if span != node.span else None
    reading.findings.add(rule.at(span, message, hint=hint, related=related, replacement=replacement))


# Ports may have dots in their names, so these underline all that is left of the path.
_RULES_OF_DOTTED_NAMES = frozenset({UNKNOWN_PIPELINE_PORT, UNKNOWN_JOB_PORT, UNKNOWN_COMMAND_PORT})


def _bindings(node: Node, reading: Reading) -> Sequence[Binding]:
    """The bindings of a string; malformed ones are reported."""
    try:
        return bindings_in(node.text)
    except ExpressionError as error:
        span = reading.document.span_within(node, error.start, error.end)
        hint = "A binding looks like ${{parent.inputs.NAME}}, an optional part like $[[ … ]]."
        reading.findings.add(MALFORMED_EXPRESSION.at(span, str(error), hint=hint))
        return ()
