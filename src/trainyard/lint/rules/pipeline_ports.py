"""The inputs and outputs of a pipeline and its jobs: what nothing reads or writes, and strings meant as bindings."""

from __future__ import annotations

from collections.abc import Iterator

from trainyard.lint.checks import LintContext, check
from trainyard.settings.regex import regex
from trainyard.spec.diagnostic import Diagnostic, Related, Severity
from trainyard.spec.documents import Node
from trainyard.spec.expressions import bindings_of_value, name_bound
from trainyard.spec.model import Port
from trainyard.spec.parsed import ParsedPipeline
from trainyard.spec.rule import Rule

_PATH = r"(?:\.[A-Za-z_]\w*)+"
_TEXT_FOR_BINDING = regex(
    rf"\$?\s?[({{]{{0,2}}\s*(parent\.(?:inputs|jobs|outputs){_PATH})\s*[)}}]{{0,2}}|"
    rf"\$\(?((?:inputs|outputs|jobs){_PATH})\)?"
)


UNBOUND_PIPELINE_OUTPUT = Rule("AML213", "unbound-pipeline-output", "warning", suppressed_by_errors=True).explained(
    summary="No job writes this pipeline output.",
    why="A job's output must be bound to it: `model: ${{parent.outputs.model}}`.",
)


@check("pipeline")
def _unbound_pipeline_output(pipeline: ParsedPipeline, context: LintContext) -> Iterator[Diagnostic]:
    for name, port in _unused(pipeline, "outputs"):
        message = f"no job writes the pipeline's output '{name}'"
        hint = f"Bind ${{{{parent.outputs.{name}}}}} in a job, or remove '{name}'."
        yield UNBOUND_PIPELINE_OUTPUT.at(port.key_span, message, hint)


UNREAD_PIPELINE_INPUT = Rule("AML214", "unread-pipeline-input", "warning", suppressed_by_errors=True).explained(
    summary="No job reads this pipeline input.",
    why="Setting it has no effect. Inputs that a job has under the same name, and is likely meant to get, are one "
    "warning a file; others are notes.",
)


@check("pipeline")
def _unread_pipeline_input(pipeline: ParsedPipeline, context: LintContext) -> Iterator[Diagnostic]:
    unused = dict(_unused(pipeline, "inputs"))
    of_jobs = {name for job in pipeline.model.jobs.values() for name in (*job.inputs, *(job.declared_inputs or ()))}
    # Whoever sets it expects the job with an input of this name to get it; otherwise it is only left over.
    expected = [name for name in unused if name in of_jobs]
    for name, port in unused.items():
        if name not in expected[1:]:
            others = expected[1:] if name in expected else []
            named = "', '".join([name, *others])
            message = f"no job reads the pipeline's input{'s' if others else ''} '{named}'"
            hint = f"Bind ${{{{parent.inputs.{name}}}}} in a job, or remove '{name}'."
            related = [unused[other].declared for other in others]
            severity: Severity | None = None if name in expected else "info"
            yield UNREAD_PIPELINE_INPUT.at(port.key_span, message, hint, related, severity=severity)


TEXT_FOR_BINDING = Rule("AML215", "text-for-binding", "error").explained(
    summary="A string that looks like a binding, but is not one.",
    why="Without the `$`, or with a single brace, Azure ML uses the text itself as the value.",
)


@check("pipeline")
def _text_for_binding(pipeline: ParsedPipeline, context: LintContext) -> Iterator[Diagnostic]:
    for job in pipeline.model.jobs.values():
        for name, entry in (*job.node.entries_of("inputs").items(), *job.node.entries_of("outputs").items()):
            declared = (job.declared_inputs or {}).get(name)
            if declared is not None and declared.is_parameter and declared.type != "string":
                continue
            node = entry.value.get("path") if entry.value.is_mapping else entry.value
            # `inputs.`, `jobs.` or `outputs.`
            if node is None or not node.is_text or "${{" in node.text or "s." not in node.text:
                continue
            match = _TEXT_FOR_BINDING.fullmatch(node.text.strip())
            if match is not None:
                right = f"${{{{{match[1] or 'parent.' + match[2]}}}}}"
                message = f"'{node.text.strip()}' is a string, not a binding"
                yield TEXT_FOR_BINDING.at(node.span, message, f"Write {right}.", replacement=right)


UNREAD_OUTPUT = Rule("AML216", "unread-output", "info", suppressed_by_errors=True).explained(
    summary="Nothing reads this output of a job, and it has no location of its own.",
    why="It is stored under the job's own name in the default datastore, where it is hard to find. Bind it to a "
    "pipeline output or to another job's input, or give it a `path` or a `name`.",
)


@check("pipeline")
def _unread_output(pipeline: ParsedPipeline, context: LintContext) -> Iterator[Diagnostic]:
    if not _has_readable_jobs(pipeline):
        return
    used = _used(pipeline)
    for job in pipeline.model.jobs.values():
        for name, entry in job.node.entries_of("outputs").items():
            if entry.value.data is None and ("parent", "jobs", job.name, "outputs", *name.split(".")) not in used:
                message = f"nothing reads the output '{name}' of the job '{job.name}', and it has no location"
                yield UNREAD_OUTPUT.at(entry.key.span, message, "Bind it to a pipeline output.")


OUTPUTS_COLLIDE = Rule("AML217", "outputs-collide", "warning").explained(
    summary="Two outputs are bound to the same pipeline output.",
    why="Both write to the same location, and one overwrites the other; the client does not complain.",
)


@check("pipeline")
def _outputs_collide(pipeline: ParsedPipeline, context: LintContext) -> Iterator[Diagnostic]:
    taken: dict[str, tuple[Node, str]] = {}
    for job in pipeline.model.jobs.values():
        for name, entry in job.node.entries_of("outputs").items():
            bound = name_bound(entry.value.text, "parent.outputs")
            if bound is None:
                continue
            earlier, other = taken.setdefault(bound, (entry.value, f"'{name}' of the job '{job.name}'"))
            if earlier is not entry.value:
                message = f"{other} is bound to the same pipeline output"
                related = [Related(earlier.span, f"{other} is bound here")]
                yield OUTPUTS_COLLIDE.at(entry.value.span, message, "Give each its own pipeline output.", related)


def _unused(pipeline: ParsedPipeline, kind: str) -> Iterator[tuple[str, Port]]:
    """The inputs or outputs of a pipeline that no job is bound to."""
    if _has_readable_jobs(pipeline):
        used = _used(pipeline)
        ports = pipeline.model.inputs if kind == "inputs" else pipeline.model.outputs
        yield from ((name, port) for name, port in ports.items() if ("parent", kind, *name.split(".")) not in used)


def _has_readable_jobs(pipeline: ParsedPipeline) -> bool:
    """Whether every job could be read: otherwise nobody knows what is unused."""
    jobs = pipeline.body.get("jobs")
    return jobs is not None and len(pipeline.model.jobs) == len(jobs.entries)


def _used(pipeline: ParsedPipeline) -> set[tuple[str, ...]]:
    """What the bindings of a pipeline name."""
    entries = pipeline.body.entries.items()
    return {
        binding.path for key, entry in entries if key != "inputs" for binding in bindings_of_value(entry.value.data)
    }


OPTIONAL_TO_REQUIRED = Rule("AML219", "optional-to-required", "error").explained(
    summary="An optional input of a pipeline component is bound to a required input of a job.",
    why="When the optional input is not given, the job lacks what it requires. Azure ML's client refuses it, also if "
    "either has a default.",
)


@check("pipeline")
def _optional_to_required(pipeline: ParsedPipeline, context: LintContext) -> Iterator[Diagnostic]:
    optional = {name: port for name, port in pipeline.model.inputs.items() if port.optional}
    for job in pipeline.model.jobs.values() if optional else ():
        for name, value in job.inputs.items():
            port = (job.declared_inputs or {}).get(name)
            source = optional.get(name_bound(value.text_or_path or "", "parent.inputs") or "")
            if port is not None and not port.optional and not job.has_own_command and source is not None:
                message = f"'{source.name}' is optional, but the job '{job.name}' requires its input '{name}'"
                hint = f"Make '{name}' optional in the component, or '{source.name}' required."
                related = [
                    Related(source.key_span, f"'{source.name}' is optional here"),
                    Related(port.key_span, f"'{name}' is required here"),
                ]
                yield OPTIONAL_TO_REQUIRED.at(value.span, message, hint, related)
