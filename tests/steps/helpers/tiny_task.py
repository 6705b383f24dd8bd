"""A user's own task for the tests: a linear classifier, which starts in a moment and needs no transformers."""

from __future__ import annotations

import errno
import os
import random
import resource
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal, cast

import numpy as np
import torch
from torch.nn import functional

from trainyard.settings.steps.tasks import TaskSettings
from trainyard.steps.data.dataset.manifest import Manifest
from trainyard.steps.runtime.errors import StorageError
from trainyard.steps.training.samples.batches import Tensors
from trainyard.steps.training.tasks.task import Task


class TinyTask(Task):
    """A linear classifier with dropout, so that the random state of every rank matters."""

    dropout = 0.1

    def new_model(self) -> torch.nn.Module:
        pixels = int(np.prod(self.manifest.arrays["images"].shape))
        return torch.nn.Sequential(
            torch.nn.Flatten(),
            torch.nn.Linear(pixels, 24),
            torch.nn.Tanh(),
            torch.nn.Dropout(self.dropout),
            torch.nn.Linear(24, len(self.manifest.classes)),
        )

    def loss(self, model: torch.nn.Module, batch: Tensors) -> torch.Tensor:
        return functional.cross_entropy(self._logits(model, batch), batch["labels"], reduction="sum")

    def measure(self, model: torch.nn.Module, batch: Tensors) -> dict[str, torch.Tensor]:
        logits, labels = self._logits(model, batch), batch["labels"]
        return {
            "loss_sum": functional.cross_entropy(logits, labels, reduction="none").double().sum(),
            "accuracy_sum": (logits.argmax(1) == labels).double().sum(),
            "samples": torch.tensor(float(len(labels))),
        }

    def _logits(self, model: torch.nn.Module, batch: Tensors) -> torch.Tensor:
        logits: torch.Tensor = model(batch["images"].float() / 255)
        return logits


class ScaledByItsLargest(TinyTask):
    """Its weights cannot be drawn in parts: one of them decides on all."""

    def new_model(self) -> torch.nn.Module:
        model = super().new_model()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.div_(parameter.abs().max().item())
        return model


class Failing(TinyTask):
    """Fails in the first attempts, so many as TINY_TASK_FAILURES says, in the way that TINY_TASK_FAILURE names."""

    failures: Mapping[str, Exception] = MappingProxyType(
        {
            "bug": KeyError("no such thing"),
            "memory": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
            "device": RuntimeError("CUDA error: uncorrectable ECC error encountered"),
            "unreadable": StorageError("the checkpoint of step 5: input/output error"),
            "storage": OSError(errno.EIO, "Input/output error", "/mnt/data/train-0.bin"),
        }
    )

    def loss(self, model: torch.nn.Module, batch: Tensors) -> torch.Tensor:
        if int(os.environ["TRAINYARD_ATTEMPT"]) < int(os.environ["TINY_TASK_FAILURES"]):
            raise self.failures[os.environ["TINY_TASK_FAILURE"]]
        return super().loss(model, batch)


class WithoutDropout(TinyTask):
    """The same without randomness, to compare numbers of ranks."""

    dropout = 0.0


class FromWeights(TinyTask):
    """Its model comes in evaluation mode, as transformers returns one that was read from a folder."""

    def new_model(self) -> torch.nn.Module:
        return super().new_model().eval()

    def loss(self, model: torch.nn.Module, batch: Tensors) -> torch.Tensor:
        is_warm_up = len(batch["labels"]) == 1
        assert is_warm_up or all(part.training for part in model.modules()), "without dropout"
        return super().loss(model, batch)


class Measured(TinyTask):
    """Its accuracy may choose the best checkpoint."""

    best_is: Mapping[str, Literal["lowest", "highest"]] = MappingProxyType({"loss": "lowest", "accuracy": "highest"})


class Slow(TinyTask):
    """Steps of 20 ms, so that a test can interrupt a training in its middle. Draws from every generator."""

    def loss(self, model: torch.nn.Module, batch: Tensors) -> torch.Tensor:
        time.sleep(0.02)
        return super().loss(model, batch) * (1 + 0.1 * random.random()) * (1 + 0.1 * float(np.random.rand()))


class Transposed(TinyTask):
    """A model with a weight that is not contiguous in memory, like those in channels_last."""

    def new_model(self) -> torch.nn.Module:
        model = super().new_model()
        model[1].weight = torch.nn.Parameter(model[1].weight.detach().t().contiguous().t())  # type: ignore[index]
        return model


class PartlyUsed(TinyTask):
    """A model with a parameter that no loss depends on, as the mask token of some models of transformers.

    The last one, so that the others are drawn as without it.
    """

    def new_model(self) -> torch.nn.Module:
        model = cast(torch.nn.Sequential, super().new_model())
        model[-1].register_parameter("unused", torch.nn.Parameter(torch.ones(3)))
        return model


class UsedAtFirst(PartlyUsed):
    """The loss of the first sample, before training, depends on that parameter; losses of steps do not."""

    def loss(self, model: torch.nn.Module, batch: Tensors) -> torch.Tensor:
        loss = super().loss(model, batch)
        if model.training:
            return loss
        (unused,) = (value for name, value in model.named_parameters() if name.endswith("unused"))
        return loss + unused.sum()


class Tied(TinyTask):
    """A model whose layers share a weight; and of which one is there twice."""

    def new_model(self) -> torch.nn.Module:
        first, second, both = (torch.nn.Linear(24, 24) for _ in range(3))
        second.weight = first.weight
        flatten, *rest = super().new_model()
        layers = torch.nn.ModuleList([first, second, both, both])
        model = torch.nn.Sequential(flatten, *rest[:-1])
        return LayersBetween(model, layers, rest[-1])


class LayersBetween(torch.nn.Module):
    """One layer after the other."""

    def __init__(self, before: torch.nn.Module, layers: torch.nn.ModuleList, after: torch.nn.Module) -> None:
        super().__init__()
        self.before, self.layers, self.after = before, layers, after

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = self.before(images)
        for layer in self.layers:
            hidden = layer(hidden)
        result: torch.Tensor = self.after(hidden)
        return result


class NotFinite(TinyTask):
    """From the step in an environment variable on, losses of rank 1 (or of the only rank) are NaN."""

    calls = 0

    def loss(self, model: torch.nn.Module, batch: Tensors) -> torch.Tensor:
        self.calls += model.training  # not in the warm-up
        first, last = (int(number) for number in os.environ["NOT_FINITE_STEPS"].split("-"))
        is_bad_rank = int(os.environ.get("RANK", "0")) == int(os.environ.get("WORLD_SIZE", "1")) - 1
        factor = float("nan") if is_bad_rank and first <= self.calls <= last else 1.0
        return super().loss(model, batch) * factor


class FullDisk(TinyTask):
    """On the last rank no file may exceed 8 KiB, until the number of losses in an environment variable is computed."""

    calls = 0

    def __init__(self, manifest: Manifest, settings: TaskSettings) -> None:
        super().__init__(manifest, settings)
        self._set_limit(8 << 10)

    def loss(self, model: torch.nn.Module, batch: Tensors) -> torch.Tensor:
        self.calls += model.training  # not in the warm-up
        if self.calls == int(os.environ["DISK_FULL_UNTIL"]):
            self._set_limit(resource.RLIM_INFINITY)
        return super().loss(model, batch)

    def _set_limit(self, limit_bytes: int) -> None:
        if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, resource.RLIM_INFINITY))


class Replaced(Slow):
    """A name that a test gives to a task of its own: tasks are looked for in the module's source."""


class OutOfMemory(TinyTask):
    """The last rank needs more memory than any machine has; the others wait for its gradient."""

    def loss(self, model: torch.nn.Module, batch: Tensors) -> torch.Tensor:
        if int(os.environ.get("RANK", "0")) == int(os.environ.get("WORLD_SIZE", "1")) - 1:
            torch.empty(1 << 55)
        return super().loss(model, batch)


class OwnFormat(Tied):
    """Saves its models in a format of its own."""

    def save_model(self, model: torch.nn.Module, folder: Path) -> None:
        np.savez(folder / "weights.npz", **{name: tensor.numpy() for name, tensor in model.state_dict().items()})
