"""The training loop: the same for every engine and every task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from trainyard.foundation.configs.training import Training
from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.evaluation.whole_split import EvaluationStopped, evaluate_split
from trainyard.steps.runtime.world import World
from trainyard.steps.training.agreement import AgreedStep, Agreement, TakenStep
from trainyard.steps.training.checkpoints.checkpoints import Checkpoints
from trainyard.steps.training.checkpoints.commit import Progress
from trainyard.steps.training.engines.base import Engine
from trainyard.steps.training.observing.hang_watch import HangWatch
from trainyard.steps.training.observing.measures import StepMeasures, memory_summary
from trainyard.steps.training.observing.profiler import StepProfiler
from trainyard.steps.training.observing.recorder import Recorder
from trainyard.steps.training.observing.sample_record import SampleRecord
from trainyard.steps.training.observing.step_clock import StepClock
from trainyard.steps.training.observing.unhealthy_steps import LossSpikes, NonfiniteGuard
from trainyard.steps.training.optimizer import WarmupThenCosine
from trainyard.steps.training.precision import Precision
from trainyard.steps.training.randomness import deterministic_backward, random_state, restore_random_state
from trainyard.steps.training.samples.batches import MicroBatch, TrainingBatches
from trainyard.steps.training.samples.plan import Step, TrainingPlan
from trainyard.steps.training.stopping import StopRequest
from trainyard.steps.training.tasks.base import Task


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
    agreement: Agreement
    checkpoints: Checkpoints
    nonfinite_guard: NonfiniteGuard
    loss_spikes: LossSpikes
    stop_request: StopRequest
    clock: StepClock
    measures: StepMeasures
    recorder: Recorder
    sample_record: SampleRecord | None
    profiler: StepProfiler
    hang_watch: HangWatch
    validation_split: SplitReader | None
    progress: Progress
    """How far the training has come; exact whenever the loop does anything but take steps."""
    last_validation: Mapping[str, float] = field(default_factory=dict)


def train(run: TrainingRun) -> bool:
    """Take every step that is left. Returns False when the training was told to stop before its end.

    Every rank takes the same decisions, because each follows from the step's number or from what was agreed on. What
    is agreed on at one step is known after the next, so that nobody waits for it, or at once where something is due.
    """
    first_step = run.progress.step + 1
    if not may_begin(run):
        return False
    run.clock.resume()
    for step, micro_batches in run.batches:
        taken = take_step(run, step, micro_batches)
        stopping = observe(run, run.agreement.next_step(taken, stop=run.stop_request.is_raised()))
        if stopping or step.number == first_step or something_is_due(run, step):
            *earlier, agreed = run.agreement.all_steps(stop=run.stop_request.is_raised())
            stopping = observe(run, earlier) or stopping
            if close_step(run, agreed, stopping=stopping):
                return False
            if step.number == first_step:
                run.world.log(f"after the first step: {memory_summary(run.world)}")
            run.clock.resume()
    return True


def take_step(run: TrainingRun, step: Step, micro_batches: list[MicroBatch]) -> TakenStep:
    """One optimizer step over the step's micro-batches. Nothing here waits for a device."""
    run.profiler.step_begins(step.number)
    if run.sample_record is not None:
        run.sample_record.write(step, micro_batches)
    terms = loss_terms(run, step, micro_batches)
    loss_sum = forward_and_backward(run, step, micro_batches, terms)
    learning_rate = run.schedule(step.number)
    run.hang_watch.reached(step.number, "optimizer step")
    run.checkpoints.before_update()
    gradient_norm = run.engine.step(learning_rate)
    run.hang_watch.reached(step.number, "waiting for the other ranks or the next batch")
    run.profiler.step_ends(step.number)
    return TakenStep(step, learning_rate, loss_sum, terms, gradient_norm, run.clock.step_ends())


def forward_and_backward(
    run: TrainingRun, step: Step, micro_batches: list[MicroBatch], step_terms: float
) -> torch.Tensor:
    """Accumulate the gradient of the step's mean loss; gives the sum of this rank's losses."""
    loss_sum = torch.zeros((), dtype=torch.float64, device=run.world.device)
    for batch in micro_batches:
        with run.engine.micro_batch(is_last=batch.is_last):
            run.hang_watch.reached(step.number, "forward pass")
            with run.precision.autocast():
                loss = run.task.loss(run.engine.model, batch.tensors)
            if batch.is_stand_in:
                loss = loss * 0.0
            run.clock.forward_ends()
            run.hang_watch.reached(step.number, "backward pass")
            with deterministic_backward():
                run.engine.backward(loss, step_terms)
        loss_sum += loss.detach()
    return loss_sum


def loss_terms(run: TrainingRun, step: Step, micro_batches: list[MicroBatch]) -> float:
    """How many terms the step's loss has over all ranks: what its sum is divided by."""
    if not run.task.loss_terms_vary:
        return float(step.samples * run.task.loss_terms(micro_batches[0].tensors) // micro_batches[0].samples)
    own = sum(run.task.loss_terms(batch.tensors) for batch in micro_batches if not batch.is_stand_in)
    # On the host, over gloo: the count is needed here, and a GPU need not be waited for.
    return max(1.0, run.world.sum(torch.tensor(own, dtype=torch.float64)).item())


def observe(run: TrainingRun, steps: list[AgreedStep]) -> bool:
    """Take note of steps as agreed on; gives whether to stop."""
    for agreed in steps:
        guard(run, agreed)
        record(run, agreed, {})
    return any(agreed.stop for agreed in steps)


def guard(run: TrainingRun, agreed: AgreedStep) -> None:
    """Look whether the step makes sense. StepError when going on does not."""
    run.measures.add(agreed)
    run.nonfinite_guard.observe(agreed)
    if warning := run.loss_spikes.observe(agreed):
        run.world.log(warning)


def record(run: TrainingRun, agreed: AgreedStep, validation: Mapping[str, float], *, always: bool = False) -> None:
    """Write the step down if it is one to be written down."""
    counts = {
        "skipped_steps": run.nonfinite_guard.skipped_steps,
        "loss_spikes": run.loss_spikes.count,
        "failed_saves": run.checkpoints.failed_saves,
    }
    run.recorder.record(agreed, run.measures, counts, validation, always=always)


def close_step(run: TrainingRun, agreed: AgreedStep, *, stopping: bool) -> bool:
    """Evaluate, record and save what is due after a step that every rank knows all of; gives whether to stop."""
    guard(run, agreed)
    step, stopping = agreed.step, stopping or agreed.stop
    run.progress = Progress(step.number, step.epoch, step.samples_consumed, run.nonfinite_guard.skipped_steps)
    validation: Mapping[str, float] = {}
    if not stopping and validation_is_due(run, step):
        try:
            validation = validate(run, step)
        except EvaluationStopped:
            stopping = True
    # A validation that did not happen is made up for by the next attempt, in this step's line.
    record(run, agreed, validation, always=stopping and validation_is_due(run, step))
    if stopping or checkpoint_is_due(run, step) or run.checkpoints.is_best(validation):
        run.hang_watch.reached(step.number, "saving a checkpoint")
        with run.hang_watch.long_work():
            run.checkpoints.save(run.engine, run.progress, validation, wait=stopping or step.is_last)
    # With only the model left to write, another attempt would cost more than going on.
    is_complete = step.is_last and (bool(validation) or not validation_is_due(run, step))
    return stopping and not is_complete


def may_begin(run: TrainingRun) -> bool:
    """Whether no rank was told to stop while starting up; then what a stopped attempt left undone is done first."""
    if run.world.sum(torch.tensor(float(run.stop_request.is_raised()))).item() > 0:
        return False
    if run.progress.step == 0 or not run.recorder.lacks_validation_of(run.progress.step):
        return True
    step = run.plan.step(run.progress.step)
    if validation_is_due(run, step):
        try:
            run.recorder.add_validation(validate(run, step))
        except EvaluationStopped:
            return False
        if run.checkpoints.is_best(run.last_validation):
            with run.hang_watch.long_work():
                run.checkpoints.save(run.engine, run.progress, run.last_validation, wait=True)
    return True


def validate(run: TrainingRun, step: Step) -> Mapping[str, float]:
    """The figures of the validation split. Leaves the random generators where they were."""
    assert run.validation_split is not None
    run.hang_watch.reached(step.number, "evaluation")
    state = random_state(run.world.device)
    run.engine.align_ranks()
    try:
        sums = evaluate_split(
            run.task,
            run.engine.evaluation_model(),
            run.validation_split,
            run.world,
            run.precision,
            run.settings.micro_batch_size,
            in_lockstep=run.engine.forwards_in_lockstep,
            stop_is_raised=run.stop_request.is_raised,
            on_batch=run.hang_watch.still_at_work,
        )
    finally:
        restore_random_state(state, run.world.device)
    run.last_validation = run.task.summarise(sums, "validation")
    return run.last_validation


def something_is_due(run: TrainingRun, step: Step) -> bool:
    """Whether a step's own agreement is to be read at once."""
    return step.is_last or run.agreement.steps_are_long or checkpoint_is_due(run, step) or validation_is_due(run, step)


def validation_is_due(run: TrainingRun, step: Step) -> bool:
    """At the end of the epochs that the settings ask for, and at the very end."""
    every = run.settings.evaluate_every_epochs
    is_due = step.is_last or (step.ends_epoch and every > 0 and step.epoch % every == 0)
    return is_due and run.validation_split is not None


def checkpoint_is_due(run: TrainingRun, step: Step) -> bool:
    """Every so many steps, and at the end."""
    every = run.settings.checkpoint_every_steps
    return step.is_last or (every > 0 and step.number % every == 0)
