"""What a rule may look at beside the YAML: scripts in snapshots, machines behind computes. Each is read once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.lint.script_flags import ScriptFlags, read_flags
from trainyard.lint.scripts import CalledScript, called_scripts
from trainyard.spec.computes import Computes
from trainyard.spec.documents import Document, Node
from trainyard.spec.ignore_files import ignore_rule
from trainyard.spec.model import Component, Job, Pipeline, PipelineComponent
from trainyard.spec.parsed import Parsed, ParsedCommand, ParsedPipeline
from trainyard.spec.reading import Reading

if TYPE_CHECKING:
    from trainyard.catalogue.skus import Sku


@dataclass
class LintContext:
    """One call of the linter: everything that was read, the clusters that are known, and caches."""

    parsed: Parsed
    computes: Computes
    _calls: dict[int, list[CalledScript]] = field(default_factory=dict)
    _flags: dict[tuple[Path, Path], ScriptFlags | None] = field(default_factory=dict)
    _ignore_rules: dict[Path, Callable[[str], bool]] = field(default_factory=dict)

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
