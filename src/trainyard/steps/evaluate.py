"""Evaluate a trained model on one split. Its task is what the task.json beside the model says.

    python -m trainyard.steps.evaluate --data data/digits --model out/model --evaluation out/evaluation

One process, or as many as the environment says; the figures are the same.
"""

from __future__ import annotations

from trainyard.settings.steps.models import Evaluate
from trainyard.steps.runtime.entrypoint import as_task_step, run_and_end
from trainyard.steps.runtime.flags import GivenSettings


@as_task_step(Evaluate, "trainyard.steps.evaluate")
def main(given: GivenSettings[Evaluate]) -> int:
    """Evaluate and write the results; StepError when the accuracy is below the minimum."""
    from trainyard.steps.evaluation.evaluate_model import run_evaluation

    return run_evaluation(given)


if __name__ == "__main__":
    run_and_end(main)
