"""Where a command runs: machines, processes, variables. A job's own settings replace those of its component."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainyard.lint.context import KnownCompute, LintContext, sku_named
from trainyard.spec.diagnostic import Span
from trainyard.spec.documents import Node
from trainyard.spec.expressions import only_binding
from trainyard.spec.model import Component, Distribution, Job, Port, Resources, Value
from trainyard.spec.parsed import ParsedCommand, ParsedPipeline
from trainyard.spec.reading import Reading

if TYPE_CHECKING:
    from trainyard.catalogue.skus import Sku


@dataclass(frozen=True)
class Placement:
    """One use of a command: by a job of a pipeline, as a job of its own, or (without a job) as its component says."""

    name: str
    head: Span
    node: Node
    """The job, or the component where there is none."""
    component: Component
    distribution: Distribution | None
    resources: Resources | None
    variables: Mapping[str, Value]
    inputs: Mapping[str, Value]
    outputs: Mapping[str, Value]
    compute: Value | None
    reading: Reading
    context: LintContext
    pipeline_inputs: Mapping[str, Port]
    is_component: bool = False

    @property
    def known_compute(self) -> KnownCompute | None:
        """The cluster, when something in the project says what it is."""
        if self.compute is None or not isinstance(self.compute.data, str):
            return None
        text = self.settled(self.compute).text
        return self.context.compute_named(text, self.reading.file)

    @property
    def sku(self) -> Sku | None:
        """The machine, when it is known: `instance_type` says it, or the cluster's file."""
        if self.resources is not None and self.resources.instance_type is not None:
            return sku_named(self.resources.instance_type.text)
        compute = self.known_compute
        return compute.sku if compute is not None else None

    @property
    def nodes(self) -> int | None:
        """Machines; None when a binding says it that cannot be followed."""
        count = self.resources.instance_count if self.resources is not None else None
        return 1 if count is None else self.number(count)

    @property
    def processes_per_node(self) -> int | None:
        """Processes on each machine; None when that cannot be told."""
        if self.distribution is None:
            return 1
        count = self.distribution.process_count_per_instance
        return 1 if count is None else self.number(count)

    def number(self, value: Value) -> int | None:
        """A whole number, or what the binding to a pipeline's input comes to; None when that is none."""
        data = self.settled(value).data
        return data if type(data) is int else None

    def settled(self, value: Value) -> Value:
        """A value, followed through a binding to the pipeline's inputs."""
        binding = only_binding(value.text) if isinstance(value.data, str) else None
        if binding is not None and binding.path[:2] == ("parent", "inputs"):
            port = self.pipeline_inputs.get(".".join(binding.path[2:]))
            if port is not None and port.default is not None:
                return port.default
        return value

    def input(self, name: str) -> Value | None:
        """What an input comes to: what the job sets, or the component's default."""
        if name in self.inputs:
            return self.settled(self.inputs[name])
        port = self.component.inputs.get(name)
        return port.default if port is not None else None


def placements_of_pipeline(seen: ParsedPipeline, context: LintContext) -> Iterator[Placement]:
    """The placement of each command job of a pipeline."""
    settings = seen.body.get("settings")
    default = settings.get("default_compute") if settings is not None and settings.is_mapping else None
    default = default or seen.body.get("compute")
    for name, job in seen.jobs.items():
        yield _of_job(job, seen.scope.jobs[name].node, default.value if default is not None else None, seen, context)


def _of_job(
    job: Job, node: Node, default_compute: Value | None, seen: ParsedPipeline, context: LintContext
) -> Placement:
    return Placement(
        name=job.name,
        head=job.key_span,
        node=node,
        component=job.component,
        distribution=job.effective_distribution,
        resources=job.effective_resources,
        variables=job.environment_variables,
        inputs=job.inputs,
        outputs=job.outputs,
        compute=job.compute or default_compute,
        reading=seen.reading,
        context=context,
        pipeline_inputs=seen.scope.inputs,
    )


def placement_of_command(seen: ParsedCommand, context: LintContext) -> Placement:
    """The placement of a component by itself, or of a command job that stands alone."""
    compute = seen.node.get("compute")
    return Placement(
        name=seen.component.name,
        head=next(iter(seen.node.entries.values())).key.span if seen.node.entries else seen.node.span,
        node=seen.node,
        component=seen.component,
        distribution=seen.component.distribution,
        resources=seen.component.resources,
        variables=_variables(seen.node),
        inputs={},
        outputs={},
        compute=compute.value if compute is not None else None,
        reading=seen.reading,
        context=context,
        pipeline_inputs={},
        is_component=seen.is_component,
    )


def _variables(node: Node) -> dict[str, Value]:
    variables = node.get("environment_variables")
    return {name: entry.value.value for name, entry in variables.entries.items()} if variables is not None else {}
