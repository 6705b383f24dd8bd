"""This machine's GPUs, shared out among the nodes that a local run plays."""

from __future__ import annotations

import glob
from collections.abc import Mapping

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
_DEVICE_FILES = "/dev/nvidia[0-9]*"


def available_gpus(environment: Mapping[str, str]) -> list[str]:
    """The GPUs that this machine has, and CUDA_VISIBLE_DEVICES leaves: their numbers or names, as it takes them."""
    count = len(glob.glob(_DEVICE_FILES))
    chosen = environment.get(VISIBLE_DEVICES)
    if not count or chosen is None:
        return [str(number) for number in range(count)]
    return [name.strip() for name in chosen.split(",") if name.strip()]


def gpus_of_node(gpus: list[str], node: int, *, nodes: int, processes_per_node: int) -> list[str]:
    """A node's own GPUs, so that each process finds its own under its LOCAL_RANK, as on the cluster.

    None where the processes of all nodes are more than the GPUs: then all of them run on the processors.
    """
    if nodes * processes_per_node > len(gpus):
        return []
    share = len(gpus) // nodes
    return gpus[node * share : (node + 1) * share]
