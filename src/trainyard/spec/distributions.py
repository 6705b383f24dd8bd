"""A distribution: what starts the processes of a job on its nodes, and how they find each other. One class for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from trainyard.spec.model import Distribution, DistributionType, ProcessCounts


class PyTorch(Distribution):
    """`torch.distributed`: each process knows its rank by RANK, and where all meet by MASTER_ADDR and MASTER_PORT."""

    type: ClassVar[DistributionType] = "pytorch"
    rank_variables: ClassVar[frozenset[str]] = frozenset(
        {"RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"}
    )


class Mpi(Distribution):
    """Open MPI: `mpirun` starts the ranks."""

    type: ClassVar[DistributionType] = "mpi"


class TensorFlow(Distribution):
    """TensorFlow: TF_CONFIG names all workers and parameter servers, each at a port of its own.

    A process uses all GPUs of its node; with parameter servers, train_tensorflow's uses one (docs/tensorflow.md).
    """

    type: ClassVar[DistributionType] = "tensorflow"
    counts: ClassVar[Mapping[str, int]] = {"worker_count": 1, "parameter_server_count": 0}
    has_process_per_gpu: ClassVar[bool] = False
    first_port: ClassVar[int] = 2222

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


@dataclass(frozen=True, eq=False)
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
