"""The settings of the steps that read a model: its evaluation, its export, and its log-probabilities as a reference."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainyard.settings.step_fields import input_folder, output_folder, parameter, same_field
from trainyard.settings.steps.measurements import CheckCluster
from trainyard.settings.steps.training import Training


@dataclass(frozen=True)
class Evaluate:
    """Evaluate a trained model on one split, every sample exactly once for any number of ranks."""

    data: Path = same_field(Training, "data")

    model: Path = input_folder()
    """The folder of the trained model."""

    evaluation: Path = output_folder()
    """Where evaluation.json is written, with confusion_matrix.json, confusion_matrix.png and pictures of mistakes for a
    classifier, and sample.txt for a language model."""

    base_model: Path | None = input_folder(optional=True, type="custom_model")
    """The model that training started from, to compare with; adapters need it, unless it still lies where training
    found it."""

    compare_with_base_model: bool = parameter(True)
    """Evaluate `base_model` too, if it is given, so that the results say what the training gained."""

    task: str | None = parameter(None)
    """The task that the model was trained for. Not given, the task.json beside the model says it, with the task's
    settings; given with settings of its own, they must agree with that file, or stand in for one that is missing."""

    split: str = parameter("test")
    """Which split of the dataset to evaluate on."""

    micro_batch_size: int = parameter(256, minimum=1)
    """Samples per forward pass of one rank."""

    shard_model: bool = parameter(False)
    """Spread the model's weights over the ranks, and gather them block by block, as FSDP does: for a model that a GPU
    does not hold. Each rank reads its rows from the model's files where they hold the model's tensors as they are."""

    precision: str = parameter("fp32", choices=("fp32", "bf16", "fp16"))
    """The floating-point type of the forward pass."""

    minimum_accuracy: float = parameter(0.0, minimum=0.0, maximum=1.0, port=True, on_resume="nothing")
    """The step fails if the accuracy is below this, after writing its results."""

    maximum_perplexity: float | None = parameter(None, minimum=1.0)
    """The step fails if a language model's perplexity is above this, after writing its results."""

    sample_prompt: str | None = parameter(None)
    """The text for a language model to continue; not given, the beginning of the split's first sample."""

    sample_tokens: int = parameter(64, minimum=0)
    """How many tokens of sample text a language model writes; 0 for none."""

    sample_temperature: float = parameter(0.8, minimum=0.0)
    """The temperature that the sample is drawn at; 0 always takes the likeliest token."""

    verify_data: str = parameter("auto", choices=("auto", "sizes", "digests"))
    """What to check of the files that are read: their sizes, or also every byte by its digest; `auto` checks digests if
    that takes less than a second per GB, or less than a second in all."""

    process_group_timeout_seconds: int = same_field(CheckCluster, "process_group_timeout_seconds")


@dataclass(frozen=True)
class ExportModel:
    """Write a trained model as others load it: for MLflow, as safetensors with its configuration, and as ONNX. Each is
    loaded again and compared with the model on a batch of the dataset."""

    data: Path = same_field(Training, "data")

    model: Path = same_field(Evaluate, "model")

    mlflow_model: Path = output_folder(type="mlflow_model")
    """Where the MLflow model is written: python_function with signature, input example and requirements, which Azure ML
    deploys to an endpoint without code."""

    files: Path = output_folder()
    """Where config.json and model.safetensors are written, as `from_pretrained` reads them; with `onnx` also
    model.onnx."""

    base_model: Path | None = same_field(Evaluate, "base_model")

    split: str = parameter("test")
    """The split of the dataset that the batch to compare on is taken from."""

    samples: int = parameter(8, minimum=1, maximum=4096)
    """How many samples of the split are compared."""

    onnx: bool = parameter(False)
    """Also write an image classifier as ONNX, for runtimes without PyTorch. Needs the extra `onnx`."""


@dataclass(frozen=True)
class ComputeReference:
    """Add a reference model's log-probabilities of all answers to a dataset of preferences, once for all trainings
    that start from this model."""

    data: Path = input_folder()
    """The dataset that prepare_chat wrote with `preferences`."""

    base_model: Path = input_folder(type="custom_model")
    """The reference model: the one that training will start from."""

    prepared: Path = output_folder()
    """Where the dataset is written again, with the log-probabilities and the reference model's SHA-256."""

    micro_batch_size: int = parameter(4, minimum=1)
    """Rows per forward pass of one rank."""

    shard_model: bool = same_field(Evaluate, "shard_model")

    precision: str = parameter("fp32", choices=("fp32", "bf16", "fp16"))
    """The floating-point type of the forward pass; best the one that training uses."""

    loss_chunk_tokens: int = parameter(0, minimum=0)
    """Compute logits for this many tokens at a time, so that those of a micro-batch never exist as a whole; 0: all at
    once."""

    verify_data: str = same_field(Evaluate, "verify_data")
    process_group_timeout_seconds: int = same_field(Evaluate, "process_group_timeout_seconds")
