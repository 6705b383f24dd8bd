"""evaluation.json and the confusion matrix, as the step `evaluate` writes them for the other steps' models."""

from __future__ import annotations

from typing import Any

from trainyard.settings.evaluation_format import EVALUATION_FORMAT
from trainyard.settings.steps.train_tensorflow import TrainTensorFlow
from trainyard.steps.data.dataset.manifest import Manifest
from trainyard.steps.evaluation.confusion import class_figures
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.files import write_json
from trainyard.steps.training.observing.mlflow_log import MlflowLog
from trainyard.steps.training.tensorflow.trainer import SplitSums


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
