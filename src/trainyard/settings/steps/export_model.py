"""The settings of the step that exports a trained model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainyard.settings.step_fields import input_folder, output_folder, parameter


@dataclass(frozen=True)
class ExportModel:
    """Write a trained model as others load it: for MLflow, as safetensors with its configuration, and as ONNX. Each is
    loaded again and compared with the model on a batch of the dataset."""

    data: Path = input_folder()
    """The dataset that a prepare step wrote. The batch to compare on comes from it."""

    model: Path = input_folder()
    """The folder of the trained model."""

    mlflow_model: Path = output_folder(type="mlflow_model")
    """Where the MLflow model is written: python_function with signature, input example and requirements, which Azure ML
    deploys to an endpoint without code."""

    files: Path = output_folder()
    """Where config.json and model.safetensors are written, as `from_pretrained` reads them; with `onnx` also
    model.onnx."""

    base_model: Path | None = input_folder(optional=True, type="custom_model")
    """The model that adapters were trained on, if `model` has only adapters. Not needed where it still lies where
    training found it."""

    split: str = parameter("test")
    """The split of the dataset that the batch to compare on is taken from."""

    samples: int = parameter(8, minimum=1, maximum=4096)
    """How many samples of the split are compared."""

    onnx: bool = parameter(False)
    """Also write an image classifier as ONNX, for runtimes without PyTorch. Needs the extra `onnx`."""
