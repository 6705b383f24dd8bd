"""The one object through which the loop is watched: hang watch, clock, profiler, sample record, guards and records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from trainyard.steps.runtime.world import World
from trainyard.steps.training.agreed_step import AgreedStep
from trainyard.steps.training.observing.hang_watch import HangWatch
from trainyard.steps.training.observing.measures import StepMeasures
from trainyard.steps.training.observing.memory import memory_summary
from trainyard.steps.training.observing.profiler import StepProfiler
from trainyard.steps.training.observing.recorder import Recorder
from trainyard.steps.training.observing.sample_record import SampleRecord
from trainyard.steps.training.observing.step_clock import StepClock, StepMarks
from trainyard.steps.training.observing.unhealthy_steps import LossSpikes, NonfiniteGuard
from trainyard.steps.training.samples.batches import MicroBatch
from trainyard.steps.training.samples.plan import Step


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
    nonfinite_guard: NonfiniteGuard
    loss_spikes: LossSpikes
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

    def forward_begins(self) -> None:
        """Note that a micro-batch's forward pass begins."""
        self.hang_watch.reached(self._step_number, "forward pass")

    def backward_begins(self) -> None:
        """Note that a forward pass has ended and its backward pass begins."""
        self._clock.forward_ends()
        self.hang_watch.reached(self._step_number, "backward pass")

    def update_begins(self) -> None:
        """Note that the gradient is complete and the optimizer begins."""
        self.hang_watch.reached(self._step_number, "optimizer step")

    def step_ends(self) -> StepMarks:
        """Note that the optimizer has stepped. Return the step's moments."""
        self.hang_watch.reached(self._step_number, "waiting for the other ranks or the next batch")
        if self.profiler is not None:
            self.profiler.step_ends(self._step_number)
        return self._clock.step_ends()

    def begins(self, work: str) -> None:
        """Note that something other than a step begins, such as an evaluation."""
        self.hang_watch.reached(self._step_number, work)

    def still_at_work(self) -> None:
        """Note progress within that work."""
        self.hang_watch.still_at_work()

    def long_work(self, work: str) -> AbstractContextManager[None]:
        """Return a context for work in which a rank is silent for long, such as saving a checkpoint."""
        return self.hang_watch.long_work(work, self._step_number)

    def check(self, agreed: AgreedStep) -> None:
        """Measure and check a step that all ranks have agreed on. StepError if continuing makes no sense."""
        self.measures.add(agreed)
        self.nonfinite_guard.observe(agreed)
        if warning := self.loss_spikes.observe(agreed):
            self.world.log(warning)

    def record(
        self, agreed: AgreedStep, validation: Mapping[str, float], *, failed_saves: int, always: bool = False
    ) -> None:
        """Record the step if it is one of those to record, or `always`."""
        counts = {
            "skipped_steps": self.nonfinite_guard.skipped_steps,
            "loss_spikes": self.loss_spikes.count,
            "failed_saves": failed_saves,
        }
        self.recorder.record(agreed, self.measures, counts, validation, always=always)
