"""What the training loop and the evaluation ask of a task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from trainyard.steps.data.dataset.manifest import Manifest
from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.training.samples.batches import Tensors


@dataclass(frozen=True)
class TaskSettings:
    """The settings of a step that concern its task."""

    model_type: str = "convnext"
    model_overrides: str | None = None
    label_smoothing: float = 0.0
    augmentation: str = "none"


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
        from trainyard.steps.training.tasks.tensor_files import write_tensors

        write_tensors(folder / "model.safetensors", dict(model.state_dict()))

    def load_model(self, folder: Path) -> torch.nn.Module:
        """Read what `save_model` wrote. By default the weights into a new model."""
        from trainyard.steps.training.tasks.tensor_files import read_tensors

        model = self.new_model()
        model.load_state_dict(read_tensors(folder / "model.safetensors", torch.device("cpu")))
        return model

    def sample(self, model: torch.nn.Module, request: SampleRequest) -> Sample | None:
        """Text that the model generates, the same each time; None by default. Only rank 0 is asked."""
        return None
