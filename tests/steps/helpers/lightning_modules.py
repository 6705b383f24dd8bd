"""LightningModules as users write them, for the tests."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningDataModule, LightningModule
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset, WeightedRandomSampler


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


class PreemptedRank(Digits):
    """Rank 1 gets what Azure sends before it takes a node away."""

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        if self.global_rank == 1 and self.global_step == 3:
            signal.raise_signal(signal.SIGTERM)
        return super().training_step(batch, batch_idx)


class WithoutOptimizer(LightningModule):
    """Lacks configure_optimizers."""

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        return torch.zeros((), requires_grad=True)


class NeverValidated(LightningModule):
    """Has no validation_step."""

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        return torch.zeros((), requires_grad=True)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.5)


class Manual(Digits):
    """Steps by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class Sharded(Digits):
    """Shards its layers with FSDP2, as Lightning asks for."""

    def configure_model(self) -> None:
        if not isinstance(self.layers, FSDPModule):
            fully_shard(self.layers, mesh=self.device_mesh["data_parallel"])


class SeveralOptimizers(Digits):
    """Has an optimizer for each layer."""

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.layers[layer].parameters(), lr=0.5) for layer in (1, 3)]


class SeveralSchedules(Digits):
    """Has each of them with a schedule, as Lightning's documentation shows."""

    def configure_optimizers(self) -> Any:
        optimizers = [torch.optim.SGD(self.layers[layer].parameters(), lr=0.5) for layer in (1, 3)]
        schedules = [torch.optim.lr_scheduler.StepLR(optimizer, step_size=4) for optimizer in optimizers]
        return [{"optimizer": one, "lr_scheduler": other} for one, other in zip(optimizers, schedules, strict=True)]


class NoOptimizer(Digits):
    """Forgets to return it."""

    def configure_optimizers(self) -> Any:
        torch.optim.SGD(self.parameters(), lr=0.5)


class UnmonitoredPlateau(Digits):
    """Does not say which number its schedule goes by."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5)
        return [optimizer], [torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)]


class PartlySharded(Sharded):
    """Forgets one of its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = torch.nn.Parameter(torch.ones(1))


class NoisyDigits(Dataset[Any]):
    """Pairs of an image and its label, with noise from every generator that augmentations draw from."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = torch.rand(8, 8) * random.random() * np.random.random()
        return self.images[number] + 50 * noise, self.labels[number]


class DigitsData(LightningDataModule):
    """Prepares, sets up and loads as Lightning's documentation shows."""

    def __init__(self, data_dir: str) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.file = Path(data_dir) / "digits.pt"

    def prepare_data(self) -> None:
        from sklearn.datasets import load_digits

        digits = load_digits()
        images = torch.tensor(digits.images * 255 / 16, dtype=torch.float32)
        torch.save((images, torch.tensor(digits.target)), self.file)
        with (self.file.parent / "prepared").open("a") as log:
            log.write("once\n")

    def setup(self, stage: str) -> None:
        images, labels = torch.load(self.file)
        self.train = NoisyDigits(images[:320], labels[:320])
        self.validation = NoisyDigits(images[320:423], labels[320:423])

    def train_dataloader(self) -> Any:
        return DataLoader(
            self.train, batch_size=7, shuffle=True, num_workers=int(os.environ.get("DIGITS_WORKERS", "0"))
        )

    def val_dataloader(self) -> Any:
        return DataLoader(self.validation, batch_size=7)


class Pairs(Digits):
    """Takes batches of DigitsData, which are pairs."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return super().training_step(dict(zip(("images", "labels"), batch, strict=True)), batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(dict(zip(("images", "labels"), batch, strict=True)), batch_idx)


class PairsWithoutDropout(Pairs):
    """Learns the same on any number of ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers[2] = torch.nn.Identity()


class Stream(IterableDataset[Any]):
    """Samples without numbers."""

    def __iter__(self) -> Iterator[Any]:
        yield from ()


class StreamedData(DigitsData):
    def train_dataloader(self) -> Any:
        return DataLoader(Stream())


class WeightedData(DigitsData):
    def train_dataloader(self) -> Any:
        return DataLoader(self.train, sampler=WeightedRandomSampler([1.0] * len(self.train), len(self.train)))


class SeveralLoaders(DigitsData):
    def train_dataloader(self) -> Any:
        return [super().train_dataloader(), super().train_dataloader()]


class BatchedByItself(DigitsData):
    def train_dataloader(self) -> Any:
        return DataLoader(self.train, batch_size=None)


class WithoutLoader(LightningDataModule):
    """Lacks train_dataloader."""
