"""The training loop: the same for every engine and every task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from trainyard.steps.configs.training import Training
from trainyard.steps.dataset.reader import SplitReader
from trainyard.steps.training.agreement import agree
from trainyard.steps.training.batches import MicroBatch, TrainingBatches
from trainyard.steps.training.checkpoint import Checkpoints, Progress
from trainyard.steps.training.engines.base import Engine
from trainyard.steps.training.evaluation import evaluate_split
from trainyard.steps.training.guard import NonfiniteGuard
from trainyard.steps.training.plan import Step, TrainingPlan
from trainyard.steps.training.precision import Precision
from trainyard.steps.training.recorder import Recorder
from trainyard.steps.training.schedule import WarmupThenCosine
from trainyard.steps.training.stopping import StopRequest
from trainyard.steps.training.tasks.base import Task
from trainyard.steps.training.world import World


@dataclass
class TrainingRun:
    """Everything that a training is made of."""

    settings: Training
    world: World
    task: Task
    plan: TrainingPlan
    engine: Engine
    precision: Precision
    batches: TrainingBatches
    schedule: WarmupThenCosine
    checkpoints: Checkpoints
    recorder: Recorder
    guard: NonfiniteGuard
    stop_request: StopRequest
    validation_split: SplitReader | None
    progress: Progress
    last_validation: Mapping[str, float] = field(default_factory=dict)


def train(run: TrainingRun) -> bool:
    """Take every step that is left. Returns False when the training was told to stop before its end.

    Every rank takes the same decisions, because each follows from the step's number or from what was agreed on.
    """
    run.recorder.resume_clock()
    for step, micro_batches in run.batches:
        loss_sum = forward_and_backward(run, step, micro_batches)
        gradient_norm = run.engine.gradient_norm()
        agreed = agree(run.world, loss_sum, step.samples, gradient_norm, run.stop_request.is_raised())

        learning_rate = run.schedule(step.number)
        if agreed.is_finite:
            run.engine.step(learning_rate)
        else:
            run.engine.skip_step()
        run.recorder.step_done(step)
        run.guard.observe(step.number, is_finite=agreed.is_finite)
        run.progress = Progress(step.number, step.epoch, step.samples_consumed, run.guard.skipped_steps)

        stopping = agreed.stop and not step.is_last
        validation = {} if stopping else validate_if_due(run, step)
        run.recorder.record(
            step,
            agreed,
            total_steps=run.plan.total_steps,
            learning_rate=learning_rate,
            gradient_norm=gradient_norm,
            skipped_steps=run.guard.skipped_steps,
            validation=validation,
        )
        if stopping or checkpoint_is_due(run, step):
            run.checkpoints.save(run.engine, run.progress)
        if stopping:
            return False
        run.recorder.resume_clock()
    return True


def forward_and_backward(run: TrainingRun, step: Step, micro_batches: list[MicroBatch]) -> torch.Tensor:
    """Accumulate the gradient of the step's mean loss; gives the sum of this rank's losses."""
    loss_sum = torch.zeros((), dtype=torch.float64, device=run.world.device)
    for batch in micro_batches:
        with run.engine.micro_batch(is_last=batch.is_last):
            with run.precision.autocast():
                loss = run.task.loss(run.engine.model, batch.tensors) * batch.weight
            run.engine.backward(loss, step.samples)
        loss_sum += loss.detach()
    return loss_sum


def validate_if_due(run: TrainingRun, step: Step) -> Mapping[str, float]:
    """The figures of the validation split, at the end of the epochs that the settings ask for and at the very end."""
    every = run.settings.evaluate_every_epochs
    is_due = step.is_last or (step.ends_epoch and every > 0 and step.epoch % every == 0)
    if not is_due or run.validation_split is None:
        return {}
    run.engine.align_ranks()
    sums = evaluate_split(
        run.task,
        run.engine.evaluation_model(),
        run.validation_split,
        run.world,
        run.precision,
        run.settings.micro_batch_size,
    )
    run.last_validation = run.task.summarise(sums)
    return run.last_validation


def checkpoint_is_due(run: TrainingRun, step: Step) -> bool:
    """Every so many steps, and at the end."""
    every = run.settings.checkpoint_every_steps
    return step.is_last or (every > 0 and step.number % every == 0)
