"""The interface between a task and the training loop and evaluation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from trainyard.settings.steps.tasks import TaskSettings
from trainyard.steps.data.dataset.manifest import Manifest
from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.samples.batches import Tensors
from trainyard.steps.training.samples.plan import NO_TOKENS, TokenCounts
from trainyard.steps.training.weights_to_files import write_tensors


@dataclass(frozen=True)
class SampleRequest:
    """A request for a sample of what a model generates."""

    split: SplitReader
    prompt: str | None = None
    """The text to continue; None leaves it to the task."""

    tokens: int = 64
    temperature: float = 0.8
    """The temperature of sampling: 0 always takes what is most likely."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))


@dataclass(frozen=True)
class Sample:
    """What a model generated, and the prompt it continued."""

    prompt: str
    text: str


class Task(ABC):
    """A model, its loss and its measures on one kind of dataset. Your own overrides the three abstract methods.

    Sums instead of means throughout: sums can be added over micro-batches and ranks, and divided once.
    """

    Settings: type[TaskSettings] = TaskSettings
    """The dataclass of the task's settings. A task with settings of its own names its own, derived from this one."""

    settings: TaskSettings

    shard_bytes: int = 5_000_000_000
    """The most bytes of weights in one file that `save_model` writes, where the model's format knows several."""

    loss_terms_vary: bool = False
    """Whether training samples differ in how many terms their losses have. Then those of each batch are counted in main
    memory, ahead of the training, and summed over the ranks."""

    best_is: Mapping[str, Literal["lowest", "highest"]] = MappingProxyType({"loss": "lowest"})
    """The figures by which models can be compared (`--best-metric`), and which value of each is the best."""

    def __init__(self, manifest: Manifest, settings: TaskSettings) -> None:
        self.manifest = manifest
        self.settings = settings

    @property
    def needs_sample_draws(self) -> bool:
        """Whether training batches need `sample_draws`, 64 random bits per sample, for augmentation."""
        return False

    @property
    def tokens_per_sample(self) -> int | None:
        """How many tokens the model computes per sample, for measures of speed; None if samples have no tokens."""
        return None

    def base_model_problem(self, sha256: str | None) -> str | None:
        """Return why a training on this dataset cannot start from this base model (None: from none), if it cannot."""
        return None

    @abstractmethod
    def new_model(self) -> torch.nn.Module:
        """Return a model to train; its weights depend only on torch's seed. Raise StepError for invalid settings."""

    @abstractmethod
    def loss(self, model: torch.nn.Module, batch: Tensors) -> torch.Tensor:
        """Return the sum of the batch's losses, whose mean over all ranks' `loss_terms` is minimised."""

    def loss_terms(self, batch: Tensors) -> int:
        """Return how many terms the loss of a batch is the sum of: by default one per sample."""
        return len(next(iter(batch.values())))

    def token_counts(self, batch: Tensors) -> TokenCounts:
        """Return what the rows of a batch in main memory consist of. For measures, where `loss_terms_vary`."""
        return NO_TOKENS

    def tokens_of_samples(self, batch: Tensors) -> torch.Tensor:
        """Return how many tokens each sample of a batch in main memory has, where `loss_terms_vary`: [samples].

        `--max-tokens` counts them. By default all have `tokens_per_sample`; leave out padding if there is some.
        """
        return torch.full((len(next(iter(batch.values()))),), self.tokens_per_sample or 0)

    def flops_per_sample(self, model: torch.nn.Module) -> float | None:
        """Return the training FLOPs per sample, for measures; None if unknown, or if they are counted per token.

        `model` has no memory: its tensors are on torch's meta device.
        """
        return None

    def prepare(self, batch: Tensors) -> Tensors:
        """Return what to add to a training batch: computed in main memory, by a thread, ahead of the training.

        For what a GPU would compute only to let the host wait for it. Other batches come without it.
        """
        return {}

    def note(self, device: torch.device, dtype: torch.dtype) -> str | None:
        """Return what a training's log is to say of how its loss is computed here, if anything. After `new_model`."""
        return None

    def first_loss_problem(self, loss: float, *, is_exact: bool) -> str | None:
        """Return why a training cannot begin with this mean loss of its first step, if it cannot.

        `is_exact` says whether it was computed in full fp32. Called on every rank.
        """
        return None

    @abstractmethod
    def measure(self, model: torch.nn.Module, batch: Tensors) -> dict[str, torch.Tensor]:
        """Return what to add up over a split: `loss_sum`, `samples`, and whatever `summarise` needs."""

    def summarise(self, sums: Mapping[str, torch.Tensor], split: str = "validation") -> dict[str, float]:
        """Return the figures of a split. By default every `x_sum` becomes `x`, its mean over the samples."""
        samples = float(sums["samples"])
        return {name[: -len("_sum")]: float(total) / samples for name, total in sums.items() if name.endswith("_sum")}

    untrained_is: str = "guessing"
    """What `untrained_figures` are of."""

    def untrained_figures(self, sums: Mapping[str, torch.Tensor]) -> dict[str, float]:
        """Return some figures of the split with these sums, for a model that has learned nothing; by default none."""
        return {}

    def class_probabilities(self, model: torch.nn.Module, batch: Tensors) -> torch.Tensor | None:
        """Return the probability of each class, [samples, classes]; None by default: the samples have no `labels`.

        With it, an evaluation shows images that the model gets wrong.
        """
        return None

    def modules_trained_whole(self, model: torch.nn.Module) -> list[str]:
        """Return the names of modules that are trained whole where the rest gets adapters, such as a new head."""
        return []

    def save_model(self, model: torch.nn.Module, folder: Path) -> None:
        """Write a trained model: by default its weights, as model.safetensors."""
        write_tensors(model.state_dict(), folder / "model.safetensors")

    def load_model(self, folder: Path) -> torch.nn.Module:
        """Return the model that `save_model` wrote: by default a new model with the weights."""
        model = self.new_model()
        file = folder / "model.safetensors"
        try:
            model.load_state_dict(load_file(file))
        except SafetensorError as failure:
            raise StepError(f"cannot read {file}: {failure}") from None
        return model

    def sample(self, model: torch.nn.Module, request: SampleRequest) -> Sample | None:
        """Return text that the model generates, the same each time; None by default. Called on rank 0 only."""
        return None


def require_loss(loss: object) -> torch.Tensor:
    """Return the loss of a batch. Raise StepError if it cannot be minimised."""
    if not isinstance(loss, torch.Tensor):
        problem = f"a {type(loss).__name__}"
    elif loss.ndim:
        problem = f"a tensor of shape {list(loss.shape)}"
    elif not loss.requires_grad:
        problem = "a tensor that does not depend on the model's weights"
    else:
        return loss
    raise StepError(
        f"the task's loss() returned {problem}; expected a tensor of one number, computed by the model: the sum of the "
        "samples' losses"
    )


def require_sums(measured: object) -> Mapping[str, torch.Tensor]:
    """Return what a task measured of a batch. Raise StepError if it cannot be added up."""
    if not isinstance(measured, Mapping):
        raise StepError(f"the task's measure() returned a {type(measured).__name__}; expected a dictionary of tensors")
    for name, value in measured.items():
        if not isinstance(value, torch.Tensor):
            raise StepError(f"the task's measure() returned a {type(value).__name__} for {name!r}; expected a tensor")
    if "samples" not in measured:
        raise StepError(
            f"the task's measure() returned {', '.join(measured) or 'nothing'}; expected 'samples' too, their number"
        )
    return measured
