"""Tiny tasks to which something happens while they train: a signal, a hang, a spike."""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path

import torch
from tiny_task import TinyTask, WithoutDropout
from torch.nn import functional

from trainyard.steps.training.samples.batches import Tensors
from trainyard.steps.training.tasks.language_modeling import LanguageModeling


class ToldToStopWhileStarting(TinyTask):
    """The signal comes while the model is built."""

    def new_model(self) -> torch.nn.Module:
        signal.raise_signal(signal.SIGTERM)
        return super().new_model()


class ToldToStopWhileEvaluating(TinyTask):
    """The signal comes in the first batch of the n-th evaluation that STOP_IN_EVALUATION names. Draws there, too."""

    evaluated_batches = 0
    evaluations = 0
    is_new_evaluation = True

    def loss(self, model: torch.nn.Module, batch: Tensors) -> torch.Tensor:
        self.is_new_evaluation = True
        return super().loss(model, batch)

    def measure(self, model: torch.nn.Module, batch: Tensors) -> dict[str, torch.Tensor]:
        torch.rand(1)
        ToldToStopWhileEvaluating.evaluated_batches += 1
        if self.is_new_evaluation:
            ToldToStopWhileEvaluating.evaluations += 1
            self.is_new_evaluation = False
            if str(ToldToStopWhileEvaluating.evaluations) == os.environ.get("STOP_IN_EVALUATION"):
                signal.raise_signal(signal.SIGTERM)
        return super().measure(model, batch)


class ToldToStopInTheLastStep(TinyTask):
    """The signal comes in the 21st step."""

    calls = 0

    def loss(self, model: torch.nn.Module, batch: Tensors) -> torch.Tensor:
        self.calls += model.training  # not in the warm-up
        if self.calls == 21:
            signal.raise_signal(signal.SIGTERM)
        return super().loss(model, batch)


class SlowToSave(TinyTask):
    """Writing the model takes longer than the process group's timeout of the test."""

    def save_model(self, model: torch.nn.Module, folder: Path) -> None:
        time.sleep(7)
        super().save_model(model, folder)


class HangsOnce(TinyTask):
    """Rank 1 sleeps in its third forward pass."""

    calls = 0

    def loss(self, model: torch.nn.Module, batch: Tensors) -> torch.Tensor:
        self.calls += model.training  # not in the warm-up
        if self.calls == 3 and os.environ["RANK"] == "1":
            time.sleep(8)
        return super().loss(model, batch)


class SlowOnRank1(TinyTask):
    """Rank 1 takes 20 ms longer for each forward pass."""

    def loss(self, model: torch.nn.Module, batch: Tensors) -> torch.Tensor:
        time.sleep(0.02 * int(os.environ.get("RANK", "0")))
        return super().loss(model, batch)


class Spikes(WithoutDropout):
    """The loss of the 15th step is ten times what it should be."""

    calls = 0

    def loss(self, model: torch.nn.Module, batch: Tensors) -> torch.Tensor:
        self.calls += model.training  # not in the warm-up
        return super().loss(model, batch) * (10.0 if self.calls == 15 else 1.0)


class LossOnSomeSamples(WithoutDropout):
    """Only samples of the classes 0 to 4 have a loss: batches differ in how many terms theirs has."""

    loss_terms_vary = True

    def loss(self, model: torch.nn.Module, batch: Tensors) -> torch.Tensor:
        labels = torch.where(batch["labels"] < 5, batch["labels"], -100)
        return functional.cross_entropy(self._logits(model, batch), labels, reduction="sum")

    def loss_terms(self, batch: Tensors) -> int:
        return int((batch["labels"] < 5).sum())


class FullDiskOnRank1(LanguageModeling):
    """From the first forward pass on, rank 1 writes no file beyond 100 KiB."""

    def loss(self, model: torch.nn.Module, batch: Tensors) -> torch.Tensor:
        if os.environ["RANK"] == "1":
            resource.setrlimit(resource.RLIMIT_FSIZE, (100 << 10, resource.RLIM_INFINITY))
        return super().loss(model, batch)
