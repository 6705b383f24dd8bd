"""Where a command runs: a resolved job, with its YAML and the machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from trainyard.lint.checks import LintContext, sku_named
from trainyard.spec.computes import Compute
from trainyard.spec.diagnostic import Span
from trainyard.spec.documents import Node, Value
from trainyard.spec.literals import whole_number
from trainyard.spec.model import Component, Distribution, Resources
from trainyard.spec.parsed import ParsedCommand, ParsedPipeline
from trainyard.spec.resolution import JobUse, resolve_component
from trainyard.spec.resolved import DataPath, Known, Resolved

if TYPE_CHECKING:
    from trainyard.catalogue.skus import Sku


@dataclass(frozen=True, eq=False)
class Placement:
    """A use of a command: by a pipeline's job, as a job of its own, or (without a job) as its component declares."""

    use: JobUse
    head: Span
    node: Node
    """The job, or the component where there is none."""
    inputs: Mapping[str, Value]
    """What the job sets, as written."""
    context: LintContext
    is_component: bool = False

    @property
    def component(self) -> Component:
        """What runs."""
        return self.use.component

    @property
    def distribution(self) -> Distribution | None:
        """The job's own distribution, else its component's."""
        return self.use.job.effective_distribution

    @property
    def resources(self) -> Resources | None:
        """The job's own resources, else its component's."""
        return self.use.job.effective_resources

    @property
    def outputs(self) -> Mapping[str, Value]:
        """Where the job sends its outputs, as written."""
        return self.use.job.outputs

    @cached_property
    def known_compute(self) -> Compute | None:
        """The cluster, if something in the project describes it."""
        found = self.use.compute
        if not isinstance(found, Known) or not isinstance(found.value, str):
            return None
        return self.context.computes.find(found.value, found.written.span.file)

    @property
    def size(self) -> str:
        """The machine's VM size, if it is known from `instance_type` or from the cluster, else an empty string."""
        named, compute = self.use.instance_type, self.known_compute
        if named is not None:
            return str(named.value) if isinstance(named, Known) else ""
        return compute.size if compute is not None else ""

    @cached_property
    def sku(self) -> Sku | None:
        """The machine, if its size is in the catalogue."""
        return sku_named(self.size) if self.size else None

    @property
    def nodes(self) -> int | None:
        """Machines; None when that is unknown."""
        return _count(self.use.instance_count)

    @property
    def processes_per_node(self) -> int | None:
        """Processes on each machine; None when that is unknown."""
        return _count(self.use.processes_per_node)

    def number(self, value: Value) -> int | None:
        """The whole number that a value resolves to; None if it is unknown or not a whole number."""
        found = self.use.resolve(value)
        return whole_number(found.value) if isinstance(found, Known) else None

    def settled(self, value: Value) -> Value:
        """A value as it was written, be it through bindings; itself where they cannot be followed."""
        found = self.use.resolve(value)
        return found.written if isinstance(found, Known) else value

    def input(self, name: str) -> Value | None:
        """The literal that an input resolves to, with where it was written; None for data and unknown values."""
        found = self.use.input(name)
        if not isinstance(found, Known) or not isinstance(found.value, (str, int, float)):
            return None
        return found.written

    def data(self, name: str) -> Value | None:
        """The data that an input resolves to, with where its path was written; None if unknown."""
        found = self.use.input(name)
        if not isinstance(found, Known) or not isinstance(found.value, DataPath):
            return None
        return Value(found.value.text, found.written.span, found.value.text)


def placements_of_pipeline(seen: ParsedPipeline, context: LintContext) -> Iterator[Placement]:
    """The placement of each command job of a pipeline, and of the pipelines within it.

    A pipeline component that a pipeline uses is checked through that pipeline, which sets its inputs.
    """
    if context.is_used(seen.model):
        return
    for use in context.resolution_of(seen.model).jobs.values():
        if isinstance(use.job.component, Component):
            yield Placement(use, use.job.key_span, use.job.node, use.job.inputs, context)


def placement_of_command(seen: ParsedCommand, context: LintContext) -> Placement:
    """The placement of a component by itself, or of a standalone command job."""
    use = resolve_component(seen.component, seen.node, context.computes.store)
    head = next(iter(seen.node.entries.values())).key.span if seen.node.entries else seen.node.span
    return Placement(use, head, seen.node, {}, context, seen.is_component)


def _count(resolved: Resolved) -> int | None:
    return resolved.value if isinstance(resolved, Known) and isinstance(resolved.value, int) else None
