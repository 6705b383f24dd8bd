"""How many processes of a job run here: all, or fewer where this machine has too few processors and GPUs for them."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.rehearse.machine import available_processors
from trainyard.settings.quantities import counted
from trainyard.spec.model import Parallel, ProcessCounts, Spark
from trainyard.spec.resolution import JobUse

# Two nodes with two processes each: the smallest job whose node ranks, local ranks and ranks all differ. It is
# rehearsed as it is on any machine.
_SMALLEST_LIMIT = 4


@dataclass(frozen=True)
class ProcessCap:
    """The cap on the processes of a job: `max_processes` if the user gives it, else what this machine has."""

    processors: int
    gpus: int
    max_processes: int | None

    @classmethod
    def here(cls, max_processes: int | None, gpus: int = 0) -> ProcessCap:
        """Return the cap on this machine with its GPUs, as far as this process may use it."""
        return cls(available_processors(), gpus, max_processes)

    def counts_of(self, use: JobUse) -> tuple[ProcessCounts, str | None]:
        """Return the processes of a job that run here, and what was left out, if anything was.

        Nodes and processes per node are divided by whole numbers, so that a batch that is shared evenly by all is
        shared evenly by those left. Without a number given, parameter servers come on top, since they mostly wait.
        Parallel and Spark jobs are started by one process.
        """
        if isinstance(use.component.task, (Parallel, Spark)):
            return ProcessCounts(1, 1, 1), None
        counts = use.processes()
        limit = self.max_processes
        if limit is None:
            limit = max(self.processors, self.gpus, _SMALLEST_LIMIT) + counts.parameter_servers
        if counts.world_size <= limit:
            return counts, None
        nodes = _largest_divisor(counts.nodes, limit)
        per_node = _largest_divisor(counts.processes_per_node, limit // nodes)
        capped = ProcessCounts(nodes, per_node, nodes * per_node, min(counts.parameter_servers, nodes * per_node - 1))
        reduced = f"{_described(counts)} were reduced to {_described(capped, '')}"
        if self.max_processes is not None:
            return capped, f"{reduced} by --max-processes {self.max_processes}"
        has = counted(self.processors, "processor")
        return capped, f"{reduced}, since this machine has {has}: --max-processes {counts.world_size} runs all"

    def too_few_gpus(self, processes: int) -> str | None:
        """Return what to say of more processes than this machine has GPUs for; None if it has enough, or none."""
        if self.max_processes is not None or self.gpus == 0 or processes <= self.gpus:
            return None
        has = f"this machine has {counted(self.gpus, 'GPU')}"
        uses = f"--max-processes {self.gpus} uses {'it' if self.gpus == 1 else 'them'}"
        return f"{processes} processes run without GPUs, since {has}: {uses}"


def _described(counts: ProcessCounts, unit: str = " processes") -> str:
    return f"{counts.world_size}{unit} ({counts.nodes} x {counts.processes_per_node})"


def _largest_divisor(count: int, limit: int) -> int:
    return next(divisor for divisor in range(min(count, limit), 0, -1) if count % divisor == 0)
