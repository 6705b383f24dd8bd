"""A trained model as an MLflow model: python_function, loaded by a small module that travels with it.

Nothing is pickled: weights are safetensors, and the module is source code.
"""

from __future__ import annotations

import inspect
import shutil
import tempfile
from abc import ABC, abstractmethod
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from trainyard.steps.exporting import served_image_classifier, served_language_model
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.samples.batches import Tensors
from trainyard.steps.training.tasks.image_classification import ImageClassification, image_logits
from trainyard.steps.training.tasks.language_modeling import LanguageModeling
from trainyard.steps.training.tasks.task import Task

_REQUIREMENTS = ("mlflow-skinny", "numpy", "pandas", "safetensors", "torch", "transformers")
_EXAMPLES = 2
_NEW_TOKENS = 64


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
        import numpy as np
        from mlflow.models import ModelSignature
        from mlflow.types.schema import Array, ColSpec, DataType, Schema, TensorSpec

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
        from mlflow.models import ModelSignature
        from mlflow.types.schema import ColSpec, DataType, ParamSchema, ParamSpec, Schema

        text = Schema([ColSpec(DataType.string, "text")])
        new_tokens = ParamSpec("max_new_tokens", DataType.long, _NEW_TOKENS)
        return ModelSignature(text, text, ParamSchema([new_tokens]))

    def example(self) -> Any:
        import pandas as pd

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
    import mlflow.pyfunc

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
    import mlflow.pyfunc

    if not serving.computes_the_same(mlflow.pyfunc.load_model(str(folder)), model):
        raise StepError(f"the MLflow model in {folder}, loaded again, does not compute what the trained model computes")


def empty_folder(folder: Path) -> None:
    """Make a folder, and remove what an interrupted attempt left there: MLflow writes into empty folders only."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.iterdir():
        shutil.rmtree(left) if left.is_dir() else left.unlink()
