"""From settings to a trained model: the ranks meet, train, and save the model."""

from __future__ import annotations

import dataclasses
import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import torch

from trainyard.settings.steps.training import Training
from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.runtime.errors import STOPPED_EXIT_CODE, StepError
from trainyard.steps.runtime.flags import GivenSettings
from trainyard.steps.runtime.rank_variables import read_rank_variables, restored
from trainyard.steps.runtime.world import World, installed_versions, ranks_joined, set_gpu_defaults
from trainyard.steps.training.adapters import new_model, save_trained_model
from trainyard.steps.training.agreement import Agreement
from trainyard.steps.training.checkpoints.checkpoints import Checkpoints
from trainyard.steps.training.engines.engine import Engine, EngineParts
from trainyard.steps.training.engines.shared_model import without_memory
from trainyard.steps.training.fragments import MovingAverage
from trainyard.steps.training.loop import TrainingRun, save_last_checkpoint, train
from trainyard.steps.training.observing.flops import flops_of_transformer, peak_flops_per_second
from trainyard.steps.training.observing.hang_watch import HangWatch, late_ranks_named
from trainyard.steps.training.observing.measures import ModelFlops, StepGuards, StepMeasures, Work
from trainyard.steps.training.observing.observer import StepProfiler, TrainingObserver, memory_summary
from trainyard.steps.training.observing.recorder import Recorder, SampleRecord, settings_record
from trainyard.steps.training.optimizer import OptimizerSettings
from trainyard.steps.training.precision import DTYPES, Precision, set_matmul_precision
from trainyard.steps.training.randomness import ask_for_determinism, random_state, restore_random_state, seed_everything
from trainyard.steps.training.request import CheckedRequest, check_request, require_same_settings
from trainyard.steps.training.samples.batches import Prepared, Tensors
from trainyard.steps.training.samples.plan import Progress, TrainingPlan
from trainyard.steps.training.samples.training_data import TokensOfSamples, count_tokens, samples_with_tokens
from trainyard.steps.training.stopping import ScheduledEvents, StopRequest, choose_url, stop_in_words
from trainyard.steps.training.tasks.task import Task, require_loss
from trainyard.steps.training.validation import SPLIT, Metric, Validation

_COLLECTIVES_FOLDER = "collectives"
"""Within `metrics`: what each rank's last collectives were when the training hung."""


def run_training(
    given: GivenSettings[Training],
    step_name: str,
    engine_class: type[Engine],
    stop_request: StopRequest,
    train_to_the_end: Callable[[TrainingRun], bool] = train,
    check: Callable[..., CheckedRequest] = check_request,
) -> int:
    """Train and save the model. Return the step's exit code: 0, or STOPPED_EXIT_CODE.

    `train_to_the_end` takes every step that is left; it returns False if the training was asked to stop before its end.
    StepError for whatever the user can fix; what can be checked without the other ranks is checked before they meet.
    """
    settings = given.step
    events_url = choose_url(settings.scheduled_events_url, os.environ)
    with ranks_met(given, step_name, engine_class, check) as (request, world, hang_watch):
        with ExitStack() as opened:
            if events_url is not None and world.local_rank == 0:
                opened.callback(ScheduledEvents(events_url, stop_request.ask).close)
            world.log(str(request.used))
            request = request.base_model_read(world, hang_watch)
            run = build_training(request, world, stop_request, hang_watch, opened)
            started, steps_before = time.monotonic(), run.progress.step
            is_complete = _train_and_save(run, request, train_to_the_end)
        seconds, steps = time.monotonic() - started, run.progress.step - steps_before
        if steps:
            world.log(f"at the end: {memory_summary(world)}; {run.observer.measures.summary(seconds)}")
        if not is_complete:
            reasons = world.gather(stop_request.reason)
            world.log(stop_in_words(reasons, run.progress.step, run.plan.total_steps, has_stepped=steps > 0))
            return STOPPED_EXIT_CODE
        validation = run.observer.recorder.last_validation
        figures = "".join(f", validation {name} {value:.4f}" for name, value in validation.items())
        world.log(f"trained {steps} steps in {seconds:.1f} s{figures}; {settings.model}")
        return 0


@contextmanager
def ranks_met(
    given: GivenSettings[Training],
    step_name: str,
    engine_class: type[Engine],
    check: Callable[..., CheckedRequest] = check_request,
) -> Iterator[tuple[CheckedRequest, World, HangWatch]]:
    """Check the request, and yield it with the ranks that met and agree on it, and the watch over them."""
    settings = given.step
    variables = read_rank_variables(os.environ)
    # Before checks that ask a GPU what it can do, which starts CUDA: its allocator reads these once.
    if torch.cuda.is_available():
        set_gpu_defaults(os.environ, deterministic=settings.deterministic)
    request = check(given, step_name, engine_class, variables.world_size)
    outputs = (settings.model, settings.checkpoints, settings.metrics)
    hang_watch = HangWatch(
        variables,
        settings.process_group_timeout_seconds,
        ends_before_timeout=torch.cuda.is_available(),
        collectives_folder=settings.metrics / _COLLECTIVES_FOLDER,
    )
    with (
        restored(os.environ, engine_class.variables),
        late_ranks_named(hang_watch),
        ranks_joined(settings.process_group_timeout_seconds, outputs) as world,
    ):
        hang_watch.start()
        require_same_settings(request, world)
        yield request, world, hang_watch


def _train_and_save(run: TrainingRun, request: CheckedRequest, train_to_the_end: Callable[[TrainingRun], bool]) -> bool:
    """Return whether the training has come to its end."""
    warm_up(run)
    if not train_to_the_end(run):
        return False
    if run.validation.ends(run.progress):
        run.world.log(run.validation.why_it_ends(run.progress))
    failures: list[Exception] = []
    # A model may be built anew in order to save it, which draws random numbers that no step may miss.
    state = random_state(run.world.device)
    with run.engine.averaged(), run.observer.long_work("saving the model"):
        run.engine.align_ranks()
        try:
            save_trained_model(run.task, run.engine, run.settings, run.observer.hang_watch.still_at_work)
            if run.world.is_main:
                request.chosen_task.write(run.settings.model, request.base_digest)
        except Exception as failure:  # raised below: whatever is wrong with the model, its training is kept
            failures.append(failure)
    restore_random_state(state, run.world.device)
    save_last_checkpoint(run)
    if failures:
        raise failures[0]
    run.observer.recorder.complete()
    return True


def warm_up(run: TrainingRun) -> None:
    """Let the engine settle on one sample, the same on every rank. Random generators are left as they were."""
    run.observer.begins("warming up")
    sample = run.batches.first_sample()
    state = random_state(run.world.device)

    def loss() -> torch.Tensor:
        with run.precision.autocast():
            return require_loss(run.task.loss(run.engine.model, sample)) * 0.0

    run.engine.warm_up(loss)
    restore_random_state(state, run.world.device)


def build_training(
    request: CheckedRequest, world: World, stop_request: StopRequest, hang_watch: HangWatch, opened: ExitStack
) -> TrainingRun:
    """Build everything that the training needs, restored from its checkpoint. Every rank calls it.

    What has to be closed, whatever comes later, is put on `opened`.
    """
    settings, task = request.settings, request.task
    if settings.deterministic:
        ask_for_determinism()
    set_matmul_precision(settings.matmul_precision)
    with hang_watch.long_work("verifying the dataset"):
        data = request.data.ready(world, settings.verify_data, hang_watch.still_at_work)
        request, manifest = dataclasses.replace(request, data=data), data.first
    train_split = request.data.training_split(settings, world, opened)
    held_out = SplitReader(settings.data, manifest, SPLIT) if SPLIT in manifest.splits else None
    validation = Validation(settings, task, held_out)
    max_samples: int | None = None
    if (tokens := settings.max_tokens) is not None:
        counts: TokensOfSamples = task.tokens_per_sample or 0
        with hang_watch.long_work("counting the tokens of the samples"):
            if task.loss_terms_vary:
                counts = count_tokens(train_split, task.tokens_of_samples, world, hang_watch.still_at_work)
        max_samples = samples_with_tokens(train_split, counts, settings.seed, settings.epochs, tokens)
    plan = TrainingPlan(train_split.samples, request.batch, settings.epochs, settings.max_steps, max_samples)
    if request.profiled_steps is not None and request.profiled_steps[0] > plan.total_steps:
        raise StepError(
            f"--profile-steps {settings.profile_steps}: this training has {plan.total_steps} steps; choose some of them"
        )
    precision = Precision(settings.precision, world.device, by_autocast=request.engine_class.uses_autocast)
    checkpoints, engine, progress = _resume(request, validation.metric, plan, world, hang_watch, opened)
    recorder = Recorder(world, settings.metrics, settings.log_every_steps, plan.total_steps)
    opened.callback(recorder.close)
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
    work = _work(request, engine, precision, world)
    measures = StepMeasures(work, lambda: batches.wait_seconds, lambda: checkpoints.stall_seconds)
    return TrainingRun(
        settings=settings,
        task=task,
        plan=plan,
        engine=engine,
        precision=precision,
        batches=batches,
        agreement=Agreement(world, lambda: batches.wait_seconds),
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
    if not task.loss_terms_vary:
        return lambda batch: Prepared(0, task.prepare(batch))
    return lambda batch: Prepared(task.loss_terms(batch), task.prepare(batch), task.token_counts(batch))


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
    world: World,
    hang_watch: HangWatch,
    opened: ExitStack,
) -> tuple[Checkpoints, Engine, Progress]:
    """Build the engine; restore it and random generators from the checkpoint to resume from, if there is one."""
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
    engine = _build_engine(request, world, hang_watch)
    with hang_watch.long_work("looking for checkpoints"):
        found = checkpoints.resume(settings.resume, engine, settings.seed)
    if checkpoints.is_engine_damaged:
        del engine
        gc.collect()  # modules and their hooks refer to each other, and two engines may not fit
        engine = _build_engine(request, world, hang_watch)
    folder, progress = found or (None, Progress())
    if (note := request.task.note(world.device, DTYPES[settings.precision])) is not None:
        world.log(note)
    world.log(f"{plan.batch}")
    if len(request.data.manifests) > 1:
        world.log(f"{request.data}")
    trained = sum(parameter.numel() for parameter in engine.model.parameters() if parameter.requires_grad)
    tuned = "" if settings.tuning == "full" else f", of which {trained:,} are trained"
    world.log(
        f"{engine.parameter_count:,} parameters{tuned}; {plan.samples} training samples, {plan.steps_per_epoch} "
        f"steps per epoch, {plan.total_steps} steps"
    )
    if folder is not None:
        world.log(f"continuing from {folder}: step {progress.step}, {progress.samples_consumed} samples consumed")
    if progress.step >= plan.total_steps:
        world.log("no steps are left to train; saving the model again")
    return checkpoints, engine, progress


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
    parameter_count, versions = engine.parameter_count, installed_versions()
    record = settings_record(request.step_name, request.used, request.batch, parameter_count, versions)
    starts_over = settings.resume == "never" and progress.step == 0
    parameters = request.used.for_mlflow() | request.batch._asdict()
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
        guards=StepGuards(settings.nonfinite_steps_limit, settings.loss_spike_factor, progress.skipped_steps),
        profiler=profiler,
        sample_record=sample_record,
    )


def _work(request: CheckedRequest, engine: Engine, precision: Precision, world: World) -> Work:
    """Return what a sample consists of and costs. Log how MFU is computed, or why it is not."""
    task = request.task
    device_name = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "a CPU"
    peak = peak_flops_per_second(device_name, precision.name)
    flops = None
    if task.tokens_per_sample is not None:
        flops = flops_of_transformer(engine.model)
    elif peak is not None:
        per_sample = task.flops_per_sample(without_memory(partial(new_model, task, request.settings)))
        flops = None if per_sample is None else ModelFlops(per_sample)
    if flops is not None and peak is not None:
        cost = f"{flops.per_token / 1e9:.3f} GFLOP per token and {flops.per_pair / 1e3:.1f} kFLOP per pair of them"
        if not flops.per_token:
            cost = f"{flops.per_sample / 1e9:.3f} GFLOP per sample"
        world.log(f"MFU: {cost}, of {peak / 1e12:g} TFLOP/s in {precision.name} on each {device_name}")
    elif flops is not None:
        world.log(f"no MFU: the peak of {device_name} in {precision.name} is unknown")
    return Work(task.tokens_per_sample, flops, None if peak is None else peak * world.size, task.loss_terms_vary)
