"""Measure a few training steps with one choice of DeepSpeed's settings: a trial of pipelines/autotune.yaml.

    python -m trainyard.steps.measure_config --data data/text --deepspeed-configs components/deepspeed \\
        --measurement out/measurement --candidate 'config=zero2 micro_batch_size=4 activation_checkpointing=false'

One process, or as many as the environment describes (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT).
"""

from __future__ import annotations

from trainyard.settings.steps.measurements import MeasureConfig
from trainyard.steps.runtime.entrypoint import as_task_step, run_and_end
from trainyard.steps.runtime.flags import GivenSettings


@as_task_step(MeasureConfig, "trainyard.steps.measure_config")
def main(given: GivenSettings[MeasureConfig]) -> int:
    """Measure the candidate."""
    from trainyard.steps.tuning.measuring import measure_candidate

    return measure_candidate(given)


if __name__ == "__main__":
    run_and_end(main)
