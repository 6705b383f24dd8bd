"""From a model's folder to its exports, each loaded again and compared with the model.

Nothing is pickled: weights are safetensors, and the module that loads an MLflow model travels with it as source code.
"""

from __future__ import annotations

import inspect
import tempfile
from abc import ABC, abstractmethod
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import mlflow.pyfunc
import numpy as np
import pandas as pd
import torch
from mlflow.models import ModelSignature
from mlflow.types.schema import Array, ColSpec, DataType, ParamSchema, ParamSpec, Schema, TensorSpec

from trainyard.settings.steps.models import ExportModel
from trainyard.steps.data.dataset.manifest import read_manifest
from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.exporting import served_image_classifier, served_language_model
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.files import empty_folder, require_writable
from trainyard.steps.training.adapters import load_trained_model, require_base_of_adapters
from trainyard.steps.training.randomness import ask_for_determinism
from trainyard.steps.training.samples.batches import Tensors, as_tensors
from trainyard.steps.training.tasks.chosen import task_of_model
from trainyard.steps.training.tasks.image_classification import ImageClassification, image_logits
from trainyard.steps.training.tasks.language_modeling import LanguageModeling
from trainyard.steps.training.tasks.task import Task

_REQUIREMENTS = ("mlflow-skinny", "numpy", "pandas", "safetensors", "torch", "transformers")
_EXAMPLES = 2
_NEW_TOKENS = 64
_TOLERANCE = 1e-4
"""Another runtime adds in another order: probabilities agree to this, not to the bit."""


def run_export(settings: ExportModel) -> int:
    """Write every format, on the CPU. StepError if one does not compute what the model computes."""
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


class Serving(ABC):
    """How a task's models are served: what they take and return, and which module does it."""

    module: ModuleType

    def __init__(self, task: Task, batch: Tensors) -> None:
        self.task, self.batch = task, batch

    @abstractmethod
    def signature(self) -> Any:
        """Return MLflow's signature: types of inputs, outputs and parameters."""

    @abstractmethod
    def example(self) -> Any:
        """Return an input of the signature's type."""

    @abstractmethod
    def computes_the_same(self, loaded: Any, model: torch.nn.Module) -> bool:
        """Return whether the loaded model computes the bits of the other on the batch."""


class _ServedImages(Serving):
    module = served_image_classifier

    def signature(self) -> Any:
        images = TensorSpec(np.dtype(np.uint8), (-1, *self.batch["images"].shape[1:]))
        label = ColSpec(DataType.string, "label")
        probability = ColSpec(DataType.double, "probability")
        probabilities = ColSpec(Array(DataType.double), "probabilities")
        return ModelSignature(Schema([images]), Schema([label, probability, probabilities]))

    def example(self) -> Any:
        return self.batch["images"][:_EXAMPLES].numpy()

    def computes_the_same(self, loaded: Any, model: torch.nn.Module) -> bool:
        found = loaded.predict(self.batch["images"].numpy())["probabilities"].tolist()
        with torch.inference_mode():
            return bool(found == image_logits(model, self.batch["images"]).softmax(dim=1).tolist())


class _ServedText(Serving):
    module = served_language_model

    def signature(self) -> Any:
        text = Schema([ColSpec(DataType.string, "text")])
        new_tokens = ParamSpec("max_new_tokens", DataType.long, _NEW_TOKENS)
        return ModelSignature(text, text, ParamSchema([new_tokens]))

    def example(self) -> Any:
        return pd.DataFrame({"text": ["The"]})

    def computes_the_same(self, loaded: Any, model: torch.nn.Module) -> bool:
        assert isinstance(self.task, LanguageModeling)
        tokens = self.batch["tokens"]
        with torch.inference_mode():
            found = self.task.logits(loaded.get_raw_model(), tokens)
            same = torch.equal(found, self.task.logits(model, tokens))
        (continued,) = loaded.predict(self.example(), params={"max_new_tokens": 4})["text"]
        return same and str(continued).startswith("The")


def serving_of(task: Task, name: str, batch: Tensors) -> Serving:
    """Return how a task's models are served. StepError for a task of which that is unknown."""
    if isinstance(task, ImageClassification):
        return _ServedImages(task, batch)
    if isinstance(task, LanguageModeling):
        return _ServedText(task, batch)
    raise StepError(
        f"the task {name} cannot be exported: export_model knows what image_classification and language_modeling, and "
        "tasks derived from them, take and return"
    )


def write_mlflow_model(serving: Serving, files: Path, folder: Path) -> None:
    """Write the MLflow model of the weights and configuration in `files` into an empty folder."""
    loader = serving.module.__name__.rpartition(".")[2]
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / f"{loader}.py"
        source.write_text(inspect.getsource(serving.module), encoding="utf-8")  # it may come from an archive
        mlflow.pyfunc.save_model(
            folder,
            loader_module=loader,
            data_path=files,
            code_paths=[str(source)],
            signature=serving.signature(),
            input_example=serving.example(),
            # Without a build's own label such as +cpu, which the package index does not have.
            pip_requirements=[f"{name}=={version(name).partition('+')[0]}" for name in _REQUIREMENTS],
        )


def require_same(serving: Serving, folder: Path, model: torch.nn.Module) -> None:
    """Load the MLflow model again. StepError if it does not compute the same bits as the model."""
    if not serving.computes_the_same(mlflow.pyfunc.load_model(str(folder)), model):
        raise StepError(f"the MLflow model in {folder}, loaded again, does not compute what the trained model computes")


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
