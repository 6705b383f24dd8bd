"""From settings to a trained model: puts a training together, runs its loop, and saves what comes of it."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainyard.foundation.batch_arithmetic import BatchArithmetic, divide_batch
from trainyard.foundation.configs.training import Training
from trainyard.steps.data.dataset.manifest import Manifest, read_manifest
from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.data.dataset.shards import verify_dataset
from trainyard.steps.runtime.errors import STOPPED_EXIT_CODE, StepError
from trainyard.steps.runtime.files import require_writable
from trainyard.steps.runtime.versions import banner, installed_versions
from trainyard.steps.runtime.world import World, join_world, lost_connections_explained, read_rank_variables
from trainyard.steps.training.agreement import Agreement
from trainyard.steps.training.checkpoints.checkpoints import Checkpoints
from trainyard.steps.training.checkpoints.commit import Progress
from trainyard.steps.training.engines.base import Engine, EngineParts
from trainyard.steps.training.loop import TrainingRun, train
from trainyard.steps.training.observing.flops import flops_per_token, peak_flops_per_second
from trainyard.steps.training.observing.hang_watch import HangWatch, late_ranks_named
from trainyard.steps.training.observing.measures import StepMeasures, Work, memory_summary
from trainyard.steps.training.observing.profiler import ProfiledSteps, StepProfiler, parse_profile_steps
from trainyard.steps.training.observing.recorder import Recorder
from trainyard.steps.training.observing.sample_record import SampleRecord
from trainyard.steps.training.observing.step_clock import StepClock
from trainyard.steps.training.observing.unhealthy_steps import LossSpikes, NonfiniteGuard
from trainyard.steps.training.optimizer import WarmupThenCosine
from trainyard.steps.training.precision import Precision
from trainyard.steps.training.randomness import ask_for_determinism, random_state, restore_random_state, seed_everything
from trainyard.steps.training.samples.batches import TrainingBatches
from trainyard.steps.training.samples.plan import TrainingPlan
from trainyard.steps.training.stopping import ScheduledEvents, StopRequest, choose_url
from trainyard.steps.training.tasks import find_task
from trainyard.steps.training.tasks.base import Task, TaskSettings, require_loss

_EXCHANGE_EVERY_SECONDS = 1.0
"""While all wait for one rank's work."""


def run_training(settings: Training, step_name: str, engine_class: type[Engine], stop_request: StopRequest) -> int:
    """Train; gives the step's exit code. What can be checked without the other ranks is checked before they meet."""
    profiled_steps = parse_profile_steps(settings.profile_steps)
    events_url = choose_url(settings.scheduled_events_url, os.environ)
    manifest = read_manifest(settings.data)
    variables = read_rank_variables(os.environ)
    try:
        batch = divide_batch(settings.global_batch_size, settings.micro_batch_size, variables.world_size)
    except ValueError as error:
        raise StepError(str(error)) from None
    engine_class.check(settings, batch)
    task_settings = TaskSettings(
        settings.model_type, settings.model_overrides, settings.label_smoothing, settings.augmentation
    )
    task = find_task(settings.task)(manifest, task_settings)
    if settings.augmentation != "none" and not task.needs_sample_draws:
        raise StepError(f"--augmentation {settings.augmentation}: the task {settings.task} does not vary its samples")
    require_writable((settings.model, settings.checkpoints, settings.metrics), variables.rank)
    timeout_seconds = settings.process_group_timeout_seconds
    hang_watch = HangWatch(variables, timeout_seconds)
    with (
        late_ranks_named(hang_watch),
        lost_connections_explained(variables.rank),
        join_world(timeout_seconds) as world,
    ):
        world.log(banner(world.device, world.size))
        hang_watch.start()
        given = _Given(settings, step_name, manifest, batch, task, profiled_steps, stop_request, hang_watch)
        with ExitStack() as opened:
            if events_url is not None and variables.local_rank == 0:
                opened.callback(ScheduledEvents(events_url, stop_request.ask).close)
            run = _put_together(given, engine_class, world, opened)
            started, steps_before = time.monotonic(), run.progress.step
            is_complete = _train_and_save(run)
        return _say_what_was_done(run, run.progress.step - steps_before, time.monotonic() - started, is_complete)


@dataclass(frozen=True)
class _Given:
    """What a training is put together from, known before the ranks meet."""

    settings: Training
    step_name: str
    manifest: Manifest
    batch: BatchArithmetic
    task: Task
    profiled_steps: ProfiledSteps | None
    stop_request: StopRequest
    hang_watch: HangWatch


def _put_together(given: _Given, engine_class: type[Engine], world: World, opened: ExitStack) -> TrainingRun:
    """Everything that the training needs; what is to be closed, whatever comes later, is put on `opened`."""
    settings, manifest, task = given.settings, given.manifest, given.task
    if settings.deterministic:
        ask_for_determinism()
    if settings.verify_data == "digests":
        given.hang_watch.reached(0, "verifying the dataset")
        with given.hang_watch.long_work():
            verify_dataset(settings.data, manifest.shards(), world)
    train_split = SplitReader(settings.data, manifest, "train")
    plan = TrainingPlan(train_split.samples, given.batch, settings.epochs, settings.max_steps)
    _refuse_to_profile_after_the_end(given.profiled_steps, plan)
    precision = Precision(settings.precision, world.device, by_autocast=engine_class.uses_autocast)
    given.hang_watch.reached(0, "building the model")
    seed_everything(settings.seed)
    with given.hang_watch.long_work():
        engine = engine_class(EngineParts(task.new_model, settings, given.batch, world))
    # Weights that were read from a folder come in evaluation mode, in which there is no dropout.
    engine.model.train()
    # The weights come from the seed alone; what ranks draw while training must differ from rank to rank.
    seed_everything(settings.seed + world.rank)

    recorder = Recorder(world, settings.metrics, settings.log_every_steps, plan.total_steps)
    opened.callback(recorder.close)
    given.hang_watch.reached(0, "looking for checkpoints")
    checkpoints = Checkpoints(
        settings.checkpoints,
        world,
        _identity(settings, manifest),
        settings=_settings_to_compare(settings, plan),
        keep=settings.keep_checkpoints,
        keep_best=settings.keep_best_checkpoint,
        asynchronous=settings.asynchronous_checkpoints,
    )
    opened.callback(checkpoints.finish)
    with given.hang_watch.long_work():
        chosen = checkpoints.choose(settings.resume)
        progress = Progress() if chosen is None else checkpoints.load(chosen, engine, settings.seed)

    settings_record = _settings_record(given, engine)
    _say_what_will_be_done(world, plan, settings_record, chosen, progress)
    recorder.begin(progress.step, settings_record, {**settings_record["settings"], **dataclasses.asdict(given.batch)})
    batches = TrainingBatches(
        train_split,
        plan,
        settings.seed,
        world.rank,
        progress.step,
        world.device,
        sample_draws=task.needs_sample_draws,
    )
    opened.callback(batches.close)
    sample_record = None
    if settings.record_samples is not None:
        sample_record = SampleRecord(Path(settings.record_samples), world.rank, world.size, progress.step)
        opened.callback(sample_record.close)
    profiler = StepProfiler(given.profiled_steps, settings.metrics, world.rank, world.device)
    opened.callback(profiler.close)
    work = _work(task, engine, precision, world)
    has_validation = "validation" in manifest.splits
    return TrainingRun(
        settings=settings,
        world=world,
        task=task,
        plan=plan,
        engine=engine,
        precision=precision,
        batches=batches,
        schedule=WarmupThenCosine(settings.learning_rate, plan.total_steps, settings.warmup_fraction),
        agreement=Agreement(world),
        checkpoints=checkpoints,
        nonfinite_guard=NonfiniteGuard(settings.nonfinite_steps_limit, progress.skipped_steps),
        loss_spikes=LossSpikes(settings.loss_spike_factor),
        stop_request=given.stop_request,
        clock=StepClock(world.device),
        measures=StepMeasures(work, lambda: batches.wait_seconds, lambda: checkpoints.stall_seconds),
        recorder=recorder,
        sample_record=sample_record,
        profiler=profiler,
        hang_watch=given.hang_watch,
        validation_split=SplitReader(settings.data, manifest, "validation") if has_validation else None,
        progress=progress,
    )


def _train_and_save(run: TrainingRun) -> bool:
    """Gives whether the training has come to its end."""
    _warm_up(run)
    if not train(run):
        return False
    _save_model(run)
    run.recorder.complete()
    return True


def _say_what_was_done(run: TrainingRun, steps: int, seconds: float, is_complete: bool) -> int:
    """Gives the step's exit code."""
    if steps:
        run.world.log(f"at the end: {memory_summary(run.world)}; {run.measures.summary(seconds)}")
    if not is_complete:
        return _say_stopped(run, steps)
    figures = "".join(f", validation {name} {value:.4f}" for name, value in run.last_validation.items())
    run.world.log(f"trained {steps} steps in {seconds:.1f} s{figures}; {run.settings.model}")
    return 0


def _say_stopped(run: TrainingRun, steps: int) -> int:
    reasons = " and ".join(sorted({reason for reason in run.world.gather(run.stop_request.reason) if reason}))
    if steps:
        message = (
            f"stopped after step {run.progress.step} of {run.plan.total_steps} because of {reasons}; its checkpoint "
        )
        run.world.log(f"{message}is committed, and the same command goes on from there")
    else:
        run.world.log(f"stopped before the first step because of {reasons}; the same command starts again")
    return STOPPED_EXIT_CODE


def _warm_up(run: TrainingRun) -> None:
    """Let the engine settle on one sample, which every rank has, and leave the random generators where they were."""
    run.hang_watch.reached(0, "warming up")
    sample = run.batches.first_sample()
    state = random_state(run.world.device)

    def loss() -> torch.Tensor:
        with run.precision.autocast():
            return require_loss(run.task.loss(run.engine.model, sample)) * 0.0

    run.engine.warm_up(loss)
    restore_random_state(state, run.world.device)


def _save_model(run: TrainingRun) -> None:
    run.hang_watch.reached(run.plan.total_steps + 1, "saving the model")
    run.engine.align_ranks()
    with run.hang_watch.long_work():
        model = run.engine.whole_model()
    _let_main_work(run.world, lambda: run.task.save_model(model, run.settings.model), run.hang_watch.still_at_work)


def _let_main_work(world: World, work: Callable[[], None], while_waiting: Callable[[], None]) -> None:
    """Let rank 0 work for as long as it takes. The others wait in exchanges of a second, none of which times out."""
    with ThreadPoolExecutor(max_workers=1) as threads:
        working = [threads.submit(work)] if world.is_main else []
        # On the host, over gloo: on a GPU, NCCL's watchdog would count the wait.
        while world.sum(torch.tensor(float(len(wait(working, _EXCHANGE_EVERY_SECONDS).not_done)))).item() > 0:
            while_waiting()
        for done in working:
            done.result()


def _refuse_to_profile_after_the_end(profiled_steps: ProfiledSteps | None, plan: TrainingPlan) -> None:
    if profiled_steps is not None and profiled_steps.first > plan.total_steps:
        raise StepError(
            f"--profile-steps {profiled_steps}: this training has {plan.total_steps} steps; choose some of them"
        )


def _work(task: Task, engine: Engine, precision: Precision, world: World) -> Work:
    """What a sample is made of and costs. Says how MFU is counted, or why it is not."""
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
        world.log(f"MFU is not counted: the peak of {device_name} in {precision.name} is not known")
    return Work(tokens, flops, None if peak is None else peak * world.size)


def _identity(settings: Training, manifest: Manifest) -> dict[str, Any]:
    """What must be the same for a checkpoint to be of the same training. The world size may change."""
    return {
        "task": settings.task,
        "model_type": settings.model_type,
        "model_overrides": settings.model_overrides,
        "seed": settings.seed,
        "global_batch_size": settings.global_batch_size,
        "dataset": manifest.digest(),
    }


def _settings_to_compare(settings: Training, plan: TrainingPlan) -> dict[str, Any]:
    """What else decides the numbers: changed in the middle of a training, it is said."""
    names = ("learning_rate", "warmup_fraction", "weight_decay", "gradient_clip_norm", "label_smoothing")
    others = {name: getattr(settings, name) for name in (*names, "augmentation", "precision")}
    return {"total_steps": plan.total_steps, **others}


def _settings_record(given: _Given, engine: Engine) -> dict[str, Any]:
    values = dataclasses.asdict(given.settings)
    return {
        "format": "trainyard.settings/1",
        "step": given.step_name,
        "settings": {name: str(value) if isinstance(value, Path) else value for name, value in values.items()},
        **dataclasses.asdict(given.batch),
        "model_parameters": engine.parameter_count(),
        "versions": installed_versions(),
    }


def _say_what_will_be_done(
    world: World, plan: TrainingPlan, record: Mapping[str, Any], chosen: Path | None, progress: Progress
) -> None:
    world.log(f"{plan.batch}")
    world.log(
        f"{record['model_parameters']:,} parameters; {plan.samples} training samples, {plan.steps_per_epoch} steps per "
        f"epoch, {plan.total_steps} steps"
    )
    if chosen is not None:
        world.log(f"continuing from {chosen}: step {progress.step}, {progress.samples_consumed} samples consumed")
    if progress.step >= plan.total_steps:
        world.log("nothing is left to train; the model is saved again")
