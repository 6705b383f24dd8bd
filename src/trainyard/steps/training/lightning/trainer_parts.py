"""What Lightning's Trainer is given for a training: a loader of the planned samples, a callback that does what is due
between steps, and a module for tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.distributed.tensor import DTensor

from trainyard.steps.training.agreement import TakenStep
from trainyard.steps.training.lightning.lightning_engine import LightningEngine
from trainyard.steps.training.loop import Terms, TrainingRun, close_step, loss_terms, record_steps, something_is_due
from trainyard.steps.training.optimizer import gradient_seed
from trainyard.steps.training.randomness import deterministic_backward, random_state, restore_random_state
from trainyard.steps.training.samples.batches import MicroBatch
from trainyard.steps.training.samples.plan import AgreedStep, Step, total_counts


class PlannedLoader:
    """Yields the tensors of each micro-batch, one epoch at a time, from where the training continues."""

    def __init__(self, run: TrainingRun) -> None:
        self._steps = iter(run.batches)
        self._plan = run.plan
        self.step: Step
        self.micro_batches: list[MicroBatch]
        self.micro_batch: MicroBatch
        """Which was yielded last, of which step's."""

    def is_first(self) -> bool:
        """Return whether the micro-batch is its step's first."""
        return self.micro_batch is self.micro_batches[0]

    def __len__(self) -> int:
        """Micro-batches in a whole epoch, also if the training continues in the middle of one."""
        return self.micro_batches_until(self._plan.steps_per_epoch)

    def micro_batches_until(self, number: int) -> int:
        """Return how many micro-batches of its epoch have been taken once step `number` is done."""
        step = self._plan.step(number)
        earlier = (number - 1) % self._plan.steps_per_epoch
        # Steps before an epoch's last are all as large as the first.
        pieces = len(self._plan.micro_batches(self._plan.step(1), 0)) if earlier else 0
        return pieces * earlier + len(self._plan.micro_batches(step, 0))

    def __iter__(self) -> Iterator[Any]:
        for step, micro_batches in self._steps:
            self.step, self.micro_batches = step, micro_batches
            for micro_batch in micro_batches:
                self.micro_batch = micro_batch
                yield micro_batch.tensors
            if step.ends_epoch:
                return


class ValidationShare:
    """The batches in which a rank validates a module that does so by itself: as many as every other rank's, since ranks
    of a sharded model compute together."""

    def __init__(self, batches: int, read: Callable[[], Iterable[Any]]) -> None:
        self._batches, self._read = batches, read

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator[Any]:
        yield from self._read()


class BetweenSteps(Callback):
    """Agrees on each step with the other ranks; evaluates, records, saves and stops when that is due."""

    def __init__(self, run: TrainingRun, loader: PlannedLoader) -> None:
        assert isinstance(run.engine, LightningEngine)
        self._run, self._engine, self._loader = run, run.engine, loader
        self._first_step = run.progress.step + 1
        self._random_state = random_state(run.world.device)
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=run.world.device)
        self._norm = torch.zeros((), device=run.world.device)
        self._before_validation: tuple[AgreedStep, bool]
        self.is_stopped = False
        """Whether the training was asked to stop before its end."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let random generators continue where they were, whatever Lightning's start drew from them."""
        pl_module.train()
        restore_random_state(self._random_state, self._run.world.device)
        self._run.observer.steps_begin()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Note which step begins."""
        if self._loader.is_first():
            self._loss_sum = torch.zeros_like(self._loss_sum)
            self._run.observer.step_begins(self._loader.step, self._loader.micro_batches)
        self._run.observer.begins("forward pass")

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: torch.Tensor) -> None:
        """Note the end of a forward pass."""
        self._run.observer.backward_begins()

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        """Measure the gradient of a user's module before it is clipped."""
        self._run.observer.begins("optimizer step")
        norm = torch.nn.utils.get_total_norm([p.grad for p in pl_module.parameters() if p.grad is not None])
        self._norm = norm.full_tensor() if isinstance(norm, DTensor) else norm

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Agree on the step, if this was its last micro-batch, and do what is due."""
        if not isinstance(pl_module, TaskModule):
            self._loss_sum += outputs["loss"]
        run, step = self._run, self._loader.step
        if not self._loader.micro_batch.is_last:
            return
        stop = run.stop_request.is_raised()
        stopping = record_steps(run, run.agreement.next_step(self._taken(trainer, pl_module), stop=stop))
        # Whether Lightning validates a user's module after this step, before the next hook.
        every = trainer.check_val_every_n_epoch
        validates = bool(trainer.limit_val_batches and step.ends_epoch and every and step.epoch % every == 0)
        if stopping or validates or step.number == self._first_step or something_is_due(run, step):
            *earlier, agreed = run.agreement.all_steps(stop=run.stop_request.is_raised())
            stopping = record_steps(run, earlier) or stopping
            if validates:
                self._before_validation = (agreed, stopping)
            else:
                self._close(trainer, agreed, stopping=stopping)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Do what is due after an epoch, with the figures that a user's module has logged."""
        figures = {name: float(value) for name, value in trainer.callback_metrics.items() if value.numel() == 1}
        agreed, stopping = self._before_validation
        self._close(trainer, agreed, stopping=stopping, validation=figures)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note how far the training came if a callback of the user's module ended it early."""
        if self._engine.trainer is None:
            return
        run, step = self._run, self._loader.step
        record_steps(run, run.agreement.all_steps(stop=False))
        run.progress = run.progress.after(step, run.observer.guards.skipped_steps)
        run.world.log(f"the module or a callback of it ended the training after step {step.number}")
        self._engine.end()

    def _close(self, trainer: Trainer, agreed: AgreedStep, *, stopping: bool, **more: Any) -> None:
        self.is_stopped = close_step(self._run, agreed, stopping=stopping, **more)
        if self.is_stopped or agreed.step.is_last or self._run.validation.ends(self._run.progress):
            self._engine.end()
            trainer.should_stop = True
            trainer.limit_val_batches = 0  # else Lightning would validate before it stops
        self._run.observer.steps_begin()

    def _taken(self, trainer: Trainer, module: LightningModule) -> TakenStep:
        step, marks = self._loader.step, self._run.observer.step_ends()
        if isinstance(module, TaskModule):
            rate, loss_sum, norm = module.learning_rate, module.loss_sum, module.gradient_norm
            counts = total_counts(batch.counts for batch in self._loader.micro_batches)
            return TakenStep(step, rate, [loss_sum], module.own_terms, norm, marks, counts)
        learning_rate = float(trainer.optimizers[0].param_groups[0]["lr"])
        return TakenStep(step, learning_rate, [self._loss_sum], 1.0, self._norm, marks)


class TaskModule(LightningModule):
    """Computes what the other engines compute: sums of losses over exact numbers of terms, and the same AdamW."""

    def __init__(self, run: TrainingRun, loader: PlannedLoader) -> None:
        super().__init__()
        assert isinstance(run.engine, LightningEngine)
        self.model = run.engine.model
        # Not in attributes: torch would look for modules in them.
        self._parts = (run, run.engine, loader)
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=run.world.device)
        self.own_terms = 0.0
        self._step_terms: Terms
        self.learning_rate = 0.0
        self.gradient_norm = torch.zeros(())

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """Return what the backward pass starts from: the gradient of the step's exact mean, as DDP averages it."""
        run, engine, loader = self._parts
        if loader.is_first():
            self.loss_sum = torch.zeros_like(self.loss_sum)
            self.own_terms, self._step_terms = loss_terms(run, loader.step, loader.micro_batches)
        with run.precision.autocast():
            loss = run.task.loss(self.model, batch)
        if loader.micro_batch.is_stand_in:
            loss = loss * 0.0
        self.loss_sum += loss.detach()
        # Lightning divides by the number of micro-batches.
        factor = run.world.size / self._step_terms() * run.plan.batch.accumulation_steps
        return loss * gradient_seed(loss, factor, engine.loss_scale)

    def backward(self, loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        """Do as torch does, with deterministic algorithms if they were asked for."""
        with deterministic_backward():
            loss.backward(*args, **kwargs)

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        """Take the engine's step: it clips, and skips a gradient that is not finite."""
        run, engine, loader = self._parts
        optimizer_closure()
        run.observer.begins("optimizer step")
        self.learning_rate = run.schedule(loader.step.number)
        self.gradient_norm = engine.step(self.learning_rate)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the engine's AdamW."""
        return self._parts[1].optimizer

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Return the batch, which is there already."""
        return batch
