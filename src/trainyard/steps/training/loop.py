"""The training loop: the same for every engine and every task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import torch
import torch.distributed as dist

from trainyard.settings.steps.training import Training
from trainyard.steps.evaluation.whole_split import EvaluationStopped, evaluate_split
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.world import World
from trainyard.steps.training.agreement import Agreement, TakenStep
from trainyard.steps.training.checkpoints.checkpoints import Checkpoints
from trainyard.steps.training.engines.engine import Engine
from trainyard.steps.training.observing.observer import TrainingObserver
from trainyard.steps.training.precision import Precision
from trainyard.steps.training.randomness import deterministic_backward, random_state, restore_random_state
from trainyard.steps.training.samples.batches import Batches, MicroBatch
from trainyard.steps.training.samples.plan import AgreedStep, Progress, Step, TrainingPlan, total_counts
from trainyard.steps.training.schedule import Schedule
from trainyard.steps.training.stopping import StopRequest
from trainyard.steps.training.tasks.task import Task
from trainyard.steps.training.validation import SPLIT, Validation

Terms = Callable[[], torch.Tensor | float]
"""Returns the number of terms of a step's loss; on a GPU, only what is computed with it waits for the other ranks."""


@dataclass
class TrainingRun:
    """Everything that a training consists of."""

    settings: Training
    task: Task
    plan: TrainingPlan
    engine: Engine
    precision: Precision
    batches: Batches
    agreement: Agreement
    checkpoints: Checkpoints
    stop_request: StopRequest
    observer: TrainingObserver
    validation: Validation
    progress: Progress
    """How far the training has come; exact whenever the loop does anything other than take steps."""

    @property
    def world(self) -> World:
        """The ranks, which share the engine."""
        return self.engine.world

    @cached_property
    def schedule(self) -> Schedule:
        """The learning rate of each step of the plan."""
        return Schedule(self.settings, self.plan.total_steps)


def train(run: TrainingRun) -> bool:
    """Take every step that is left. Return False if the training was asked to stop before its end.

    Every rank makes the same decisions, because each follows from the step's number or from what was agreed on. What
    is agreed on at one step is known after the next, so that nobody waits for it, or at once where something is due.
    """
    first_step = run.progress.step + 1
    if not may_begin(run):
        return False
    run.observer.steps_begin()
    for step, micro_batches in run.batches:
        if run.validation.ends(run.progress):
            break
        taken = take_step(run, step, micro_batches)
        stopping = record_steps(run, run.agreement.next_step(taken, stop=run.stop_request.is_raised()))
        if stopping or step.number == first_step or something_is_due(run, step):
            *earlier, agreed = run.agreement.all_steps(stop=run.stop_request.is_raised())
            stopping = record_steps(run, earlier) or stopping
            if close_step(run, agreed, stopping=stopping):
                return False
            run.observer.steps_begin()
    return True


def take_step(run: TrainingRun, step: Step, micro_batches: list[MicroBatch]) -> TakenStep:
    """Take one optimizer step over the step's micro-batches. Nothing here waits for a device."""
    run.observer.step_begins(step, micro_batches)
    own_terms, terms = loss_terms(run, step, micro_batches)
    losses = forward_and_backward(run, micro_batches, terms)
    run.observer.begins("optimizer step")
    run.checkpoints.before_update()
    learning_rate = run.schedule(step.number)
    gradient_norm = run.engine.step(learning_rate)
    if run.engine.average is not None:
        run.engine.average.update(step.number)
    marks = run.observer.step_ends()
    counts = total_counts(batch.counts for batch in micro_batches)
    return TakenStep(step, learning_rate, losses, own_terms, gradient_norm, marks, counts)


def forward_and_backward(run: TrainingRun, micro_batches: list[MicroBatch], step_terms: Terms) -> list[torch.Tensor]:
    """Accumulate the gradient of the step's mean loss. Return this rank's losses."""
    losses = []
    for batch in micro_batches:
        with run.engine.micro_batch(is_last=batch.is_last):
            run.observer.begins("forward pass")
            with run.precision.autocast():
                loss = run.task.loss(run.engine.model, batch.tensors)
            if batch.is_stand_in:
                loss = loss * 0.0
            run.observer.backward_begins()
            with deterministic_backward():
                run.engine.backward(loss, step_terms())
        losses.append(loss.detach())
    return losses


def loss_terms(run: TrainingRun, step: Step, micro_batches: list[MicroBatch]) -> tuple[float, Terms]:
    """Return this rank's part of the number of terms of a step's loss, and what returns that of all ranks.

    The sum is divided by it. Where it varies it is summed on the device, beside the forward pass: no host waits for it.
    """
    if not run.task.loss_terms_vary:
        known = float(step.samples * run.task.loss_terms(micro_batches[0].tensors) // len(micro_batches[0].sample_ids))
        return known if run.world.is_main else 0.0, lambda: known
    own = float(sum(batch.loss_terms for batch in micro_batches))
    terms = torch.full((), own, dtype=torch.float64, device=run.world.device)
    work = dist.all_reduce(terms, async_op=True)

    def summed() -> torch.Tensor:
        assert work is not None
        work.wait()
        return terms.clamp(min=1.0)

    return own, summed


def record_steps(run: TrainingRun, steps: list[AgreedStep]) -> bool:
    """Check and record steps that were agreed on. Return whether to stop."""
    for agreed in steps:
        run.observer.check(agreed)
        run.observer.record(agreed, {}, failed_saves=run.checkpoints.failed_saves)
    return any(agreed.stop for agreed in steps)


def close_step(
    run: TrainingRun, agreed: AgreedStep, *, stopping: bool, validation: Mapping[str, float] = MappingProxyType({})
) -> bool:
    """Evaluate, record and save what is due after a step that every rank knows all of. Return whether to stop.

    `validation` holds the step's figures if something else has evaluated already.
    """
    run.observer.check(agreed)
    if agreed.step.number == 1 and agreed.is_finite:
        is_exact = run.settings.precision == "fp32" and run.settings.matmul_precision == "highest"
        if problem := run.task.first_loss_problem(agreed.loss, is_exact=is_exact):
            raise StepError(problem)
    step, stopping = agreed.step, stopping or agreed.stop
    run.progress = run.progress.after(step, run.observer.guards.skipped_steps)
    if not stopping and run.validation.is_due(step):
        try:
            validation = validate(run)
        except EvaluationStopped:
            stopping = True
    if validation:
        run.progress = run.validation.judged(run.progress, validation)
        if run.validation.ends(run.progress):
            step = step._replace(is_last=True)
            agreed = agreed._replace(step=step)
    # The next attempt makes up for a validation that did not happen, in this step's line.
    always = stopping and run.validation.is_due(step)
    run.observer.record(agreed, validation, failed_saves=run.checkpoints.failed_saves, always=always)
    if step.is_last and (bool(validation) or not run.validation.is_due(step)):
        # Only the model is left to write: another attempt would cost more than continuing. The model comes before the
        # last checkpoint, whose folder may be full, unless this process may be killed soon.
        if stopping:
            save_last_checkpoint(run)
        return False
    if stopping or checkpoint_is_due(run, step) or run.checkpoints.is_best(validation):
        with run.observer.long_work("saving a checkpoint"):
            run.checkpoints.save(run.engine, run.progress, validation, wait=stopping)
    return stopping


def save_last_checkpoint(run: TrainingRun) -> None:
    """Save the state of a complete training, unless it is saved already. A failure is only logged."""
    try:
        with run.observer.long_work("saving the last checkpoint"):
            run.checkpoints.save(run.engine, run.progress, run.observer.recorder.last_validation, wait=True)
    except StepError as error:
        run.world.log(f"warning: cannot write the last checkpoint, which does not affect the model: {error}")


def may_begin(run: TrainingRun) -> bool:
    """Do what a stopped attempt left undone. Return False if any rank was asked to stop meanwhile or before."""
    if run.world.sum(torch.tensor(float(run.stop_request.is_raised()))).item() > 0:
        return False
    step_number = run.progress.step
    if step_number == run.progress.validated_step:
        return True
    if run.validation.is_due(run.plan.step(step_number)):
        try:
            validation = validate(run)
        except EvaluationStopped:
            return False
        run.observer.recorder.add_validation(step_number, validation)
        run.progress = run.validation.judged(run.progress, validation)
        if run.checkpoints.is_best(validation):
            with run.observer.long_work("saving a checkpoint"):
                run.checkpoints.save(run.engine, run.progress, validation, wait=True)
    return True


def validate(run: TrainingRun) -> Mapping[str, float]:
    """Return the figures of the validation split. Random generators are left as they were."""
    assert run.validation.split is not None
    run.observer.begins("evaluation")
    state = random_state(run.world.device)
    run.engine.align_ranks()
    try:
        with run.engine.averaged():
            sums = evaluate_split(
                run.task,
                run.engine.evaluation_model(),
                run.validation.split,
                run.world,
                run.precision,
                run.settings.micro_batch_size,
                samples=run.validation.samples,
                in_lockstep=run.engine.forwards_in_lockstep,
                stop_is_raised=run.stop_request.is_raised,
                on_batch=run.observer.hang_watch.still_at_work,
            )
    finally:
        restore_random_state(state, run.world.device)
    return run.task.summarise(sums, SPLIT)


def something_is_due(run: TrainingRun, step: Step) -> bool:
    """Return whether a step's own agreement is to be read at once."""
    return step.is_last or run.agreement.steps_are_long or checkpoint_is_due(run, step) or run.validation.is_due(step)


def checkpoint_is_due(run: TrainingRun, step: Step) -> bool:
    """Return whether to save: every so many steps, and at the end."""
    every = run.settings.checkpoint_every_steps
    return step.is_last or (every > 0 and step.number % every == 0)
