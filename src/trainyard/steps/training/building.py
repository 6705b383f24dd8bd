"""How all ranks build what a training consists of, from a checked request."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch

from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.world import World, installed_versions
from trainyard.steps.training.adapters import new_model
from trainyard.steps.training.agreement import Agreement
from trainyard.steps.training.checkpoints.checkpoints import Checkpoints
from trainyard.steps.training.engines.engine import Engine, EngineParts
from trainyard.steps.training.fragments import MovingAverage
from trainyard.steps.training.loop import TrainingRun
from trainyard.steps.training.observing.flops import flops_per_token, peak_flops_per_second
from trainyard.steps.training.observing.hang_watch import HangWatch
from trainyard.steps.training.observing.measures import LossSpikes, NonfiniteGuard, StepMeasures, Work
from trainyard.steps.training.observing.observer import ProfiledSteps, StepProfiler, TrainingObserver
from trainyard.steps.training.observing.recorder import Recorder, settings_record
from trainyard.steps.training.observing.sample_record import SampleRecord
from trainyard.steps.training.optimizer import OptimizerSettings
from trainyard.steps.training.precision import DTYPES, Precision
from trainyard.steps.training.randomness import ask_for_determinism, seed_everything
from trainyard.steps.training.request import CheckedRequest
from trainyard.steps.training.samples.batches import Prepared, Tensors
from trainyard.steps.training.samples.plan import Progress, TrainingPlan
from trainyard.steps.training.stopping import StopRequest
from trainyard.steps.training.tasks.task import Task
from trainyard.steps.training.validation import SPLIT, Metric, Validation


def build_training(
    request: CheckedRequest, world: World, stop_request: StopRequest, hang_watch: HangWatch, opened: ExitStack
) -> TrainingRun:
    """Build everything that the training needs, restored from its checkpoint. Every rank calls it.

    What has to be closed, whatever comes later, is put on `opened`.
    """
    settings, task = request.settings, request.task
    if settings.deterministic:
        ask_for_determinism()
    torch.set_float32_matmul_precision(settings.matmul_precision)
    with hang_watch.long_work("verifying the dataset"):
        data = request.data.ready(world, settings.verify_data, hang_watch.still_at_work)
        request, manifest = dataclasses.replace(request, data=data), data.first
    train_split = request.data.training_split(settings, world, opened)
    held_out = SplitReader(settings.data, manifest, SPLIT) if SPLIT in manifest.splits else None
    validation = Validation(settings, task, held_out)
    plan = TrainingPlan(train_split.samples, request.batch, settings.epochs, settings.max_steps, request.most_samples)
    _refuse_to_profile_after_the_end(request.profiled_steps, plan)
    precision = Precision(settings.precision, world.device, by_autocast=request.engine_class.uses_autocast)
    engine = _build_engine(request, world, hang_watch)
    if (note := task.note(world.device, DTYPES[settings.precision])) is not None:
        world.log(note)
    recorder = Recorder(world, settings.metrics, settings.log_every_steps, plan.total_steps)
    opened.callback(recorder.close)
    checkpoints, progress = _resume(request, validation.metric, plan, engine, world, hang_watch, opened)
    batches = request.data.batches(
        train_split,
        plan,
        settings,
        world,
        progress.step,
        sample_draws=task.needs_sample_draws,
        prepare=_preparation(task),
    )
    opened.callback(batches.close)
    work = _work(task, engine, precision, world)
    measures = StepMeasures(work, lambda: batches.wait_seconds, lambda: checkpoints.stall_seconds)
    return TrainingRun(
        settings=settings,
        task=task,
        plan=plan,
        engine=engine,
        precision=precision,
        batches=batches,
        agreement=Agreement(world),
        checkpoints=checkpoints,
        stop_request=stop_request,
        observer=_build_observer(request, engine, progress, world, hang_watch, measures, recorder, opened),
        validation=validation,
        progress=progress,
    )


def _preparation(task: Task) -> Callable[[Tensors], Prepared] | None:
    """Return what computes ahead of the training what a task needs to know of each micro-batch, if anything."""
    if not task.loss_terms_vary and type(task).prepare is Task.prepare:
        return None
    return lambda batch: Prepared(task.loss_terms(batch) if task.loss_terms_vary else 0, task.prepare(batch))


def _build_engine(request: CheckedRequest, world: World, hang_watch: HangWatch) -> Engine:
    settings = request.settings
    seed_everything(settings.seed)
    optimizer = OptimizerSettings.of(settings, request.chosen_task.settings)
    with hang_watch.long_work("building the model"):
        build = partial(new_model, request.task, settings)
        parts = EngineParts(build, settings, optimizer, request.batch, world, hang_watch.still_at_work)
        engine = request.engine_class(parts)
    engine.frozen_are_state = settings.tuning == "full"
    if settings.ema_decay > 0:
        engine.average = MovingAverage(engine.fragments(), settings.ema_decay)
    # Weights that were read from a folder come in evaluation mode, in which there is no dropout.
    engine.model.train()
    # The weights come from the seed alone; what ranks draw while training must differ from rank to rank.
    seed_everything(settings.seed + world.rank)
    return engine


def _resume(
    request: CheckedRequest,
    metric: Metric,
    plan: TrainingPlan,
    engine: Engine,
    world: World,
    hang_watch: HangWatch,
    opened: ExitStack,
) -> tuple[Checkpoints, Progress]:
    """Restore the engine and random generators from the checkpoint to resume from, if there is one."""
    settings = request.settings
    checkpoints = Checkpoints(
        settings.checkpoints,
        world,
        request.identity(),
        identity_defaults=request.identity_defaults(),
        settings=request.numbers(),
        keep=settings.keep_checkpoints,
        best_by=metric if settings.keep_best_checkpoint else None,
        asynchronous=settings.asynchronous_checkpoints,
        failed_saves_limit=settings.failed_saves_limit,
    )
    opened.callback(checkpoints.finish)
    with hang_watch.long_work("looking for checkpoints"):
        chosen = checkpoints.choose(settings.resume)
        progress = Progress() if chosen is None else checkpoints.load(chosen, engine, settings.seed)
    _log_what_begins(request, plan, engine, world)
    if chosen is not None:
        world.log(
            f"continuing from {chosen.folder}: step {progress.step}, {progress.samples_consumed} samples consumed"
        )
    if progress.step >= plan.total_steps:
        world.log("no steps are left to train; saving the model again")
    return checkpoints, progress


def _log_what_begins(request: CheckedRequest, plan: TrainingPlan, engine: Engine, world: World) -> None:
    world.log(f"{plan.batch}")
    if len(request.data.manifests) > 1:
        world.log(f"{request.data}")
    tuned = "" if request.settings.tuning == "full" else f", of which {engine.trained_parameter_count():,} are trained"
    world.log(
        f"{engine.parameter_count():,} parameters{tuned}; {plan.samples} training samples, {plan.steps_per_epoch} "
        f"steps per epoch, {plan.total_steps} steps"
    )


def _build_observer(
    request: CheckedRequest,
    engine: Engine,
    progress: Progress,
    world: World,
    hang_watch: HangWatch,
    measures: StepMeasures,
    recorder: Recorder,
    opened: ExitStack,
) -> TrainingObserver:
    settings = request.settings
    parameter_count, versions = engine.parameter_count(), installed_versions()
    record = settings_record(request.step_name, request.used, request.batch, parameter_count, versions)
    starts_over = settings.resume == "never" and progress.step == 0
    parameters = request.used.for_mlflow() | dataclasses.asdict(request.batch)
    recorder.begin(progress.step, record, parameters, starts_over=starts_over)
    sample_record = profiler = None
    if settings.record_samples is not None:
        sample_record = SampleRecord(Path(settings.record_samples), world.rank, world.size, progress.step)
        opened.callback(sample_record.close)
    if request.profiled_steps is not None:
        profiler = StepProfiler(request.profiled_steps, settings.metrics, world.rank, world.device)
        opened.callback(profiler.close)
    return TrainingObserver(
        world=world,
        hang_watch=hang_watch,
        measures=measures,
        recorder=recorder,
        nonfinite_guard=NonfiniteGuard(settings.nonfinite_steps_limit, progress.skipped_steps),
        loss_spikes=LossSpikes(settings.loss_spike_factor),
        profiler=profiler,
        sample_record=sample_record,
    )


def _refuse_to_profile_after_the_end(profiled_steps: ProfiledSteps | None, plan: TrainingPlan) -> None:
    if profiled_steps is not None and profiled_steps.first > plan.total_steps:
        raise StepError(
            f"--profile-steps {profiled_steps}: this training has {plan.total_steps} steps; choose some of them"
        )


def _work(task: Task, engine: Engine, precision: Precision, world: World) -> Work:
    """Return what a sample consists of and costs. Log how MFU is computed, or why it is not."""
    tokens = task.tokens_per_sample
    flops = None if tokens is None else flops_per_token(engine.model, tokens)
    device_name = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "a CPU"
    peak = peak_flops_per_second(device_name, precision.name)
    if flops is not None and peak is not None:
        world.log(
            f"MFU: {flops / 1e9:.3f} GFLOP per token (6N + 12LHQT), of {peak / 1e12:g} TFLOP/s in {precision.name} "
            f"on each {device_name}"
        )
    elif flops is not None:
        world.log(f"no MFU: the peak of {device_name} in {precision.name} is unknown")
    return Work(tokens, flops, None if peak is None else peak * world.size)
