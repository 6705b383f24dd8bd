"""What the training loop and the evaluation ask of a task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from trainyard.steps.dataset.manifest import Manifest
from trainyard.steps.training.batches import Tensors


@dataclass(frozen=True)
class TaskSettings:
    """The settings of a step that concern its task."""

    model_type: str = "convnext"
    model_overrides: str | None = None
    label_smoothing: float = 0.0


class Task(ABC):
    """A model, its loss and its measures on one kind of dataset. A user's own overrides the three abstract methods.

    Sums instead of means throughout: sums over samples can be added over micro-batches and ranks, and divided once.
    """

    def __init__(self, manifest: Manifest, settings: TaskSettings) -> None:
        self.manifest = manifest
        self.settings = settings

    @abstractmethod
    def new_model(self) -> torch.nn.Module:
        """A model to be trained; its weights depend on torch's seed only. StepError for settings that cannot be."""

    @abstractmethod
    def loss(self, model: torch.nn.Module, batch: Tensors) -> torch.Tensor:
        """The sum of the losses of the batch's samples, to be minimised."""

    @abstractmethod
    def measure(self, model: torch.nn.Module, batch: Tensors) -> dict[str, torch.Tensor]:
        """What is to be added up over a split: `loss_sum`, `samples`, and whatever `summarise` makes figures of."""

    def summarise(self, sums: Mapping[str, torch.Tensor]) -> dict[str, float]:
        """The figures of a split from its sums. By default every `x_sum` becomes `x`, its mean over the samples."""
        samples = float(sums["samples"])
        return {name[: -len("_sum")]: float(total) / samples for name, total in sums.items() if name.endswith("_sum")}

    def save_model(self, model: torch.nn.Module, folder: Path) -> None:
        """Write a trained model. By default its weights as model.safetensors."""
        from trainyard.steps.training.tensor_files import write_tensors

        write_tensors(folder / "model.safetensors", dict(model.state_dict()))

    def load_model(self, folder: Path) -> torch.nn.Module:
        """Read what `save_model` wrote. By default the weights into a new model."""
        from trainyard.steps.training.tensor_files import read_tensors

        model = self.new_model()
        model.load_state_dict(read_tensors(folder / "model.safetensors", torch.device("cpu")))
        return model
