"""Add a reference model's log-probabilities to a dataset of preferences.

    python -m trainyard.steps.compute_reference --data data/pairs --base-model models/llama --prepared data/prepared

One process, or as many as the environment says, each with a share of the rows.
"""

from __future__ import annotations

from trainyard.settings.steps.models import ComputeReference
from trainyard.steps.runtime.entrypoint import as_step, run_and_end


@as_step(ComputeReference, "trainyard.steps.compute_reference")
def main(settings: ComputeReference) -> int:
    """Compute the log-probabilities and write the dataset with them; StepError if it has no pairs of answers."""
    from trainyard.steps.evaluation.reference import compute_reference

    return compute_reference(settings)


if __name__ == "__main__":
    run_and_end(main)
