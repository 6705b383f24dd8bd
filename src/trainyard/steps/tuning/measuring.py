"""One trial: a few steps of a training with a candidate's settings, timed."""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch.distributed.distributed_c10d import _get_default_store

from trainyard.settings.files import file_sha256
from trainyard.settings.steps.measurements import MeasureConfig
from trainyard.settings.steps.training import TrainDeepSpeed
from trainyard.settings.written_settings import Candidate, read_candidate
from trainyard.steps.runtime.errors import STOPPED_EXIT_CODE, StepError, is_out_of_memory
from trainyard.steps.runtime.files import require_writable
from trainyard.steps.runtime.flags import GivenSettings
from trainyard.steps.runtime.meeting import PrefixStore
from trainyard.steps.runtime.world import World
from trainyard.steps.training.engines.deepspeed_config import read_config_file
from trainyard.steps.training.engines.deepspeed_engine import DeepSpeedEngine
from trainyard.steps.training.loop import TrainingRun, take_step
from trainyard.steps.training.observing.mlflow_log import MlflowLog
from trainyard.steps.training.request import CheckedRequest
from trainyard.steps.training.run_training import build_training, ranks_met, warm_up
from trainyard.steps.training.samples.plan import AgreedStep
from trainyard.steps.training.stopping import StopRequest
from trainyard.steps.tuning.measurement import MeasuredCandidate, Study, write_measurement

_KEY, _REPORTED, _LEFT = "out_of_memory", "reported", "left"
_LOOK_EVERY_SECONDS = 0.5
_WAIT_FOR_OTHERS_SECONDS = 60.0
"""Longer than MLflow's log may take to close."""


def measure_candidate(given: GivenSettings[MeasureConfig]) -> int:
    """Measure over all ranks; rank 0 writes and logs. Return the exit code: also 0 if a rank ran out of memory."""
    settings = given.step
    try:
        candidate = read_candidate(settings.candidate)
    except ValueError as error:
        raise StepError(f"--candidate: {error}") from None
    config_file = settings.deepspeed_configs / f"{candidate.config}.json"
    if not config_file.is_file():
        raise StepError(f"--candidate: no configuration {candidate.config!r}: {config_file} does not exist")
    stop_request = StopRequest()
    with tempfile.TemporaryDirectory() as scratch:
        training = GivenSettings(_training(settings, candidate, config_file, Path(scratch)), given.task)
        with ranks_met(training, "measure_config", DeepSpeedEngine) as (request, world, hang_watch):
            require_writable([settings.measurement], world.rank)
            trial = TrialReport(settings, candidate, request, world)

            def leave(rank: int) -> None:
                trial.end(MeasuredCandidate(candidate, 0.0, None, None), f"rank {rank} ran out of memory")

            with OutOfMemoryWatch(world, leave):
                with ExitStack() as opened:
                    request = request.base_model_read(world, hang_watch)
                    run = build_training(request, world, stop_request, hang_watch, opened)
                    warm_up(run)
                    steps = _take_steps(run)
                peak = max(world.gather(world.peak_memory_bytes()))
            if any(step.stop for step in steps):
                world.log("stopped before the measurement was complete; run the same command again")
                return STOPPED_EXIT_CODE
            measured = steps[settings.warmup_steps :]
            rate = statistics.median(agreed.step.samples / agreed.seconds for agreed in measured)
            seconds = statistics.median(agreed.seconds for agreed in measured)
            trial.end(
                MeasuredCandidate(candidate, rate, seconds, peak),
                f"{rate:.4g} samples/s, {seconds:.4g} s a step, peak memory {peak / 2**30:.2f} GiB",
            )
    return 0


class TrialReport:
    """What rank 0 reports: the study and the candidate when the trial begins, the measurement at its end."""

    def __init__(self, settings: MeasureConfig, candidate: Candidate, request: CheckedRequest, world: World) -> None:
        self._folder, self._world, self._candidate = settings.measurement, world, candidate
        self._study = _study(settings, request, world)
        self._config = read_config_file(settings.deepspeed_configs / f"{candidate.config}.json")
        # Now, so that a trial that is killed for memory by the operating system is known to have begun.
        self._mlflow = MlflowLog() if world.is_main else None
        if self._mlflow is not None:
            self._mlflow.parameters({"study": self._study.digest, "candidate": str(candidate)})

    def end(self, measurement: MeasuredCandidate, in_words: str) -> None:
        """Write and log what was measured."""
        if self._mlflow is not None:
            write_measurement(self._folder, self._study, measurement, self._config)
            self._mlflow.metrics(measurement.metrics(), 0)
            self._mlflow.close()
            print(f"{self._candidate}: {in_words}", flush=True)


def _training(settings: MeasureConfig, candidate: Candidate, config_file: Path, scratch: Path) -> TrainDeepSpeed:
    """Return the training that is measured. What it would leave goes into a folder that is removed."""
    steps = settings.warmup_steps + settings.steps
    return TrainDeepSpeed(
        data=settings.data,
        model=scratch / "model",
        checkpoints=scratch / "checkpoints",
        metrics=scratch / "metrics",
        deepspeed_config=config_file,
        task=settings.task,
        epochs=steps,
        max_steps=steps,
        global_batch_size=settings.global_batch_size,
        micro_batch_size=candidate.micro_batch_size,
        activation_checkpointing=candidate.activation_checkpointing,
        precision=settings.precision,
        matmul_precision=settings.matmul_precision,
        compile=settings.compile,
        fused_optimizer=settings.fused_optimizer,
        deterministic=settings.deterministic,
        seed=settings.seed,
        checkpoint_every_steps=0,
        resume="never",
        process_group_timeout_seconds=settings.process_group_timeout_seconds,
    )


def _take_steps(run: TrainingRun) -> list[AgreedStep]:
    """Return the steps with their times, all of them or as many as were taken before a rank was asked to stop."""
    steps: list[AgreedStep] = []
    run.observer.steps_begin()
    for step, micro_batches in run.batches:
        taken = take_step(run, step, micro_batches)
        steps += run.agreement.next_step(taken, stop=run.stop_request.is_raised())
        if steps and steps[-1].stop:
            break
    steps += run.agreement.all_steps(stop=run.stop_request.is_raised())
    run.observer.recorder.complete()
    return steps


def _study(settings: MeasureConfig, request: CheckedRequest, world: World) -> Study:
    gpu = torch.cuda.get_device_properties(world.device) if world.device.type == "cuda" else None
    device = "CPU" if gpu is None else gpu.name
    common: dict[str, Any] = {
        **{name: value for name, value in asdict(settings).items() if not isinstance(value, Path)},
        **request.chosen_task.values(),
        "dataset": request.data.first.digest(),
        "deepspeed_configs": {
            file.name: file_sha256(file) for file in sorted(settings.deepspeed_configs.glob("*.json"))
        },
        "world_size": world.size,
        "device": device,
        # The same for all jobs of a pipeline's run: what an earlier search has measured is not compared.
        "root_run": os.environ.get("AZUREML_ROOT_RUN_ID"),
    }
    del common["candidate"]
    digest = hashlib.sha256(json.dumps(common, sort_keys=True, default=str).encode()).hexdigest()[:16]
    memory = None if gpu is None else gpu.total_memory
    return Study(digest, settings.global_batch_size, world.size, device, memory)


class OutOfMemoryWatch:
    """A context in which running out of memory ends every rank with exit code 0, after `leave` with that rank's number.

    The others may be waiting in an exchange that nothing interrupts, so a thread of each looks in the store.
    """

    def __init__(self, world: World, leave: Callable[[int], None]) -> None:
        self._rank, self._size, self._leave = world.rank, world.size, leave
        default_store: Any = _get_default_store()  # torch's type of stores lacks `clone`
        self._store = PrefixStore("memory", default_store.clone())
        self._closed, self._ending = threading.Event(), threading.Lock()

    def __enter__(self) -> None:
        threading.Thread(target=self._look, name="memory-watch", daemon=True).start()

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        self._closed.set()
        if error is None:
            return
        if is_out_of_memory(error):
            self._store.set(_KEY, str(self._rank))
        # Whatever else went wrong may follow from a rank that has left.
        self._end_if_announced()

    def _look(self) -> None:
        while not self._closed.wait(_LOOK_EVERY_SECONDS):
            self._end_if_announced()

    def _end_if_announced(self) -> None:
        if not self._store.check([_KEY]):
            return
        self._ending.acquire()  # never released: two threads may come here, and one ends the process
        self._leave(int(self._store.get(_KEY)))
        # Rank 0 hosts the store, and reports before a connection of its own breaks: it is the last to leave.
        if self._rank == 0:
            self._store.set(_REPORTED, "yes")
            self._wait_for(lambda: self._store.add(_LEFT, 0) == self._size - 1)
        else:
            self._wait_for(lambda: self._store.check([_REPORTED]))
            self._store.add(_LEFT, 1)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def _wait_for(self, is_done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _WAIT_FOR_OTHERS_SECONDS
        while not is_done() and time.monotonic() < deadline:
            time.sleep(0.1)
