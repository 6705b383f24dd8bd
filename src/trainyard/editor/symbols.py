"""Every name in a set of files, with what it stands for: components, ports, jobs, code, scripts, flags; and outlines.

What a name stands for is identified by where it is declared, so that all names of one thing have the same target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from lsprotocol import types

from trainyard.editor.cursor import covers
from trainyard.lint.checks import LintContext
from trainyard.spec.bindings import texts_in
from trainyard.spec.computes import Computes
from trainyard.spec.diagnostic import Span
from trainyard.spec.documents import Document, Entry, Node
from trainyard.spec.expressions import Binding, bindings_of_value
from trainyard.spec.findings import DocumentStore, Findings
from trainyard.spec.model import Job, Port
from trainyard.spec.parsed import Parsed, ParsedCommand, ParsedPipeline, Reading, is_remote
from trainyard.spec.shell_words import CalledScript

SymbolKind = Literal["component", "input", "output", "job", "file", "code", "flag", "compute"]
# What can be given another name: the rest is named by files, or in scripts.
RENAMABLE: frozenset[SymbolKind] = frozenset({"input", "output", "job"})

_KIND_OF_PORT: Mapping[str, SymbolKind] = {"inputs": "input", "outputs": "output"}
# Keys whose values are in the scope of another component, not of the pipeline.
_OTHER_SCOPES = frozenset({"component", "trial", "command", "jobs", "task", "args", "input_data"})
# Where parallel and Spark steps use their own ports.
_OWN_ARGUMENTS = ("task", "input_data", "args")
_FILE_KEYS = ("environment", "conda_file")

_PORTS = ("inputs", "outputs", "search_space")


@dataclass(frozen=True)
class Symbol:
    """One name: where it is written, and where what it stands for is declared, which identifies that."""

    kind: SymbolKind
    name: str
    span: Span
    target: Span
    port: Port | None = None
    places: tuple[Span, ...] = ()
    """Where to go to instead, if an editor cannot show the target."""

    @property
    def is_declaration(self) -> bool:
        """Whether this is where it is declared."""
        return self.span == self.target


class Symbols:
    """The names in what was parsed; each is found once."""

    def __init__(self, parsed: Parsed, store: DocumentStore, computes: Mapping[str, str] | None = None) -> None:
        self._parsed = parsed
        self.store = store
        self._context = LintContext(parsed, Computes(store, computes or {}))

    @cached_property
    def all(self) -> tuple[Symbol, ...]:
        """Every name, once."""
        found: dict[tuple[Span, Span], Symbol] = {}
        for symbol in self._found():
            found.setdefault((symbol.span, symbol.target), symbol)
        return tuple(found.values())

    def at(self, file: Path, line: int, column: int) -> Symbol | None:
        """Return the name at a place; of those within each other, the shortest."""
        here = [each for each in self.all if each.span.file == file and covers(each.span, line, column)]
        return min(here, key=lambda each: (_length(each.span), not each.is_declaration), default=None)

    def of(self, target: Span) -> list[Symbol]:
        """Return all names of one thing, by file and line."""
        return sorted((symbol for symbol in self.all if symbol.target == target), key=lambda symbol: symbol.span)

    def _found(self) -> Iterator[Symbol]:
        for pipeline in self._parsed.pipelines:
            yield from self._of_pipeline(pipeline)
        for command in self._parsed.commands:
            yield from self._of_command(command)
        for file in self.store.files:
            document = self.store.find(file)
            if document is not None:
                yield from _own_arguments(document.root, document)
                yield from self._of_root(document)

    def _of_root(self, document: Document) -> Iterator[Symbol]:
        """The name that a component gives itself, the job of a schedule, and files that the root names."""
        root = document.root
        name, job = root.find_text("name"), root.get("create_job")
        if name is not None:
            yield Symbol("component", name.text, name.span, Span(document.file))
        if job is not None and job.is_mapping:
            job = job.get("job")
        reading = Reading(document, self.store, Findings(), Parsed())
        for node in (job, root.get("trial"), root.get("component")):
            yield from _file_named(node, reading, "component")
        yield from self._computes_of(root, reading)

    def _of_pipeline(self, pipeline: ParsedPipeline) -> Iterator[Symbol]:
        scope, reading = pipeline.model, pipeline.reading
        yield from _declared("input", scope.inputs.values())
        yield from _declared("output", scope.outputs.values())
        settings = pipeline.body.get("settings")
        if settings is not None and settings.is_mapping:
            yield from self._computes_of(settings, reading)
        for name, job in scope.jobs.items():
            yield Symbol("job", name, job.key_span, job.key_span)
            yield from self._of_job(job, pipeline)

    def _of_job(self, job: Job, pipeline: ParsedPipeline) -> Iterator[Symbol]:
        reading = pipeline.reading
        for key in ("component", "trial"):
            yield from _file_named(job.node.get(key), reading, "component")
        for key in _FILE_KEYS:
            yield from _file_named(job.node.get(key), reading, "file")
        yield from self._computes_of(job.node, reading)
        yield from _own_arguments(job.node, reading.document)
        inputs, outputs = job.declared_inputs or {}, job.declared_outputs or {}
        yield from _declared("input", inputs.values())
        yield from _declared("output", outputs.values())
        yield from _named_keys("input", job.node.get("inputs"), inputs)
        yield from _named_keys("output", job.node.get("outputs"), outputs)
        yield from _named_keys("input", job.node.get("search_space"), self._inputs_of_trial(job, reading))
        for key, entry in job.node.entries.items():
            if key not in _OTHER_SCOPES:
                for node, binding in _bindings(entry.value):
                    yield from _of_parent_binding(node, binding, pipeline)

    def _inputs_of_trial(self, job: Job, reading: Reading) -> Mapping[str, Port]:
        trial = job.node.find_text("trial")
        if trial is None or is_remote(trial.text):
            return {}
        return self._component_by_file.get(reading.path(trial.text), {})

    @cached_property
    def _component_by_file(self) -> dict[Path, Mapping[str, Port]]:
        components = [command.component for command in self._parsed.commands if command.is_root]
        return {component.file: component.inputs for component in components}

    def _of_command(self, command: ParsedCommand) -> Iterator[Symbol]:
        component, reading = command.component, command.reading
        yield from _declared("input", component.inputs.values())
        yield from _declared("output", component.outputs.values())
        for key in _FILE_KEYS:
            yield from _file_named(command.node.get(key), reading, "file")
        environment = command.node.get("environment")
        if environment is not None and environment.is_mapping:
            yield from _file_named(environment.get("conda_file"), reading, "file")
        if command.is_root:
            yield from self._computes_of(command.node, reading)
        calls = self._context.calls_of(command)
        yield from _code_of(command, calls)
        if command.command is None:
            return
        for node, binding in _bindings(command.command):
            ports = {"inputs": component.inputs, "outputs": component.outputs}.get(binding.path[0], {})
            yield from _port_in(node, binding, 1, ports, reading.document)
        for called in calls:
            yield from self._of_call(called)

    def _of_call(self, called: CalledScript) -> Iterator[Symbol]:
        if called.file is None:
            return
        yield Symbol("file", called.name, called.place, Span(called.file))
        flags = self._context.flags_of(called.file, called.root)
        for word in called.call.arguments if flags is not None else ():
            name = word.text.partition("=")[0]
            flag = flags.find(name) if flags is not None and name.startswith("-") else None
            if flag is not None:
                target = Span(flag.file, flag.line, 1, flag.line, 2)
                yield Symbol("flag", name, called.span(word._replace(end=word.start + len(name))), target)

    def _computes_of(self, holder: Node, reading: Reading) -> Iterator[Symbol]:
        for key in ("compute", "default_compute"):
            node = holder.find_text(key)
            if node is None:
                continue
            compute = self._context.computes.find(node.text, reading.file)
            if compute is not None and compute.span is not None:
                yield Symbol("compute", compute.name, node.span, compute.span)


def _length(span: Span) -> tuple[int, int]:
    return span.end_line - span.line, span.end_column - span.column


def _declared(kind: SymbolKind, ports: Iterable[Port]) -> Iterator[Symbol]:
    for port in ports:
        yield Symbol(kind, port.name, port.key_span, port.key_span, port)


def _named_keys(kind: SymbolKind, mapping: Node | None, ports: Mapping[str, Port]) -> Iterator[Symbol]:
    for name, entry in mapping.entries.items() if mapping is not None else ():
        if name in ports:
            yield Symbol(kind, name, entry.key.span, ports[name].key_span, ports[name])


def _file_named(node: Node | None, reading: Reading, kind: SymbolKind) -> Iterator[Symbol]:
    """The file that a string names, if it exists."""
    if node is None or not node.is_text or is_remote(node.text) or not node.text.strip() or "${{" in node.text:
        return
    file = reading.path(node.text)
    try:
        exists = file.is_file()
    except (OSError, ValueError):
        exists = False
    if exists:
        yield Symbol(kind, file.name, node.span, Span(file))


def _code_of(command: ParsedCommand, calls: Iterable[CalledScript]) -> Iterator[Symbol]:
    """The folder of the snapshot; an editor goes to the scripts in it that the command calls."""
    code, folder = command.node.get("code"), command.component.code
    if code is not None and folder is not None:
        scripts = tuple(dict.fromkeys(Span(called.file) for called in calls if called.file is not None))
        yield Symbol("code", folder.name, code.span, Span(folder), places=scripts)


def _of_parent_binding(node: Node, binding: Binding, pipeline: ParsedPipeline) -> Iterator[Symbol]:
    path, scope, document = binding.path, pipeline.model, pipeline.reading.document
    if path[:2] in (("parent", "inputs"), ("parent", "outputs")):
        ports = scope.inputs if path[1] == "inputs" else scope.outputs
        yield from _port_in(node, binding, 2, ports, document)
    elif path[:2] == ("parent", "jobs") and len(path) > 2 and path[2] in scope.jobs:
        job = scope.jobs[path[2]]
        yield Symbol("job", job.name, document.span_within(node, *binding.part_offsets(2)), job.key_span)
        if path[3:4] in (("inputs",), ("outputs",)):
            declared = (job.declared_inputs if path[3] == "inputs" else job.declared_outputs) or {}
            yield from _port_in(node, binding, 4, declared, document)


def _port_in(node: Node, binding: Binding, at: int, ports: Mapping[str, Port], document: Document) -> Iterator[Symbol]:
    """The port whose name begins at a part of a binding, behind `inputs` or `outputs`."""
    port = ports.get(".".join(binding.path[at:]))
    if port is not None:
        span = document.span_within(node, *binding.part_offsets(at, to_end=True))
        yield Symbol(_KIND_OF_PORT[binding.path[at - 1]], port.name, span, port.key_span, port)


def _own_arguments(holder: Node, document: Document) -> Iterator[Symbol]:
    """A step's own ports in the arguments of its script, for steps that are not commands."""
    for key in _OWN_ARGUMENTS:
        argument = holder.get(key)
        for node, binding in _bindings(argument) if argument is not None else ():
            ports = holder.entries_of(binding.path[0]) if binding.path[0] in _KIND_OF_PORT else {}
            name = ".".join(binding.path[1:])
            if name in ports:
                span = document.span_within(node, *binding.part_offsets(1, to_end=True))
                yield Symbol(_KIND_OF_PORT[binding.path[0]], name, span, ports[name].key.span)


def _bindings(value: Node) -> Iterator[tuple[Node, Binding]]:
    return ((node, binding) for node in texts_in(value) for binding in bindings_of_value(node.text))


def outline_of(
    holder: Node, range_of: Callable[[Span], types.Range], kind: types.SymbolKind = types.SymbolKind.Property
) -> list[types.DocumentSymbol]:
    """Return the outline of a mapping, with its places as `range_of` converts them; empty for what is none.

    Jobs are functions in it, their inputs and outputs fields.
    """
    return [_symbol(name, entry, kind, range_of) for name, entry in holder.entries.items()]


def _symbol(
    name: str, entry: Entry, kind: types.SymbolKind, range_of: Callable[[Span], types.Range]
) -> types.DocumentSymbol:
    value = entry.value
    below: list[types.DocumentSymbol] = []
    if kind is types.SymbolKind.Function:
        below = outline_of(value, range_of)
    elif kind is types.SymbolKind.Property and name == "jobs":
        below = outline_of(value, range_of, types.SymbolKind.Function)
    elif kind is types.SymbolKind.Property and name in _PORTS:
        below = outline_of(value, range_of, types.SymbolKind.Field)
    key, detail = range_of(entry.key.span), value.word("type")
    if not value.is_mapping and value.span.line == value.span.end_line:
        detail = value.text
    return types.DocumentSymbol(
        name or '""',  # an empty name is against the protocol, and YAML has empty keys
        kind,
        range=types.Range(key.start, max(key.end, range_of(value.span).end, *(child.range.end for child in below))),
        selection_range=key,
        detail=detail or None,
        children=below,
    )
