"""How a training is put together: first what can be checked by one rank alone, then what all ranks build."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from trainyard.foundation.batch_arithmetic import BatchArithmetic, divide_batch
from trainyard.foundation.configs.training import Training
from trainyard.foundation.files import file_sha256
from trainyard.steps.data.dataset.manifest import Manifest
from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.flags import Value
from trainyard.steps.runtime.model_folders import find_model
from trainyard.steps.runtime.versions import installed_versions
from trainyard.steps.runtime.world import World
from trainyard.steps.training.adapters import check_tuning, new_model
from trainyard.steps.training.agreement import Agreement
from trainyard.steps.training.checkpoints.checkpoints import Checkpoints
from trainyard.steps.training.engines.base import Engine, EngineParts
from trainyard.steps.training.engines.blocks import check_blocks
from trainyard.steps.training.from_transformers import model_digest, model_folder
from trainyard.steps.training.loop import TrainingRun
from trainyard.steps.training.moving_average import MovingAverage
from trainyard.steps.training.observing.flops import flops_per_token, peak_flops_per_second
from trainyard.steps.training.observing.hang_watch import HangWatch
from trainyard.steps.training.observing.measures import StepMeasures, Work
from trainyard.steps.training.observing.observer import TrainingObserver
from trainyard.steps.training.observing.profiler import ProfiledSteps, StepProfiler, parse_profile_steps
from trainyard.steps.training.observing.recorder import Recorder, settings_record
from trainyard.steps.training.observing.sample_record import SampleRecord
from trainyard.steps.training.observing.unhealthy_steps import LossSpikes, NonfiniteGuard
from trainyard.steps.training.optimizer import OptimizerSettings
from trainyard.steps.training.precision import DTYPES, Precision
from trainyard.steps.training.randomness import ask_for_determinism, seed_everything
from trainyard.steps.training.samples.batches import Prepared, Tensors
from trainyard.steps.training.samples.plan import Progress, TrainingPlan
from trainyard.steps.training.samples.training_data import TrainingData, read_training_data
from trainyard.steps.training.schedule import Schedule
from trainyard.steps.training.stopping import StopRequest
from trainyard.steps.training.tasks.base import Task
from trainyard.steps.training.tasks.chosen import ChosenTask, choose_task
from trainyard.steps.training.validation import SPLIT, Metric, Validation, check_validation

_OF_ONE_ATTEMPT = frozenset(
    {"data_cache_mb", "profile_steps", "read_threads", "record_samples", "resume", "scheduled_events_url", "stop_file"}
)
"""Settings that say where and how a training is run, not what it computes."""
_NAMED_RANKS = 8


@dataclass(frozen=True)
class CheckedRequest:
    """A request to train, checked as far as one rank can before it meets the others."""

    settings: Training
    step_name: str
    engine_class: type[Engine]
    data: TrainingData
    batch: BatchArithmetic
    chosen_task: ChosenTask
    task: Task
    profiled_steps: ProfiledSteps | None

    @property
    def manifest(self) -> Manifest:
        """The manifest of `data`, the first of several datasets."""
        return self.data.first


def check_request(
    settings: Training,
    task_settings: Mapping[str, Value],
    step_name: str,
    engine_class: type[Engine],
    world_size: int,
    chosen_task: ChosenTask | None = None,
    data: TrainingData | None = None,
) -> CheckedRequest:
    """Read the datasets' manifests and create the task, if none are given. StepError for invalid settings."""
    profiled_steps = parse_profile_steps(settings.profile_steps)
    data = data or read_training_data(settings)
    try:
        batch = divide_batch(settings.global_batch_size, settings.micro_batch_size, world_size)
    except ValueError as error:
        raise StepError(str(error)) from None
    engine_class.check(settings, batch)
    check_blocks(settings)
    chosen_task = chosen_task or choose_task(settings.task, task_settings)
    if settings.base_model is not None:
        chosen_task = chosen_task.starting_from(find_model(settings.base_model))
    check_tuning(settings, chosen_task)
    task, *_ = [chosen_task.on(manifest) for manifest in data.manifests]
    check_validation(settings, task, data.first.splits)
    _most_samples(settings, task)
    return CheckedRequest(settings, step_name, engine_class, data, batch, chosen_task, task, profiled_steps)


def _most_samples(settings: Training, task: Task) -> int | None:
    """Return how many samples have the most tokens to train on, if there is a limit."""
    if settings.max_tokens is None:
        return None
    if task.tokens_per_sample is None:
        raise StepError(
            f"--max-tokens {settings.max_tokens}: samples of the task {settings.task} have no tokens; use --max-steps"
        )
    return math.ceil(settings.max_tokens / task.tokens_per_sample)


def require_same_settings(request: CheckedRequest, world: World) -> None:
    """StepError, on every rank, names the settings that differ between ranks, with their values."""
    own = {name: value for name, value in _comparable(request).items() if name not in _OF_ONE_ATTEMPT}
    if len(set(world.gather(hashlib.sha256(repr(sorted(own.items())).encode()).hexdigest()))) == 1:
        return
    by_rank = world.gather(own)
    differing = []
    for name in sorted(set().union(*by_rank)):
        ranks_with: dict[str, list[int]] = {}
        for rank, values in enumerate(by_rank):
            ranks_with.setdefault(repr(values.get(name)), []).append(rank)
        if len(ranks_with) > 1:
            values_by_rank = (f"{value} on {_ranks_in_words(ranks)}" for value, ranks in ranks_with.items())
            differing.append(f"{name} is {', '.join(values_by_rank)}")
    raise StepError(f"ranks were started differently: {'; '.join(differing)}; start all with the same command")


def _comparable(request: CheckedRequest) -> dict[str, Any]:
    """Return what must be the same on every rank. Of files the content counts, since paths may differ by node."""
    settings = dataclasses.asdict(request.settings)
    paths = {name: value for name, value in settings.items() if isinstance(value, Path)}
    literal = {name: value for name, value in settings.items() if name not in paths}
    of_files = {name: file_sha256(path) for name, path in paths.items() if path.is_file()}
    return {**literal, **request.chosen_task.values(), **of_files, "dataset": request.data.digest()}


def _ranks_in_words(ranks: list[int]) -> str:
    named = ", ".join(map(str, ranks[:_NAMED_RANKS])) + (" …" if len(ranks) > _NAMED_RANKS else "")
    return f"rank {named}" if len(ranks) == 1 else f"ranks {named}"


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
    plan = TrainingPlan(
        train_split.samples, request.batch, settings.epochs, settings.max_steps, _most_samples(settings, task)
    )
    _refuse_to_profile_after_the_end(request.profiled_steps, plan)
    precision = Precision(settings.precision, world.device, by_autocast=request.engine_class.uses_autocast)
    engine = _build_engine(request, world, hang_watch)
    if (note := task.note(world.device, DTYPES[settings.precision])) is not None:
        world.log(note)
    recorder = Recorder(world, settings.metrics, settings.log_every_steps, plan.total_steps)
    opened.callback(recorder.close)
    base_digest = _base_digest(request, world, hang_watch)
    checkpoints, progress = _resume(request, base_digest, validation.metric, plan, engine, world, hang_watch, opened)
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
        world=world,
        task=task,
        base_digest=base_digest,
        plan=plan,
        engine=engine,
        precision=precision,
        batches=batches,
        schedule=Schedule.of(settings, plan.total_steps),
        agreement=Agreement(world),
        checkpoints=checkpoints,
        stop_request=stop_request,
        observer=_build_observer(request, engine, progress, world, hang_watch, measures, recorder, opened),
        validation=validation,
        progress=progress,
    )


def _base_digest(request: CheckedRequest, world: World, hang_watch: HangWatch) -> str | None:
    """Return the digest of the model that training starts from, if any. Raise StepError if the data need another."""
    with hang_watch.long_work("reading the model that training starts from"):
        folder = model_folder(request.chosen_task.values().get("model_type"))
        digest = None if folder is None else model_digest(folder, world)
    for each in request.data.manifests:
        if problem := request.chosen_task.on(each).base_model_problem(digest):
            raise StepError(problem)
    return digest


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
    base_digest: str | None,
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
        _identity(request, base_digest),
        settings=_settings_to_compare(request, plan),
        keep=settings.keep_checkpoints,
        best_by=metric if settings.keep_best_checkpoint else None,
        asynchronous=settings.asynchronous_checkpoints,
        failed_saves_limit=settings.failed_saves_limit,
    )
    opened.callback(checkpoints.finish)
    with hang_watch.long_work("looking for checkpoints"):
        chosen = checkpoints.choose(settings.resume)
        progress = Progress() if chosen is None else checkpoints.load(chosen, engine, settings.seed)
    world.log(f"{plan.batch}")
    if len(request.data.manifests) > 1:
        world.log(f"{request.data}")
    tuned = "" if settings.tuning == "full" else f", of which {engine.trained_parameter_count():,} are trained"
    world.log(
        f"{engine.parameter_count():,} parameters{tuned}; {plan.samples} training samples, {plan.steps_per_epoch} "
        f"steps per epoch, {plan.total_steps} steps"
    )
    if chosen is not None:
        world.log(
            f"continuing from {chosen.folder}: step {progress.step}, {progress.samples_consumed} samples consumed"
        )
    if progress.step >= plan.total_steps:
        world.log("no steps are left to train; saving the model again")
    return checkpoints, progress


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
    record = _settings_record(request, engine)
    recorder.begin(
        progress.step, record, _parameters(request), starts_over=settings.resume == "never" and progress.step == 0
    )
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


def _identity(request: CheckedRequest, base_digest: str | None) -> dict[str, Any]:
    """Return what must be the same for a checkpoint to be of the same training. The world size may change.

    A folder with a model is known by its content: where it lies may change from attempt to attempt.
    """
    task_settings = request.chosen_task.values(may_change=False)
    if base_digest is not None:
        task_settings["model_type"] = f"a folder with the SHA-256 {base_digest}"
    names = ("tuning",) if request.settings.tuning == "full" else ("tuning", "lora_rank", "lora_alpha", "lora_targets")
    return {
        "task": request.settings.task,
        **task_settings,
        **{name: getattr(request.settings, name) for name in names},
        **({"ema": "on"} if request.settings.ema_decay > 0 else {}),
        **({"optimizer": request.settings.optimizer} if request.settings.optimizer != "adamw" else {}),
        "seed": request.settings.seed,
        "global_batch_size": request.settings.global_batch_size,
        "dataset": request.data.digest(),
    }


def _settings_to_compare(request: CheckedRequest, plan: TrainingPlan) -> dict[str, Any]:
    """Return what else decides the numbers: a change in the middle of a training is logged."""
    names = (
        *("learning_rate", "warmup_fraction", "warmup_steps", "learning_rate_schedule"),
        *("minimum_learning_rate_fraction", "decay_fraction", "decay_steps", "weight_decay", "gradient_clip_norm"),
        *("precision", "matmul_precision", "float8", "ema_decay", "best_metric", "evaluation_batches"),
        *(() if request.settings.tuning == "full" else ("lora_dropout",)),
    )
    own = {name: getattr(request.settings, name) for name in names}
    return {"total_steps": plan.total_steps, **own, **request.chosen_task.values(may_change=True)}


def _parameters(request: CheckedRequest) -> dict[str, Any]:
    """Return what to compare runs by in MLflow: no paths, which differ from attempt to attempt."""
    values = {
        **dataclasses.asdict(request.settings),
        **request.chosen_task.values(),
        **dataclasses.asdict(request.batch),
    }
    return {
        name: Path(value).name if name == "model_type" else value
        for name, value in values.items()
        if not isinstance(value, Path) and name not in _OF_ONE_ATTEMPT
    }


def _settings_record(request: CheckedRequest, engine: Engine) -> dict[str, Any]:
    """Return the content of settings.json."""
    values = {**dataclasses.asdict(request.settings), **request.chosen_task.values()}
    return settings_record(request.step_name, values, request.batch, engine.parameter_count(), installed_versions())
