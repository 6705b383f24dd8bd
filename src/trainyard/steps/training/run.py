"""From settings to a trained model: puts a training together, runs its loop, and saves what comes of it."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from trainyard.steps.configs.training import Training
from trainyard.steps.dataset.manifest import Manifest, read_manifest
from trainyard.steps.dataset.reader import SplitReader
from trainyard.steps.entrypoint import STOPPED_EXIT_CODE
from trainyard.steps.training.batch_arithmetic import BatchArithmetic, divide_batch
from trainyard.steps.training.batches import TrainingBatches
from trainyard.steps.training.checkpoint import Checkpoints, Progress
from trainyard.steps.training.determinism import ask_for_determinism, seed_everything
from trainyard.steps.training.engines.base import Engine
from trainyard.steps.training.guard import NonfiniteGuard
from trainyard.steps.training.loop import TrainingRun, train
from trainyard.steps.training.outputs import require_writable
from trainyard.steps.training.plan import TrainingPlan
from trainyard.steps.training.precision import Precision
from trainyard.steps.training.random_state import random_state, restore_random_state
from trainyard.steps.training.recorder import Recorder
from trainyard.steps.training.schedule import WarmupThenCosine
from trainyard.steps.training.stopping import StopRequest
from trainyard.steps.training.tasks import find_task
from trainyard.steps.training.tasks.base import Task, TaskSettings
from trainyard.steps.training.versions import banner, installed_versions
from trainyard.steps.training.world import World, join_world, lost_connections_explained, read_rank_variables

EngineFactory = Callable[[torch.nn.Module, World, Precision], Engine]


def run_training(settings: Training, step_name: str, new_engine: EngineFactory) -> int:
    """Train; gives the step's exit code. What can be checked without the other ranks is checked before they meet."""
    stop_request = StopRequest(Path(settings.stop_file) if settings.stop_file else None)
    manifest = read_manifest(settings.data)
    variables = read_rank_variables(os.environ)
    batch = divide_batch(settings.global_batch_size, settings.micro_batch_size, variables.world_size)
    task_settings = TaskSettings(settings.model_type, settings.model_overrides, settings.label_smoothing)
    task = find_task(settings.task)(manifest, task_settings)
    require_writable((settings.model, settings.checkpoints, settings.metrics), variables.rank)
    with lost_connections_explained(variables.rank), join_world(settings.process_group_timeout_seconds) as world:
        world.say(banner(world.device, world.size))
        run = _put_together(settings, step_name, new_engine, world, task, manifest, batch, stop_request)
        return _train_and_save(run)


def _put_together(
    settings: Training,
    step_name: str,
    new_engine: EngineFactory,
    world: World,
    task: Task,
    manifest: Manifest,
    batch: BatchArithmetic,
    stop_request: StopRequest,
) -> TrainingRun:
    if settings.deterministic:
        ask_for_determinism()
    train_split = SplitReader(settings.data, manifest, "train")
    plan = TrainingPlan(train_split.samples, batch, settings.epochs, settings.max_steps)
    precision = Precision(settings.precision, world.device)
    seed_everything(settings.seed)
    engine = new_engine(task.new_model(), world, precision)
    # The weights come from the seed alone; what ranks draw while training must differ from rank to rank.
    seed_everything(settings.seed + world.rank)

    checkpoints = Checkpoints(settings.checkpoints, world, settings.keep_checkpoints, _identity(settings, manifest))
    chosen = checkpoints.choose(settings.resume)
    progress = Progress() if chosen is None else checkpoints.load(chosen, engine, settings.seed)

    record = _settings_record(settings, step_name, batch, engine)
    _say_what_will_be_done(world, plan, record, chosen, progress)
    recorder = Recorder(world, settings.metrics, record, settings.log_every_steps)
    recorder.begin(progress.step, {**record["settings"], **dataclasses.asdict(batch)})
    has_validation = "validation" in manifest.splits
    return TrainingRun(
        settings=settings,
        world=world,
        task=task,
        plan=plan,
        engine=engine,
        precision=precision,
        batches=TrainingBatches(train_split, plan, settings.seed, world.rank, progress.step, world.device),
        schedule=WarmupThenCosine(settings.learning_rate, plan.total_steps, settings.warmup_fraction),
        checkpoints=checkpoints,
        recorder=recorder,
        guard=NonfiniteGuard(settings.nonfinite_steps_limit, progress.skipped_steps),
        stop_request=stop_request,
        validation_split=SplitReader(settings.data, manifest, "validation") if has_validation else None,
        progress=progress,
    )


def _train_and_save(run: TrainingRun) -> int:
    started, steps_before = time.monotonic(), run.progress.step
    is_complete = False
    try:
        _warm_up(run)
        is_complete = train(run)
        if is_complete:
            _save_model(run)
    finally:
        run.batches.close()
        run.recorder.close(failed=not is_complete)
    seconds = time.monotonic() - started
    if not is_complete:
        reasons = {reason for reason in run.world.gather(run.stop_request.reason) if reason}
        run.world.say(
            f"stopped after step {run.progress.step} of {run.plan.total_steps} because of "
            f"{' and '.join(sorted(reasons))}; its checkpoint is committed, and the same command goes on from there"
        )
        return STOPPED_EXIT_CODE
    figures = "".join(f", validation {name} {value:.4f}" for name, value in run.last_validation.items())
    run.world.say(f"trained {run.progress.step - steps_before} steps in {seconds:.1f} s{figures}; {run.settings.model}")
    return 0


def _warm_up(run: TrainingRun) -> None:
    """Let the engine settle on one sample, which every rank has, and leave the random generators where they were."""
    sample = run.batches.first_sample()
    state = random_state(run.world.device)

    def loss() -> torch.Tensor:
        with run.precision.autocast():
            return run.task.loss(run.engine.model, sample) * 0.0

    run.engine.warm_up(loss)
    restore_random_state(state, run.world.device)


def _save_model(run: TrainingRun) -> None:
    run.engine.align_ranks()
    model = run.engine.whole_model()
    if run.world.is_main:
        run.task.save_model(model, run.settings.model)
    run.world.wait_for_all()


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


def _settings_record(settings: Training, step_name: str, batch: BatchArithmetic, engine: Engine) -> dict[str, Any]:
    values = dataclasses.asdict(settings)
    return {
        "format": "trainyard.settings/1",
        "step": step_name,
        "settings": {name: str(value) if isinstance(value, Path) else value for name, value in values.items()},
        **dataclasses.asdict(batch),
        "model_parameters": sum(parameter.numel() for parameter in engine.whole_model().parameters()),
        "versions": installed_versions(),
    }


def _say_what_will_be_done(
    world: World, plan: TrainingPlan, record: Mapping[str, Any], chosen: Path | None, progress: Progress
) -> None:
    world.say(f"{plan.batch}")
    world.say(
        f"{record['model_parameters']:,} parameters; {plan.samples} training samples, {plan.steps_per_epoch} steps per "
        f"epoch, {plan.total_steps} steps"
    )
    if chosen is not None:
        world.say(f"continuing from {chosen}: step {progress.step}, {progress.samples_consumed} samples consumed")
    if progress.step >= plan.total_steps:
        world.say("nothing is left to train; the model is saved again")
