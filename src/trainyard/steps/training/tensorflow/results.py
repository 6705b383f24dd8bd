"""What a training with TensorFlow leaves: a SavedModel, loaded again and compared, and its evaluation."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainyard.settings.quantities import EVALUATION_FORMAT
from trainyard.settings.steps.train_tensorflow import TrainTensorFlow
from trainyard.steps.data.dataset.manifest import Manifest
from trainyard.steps.evaluation.confusion import class_figures
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.files import write_json
from trainyard.steps.training.observing.mlflow_log import MlflowLog
from trainyard.steps.training.tensorflow.trainer import SplitSums, State

CLASSES_FILE = "classes.json"
_TOLERANCE = 1e-4
"""TensorFlow fuses layers of a SavedModel, which changes the last digits."""


def write_saved_model(folder: Path, model: keras.Model, state: State, manifest: Manifest, inputs: Any) -> float:
    """Give a newly built model the trained variables, and write it. Return how far outputs differ when loaded again.

    `model` was built outside any strategy, so that nothing of one is in the SavedModel. StepError if it does
    not compute what the model computes.
    """
    trained = [array for name, array in state.items() if name.startswith("model/")]
    for variable, array in zip(model.variables, trained, strict=True):
        variable.assign(array)
    for left in folder.iterdir():  # by an interrupted attempt
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    model.export(str(folder), verbose=False)
    if manifest.classes:
        write_json(folder / CLASSES_FILE, list(manifest.classes))
    expected = _outputs(model(inputs, training=False))
    loaded = tf.saved_model.load(str(folder))  # its variables live as long as this
    found = _outputs(loaded.serve(inputs))
    largest = max(float(np.abs(e - f).max() / max(1.0, np.abs(e).max())) for e, f in zip(expected, found, strict=True))
    if not largest <= _TOLERANCE:
        raise StepError(
            f"the SavedModel in {folder}, loaded again, does not compute what the model computes: outputs differ by "
            f"{largest:.2g}"
        )
    return largest


def _outputs(value: Any) -> list[Any]:
    return [np.asarray(each, dtype=np.float64) for each in tf.nest.flatten(value)]


def write_evaluation(settings: TrainTensorFlow, manifest: Manifest, sums: SplitSums) -> None:
    """Write and log the figures of the whole split. StepError afterwards if the accuracy is too low."""
    figures, folder, split = sums.figures(), settings.evaluation, settings.evaluate_split
    document: dict[str, Any] = {
        "format": EVALUATION_FORMAT,
        "task": "language_modeling" if sums.confusion is None else "image_classification",
        "split": split,
        "samples": sums.samples,
        **({"tokens": int(sums.terms)} if sums.confusion is None else {}),
        **figures,
    }
    if sums.confusion is not None:
        document["classes"] = class_figures(sums.confusion, manifest.classes)
        matrix = {"classes": list(manifest.classes), "matrix": sums.confusion.tolist()}
        write_json(folder / "confusion_matrix.json", {"format": "trainyard.confusion_matrix/1", **matrix})
    write_json(folder / "evaluation.json", document)
    mlflow = MlflowLog()
    mlflow.metrics({f"{split}_{name}": value for name, value in figures.items()}, step=0)
    mlflow.artifact(folder / "evaluation.json")
    mlflow.close()
    text = ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
    print(f"{split}: {text} on {sums.samples} samples; {folder}", flush=True)
    if not figures["accuracy"] >= settings.minimum_accuracy:
        raise StepError(
            f"accuracy {figures['accuracy']:.4f} on {split} is below --minimum-accuracy "
            f"{settings.minimum_accuracy:g}; the results are in {folder}"
        )
