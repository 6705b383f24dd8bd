"""The task that the pages of this folder use: a small network on labelled images."""

from __future__ import annotations

import torch
from torch.nn import functional

from trainyard.tasks import Task, Tensors


class Digits(Task):
    """What a training script has in the middle of its loop."""

    def new_model(self) -> torch.nn.Module:
        """The model; its weights follow from torch's seed."""
        channels, height, width = self.manifest.arrays["images"].shape
        classes = len(self.manifest.classes)
        return torch.nn.Sequential(
            torch.nn.Flatten(),
            torch.nn.Linear(channels * height * width, 64),
            torch.nn.ReLU(),
            torch.nn.Linear(64, classes),
        )

    def loss(self, model: torch.nn.Module, batch: Tensors) -> torch.Tensor:
        """The sum of the losses: sums add up to an exact mean over micro-batches and ranks."""
        return functional.cross_entropy(model(batch["images"].float() / 255), batch["labels"], reduction="sum")

    def measure(self, model: torch.nn.Module, batch: Tensors) -> dict[str, torch.Tensor]:
        """What to add up over the validation split."""
        logits, labels = model(batch["images"].float() / 255), batch["labels"]
        return {
            "loss_sum": functional.cross_entropy(logits, labels, reduction="sum").double(),
            "accuracy_sum": (logits.argmax(1) == labels).double().sum(),
            "samples": torch.tensor(float(len(labels))),
        }
