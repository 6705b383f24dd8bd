"""Train a Keras model with TensorFlow.

    python -m trainyard.steps.train_tensorflow --data data/digits --model out/model --checkpoints out/checkpoints \\
        --metrics out/metrics --evaluation out/evaluation --keras-model my_package.my_module:build_model

One process, or the tasks of TF_CONFIG, which Azure ML sets for a job with `distribution: type: tensorflow`.
"""

from __future__ import annotations

import os

from trainyard.settings.steps.train_tensorflow import TrainTensorFlow
from trainyard.steps.runtime.entrypoint import as_task_step, run_and_end
from trainyard.steps.runtime.flags import GivenSettings
from trainyard.steps.training.stopping import StopRequest


@as_task_step(TrainTensorFlow, "trainyard.steps.train_tensorflow")
def main(given: GivenSettings[TrainTensorFlow]) -> int:
    """Train with one of TensorFlow's strategies."""
    stop_request = StopRequest.of(given.step)  # first, since the next imports take seconds, for TensorFlow
    from trainyard.steps.runtime.imports import from_extra, require_packages
    from trainyard.steps.training.tensorflow.cluster import read_cluster

    read_cluster(os.environ)  # before TensorFlow is imported, which takes seconds
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # of TensorFlow's own log, warnings and errors
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    require_packages("train_tensorflow", from_extra("tensorflow"), "tensorflow")
    from trainyard.steps.training.tensorflow.tensorflow_training import run_tensorflow

    return run_tensorflow(given, stop_request)


if __name__ == "__main__":
    run_and_end(main)
