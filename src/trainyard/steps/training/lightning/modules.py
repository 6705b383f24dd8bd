"""A task as a LightningModule."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule

from trainyard.steps.training.lightning.engine import LightningEngine
from trainyard.steps.training.lightning.loader import PlannedLoader
from trainyard.steps.training.loop import TrainingRun, loss_terms
from trainyard.steps.training.optimizer import gradient_seed
from trainyard.steps.training.randomness import deterministic_backward


class TaskModule(LightningModule):
    """Computes what the other engines compute: sums of losses over exact numbers of terms, and the same AdamW."""

    def __init__(self, run: TrainingRun, loader: PlannedLoader) -> None:
        super().__init__()
        assert isinstance(run.engine, LightningEngine)
        self.model = run.engine.model
        # Not in attributes: torch would look for modules in them.
        self._parts = (run, run.engine, loader)
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=run.world.device)
        self.step_terms = 1.0
        self.learning_rate = 0.0
        self.gradient_norm = torch.zeros(())

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """Return what the backward pass starts from: the gradient of the step's exact mean, as DDP averages it."""
        run, engine, loader = self._parts
        position = loader.position
        if position.is_first:
            self.loss_sum = torch.zeros_like(self.loss_sum)
            self.step_terms = loss_terms(run, position.step, position.micro_batches)
        with run.precision.autocast():
            loss = run.task.loss(self.model, batch)
        if position.micro_batch.is_stand_in:
            loss = loss * 0.0
        self.loss_sum += loss.detach()
        # Lightning divides by the number of micro-batches.
        factor = run.world.size / self.step_terms * run.plan.batch.accumulation_steps
        return loss * gradient_seed(loss, factor, engine.loss_scale)

    def backward(self, loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        """Do as torch does, with deterministic algorithms if they were asked for."""
        with deterministic_backward():
            loss.backward(*args, **kwargs)

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        """Take the engine's step: it clips, and skips a gradient that is not finite."""
        run, engine, loader = self._parts
        optimizer_closure()
        run.observer.update_begins()
        self.learning_rate = run.schedule(loader.position.step.number)
        self.gradient_norm = engine.step(self.learning_rate)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the engine's AdamW."""
        return self._parts[1].optimizer

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Return the batch, which is there already."""
        return batch
