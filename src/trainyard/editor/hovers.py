"""What an editor shows above a place: findings with their rules, ports, machines, and what a binding stands for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from trainyard.catalogue.prices import KINDS, price_of
from trainyard.catalogue.skus import Sku
from trainyard.editor.cursor import Cursor, covers, cursor_at
from trainyard.editor.symbols import Symbol, Symbols
from trainyard.editor.workspace import EditorWorkspace
from trainyard.lint.checks import sku_named
from trainyard.lint.explanation import as_page
from trainyard.lint.rules import RULES
from trainyard.settings.step_fields import StepField
from trainyard.settings.written_settings import keys_of_file
from trainyard.spec.diagnostic import Diagnostic, Span
from trainyard.spec.documents import Document, Value
from trainyard.spec.expressions import Binding
from trainyard.spec.file_kinds import step_of_settings
from trainyard.spec.findings import DocumentStore
from trainyard.spec.model import Pipeline, Port
from trainyard.spec.parsed import Parsed
from trainyard.spec.resolution import Resolution
from trainyard.spec.resolved import DataPath, JobOutput, Known, PipelineOutput, Resolved, Unknown
from trainyard.spec.training_settings import use_of_file

# Keys that name a VM size: a component's, a cluster's, a profile's.
SIZE_KEYS = ("instance_type", "size", "sku", "vm_size")
_MOST_USES = 5


def hover(
    workspace: EditorWorkspace, file: Path, line: int, column: int, findings: Iterable[Diagnostic]
) -> tuple[str, Span | None] | None:
    """Return Markdown for a place and the span that it is about; None where there is nothing to say."""
    about = [each for each in findings if covers(each.span, line, column)]
    parts = [_of_finding(each) for each in about]
    span = about[0].span if about else None
    parsed, store = workspace.read([file])
    document = store.find(file)
    cursor = cursor_at(document, line, column) if document is not None else None
    if document is not None and cursor is not None:
        symbols = Symbols(parsed, store, workspace.settings(file).computes)
        field = fields_of_document(document, store).get(str(cursor.path[0])) if len(cursor.path) == 1 else None
        if field is not None:
            parts.insert(0, field_text(field))
        own, own_span = _of_cursor(workspace, cursor, symbols, parsed, line, column)
        parts = [*own, *parts]
        span = own_span or span
    return ("\n\n---\n\n".join(parts), span) if parts else None


def _of_finding(finding: Diagnostic) -> str:
    hint = f"\n\n{finding.hint}" if finding.hint else ""
    rule = RULES.get(finding.rule)
    page = f"\n\n{as_page(rule)}" if rule is not None else ""
    return f"**{finding.message}**{hint}{page}"


def _of_cursor(
    workspace: EditorWorkspace, cursor: Cursor, symbols: Symbols, parsed: Parsed, line: int, column: int
) -> tuple[list[str], Span | None]:
    file = cursor.document.file
    if not cursor.is_key and cursor.key in SIZE_KEYS and cursor.node.is_text:
        sku = sku_named(cursor.node.text)
        if sku is not None:
            return [sku_text(sku)], cursor.node.span
    symbol = symbols.at(file, line, column)
    parts: list[str] = []
    bound = cursor.binding_at(line, column)
    if bound is not None:
        resolved = list(_resolved(workspace, parsed, cursor, bound[0], file))
        if resolved:
            parts.append(f"`{bound[0].text}`\n\n" + "\n".join(resolved))
    if symbol is not None:
        parts += _of_symbol(workspace, symbol, parsed)
    return parts, bound[1] if bound is not None else symbol.span if symbol is not None else cursor.node.span


def sku_text(sku: Sku) -> str:
    """Return a VM size in Markdown: its GPUs, memory, network and price."""
    gpus = "no GPUs"
    if sku.gpu_count:
        each = f", {sku.gpu_memory_gb_each} GB each" if sku.gpu_memory_gb_each else ""
        count = f"{sku.gpu_count} x" if sku.gpu_fraction in (None, 1) else f"{sku.gpu_fraction} of"
        gpus = f"{count} {sku.gpu_model}{each}"
    lines = [f"**{sku.name}**", gpus, f"{sku.vcpus} vCPUs, {sku.ram_gib} GiB of memory"]
    if sku.rdma:
        lines.append(f"InfiniBand, {sku.infiniband_gbit_per_second_total} Gbit/s")
    for kind, words in zip(KINDS, ("on demand", "as spot"), strict=True):
        if price := price_of(sku, kind):
            lines.append(f"${price.usd_per_hour:.2f} per hour {words} ({price.seen})")
    if not sku.is_current:
        lines.append(f"*{sku.status}{f', {sku.retirement_date}' if sku.retirement_date else ''}*")
    return "  \n".join(lines)


def port_text(port: Port, kind: str) -> str:
    """Return a port in Markdown: its type, limits, default and description."""
    facts = [f"`{port.name}`: {kind} of type `{port.type or 'unknown'}`"]
    if port.optional:
        facts.append("optional")
    default = (port.default.text or str(port.default.data)) if port.default is not None else None
    minimum, maximum = (None if limit is None else limit.text for limit in (port.minimum, port.maximum))
    facts += _facts(default, minimum, maximum, [choice.text for choice in port.choices or ()])
    if port.mode is not None:
        facts.append(f"mode `{port.mode}`")
    return ", ".join(facts) + (f"\n\n{port.description.strip()}" if port.description else "")


def fields_of_document(document: Document, store: DocumentStore) -> dict[str, StepField]:
    """Return the settings of a file's step and task, by name; none for a file that is not known as a settings file."""
    step = step_of_settings(document)
    use = use_of_file(document, step, store) if step is not None else None
    settings = use.step_settings if use is not None else None
    return keys_of_file(settings.fields.values()) if settings is not None else {}


def field_text(field: StepField) -> str:
    """Return a setting in Markdown: its type, limits, default and description."""
    default = str(field.default) if field.default is not None else None
    minimum, maximum = (None if limit is None else f"{limit:.10g}" for limit in (field.minimum, field.maximum))
    facts = _facts(default, minimum, maximum, field.choices or ())
    return f"{', '.join([f'`{field.name}`: a setting of type `{field.type}`', *facts])}\n\n{field.description}"


def _facts(default: str | None, minimum: str | None, maximum: str | None, choices: Sequence[str]) -> Iterator[str]:
    if default is not None:
        yield f"default `{default}`"
    if minimum is not None or maximum is not None:
        yield f"from `{minimum or '…'}` to `{maximum or '…'}`"
    if choices:
        yield "one of " + ", ".join(f"`{choice}`" for choice in choices)


def _of_symbol(workspace: EditorWorkspace, symbol: Symbol, parsed: Parsed) -> list[str]:
    if symbol.port is not None:
        declared = "" if symbol.is_declaration else f"\n\nDeclared in {_shown(workspace, symbol.target)}."
        return [port_text(symbol.port, symbol.kind) + declared]
    if symbol.kind in ("component", "job"):
        return _of_component(symbol, parsed)
    if symbol.kind == "flag":
        return [f"`{symbol.name}` is declared in {_shown(workspace, symbol.target)}."]
    return []


def _of_component(symbol: Symbol, parsed: Parsed) -> list[str]:
    """A component's name and ports, also of the one that a job uses."""
    for pipeline in parsed.pipelines:
        for name, job in pipeline.model.jobs.items():
            reference = job.node.get("component")
            if job.key_span == symbol.target or (reference is not None and reference.span == symbol.span):
                component = job.component
                if component is None:
                    return [f"The component of the job `{name}` is not readable offline."]
                title = getattr(component, "display_name", "") or getattr(component, "name", "") or name
                ports = [port_text(port, "input").split("\n")[0] for port in (component.inputs or {}).values()]
                ports += [port_text(port, "output").split("\n")[0] for port in (component.outputs or {}).values()]
                return [f"**{title}**\n\n" + "\n".join(f"- {port}" for port in ports)]
    return []


def _resolved(
    workspace: EditorWorkspace, parsed: Parsed, cursor: Cursor, binding: Binding, file: Path
) -> Iterator[str]:
    """What a binding comes to, in each use of the component or pipeline that it is written in."""
    if binding.path[0] == "outputs" or binding.path[:2] == ("parent", "outputs"):
        return
    value = Value(binding.text, cursor.node.span, binding.text)
    if binding.path[0] == "parent":
        pipeline = next((each for each in parsed.pipelines if each.body in cursor.holders), None)
        names = cursor.path[cursor.holders.index(pipeline.body) :] if pipeline is not None else []
        is_in_job = len(names) > 1 and names[0] == "jobs"
        use = Resolution(pipeline.model).uses.get(str(names[1])) if pipeline is not None and is_in_job else None
        if use is not None:
            yield f"- {_described(use.resolve(value), workspace)}"
        return
    others = [workspace.read([user])[0] for user in sorted(workspace.users_of([file]))]
    pipelines = [each.model for seen in (parsed, *others) for each in seen.pipelines]
    uses = (use for each in pipelines if isinstance(each, Pipeline) for use in Resolution(each).jobs.values())
    holders = {holder.span for holder in cursor.holders}
    here = (use for use in uses if use.component.file == file and use.component.span in holders)
    for number, use in enumerate(here):
        if number == _MOST_USES:
            yield "- …"
            return
        place = _shown(workspace, use.job.key_span)
        yield f"- {_described(use.resolve(value), workspace)}: the job `{use.name}` of {place}"


def _described(resolved: Resolved, workspace: EditorWorkspace) -> str:
    if isinstance(resolved, Unknown):
        return f"unknown: {resolved.reason}"
    if not isinstance(resolved, Known):
        return resolved.diagnostic.message
    where = f" ({_shown(workspace, resolved.written.span)})"
    found = resolved.value
    if isinstance(found, JobOutput):
        return f"the output `{found.port}` of the job `{found.job}`"
    if isinstance(found, PipelineOutput):
        return f"the pipeline's output `{found.name}`"
    if isinstance(found, DataPath):
        return f"`{found.text}`{where}"
    if found is None:
        return "not given"
    return f"`{resolved.written.text or found}`{where}"


def _shown(workspace: EditorWorkspace, span: Span) -> str:
    root = workspace.root_of(span.file)
    name = span.file.relative_to(root).as_posix() if span.file.is_relative_to(root) else str(span.file)
    return f"{name}:{span.line}"
