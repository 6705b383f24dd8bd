"""A distribution: what starts the processes of a job on its nodes, and how they find each other. One class for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

if TYPE_CHECKING:
    from trainyard.spec.diagnostic import Span
    from trainyard.spec.model import Value

DistributionType = Literal["pytorch", "mpi", "tensorflow", "ray"]


class ProcessCounts(NamedTuple):
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


@dataclass(frozen=True)
class Distribution:
    """What a job's `distribution:` says. A count may be a binding, and holds the binding's text then.

    A subclass says what Azure ML makes of it. A count that its type does not have is None.
    """

    type: ClassVar[DistributionType]
    counts: ClassVar[Mapping[str, int]] = {"process_count_per_instance": 1}
    """The keys that say how many processes there are, each with the least it may be."""
    has_process_per_gpu: ClassVar[bool] = True
    """Whether each process takes one GPU, rather than all of its node."""
    rank_variables: ClassVar[frozenset[str]] = frozenset()
    """What Azure ML sets for each process, so that a job must not set it for all of them."""
    program: ClassVar[str | None] = None
    """The program without which the processes cannot be started."""

    span: Span
    process_count_per_instance: Value | None = None
    worker_count: Value | None = None
    parameter_server_count: Value | None = None

    def process_counts(self, nodes: int, counts: Mapping[str, int]) -> ProcessCounts:
        """Return how many processes there are on so many nodes; `counts` are the values of the keys that are given."""
        per_node = counts.get("process_count_per_instance", 1)
        return ProcessCounts(nodes, per_node, nodes * per_node)

    def gpus_used(self, gpus: int, processes: ProcessCounts) -> int:
        """Return how many of a node's GPUs its processes use."""
        return min(gpus, processes.processes_per_node)

    def helpers(self, processes: ProcessCounts) -> range:
        """Return the ranks that only serve the others: they need not end by themselves."""
        return range(processes.world_size, processes.world_size)

    def ports(self, processes: ProcessCounts) -> int:
        """Return at how many ports the processes meet."""
        return 1


@dataclass(frozen=True)
class PyTorch(Distribution):
    """`torch.distributed`: each process knows its rank by RANK, and where all meet by MASTER_ADDR and MASTER_PORT."""

    type: ClassVar[DistributionType] = "pytorch"
    rank_variables: ClassVar[frozenset[str]] = frozenset(
        {"RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"}
    )


@dataclass(frozen=True)
class Mpi(Distribution):
    """Open MPI: `mpirun` starts the ranks."""

    type: ClassVar[DistributionType] = "mpi"


@dataclass(frozen=True)
class TensorFlow(Distribution):
    """TensorFlow: TF_CONFIG names all workers and parameter servers, each at a port of its own.

    A process uses all GPUs of its node; with parameter servers, train_tensorflow's uses one (docs/tensorflow.md).
    """

    type: ClassVar[DistributionType] = "tensorflow"
    counts: ClassVar[Mapping[str, int]] = {"worker_count": 1, "parameter_server_count": 0}
    has_process_per_gpu: ClassVar[bool] = False

    def process_counts(self, nodes: int, counts: Mapping[str, int]) -> ProcessCounts:
        """Return how many there are: by default a worker on each node, and no parameter servers."""
        servers = counts.get("parameter_server_count", 0)
        processes = counts.get("worker_count", nodes) + servers
        most_on_a_node = -(-processes // nodes)
        return ProcessCounts(nodes, most_on_a_node, processes, servers)

    def gpus_used(self, gpus: int, processes: ProcessCounts) -> int:
        """Return all of them, but one where there are parameter servers."""
        return min(gpus, 1) if processes.parameter_servers else gpus

    def helpers(self, processes: ProcessCounts) -> range:
        """Return the parameter servers, which are the last ranks."""
        return range(processes.world_size - processes.parameter_servers, processes.world_size)

    def ports(self, processes: ProcessCounts) -> int:
        """Return one port for each process."""
        return processes.world_size


@dataclass(frozen=True)
class Ray(Distribution):
    """Ray: the job's command runs on the head; the other nodes serve it. The arguments are those for `ray start`."""

    type: ClassVar[DistributionType] = "ray"
    has_process_per_gpu: ClassVar[bool] = False
    program: ClassVar[str | None] = "ray"

    include_dashboard: bool = False
    head_arguments: str = ""
    worker_arguments: str = ""

    def gpus_used(self, gpus: int, processes: ProcessCounts) -> int:
        """Return all of them: Ray hands them out."""
        return gpus

    def helpers(self, processes: ProcessCounts) -> range:
        """Return all nodes but the head."""
        return range(1, processes.world_size)


DISTRIBUTIONS: Mapping[str, type[Distribution]] = {
    distribution.type: distribution for distribution in (PyTorch, Mpi, TensorFlow, Ray)
}
