"""LightningModules as users write them, for the tests."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch.nn import functional


class Digits(LightningModule):
    """A classifier with dropout, an optimizer and a schedule of its own, and values of its own in the checkpoint."""

    def __init__(self, hidden_size: int = 8) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layers = torch.nn.Sequential(
            torch.nn.Flatten(),
            torch.nn.Linear(64, hidden_size),
            torch.nn.Dropout(0.1),
            torch.nn.Linear(hidden_size, 10),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(images.float() / 255)
        return logits

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        return functional.cross_entropy(self(batch["images"]), batch["labels"])

    def validation_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> None:
        correct = (self(batch["images"]).argmax(1) == batch["labels"]).float().mean()
        self.log("accuracy", correct, on_epoch=True, sync_dist=True, batch_size=len(batch["labels"]))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.7)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class EndsEarly(Digits):
    """Has learnt enough after one epoch."""

    def on_train_epoch_end(self) -> None:
        self.trainer.should_stop = True


class WithoutOptimizer(LightningModule):
    """Lacks configure_optimizers."""

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        return torch.zeros((), requires_grad=True)


class Manual(Digits):
    """Steps by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
