"""Trainyard's whole training loop over batches in memory, for comparison with other loops.

It runs with its defaults: metrics.jsonl, loss, guards, stop agreement, stop file, hang watch. Reading a dataset
(benchmarks/batches.py) and checkpoints (benchmarks/checkpoint_stall.py) are measured elsewhere.
"""

from __future__ import annotations

import gc
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from trainyard.settings.batch_arithmetic import divide_batch
from trainyard.settings.steps.training import TrainDDP
from trainyard.steps.runtime.rank_variables import read_rank_variables
from trainyard.steps.runtime.world import World
from trainyard.steps.training.agreement import Agreement
from trainyard.steps.training.checkpoints.checkpoints import Checkpoints
from trainyard.steps.training.engines.engine import Engine, EngineParts
from trainyard.steps.training.engines.replicas import DDPEngine
from trainyard.steps.training.loop import TrainingRun, train
from trainyard.steps.training.observing.hang_watch import HangWatch
from trainyard.steps.training.observing.measures import StepGuards, StepMeasures, Work
from trainyard.steps.training.observing.observer import TrainingObserver
from trainyard.steps.training.observing.recorder import Recorder
from trainyard.steps.training.optimizer import OptimizerSettings
from trainyard.steps.training.precision import Precision
from trainyard.steps.training.randomness import seed_everything
from trainyard.steps.training.samples.batches import Batches, MicroBatch, Tensors
from trainyard.steps.training.samples.plan import Progress, Step, TrainingPlan
from trainyard.steps.training.stopping import StopRequest
from trainyard.steps.training.tasks.task import Task
from trainyard.steps.training.validation import Validation

Loop = Callable[[Iterator[Tensors]], None]
"""Takes a step for each batch."""

_PAUSE_SECONDS = 0.005
"""Batches in memory are there at once."""


@dataclass
class Timing:
    """Feeds a loop its batches, and measures windows of steps; it waits for the device between windows only."""

    device: torch.device
    warm_up_steps: int
    steps_per_window: int
    windows: int
    seconds: list[float] = field(default_factory=list)
    """Of a step, for each window."""

    def batches(self, some: Iterable[Tensors]) -> Iterator[Tensors]:
        """Yield these batches again and again, for warm-up and for all windows."""
        again = itertools.cycle(some)
        yield from itertools.islice(again, self.warm_up_steps)
        for _ in range(self.windows):
            started = self._now()
            yield from itertools.islice(again, self.steps_per_window)
            self.seconds.append((self._now() - started) / self.steps_per_window)

    def step_seconds(self) -> float:
        """Seconds per step of the median window."""
        return statistics.median(self.seconds)

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def free_memory(device: torch.device) -> None:
    """Give back what ended loops held, compiled code too."""
    gc.collect()
    torch._dynamo.reset()
    if device.type == "cuda":
        torch.cuda.empty_cache()


class InMemoryTask(Task):
    """A model and its loss, without a dataset."""

    def __init__(self, new_model: Callable[[], torch.nn.Module], tokens: int | None = None) -> None:
        self._new_model, self._tokens, self.settings = new_model, tokens, self.Settings()

    @property
    def tokens_per_sample(self) -> int | None:
        return self._tokens

    def new_model(self) -> torch.nn.Module:
        return self._new_model()

    def measure(self, model: torch.nn.Module, batch: Tensors) -> dict[str, torch.Tensor]:
        raise AssertionError("nothing is evaluated here")


class _BatchesInMemory:
    """`resume` is called after each pause, in which other loops had their turn: it is no part of a step."""

    wait_seconds = 0.0

    def __init__(self, plan: TrainingPlan, batches: Iterable[Tensors], resume: Callable[[], None]) -> None:
        self._plan, self._batches, self._resume = plan, batches, resume

    def __iter__(self) -> Iterator[tuple[Step, list[MicroBatch]]]:
        asked = time.perf_counter()
        for number, tensors in enumerate(self._batches, start=1):
            if time.perf_counter() - asked > _PAUSE_SECONDS:
                self._resume()
            sample_ids = np.arange(len(next(iter(tensors.values()))))
            yield self._plan.step(number), [MicroBatch(tensors, sample_ids, is_stand_in=False, is_last=True)]
            asked = time.perf_counter()


def whole_loop(
    task: Task,
    world: World,
    folder: Path,
    stop_request: StopRequest,
    work: Work | None = None,
    *,
    engine_class: type[Engine] = DDPEngine,
    train_to_the_end: Callable[[TrainingRun], bool] = train,
    **settings: Any,
) -> Loop:
    """The loop of `train_ddp`, or of a step with another engine, writing its metrics into a folder."""
    nowhere = dict.fromkeys(("data", "model", "checkpoints"), folder)
    config = TrainDDP(**nowhere, metrics=folder, checkpoint_every_steps=0, **settings)
    assert torch.are_deterministic_algorithms_enabled() == config.deterministic, "all loops, or none"
    folder.mkdir(parents=True, exist_ok=True)
    batch = divide_batch(config.global_batch_size, config.micro_batch_size, world.size)
    plan = TrainingPlan(10**9 * batch.global_batch_size, batch, epochs=1)
    precision = Precision(config.precision, world.device)
    seed_everything(0)
    optimizer = OptimizerSettings.of(config, task.settings)
    engine = engine_class(EngineParts(task.new_model, config, optimizer, batch, world))
    engine.model.train()
    checkpoints = Checkpoints(config.checkpoints, world, {})
    recorder = Recorder(world, config.metrics, config.log_every_steps, plan.total_steps)
    recorder.begin(0, {}, {})
    hang_watch = HangWatch(read_rank_variables(os.environ), config.process_group_timeout_seconds)

    def loop(batches: Iterator[Tensors]) -> None:
        hang_watch.start()
        observer = TrainingObserver(
            world=world,
            hang_watch=hang_watch,
            measures=StepMeasures(work or Work(), lambda: 0.0, lambda: checkpoints.stall_seconds),
            recorder=recorder,
            guards=StepGuards(config.nonfinite_steps_limit, config.loss_spike_factor),
        )
        train_to_the_end(
            TrainingRun(
                settings=config,
                task=task,
                plan=plan,
                engine=engine,
                precision=precision,
                batches=cast(Batches, _BatchesInMemory(plan, batches, observer.steps_begin)),
                agreement=Agreement(world),
                checkpoints=checkpoints,
                stop_request=stop_request,
                observer=observer,
                validation=Validation(config, task, None),
                progress=Progress(),
            )
        )
        hang_watch.close()

    return loop
