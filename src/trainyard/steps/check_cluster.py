"""Measure the machines of a training before it starts.

    python -m trainyard.steps.check_cluster --report out/report --largest-message-mib 16

One process, or as many as the environment describes (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT).
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.settings.steps.measurements import CheckCluster
from trainyard.steps.runtime.entrypoint import run_and_end, run_step


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the step. Return its exit code."""
    return run_step(CheckCluster, "trainyard.steps.check_cluster", check_cluster, arguments)


def check_cluster(settings: CheckCluster) -> int:
    """Measure and write the report; StepError if the cluster is slower than its limits."""
    from trainyard.steps.cluster.run import run_check

    return run_check(settings)


if __name__ == "__main__":
    run_and_end(main)
