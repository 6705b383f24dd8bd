"""From a model's folder to its exports, each loaded again and compared with the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from trainyard.settings.steps.models import ExportModel
from trainyard.steps.data.dataset.manifest import read_manifest
from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.files import require_writable
from trainyard.steps.runtime.imports import from_extra, require_packages
from trainyard.steps.training.adapters import load_trained_model, require_base_of_adapters
from trainyard.steps.training.randomness import ask_for_determinism
from trainyard.steps.training.samples.batches import as_tensors
from trainyard.steps.training.tasks.chosen import task_of_model
from trainyard.steps.training.tasks.image_classification import image_logits
from trainyard.steps.training.tasks.task import Task

_TOLERANCE = 1e-4
"""Another runtime adds in another order: probabilities agree to this, not to the bit."""


def run_export(settings: ExportModel) -> int:
    """Write every format, on the CPU. StepError if one does not compute what the model computes."""
    require_packages("an MLflow model", from_extra("train"), "pandas", "mlflow.pyfunc")
    if settings.onnx:
        require_packages("--onnx", from_extra("onnx"), "onnx", "onnxruntime", "onnxscript")
    # It imports pandas.
    from trainyard.steps.exporting.mlflow_model import empty_folder, require_same, serving_of, write_mlflow_model

    manifest = read_manifest(settings.data)
    split = SplitReader(settings.data, manifest, settings.split)
    chosen = task_of_model(settings.model, None, {})
    task = chosen.on(manifest)
    samples = min(settings.samples, split.samples)
    batch = as_tensors(split.gather(np.arange(samples, dtype=np.int64)), pin=False)
    serving = serving_of(task, chosen.name, batch)
    if settings.onnx and "images" not in batch:
        raise StepError(f"--onnx: only image classifiers are written as ONNX, and this model is of {chosen.name}")
    ask_for_determinism()
    require_base_of_adapters(chosen, settings.model, settings.base_model)
    model = load_trained_model(chosen, manifest, settings.model, settings.base_model, merged=True).eval()
    for folder in (settings.files, settings.mlflow_model):
        empty_folder(folder)
    require_writable([settings.files, settings.mlflow_model], rank=0)

    task.save_model(model, settings.files)
    chosen.write(settings.files)
    _require_same_weights(task, model, settings)
    write_mlflow_model(serving, settings.files, settings.mlflow_model)
    require_same(serving, settings.mlflow_model, model)
    print(f"{settings.files}: the same weights when loaded again", flush=True)
    print(f"{settings.mlflow_model}: the same bits on {samples} samples when loaded by MLflow", flush=True)
    if settings.onnx:
        file = settings.files / "model.onnx"
        difference = write_onnx(model, batch["images"], file)
        print(f"{file}: probabilities differ by at most {difference:.1g} in ONNX Runtime", flush=True)
    return 0


def _require_same_weights(task: Task, model: torch.nn.Module, settings: ExportModel) -> None:
    expected, found = model.state_dict(), task.load_model(settings.files).state_dict()
    changed = [name for name, tensor in expected.items() if name not in found or not torch.equal(found[name], tensor)]
    if changed:
        raise StepError(f"{settings.files}: {changed[0]} has other values when it is loaded again")


class _Classifier(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self._model = model

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return image_logits(self._model, images).softmax(dim=1)


def write_onnx(model: torch.nn.Module, images: torch.Tensor, file: Path) -> float:
    """Write the model for any number of images. Return the largest difference of a probability, by ONNX Runtime.

    StepError if it is more than 1e-4.
    """
    import onnxruntime

    batch = torch.export.Dim("images")
    torch.onnx.export(
        _Classifier(model).eval(),
        (images,),
        file,
        input_names=["images"],
        output_names=["probabilities"],
        dynamic_shapes={"images": {0: batch}},
        dynamo=True,
        external_data=False,
        verbose=False,
    )
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"images": images.numpy()})
    with torch.inference_mode():
        expected = _Classifier(model)(images).numpy()
    difference = float(np.abs(found - expected).max())
    if not difference <= _TOLERANCE:
        raise StepError(f"{file}: ONNX Runtime's probabilities differ from the model's by up to {difference:.2g}")
    return difference
