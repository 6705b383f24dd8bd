"""What an editor shows above a place: findings with their rules, ports, machines, and what a binding stands for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from trainyard.catalogue.skus import Sku, UnknownSku, find_sku
from trainyard.editor.cursor import Cursor, covers, cursor_at
from trainyard.editor.schema_keys import description_at
from trainyard.editor.setting_fields import field_text, fields_of_document
from trainyard.editor.symbols import Symbol, Symbols
from trainyard.editor.workspace import EditorWorkspace
from trainyard.lint.explanation import as_page
from trainyard.lint.rules import RULES
from trainyard.spec.diagnostic import Diagnostic, Span, SpecError
from trainyard.spec.expressions import Binding
from trainyard.spec.file_kinds import kind_of
from trainyard.spec.model import Component, Pipeline, Port, Value
from trainyard.spec.parsed import Parsed, ParsedPipeline
from trainyard.spec.resolution import JobUse, Resolution
from trainyard.spec.resolved import DataPath, JobOutput, Known, PipelineOutput, Resolved, Unknown

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
    try:
        document = store.peek(file)
    except SpecError:
        return ("\n\n---\n\n".join(parts), span) if parts else None
    cursor = cursor_at(document, line, column)
    if cursor is not None:
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
    key = next((step for step in reversed(cursor.path) if isinstance(step, str)), "")
    if not cursor.is_key and key in SIZE_KEYS and cursor.node.is_text:
        sku = _sku(cursor.node.text)
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
    if not parts and cursor.is_key:
        kind = kind_of(cursor.document)
        text = description_at(kind, cursor.path) if kind is not None else ""
        parts += [f"**{cursor.path[-1]}**\n\n{text}"] if text else []
    return parts, bound[1] if bound is not None else symbol.span if symbol is not None else cursor.node.span


def _sku(name: str) -> Sku | None:
    try:
        return find_sku(name)
    except UnknownSku:
        return None


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
    price = sku.newest_on_demand_price
    if price is not None:
        lines.append(f"${price[0]:.2f} per hour on demand ({price[1]}, {price[2]})")
    if sku.spot_usd_per_hour is not None:
        lines.append(f"${sku.spot_usd_per_hour:.2f} per hour as spot ({sku.spot_region}, {sku.spot_date})")
    if not sku.is_current:
        lines.append(f"*{sku.status}{f', {sku.retirement_date}' if sku.retirement_date else ''}*")
    return "  \n".join(lines)


def port_text(port: Port, kind: str) -> str:
    """Return a port in Markdown: its type, limits, default and description."""
    facts = [f"`{port.name}`: {kind} of type `{port.type or 'unknown'}`"]
    if port.optional:
        facts.append("optional")
    if port.default is not None:
        facts.append(f"default `{port.default.text or port.default.data}`")
    if port.minimum is not None or port.maximum is not None:
        limits = (port.minimum, port.maximum)
        facts.append("from `{}` to `{}`".format(*(limit.text if limit is not None else "…" for limit in limits)))
    if port.choices:
        facts.append("one of " + ", ".join(f"`{choice.text}`" for choice in port.choices))
    if port.mode is not None:
        facts.append(f"mode `{port.mode}`")
    return ", ".join(facts) + (f"\n\n{port.description.strip()}" if port.description else "")


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
        for name, job in pipeline.scope.jobs.items():
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
    value = Value(binding.text, cursor.node.span, binding.text)
    if binding.path[0] == "parent":
        pipeline = next((each for each in parsed.pipelines if _contains(each, cursor)), None)
        job = _job_around(pipeline, cursor) if pipeline is not None else None
        if pipeline is not None and job is not None:
            yield from _lines(Resolution(pipeline.model).uses.get(job), value, binding, workspace)
        return
    users = workspace.users_of(file)
    others = [workspace.read([user])[0] for user in users]
    count = 0
    for pipeline in (each for seen in (parsed, *others) for each in seen.pipelines):
        if not isinstance(pipeline.model, Pipeline):
            continue
        for use in Resolution(pipeline.model).jobs.values():
            if use.component.file != file or not _is_within(use.component, cursor):
                continue
            count += 1
            if count > _MOST_USES:
                yield "- …"
                return
            for line in _lines(use, value, binding, workspace):
                yield f"{line}: the job `{use.name}` of {_shown(workspace, use.job.key_span)}"


def _lines(use: JobUse | None, value: Value, binding: Binding, workspace: EditorWorkspace) -> Iterator[str]:
    if use is None:
        return
    if binding.path[:2] == ("parent", "outputs") or binding.path[0] == "outputs":
        return
    text = _described(use.resolve(value), workspace) if isinstance(use.job.component, Component) else None
    if text is None and binding.path[0] == "parent":
        text = _described(use.resolve(value), workspace)
    if text:
        yield f"- {text}"


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


def _contains(pipeline: ParsedPipeline, cursor: Cursor) -> bool:
    return pipeline.body in cursor.holders


def _job_around(pipeline: ParsedPipeline, cursor: Cursor) -> str | None:
    place = cursor.holders.index(pipeline.body)
    names = cursor.path[place : place + 2]
    return str(names[1]) if len(names) == 2 and names[0] == "jobs" else None


def _is_within(component: Component, cursor: Cursor) -> bool:
    return any(holder.span == component.span for holder in cursor.holders)


def _shown(workspace: EditorWorkspace, span: Span) -> str:
    root = workspace.root_of(span.file)
    name = span.file.relative_to(root).as_posix() if span.file.is_relative_to(root) else str(span.file)
    return f"{name}:{span.line}"
