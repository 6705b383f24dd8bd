"""The one object through which the loop is watched: hang watch, clock, profiler, sample record, guards and records."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.world import UNKNOWN_PERCENT, World
from trainyard.steps.training.agreement import StepClock, StepMarks
from trainyard.steps.training.observing.hang_watch import HangWatch
from trainyard.steps.training.observing.measures import StepGuards, StepMeasures
from trainyard.steps.training.observing.recorder import Recorder, SampleRecord
from trainyard.steps.training.samples.batches import MicroBatch
from trainyard.steps.training.samples.plan import AgreedStep, GpuUse, Step

_GIB = 2**30
PROFILE_FOLDER = "profile"


@dataclass
class TrainingObserver:
    """Is told what the loop does next and the outcome of each step. It changes nothing, but may end a training that is
    not worth continuing.

    Every rank calls every method in the same order.
    """

    world: World
    hang_watch: HangWatch
    measures: StepMeasures
    recorder: Recorder
    guards: StepGuards
    profiler: StepProfiler | None = None
    sample_record: SampleRecord | None = None

    def __post_init__(self) -> None:
        self._clock = StepClock(self.world.device)
        self._step_number = 0
        self._memory_is_logged = False

    def steps_begin(self) -> None:
        """Note that the next step begins now: what came before (start-up, evaluation, a checkpoint) is not part of it.

        After the first step of a training, log the memory that it took.
        """
        if self._step_number and not self._memory_is_logged:
            self._memory_is_logged = True
            self.world.log(f"after the first step: {memory_summary(self.world)}")
        self._clock.resume()

    def step_begins(self, step: Step, micro_batches: Sequence[MicroBatch]) -> None:
        """Note which step is taken, of which samples."""
        self._step_number = step.number
        if self.profiler is not None:
            self.profiler.step_begins(step.number)
        if self.sample_record is not None:
            self.sample_record.write(step, micro_batches)

    def backward_begins(self) -> None:
        """Note that a forward pass has ended and its backward pass begins."""
        self._clock.forward_ends()
        self.hang_watch.reached(self._step_number, "backward pass")

    def step_ends(self) -> StepMarks:
        """Note that the optimizer has stepped. Return the step's moments."""
        self.hang_watch.reached(self._step_number, "waiting for the other ranks or the next batch")
        if self.profiler is not None:
            self.profiler.step_ends(self._step_number)
        return self._clock.step_ends()

    def begins(self, work: str) -> None:
        """Note what begins: a part of a step, or something else, such as an evaluation."""
        self.hang_watch.reached(self._step_number, work)

    def long_work(self, work: str) -> AbstractContextManager[None]:
        """Return a context for work in which a rank is silent for long, such as saving a checkpoint."""
        return self.hang_watch.long_work(work, self._step_number)

    def check(self, agreed: AgreedStep) -> None:
        """Measure and check a step that all ranks have agreed on. StepError if continuing makes no sense."""
        self.measures.add(agreed)
        if warning := self.guards.observe(agreed):
            self.world.log(warning)

    def record(
        self, agreed: AgreedStep, validation: Mapping[str, float], *, failed_saves: int, always: bool = False
    ) -> None:
        """Record the step if it is one of those to record, or `always`."""
        self.recorder.record(
            agreed,
            self.measures,
            self.guards,
            validation,
            failed_saves=failed_saves,
            always=always,
            more_figures=lambda: figures_of_nodes(agreed.rank_gpu_uses, self.world.variables.processes_per_node),
        )


def memory_summary(world: World) -> str:
    """Return the highest peak of all ranks in words. Every rank calls it."""
    device = world.device
    reserved_bytes = torch.cuda.max_memory_reserved(device) if device.type == "cuda" else 0
    peaks = world.gather((world.peak_memory_bytes(), reserved_bytes))
    peak_bytes, reserved_bytes = max(peaks)
    rank = peaks.index((peak_bytes, reserved_bytes))
    text = f"peak memory {peak_bytes / _GIB:.2f} GiB on rank {rank}, the highest of all"
    if device.type != "cuda":
        return text
    total_bytes = torch.cuda.get_device_properties(device).total_memory
    return f"{text}; {reserved_bytes / _GIB:.2f} GiB reserved, of {total_bytes / _GIB:.0f} GiB"


def figures_of_nodes(uses: Sequence[GpuUse], per_node: int) -> dict[str, float]:
    """Return the mean utilization of each node's GPUs, where any is known, and the memory of its fullest one."""
    figures: dict[str, float] = {}
    for node, first in enumerate(range(0, len(uses), per_node)):
        of_node = uses[first : first + per_node]
        if known := [use.utilization_percent for use in of_node if use.utilization_percent != UNKNOWN_PERCENT]:
            figures[f"node_{node}_gpu_utilization_percent"] = statistics.mean(known)
        figures[f"node_{node}_gpu_memory_bytes"] = max(use.memory_bytes for use in of_node)
    return figures


def parse_profile_steps(text: str | None) -> range | None:
    """Return the steps that A:B names, or None for None. StepError if invalid."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+):(\d+)", text.strip())
    if match is None:
        raise StepError(f"--profile-steps {text!r}: expected A:B, such as 10:12 for steps 10 to 12")
    first, last = int(match[1]), int(match[2])
    if first < 1 or last < first:
        raise StepError(f"--profile-steps {text}: steps count from 1, and the last must not be before the first")
    return range(first, last + 1)


class StepProfiler:
    """Profiles some steps of one rank. A training that resumes after them writes no trace."""

    def __init__(self, steps: range, folder: Path, rank: int, device: torch.device) -> None:
        self._steps, self._device = steps, device
        self._file = folder / PROFILE_FOLDER / f"rank-{rank:05d}.json"
        self._profile: profile | None = None
        self._step: record_function | None = None

    def step_begins(self, number: int) -> None:
        """Start profiling if the step is one of those to profile."""
        if number not in self._steps:
            return
        if self._profile is None:
            activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (self._device.type == "cuda")
            self._profile = profile(activities=activities)
            self._profile.start()
        self._step = record_function(f"step {number}")
        self._step.__enter__()

    def step_ends(self, number: int) -> None:
        """Write the trace after the last of the steps."""
        if self._step is None:
            return
        self._step.__exit__(None, None, None)
        self._step = None
        if number == self._steps[-1]:
            self.close()

    def close(self) -> None:
        """Write the trace, if the steps have begun."""
        if self._profile is None:
            return
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        running, self._profile = self._profile, None
        running.stop()
        self._file.parent.mkdir(parents=True, exist_ok=True)
        running.export_chrome_trace(str(self._file))
        print(f"steps {self._steps[0]} to {self._steps[-1]} traced: {self._file}", flush=True)
