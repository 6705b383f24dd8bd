"""The settings of the step that measures a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainyard.settings.step_fields import input_folder, output_folder, parameter


@dataclass(frozen=True)
class CheckCluster:
    """Measure the machines of a training before it starts: their GPUs and disks, and the bandwidth between them."""

    report: Path = output_folder()
    """Where cluster.json and cluster.png are written."""

    data: Path | None = input_folder(optional=True)
    """A folder whose files are read to measure its mount. Not given, only each node's own disk is measured."""

    smallest_message_kib: int = parameter(64, minimum=1, maximum=1_048_576)
    """The smallest message of the collectives; each further one is four times as large."""

    largest_message_mib: int = parameter(4096, minimum=1, maximum=65_536)
    """The largest message. Needs twice this in a GPU's memory, and may be lower than asked for where that is short."""

    repetitions: int = parameter(5, minimum=1, maximum=1000)
    """How often each operation is measured; the median counts. Less often where that takes more than 5 seconds."""

    disk_mib: int = parameter(256, minimum=1)
    """How much is written to and read from each node's disk, and read from the mount."""

    minimum_node_bus_gb_per_second: float = parameter(0.0, minimum=0.0)
    """The least bus bandwidth of the all-reduce within a node, in GB/s (10^9 bytes): the step fails if the largest
    message is slower. 0 never fails."""

    minimum_network_gb_per_second: float = parameter(0.0, minimum=0.0)
    """The least bus bandwidth of a collective between nodes, in GB/s (10^9 bytes): the step fails if the largest
    message is slower between two nodes, or over all nodes slower than this or the floor within a node. 0 never
    fails."""

    slow_percent: float = parameter(25.0, minimum=1.0, maximum=99.0)
    """A node or rank is reported as slow if it is this far below the median of all."""

    fail_if_slow: bool = parameter(False)
    """Fail if a node or rank is slow, instead of only reporting it."""

    process_group_timeout_seconds: int = parameter(600, minimum=1)
    """How long a rank waits for the others before it reports a hang and fails."""
