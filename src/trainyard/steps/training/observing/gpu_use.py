"""How busy and how full the GPUs of each node are, gathered when a step is recorded."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

import torch

from trainyard.steps.runtime.world import World


class GpuUse(NamedTuple):
    """One rank's GPU at one moment: in which percentage of the time it just computed, and how much memory is taken."""

    node: int
    utilization_percent: float | None
    memory_bytes: int


def gpu_figures(world: World) -> dict[str, float]:
    """Return the figures of every node, the same on each rank. Every rank calls it; none without GPUs."""
    if world.device.type != "cuda":
        return {}
    free_bytes, total_bytes = torch.cuda.mem_get_info(world.device)
    try:
        percent = torch.cuda.utilization(world.device)
    except Exception:  # without nvidia-ml-py, or where the driver does not tell, as of a part of a GPU
        percent = None
    return figures_of_nodes(world.gather(GpuUse(world.variables.node_rank, percent, total_bytes - free_bytes)))


def figures_of_nodes(uses: Sequence[GpuUse]) -> dict[str, float]:
    """Return the mean utilization of each node's GPUs, where any is known, and the memory of its fullest one."""
    figures: dict[str, float] = {}
    for node in sorted({use.node for use in uses}):
        of_node = [use for use in uses if use.node == node]
        if known := [use.utilization_percent for use in of_node if use.utilization_percent is not None]:
            figures[f"node_{node}_gpu_utilization_percent"] = statistics.mean(known)
        figures[f"node_{node}_gpu_memory_bytes"] = max(use.memory_bytes for use in of_node)
    return figures
