"""How many processes a job is: nodes, processes on each, and over all."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.plan.values import count_of
from trainyard.spec.model import Job, Pipeline


@dataclass(frozen=True)
class ProcessCounts:
    """`world_size` counts all processes; parameter servers (TensorFlow's) are among them and train on no samples."""

    nodes: int
    processes_per_node: int
    world_size: int
    parameter_servers: int = 0

    @property
    def training_processes(self) -> int:
        """The processes that share each batch."""
        return self.world_size - self.parameter_servers

    def __str__(self) -> str:
        if self.world_size == 1:
            return "1 process on 1 node"
        nodes = "1 node" if self.nodes == 1 else f"{self.nodes} nodes"
        if self.world_size == self.nodes * self.processes_per_node:
            return f"{nodes} × {self.processes_per_node} per node = {self.world_size} processes"
        return f"{self.world_size} processes on {nodes}, at most {self.processes_per_node} on each"


def process_counts(job: Job, pipeline: Pipeline) -> ProcessCounts:
    """How Azure ML starts this job: `process_count_per_instance` is per node, and 1 where nothing is said.

    Raises `SpecError` when a count is not a whole number of at least 1.
    """
    resources, distribution = job.effective_resources, job.effective_distribution
    nodes = count_of(resources.instance_count if resources else None, "instance_count", 1, job, pipeline)
    if distribution is None:
        return ProcessCounts(nodes, 1, nodes)
    if distribution.type == "tensorflow":
        workers = count_of(distribution.worker_count, "worker_count", nodes, job, pipeline)
        servers = count_of(distribution.parameter_server_count, "parameter_server_count", 0, job, pipeline, least=0)
        return ProcessCounts(nodes, -(-(workers + servers) // nodes), workers + servers, servers)
    per_node = count_of(distribution.process_count_per_instance, "process_count_per_instance", 1, job, pipeline)
    return ProcessCounts(nodes, per_node, nodes * per_node)
