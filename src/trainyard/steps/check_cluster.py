"""Measure the machines of a training before it starts.

    python -m trainyard.steps.check_cluster --report out/report --largest-message-mib 16

One process, or as many as the environment describes (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT).
"""

from __future__ import annotations

from trainyard.settings.steps.measurements import CheckCluster
from trainyard.steps.runtime.entrypoint import as_step, run_and_end


@as_step(CheckCluster, "trainyard.steps.check_cluster")
def main(settings: CheckCluster) -> int:
    """Measure and write the report; StepError if the cluster is slower than its limits."""
    from trainyard.steps.cluster.run import run_check

    return run_check(settings)


if __name__ == "__main__":
    run_and_end(main)
