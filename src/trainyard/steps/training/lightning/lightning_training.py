"""From settings to a model trained by Lightning: the same as other trainings, but for the loop."""

from __future__ import annotations

import logging
import warnings
from dataclasses import replace
from typing import Literal

import numpy as np
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import ParallelStrategy
from lightning.pytorch.utilities.model_helpers import is_overridden

from trainyard.settings.batch_arithmetic import BatchArithmetic
from trainyard.settings.steps.training import TrainLightning
from trainyard.steps.runtime.errors import SetupError, StepError
from trainyard.steps.runtime.flags import GivenSettings
from trainyard.steps.runtime.rank_variables import RankVariables
from trainyard.steps.runtime.world import World
from trainyard.steps.training.engines.engine import Engine
from trainyard.steps.training.lightning.lightning_engine import LightningEngine
from trainyard.steps.training.lightning.strategies import KnownRanks, ReplicatedStrategy, ShardedStrategy
from trainyard.steps.training.lightning.trainer_parts import BetweenSteps, PlannedLoader, TaskModule, ValidationShare
from trainyard.steps.training.lightning.user_data import UserBatches, choose_data
from trainyard.steps.training.lightning.user_module import choose_module
from trainyard.steps.training.loop import TrainingRun, may_begin
from trainyard.steps.training.request import CheckedRequest, check_request
from trainyard.steps.training.run_training import run_training
from trainyard.steps.training.samples.batches import as_tensors
from trainyard.steps.training.samples.plan import TrainingPlan
from trainyard.steps.training.stopping import StopRequest

_PRECISIONS: dict[str, Literal["32-true", "bf16-mixed", "16-mixed"]] = {
    "fp32": "32-true",
    "bf16": "bf16-mixed",
    "fp16": "16-mixed",
}
"""Lightning's names. A task's own forward pass casts by itself."""


def run_lightning(given: GivenSettings[TrainLightning], stop_request: StopRequest) -> int:
    """Train and save the model. Return the step's exit code, as `run_training` does."""
    return run_training(given, "train_lightning", LightningEngine, stop_request, train_with_lightning, _check)


def _check(
    given: GivenSettings[TrainLightning],
    step_name: str,
    engine_class: type[Engine],
    world_size: int,
) -> CheckedRequest:
    """Do as `check_request`, also for a LightningModule in place of a task and a LightningDataModule of datasets."""
    settings = given.step
    if settings.module is None and settings.module_arguments is not None:
        raise StepError("--module-arguments is given without --module, whose arguments they are")
    if settings.strategy == "fsdp2" and settings.module is None:
        raise StepError("--strategy fsdp2 is for a LightningModule of your own (--module); train_fsdp shards tasks")
    if settings.strategy == "fsdp2" and settings.precision == "fp16":
        raise StepError("--strategy fsdp2 does not work with --precision fp16 in Lightning; use bf16 or fp32")
    if settings.data_module is None and settings.data_module_arguments is not None:
        raise StepError("--data-module-arguments is given without --data-module, whose arguments they are")
    if settings.data_module is not None and settings.module is None:
        raise StepError(
            "--data-module is for a LightningModule of your own (--module); tasks read what a prepare step wrote"
        )
    module = None if settings.module is None else choose_module(settings.module, given)
    data = None if settings.data_module is None else choose_data(settings.data_module, settings)
    return check_request(given, step_name, engine_class, world_size, module, data)


def train_with_lightning(run: TrainingRun) -> bool:
    """Let Lightning take every step that is left. Return False if the training was asked to stop before its end."""
    engine, world = run.engine, run.world
    assert isinstance(engine, LightningEngine)
    loader = PlannedLoader(run)
    own = engine.model if isinstance(engine.model, LightningModule) else None
    module = own or TaskModule(run, loader)
    validation = None if own is None else _validation_of(own, run)
    if own is not None:
        run.validation.split = None  # Lightning validates
    checkpoint = engine.checkpoint_io.checkpoint
    if checkpoint is not None:
        module.load_state_dict(checkpoint["state_dict"])  # for what an earlier attempt left undone
        # Counters by which Lightning knows a step's last micro-batch: a step may have had more or fewer of them.
        counters = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]["current"]
        difference = loader.micro_batches_until(run.progress.step) - counters["ready"]
        counters.update({name: count + difference for name, count in counters.items()})
    if not may_begin(run):
        return False
    if run.progress.step >= run.plan.total_steps or run.validation.ends(run.progress):
        return True
    between_steps = BetweenSteps(run, loader)
    for name in ("lightning.pytorch", "lightning.fabric"):  # on every rank they log what this step logs itself
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"lightning\.")
    trainer = Trainer(
        accelerator="gpu" if world.device.type == "cuda" else "cpu",
        devices=_variables_of_trainer(world).processes_per_node,
        num_nodes=_variables_of_trainer(world).node_count,
        strategy=_strategy(run, engine),
        plugins=[engine.checkpoint_io],
        callbacks=[between_steps],
        # With a limit of steps, Lightning would not resume at the end of an epoch; the callback stops at the last step.
        max_epochs=run.settings.epochs,
        accumulate_grad_batches=run.plan.batch.accumulation_steps,
        precision="32-true" if own is None else _PRECISIONS[run.settings.precision],
        gradient_clip_val=None if own is None else run.settings.gradient_clip_norm or None,
        # The samples are divided among the ranks already; the callback evaluates tasks, saves and records.
        use_distributed_sampler=False,
        limit_val_batches=0 if validation is None else 1.0,
        # 0 evaluates only at the end.
        check_val_every_n_epoch=run.settings.evaluate_every_epochs or run.settings.epochs,
        num_sanity_val_steps=0,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    engine.trainer = trainer
    resumed = None if checkpoint is None else "the chosen one"
    try:
        if isinstance(run.batches, UserBatches):
            data_module = run.batches.data.module
            data_module.planned = loader, validation
            trainer.fit(module, datamodule=data_module, ckpt_path=resumed)
        else:
            trainer.fit(module, loader, validation, ckpt_path=resumed)
    except MisconfigurationException as failure:
        raise SetupError(f"Lightning: {' '.join(str(failure).split())}") from None
    return not between_steps.is_stopped


def _validation_of(module: LightningModule, run: TrainingRun) -> ValidationShare | None:
    """Return this rank's share of the samples, or None if there are none, or the module has no validation_step."""
    split = run.validation.split
    if split is None or not is_overridden("validation_step", module):
        return None
    # As many pieces as every other rank's. One without samples repeats one, as Lightning's own sampler does: a mean
    # over none would be NaN for all ranks.
    batch = BatchArithmetic(split.samples, run.settings.micro_batch_size, 1, run.world.size)
    plan = TrainingPlan(split.samples, batch, epochs=1)
    pieces = [np.arange(each.start, each.stop) for each in plan.micro_batches(plan.step(1), run.world.rank)]
    if isinstance(run.batches, UserBatches):
        loader = run.batches.validation(pieces)
        return ValidationShare(len(pieces), lambda: (batch for _, batch in loader))
    return ValidationShare(len(pieces), lambda: (as_tensors(split.gather(each), pin=False) for each in pieces))


def _strategy(run: TrainingRun, engine: LightningEngine) -> ParallelStrategy:
    ranks = KnownRanks(_variables_of_trainer(run.world))
    if engine.is_sharded:
        return ShardedStrategy(ranks)
    return ReplicatedStrategy(
        cluster_environment=ranks,
        gradient_as_bucket_view=True,
        find_unused_parameters=engine.unused_parameters,
    )


def _variables_of_trainer(world: World) -> RankVariables:
    """Return where Lightning is to look for this rank: on a node of its own if it sees no GPU but its own."""
    variables = world.variables
    if world.device.index in (None, variables.local_rank):
        return variables
    return replace(variables, local_rank=0, node_count=variables.world_size)
