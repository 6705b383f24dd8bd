"""Compare the trials of pipelines/autotune.yaml, and write the fastest settings for the profile.

python -m trainyard.steps.compare_configs --fastest out/measurement --winner out/winner
"""

from __future__ import annotations

from trainyard.settings.steps.measurements import CompareConfigs
from trainyard.steps.runtime.entrypoint import as_step, run_and_end


@as_step(CompareConfigs, "trainyard.steps.compare_configs")
def main(settings: CompareConfigs) -> int:
    """Write the winner, the table and the picture; StepError if no candidate had enough memory."""
    from trainyard.steps.tuning.comparing import compare

    return compare(settings)


if __name__ == "__main__":
    run_and_end(main)
