"""What the training loop and the evaluation ask of a task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from trainyard.foundation.configs.tasks import TaskSettings
from trainyard.steps.data.dataset.manifest import Manifest
from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.samples.batches import Tensors


@dataclass(frozen=True)
class SampleRequest:
    """What a task that generates is asked for."""

    split: SplitReader
    prompt: str | None = None
    """What to go on with; None leaves it to the task."""

    tokens: int = 64
    temperature: float = 0.8
    """How freely to draw: 0 always takes what is most likely."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))


@dataclass(frozen=True)
class Sample:
    """What a model generated, and what it went on with."""

    prompt: str
    text: str


class Task(ABC):
    """A model, its loss and its measures on one kind of dataset. A user's own overrides the three abstract methods.

    Sums instead of means throughout: sums can be added over micro-batches and ranks, and divided once.
    """

    Settings: type[TaskSettings] = TaskSettings
    """The dataclass of the task's settings. A task with settings of its own names its own, derived from this one."""

    settings: TaskSettings

    loss_terms_vary: bool = False
    """Whether training samples differ in how many terms their losses have. Ranks then agree on a step's total first."""

    def __init__(self, manifest: Manifest, settings: TaskSettings) -> None:
        self.manifest = manifest
        self.settings = settings

    @property
    def needs_sample_draws(self) -> bool:
        """Whether training batches shall have `sample_draws`, 64 random bits per sample, to vary samples with."""
        return False

    @property
    def tokens_per_sample(self) -> int | None:
        """How many tokens the model computes for a sample, for measures of speed; None where samples have none."""
        return None

    @abstractmethod
    def new_model(self) -> torch.nn.Module:
        """A model to be trained; its weights depend on torch's seed only. StepError for settings that cannot be."""

    @abstractmethod
    def loss(self, model: torch.nn.Module, batch: Tensors) -> torch.Tensor:
        """The sum of the losses of the batch, whose mean over all ranks' `loss_terms` is minimised."""

    def loss_terms(self, batch: Tensors) -> int:
        """How many terms the loss of a batch is the sum of: by default one per sample."""
        return len(next(iter(batch.values())))

    @abstractmethod
    def measure(self, model: torch.nn.Module, batch: Tensors) -> dict[str, torch.Tensor]:
        """What is to be added up over a split: `loss_sum`, `samples`, and whatever `summarise` makes figures of."""

    def summarise(self, sums: Mapping[str, torch.Tensor], split: str = "validation") -> dict[str, float]:
        """The figures of a split from its sums. By default every `x_sum` becomes `x`, its mean over the samples."""
        samples = float(sums["samples"])
        return {name[: -len("_sum")]: float(total) / samples for name, total in sums.items() if name.endswith("_sum")}

    def save_model(self, model: torch.nn.Module, folder: Path) -> None:
        """Write a trained model. By default its weights as model.safetensors."""
        _write_tensors(folder / "model.safetensors", dict(model.state_dict()))

    def load_model(self, folder: Path) -> torch.nn.Module:
        """Read what `save_model` wrote. By default the weights into a new model."""
        model = self.new_model()
        model.load_state_dict(_read_tensors(folder / "model.safetensors", torch.device("cpu")))
        return model

    def sample(self, model: torch.nn.Module, request: SampleRequest) -> Sample | None:
        """Text that the model generates, the same each time; None by default. Only rank 0 is asked."""
        return None


def require_loss(loss: object) -> torch.Tensor:
    """The loss of a batch. StepError when it is nothing that can be minimised."""
    if not isinstance(loss, torch.Tensor):
        problem = f"a {type(loss).__name__}"
    elif loss.ndim:
        problem = f"a tensor of the shape {list(loss.shape)}"
    elif not loss.requires_grad:
        problem = "a tensor that does not depend on the model's weights"
    else:
        return loss
    raise StepError(
        f"the task's loss() gave {problem}; it gives a tensor of one number computed by the model: the sum of the "
        "samples' losses"
    )


def require_sums(measured: object) -> Mapping[str, torch.Tensor]:
    """What a task measured of a batch. StepError when it cannot be added up."""
    if not isinstance(measured, Mapping):
        raise StepError(f"the task's measure() gave a {type(measured).__name__}; it gives a tensor for each name")
    for name, value in measured.items():
        if not isinstance(value, torch.Tensor):
            raise StepError(f"the task's measure() gave a {type(value).__name__} for {name!r}, where a tensor belongs")
    if "samples" not in measured:
        raise StepError(
            f"the task's measure() gave {', '.join(measured) or 'nothing'} without 'samples', the number of samples"
        )
    return measured


def _write_tensors(file: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Write tensors, each as a copy of its own where several share memory. StepError when the disk refuses."""
    seen: set[int] = set()
    independent = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage().data_ptr()
        independent[name] = tensor.detach().clone() if storage in seen else tensor.detach().contiguous()
        seen.add(storage)
    try:
        save_file(independent, file, metadata={"format": "pt"})
    except SafetensorError as failure:
        raise StepError(f"{file} cannot be written: {failure}") from None


def _read_tensors(file: Path, device: torch.device) -> dict[str, torch.Tensor]:
    """Read all tensors of a file onto a device. StepError when the file is not what it should be."""
    try:
        return load_file(file, device=str(device))
    except SafetensorError as failure:
        raise StepError(f"{file} cannot be read: {failure}") from None
