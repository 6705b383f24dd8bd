"""What a rule may look at beside the YAML: scripts in snapshots, machines behind computes. Each is read once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.lint.script_flags import ScriptFlags, read_flags
from trainyard.lint.scripts import CalledScript, called_scripts
from trainyard.spec.diagnostic import Span, SpecError
from trainyard.spec.documents import Document, Node
from trainyard.spec.expressions import only_binding
from trainyard.spec.findings import DocumentStore
from trainyard.spec.ignore_files import ignore_rule
from trainyard.spec.kinds import kind_of
from trainyard.spec.model import Component, Job, Pipeline, PipelineComponent, Port
from trainyard.spec.parsed import Parsed, ParsedCommand, ParsedPipeline
from trainyard.spec.reading import Reading

if TYPE_CHECKING:
    from trainyard.catalogue.skus import Sku

# How far above a file its project's `compute/` and `profiles/` are looked for.
_LEVELS_UP = 3


@dataclass(frozen=True)
class KnownCompute:
    """A cluster as a file of the project has it: its VM size, how many machines at most, and where that is said."""

    name: str
    size: str
    tier: str = ""
    max_instances: int | None = None
    span: Span | None = None

    @property
    def sku(self) -> Sku | None:
        """What the catalogue knows of the size."""
        return sku_named(self.size)


@dataclass
class LintContext:
    """One call of the linter: what was read, and caches.

    `parsed` is everything that was read; `computes` those that the configuration names, by name, with their VM size.
    """

    store: DocumentStore
    parsed: Parsed = field(default_factory=Parsed)
    computes: Mapping[str, str] = field(default_factory=dict)
    _calls: dict[int, list[CalledScript]] = field(default_factory=dict)
    _flags: dict[tuple[Path, Path], ScriptFlags | None] = field(default_factory=dict)
    _ignore_rules: dict[Path, Callable[[str], bool]] = field(default_factory=dict)
    _known: dict[tuple[str, Path], dict[str, KnownCompute]] = field(default_factory=dict)

    def calls_of(self, seen: ParsedCommand) -> list[CalledScript]:
        """The Python scripts that a command calls."""
        if id(seen) not in self._calls:
            self._calls[id(seen)] = list(called_scripts(seen))
        return self._calls[id(seen)]

    def command_of(self, component: Component) -> ParsedCommand | None:
        """Where a component was read."""
        return self._command_by_component.get(id(component))

    def pipeline_in(self, file: Path) -> ParsedPipeline | None:
        """The pipeline component that a file is, as far as it was read."""
        return self._pipeline_by_file.get(file)

    @cached_property
    def _pipeline_by_file(self) -> dict[Path, ParsedPipeline]:
        found: dict[Path, ParsedPipeline] = {}
        for seen in self.parsed.pipelines:
            if seen.body is seen.reading.document.root:
                found[seen.reading.file] = seen
        return found

    @cached_property
    def bound_within(self) -> Mapping[Span, list[tuple[Port, Span]]]:
        """By where a pipeline declares an input: the parameters of its jobs that are bound to it, and where."""
        found: dict[Span, list[tuple[Port, Span]]] = {}
        for seen in self.parsed.pipelines:
            for job in seen.scope.jobs.values():
                given = job.node.get("inputs")
                for name, entry in given.entries.items() if given is not None and given.is_mapping else ():
                    target = (job.declared_inputs or {}).get(name)
                    binding = only_binding(entry.value.text) if entry.value.is_text else None
                    if target is None or binding is None or binding.path[:2] != ("parent", "inputs"):
                        continue
                    source = seen.scope.inputs.get(".".join(binding.path[2:]))
                    if source is not None and target.is_parameter:
                        found.setdefault(source.key_span, []).append((target, entry.value.span))
        return found

    def is_used(self, component: Component | PipelineComponent) -> bool:
        """Whether a pipeline that was read uses a component, which then says what its values and machines are."""
        return id(component) in self._used_components

    @cached_property
    def _used_components(self) -> frozenset[int]:
        by_jobs = {id(parsed.model.jobs): parsed.model for parsed in self.parsed.pipelines if not _is_job(parsed)}
        roots = (by_jobs.get(id(parsed.model.jobs)) for parsed in self.parsed.pipelines if _is_job(parsed))
        jobs = (job for parsed in self.parsed.pipelines for job in parsed.model.jobs.values())
        return frozenset(map(id, (*roots, *(job.component for job in jobs))))

    def job_node(self, job: Job) -> tuple[Node, Reading]:
        """The YAML of a job of the model, and the reading of the file that it stands in."""
        return self._node_by_job[id(job)]

    @cached_property
    def _node_by_job(self) -> dict[int, tuple[Node, Reading]]:
        return {
            id(job): (parsed.scope.jobs[name].node, parsed.reading)
            for parsed in self.parsed.pipelines
            for name, job in parsed.model.jobs.items()
        }

    def command_node(self, component: Component) -> tuple[Node, Document] | None:
        """The text of a component's command, and the document that it stands in."""
        seen = self.command_of(component)
        command = seen.node.get("command") if seen is not None else None
        if seen is None or command is None or not command.is_text:
            return None
        return command, seen.reading.document

    @cached_property
    def _command_by_component(self) -> dict[int, ParsedCommand]:
        return {id(command.component): command for command in self.parsed.commands}

    def flags_of(self, script: Path, root: Path) -> ScriptFlags | None:
        """The flags of a script of a snapshot, or None when they cannot be told."""
        key = (script, root)
        if key not in self._flags:
            self._flags[key] = read_flags(script, root)
        return self._flags[key]

    def is_left_out(self, root: Path, file: Path) -> bool:
        """Whether the ignore file of a snapshot keeps a file out of it."""
        if root not in self._ignore_rules:
            try:
                self._ignore_rules[root] = ignore_rule(root)[0]
            except (OSError, ValueError):
                self._ignore_rules[root] = lambda _: False
        return self._ignore_rules[root](file.relative_to(root).as_posix())

    def compute_named(self, reference: str, used_in: Path) -> KnownCompute | None:
        """The cluster that `azureml:NAME` means, when a file beside the one that uses it, or the settings, tell."""
        name = reference.removeprefix("azureml:")
        if name in self.computes:
            return KnownCompute(name, self.computes[name])
        for source, folder in self._compute_places(used_in):
            found = self._known_in(source, folder).get(name)
            if found is not None:
                return found
        return None

    def compute_names(self, used_in: Path) -> frozenset[str]:
        """The names of all clusters that are known where a file uses one."""
        names = {name for place in self._compute_places(used_in) for name in self._known_in(*place)}
        return frozenset(names | self.computes.keys())

    def _compute_places(self, used_in: Path) -> Iterator[tuple[str, Path]]:
        for source in ("compute", "profiles"):
            for folder in used_in.parents[: _LEVELS_UP + 1]:
                yield source, folder

    def _known_in(self, source: str, folder: Path) -> dict[str, KnownCompute]:
        key = (source, folder)
        if key not in self._known:
            read = self._computes_of_files if source == "compute" else self._computes_of_profiles
            self._known[key] = {compute.name: compute for compute in read(folder)}
        return self._known[key]

    def _computes_of_profiles(self, folder: Path) -> Iterator[KnownCompute]:
        """The clusters of a project's profiles; one that two profiles describe differently is left out."""
        files = {file.stem: file for file in _yaml_files(folder / "profiles")}
        sizes: dict[str, set[str]] = {}
        for name in files:
            cluster, size = _inherited(name, "cluster", files, self.store), _inherited(name, "sku", files, self.store)
            if cluster and size:
                sizes.setdefault(cluster, set()).add(size)
        for cluster, known in sizes.items():
            if len(known) == 1:
                yield KnownCompute(cluster, known.pop())

    def _computes_of_files(self, folder: Path) -> Iterator[KnownCompute]:
        for place in (folder / "compute", folder / "computes", folder):
            # A folder itself may hold anything: of its files only those are looked at that were read anyway.
            for file in _yaml_files(place) if place != folder else self._read_by_folder.get(folder, ()):
                document = _document(file, self.store)
                if document is not None and kind_of(document) == "compute":
                    yield from _compute_of(document)

    @cached_property
    def _read_by_folder(self) -> dict[Path, list[Path]]:
        found: dict[Path, list[Path]] = {}
        for file in self.store.files:
            found.setdefault(file.parent, []).append(file)
        return found


def _is_job(parsed: ParsedPipeline) -> bool:
    return isinstance(parsed.model, Pipeline)


@lru_cache(maxsize=1024)
def sku_named(size: str) -> Sku | None:
    """A VM size of the catalogue, or None."""
    from trainyard.catalogue.skus import UnknownSku, find_sku

    try:
        return find_sku(size)
    except UnknownSku:
        return None


def _compute_of(document: Document) -> Iterator[KnownCompute]:
    name, size = _text(document.root, "name"), _text(document.root, "size")
    most = document.root.get("max_instances")
    if name and size:
        most_instances = most.data if most is not None and type(most.data) is int else None
        span = document.root.key_span("size")
        yield KnownCompute(name, size, _text(document.root, "tier").lower(), most_instances, span)


def _inherited(name: str, key: str, files: Mapping[str, Path], store: DocumentStore) -> str:
    for _ in files:
        document = _document(files[name], store) if name in files else None
        if document is None:
            return ""
        if _text(document.root, key):
            return _text(document.root, key)
        name = _text(document.root, "extends")
    return ""


def _yaml_files(folder: Path) -> list[Path]:
    try:
        return (
            sorted(file for file in folder.iterdir() if file.suffix in (".yaml", ".yml"))
            if os.path.isdir(folder)
            else []
        )
    except OSError:
        return []


def _document(file: Path, store: DocumentStore) -> Document | None:
    try:
        return store.peek(file)
    except SpecError:
        return None


def _text(node: Node, key: str) -> str:
    found = node.get(key)
    return found.text if found is not None and not isinstance(found.data, (dict, list)) else ""
