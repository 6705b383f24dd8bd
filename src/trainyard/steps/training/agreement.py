"""What all ranks agree on at each step: one small reduction, started when the step is taken and read a step later.

In between, the next step is computed, so no rank waits for the reduction and no host for its device. Very short steps
share a reduction with their neighbours. Every rank starts and reads at the same steps, so all make the same decisions.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

import torch
import torch.distributed as dist

from trainyard.steps.runtime.world import World
from trainyard.steps.training.samples.plan import NO_TOKENS, AgreedStep, GpuUse, Step, TokenCounts

_LONG_OWN_SECONDS = 0.5
"""Above this, reading a step's agreement at once costs less than a thousandth of it, and stops take effect sooner."""
_REDUCE_EVERY_OWN_SECONDS = 0.02
"""Steps of less than half of this share a reduction, which wakes a thread on every rank."""
_MOST_STEPS_AT_ONCE = 32
_LOOK_EVERY_SECONDS = 1.0
Mark = float | torch.cuda.Event
"""A moment: on the host's clock, or an event in a GPU's stream of work."""


class LateSum:
    """The element-wise sum of a tensor over all ranks, started now and read later."""

    def __init__(self, values: torch.Tensor) -> None:
        work = dist.all_reduce(values, async_op=True)
        assert work is not None
        self._work, self._values = work, values
        self._copied: torch.cuda.Event | None = None
        if values.is_cuda:
            # On a separate stream, so that the training's stream does not wait for the other ranks here.
            with torch.cuda.stream(_copy_stream(values.device)):
                work.wait()
                self._on_host = values.to("cpu", non_blocking=True)
                self._copied = torch.cuda.Event()
                self._copied.record()

    def read(self) -> list[float]:
        """Wait for the sums and return them."""
        if self._copied is None:
            self._work.wait()
            return self._values.tolist()
        self._copied.synchronize()
        return self._on_host.tolist()


@functools.cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


class TakenStep(NamedTuple):
    """A step as one rank took it. Tensors are on the device, and nobody has waited for them."""

    step: Step
    learning_rate: float
    losses: list[torch.Tensor]
    """Of this rank's micro-batches, as many as every other rank's: each the sum of its terms."""
    loss_terms: float
    """How many this rank adds to those of the step."""
    gradient_norm: torch.Tensor
    """The same on every rank."""
    marks: StepMarks
    counts: TokenCounts = NO_TOKENS
    """Of this rank's samples."""


class Agreement:
    """Reduces what the ranks know of their steps, and returns the steps as agreed on, in order."""

    def __init__(self, world: World, data_wait_seconds: Callable[[], float] = lambda: 0.0) -> None:
        self._world, self._data_wait_seconds = world, data_wait_seconds
        self._taken: list[TakenStep] = []
        self._started: list[tuple[list[TakenStep], LateSum]] = []
        self._own_seconds = self._next_look = 0.0
        self._looked: tuple[float, ...] = ()
        """The peak of this rank's memory, and the use of its GPU."""
        self._steps_at_once = 1
        self.steps_are_long = False
        """Whether steps take so long that waiting for a step's own agreement costs next to nothing."""

    def next_step(self, taken: TakenStep, *, stop: bool) -> list[AgreedStep]:
        """Start to agree on a step that was just taken. Return earlier ones that are agreed on by now."""
        earlier, self._started = self._started, []
        self._taken.append(taken)
        if len(self._taken) >= self._steps_at_once:
            self._start(stop)
        return self._read(earlier)

    def all_steps(self, *, stop: bool) -> list[AgreedStep]:
        """Wait for all steps not returned before, up to the one just taken, and return them."""
        if self._taken:
            self._start(stop)
        started, self._started = self._started, []
        return self._read(started)

    def _start(self, stop: bool) -> None:
        steps, self._taken = self._taken, []
        if (now := time.monotonic()) >= self._next_look:
            # Asked once a second, of the system or the GPU's driver: very short steps would notice it at each.
            self._looked = (float(self._world.peak_memory_bytes()), *self._world.gpu_use())
            self._next_look = now + _LOOK_EVERY_SECONDS
        figures = (self._own_seconds, self._data_wait_seconds(), *self._looked)
        of_ranks = [0.0] * len(figures) * self._world.size
        of_ranks[self._world.rank :: self._world.size] = figures
        is_cuda = self._world.device.type == "cuda"
        counts = [number for taken in steps for number in (taken.loss_terms, *taken.counts)]
        from_host = torch.tensor([stop, *of_ranks, *counts], dtype=torch.float64, pin_memory=is_cuda)
        losses = torch.stack([loss for taken in steps for loss in taken.losses])
        # The norm is the same everywhere: one rank contributes it, the others add zero.
        norms = torch.stack([taken.gradient_norm for taken in steps])
        contributed = norms if self._world.is_main else torch.zeros_like(norms)
        values = torch.cat([from_host.to(self._world.device, non_blocking=True), losses, contributed])
        self._started.append((steps, LateSum(values)))

    def _read(self, started: list[tuple[list[TakenStep], LateSum]]) -> list[AgreedStep]:
        agreed = []
        for steps, reduction in started:
            numbers = iter(reduction.read())
            stopping_ranks = next(numbers)
            of_ranks = [list(islice(numbers, self._world.size)) for _ in range(2 + len(self._looked))]
            own_seconds, waits, peaks, *gpus = of_ranks
            gpu_uses = [GpuUse(*use) for use in zip(*gpus, strict=True)]
            counted = [(next(numbers), TokenCounts._make(islice(numbers, len(NO_TOKENS)))) for _ in steps]
            loss_sums = [sum(islice(numbers, len(taken.losses))) for taken in steps]
            # Chosen from what is the same on every rank: the slowest rank's seconds.
            if (slowest := max(own_seconds)) > 0:
                self.steps_are_long = slowest > _LONG_OWN_SECONDS
                self._steps_at_once = max(1, min(_MOST_STEPS_AT_ONCE, int(_REDUCE_EVERY_OWN_SECONDS / slowest)))
            for taken, (terms, counts), loss_sum, norm in zip(steps, counted, loss_sums, numbers, strict=True):
                # On a GPU the marks can be read only now, since the reduction comes after them on the device.
                seconds, self._own_seconds = taken.marks.seconds()
                agreed.append(
                    AgreedStep(
                        step=taken.step,
                        learning_rate=taken.learning_rate,
                        loss=loss_sum / max(1.0, terms),
                        gradient_norm=norm,
                        stop=stopping_ranks > 0,
                        rank_own_seconds=own_seconds,
                        seconds=seconds,
                        counts=counts,
                        rank_data_wait_seconds=waits,
                        rank_peak_bytes=peaks,
                        rank_gpu_uses=gpu_uses,
                    )
                )
        return agreed


class StepMarks(NamedTuple):
    """The moments of one step."""

    begun: Mark
    forward_ended: Mark
    ended: Mark

    def seconds(self) -> tuple[float, float]:
        """Return the step's seconds, and those up to its last forward pass's end, once a GPU has passed the marks."""
        return _seconds_between(self.begun, self.ended), _seconds_between(self.begun, self.forward_ended)


class StepClock:
    """Marks moments: with the host's clock on a CPU, with events on a GPU, where the host runs ahead."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._begun = self._forward_ended = self.now()

    def now(self) -> Mark:
        """Return a mark of this moment on the device."""
        if not self._is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def resume(self) -> None:
        """Let the next step begin now: start-up, evaluation or a checkpoint before it do not count."""
        self._begun = self.now()

    def forward_ends(self) -> None:
        """Mark the end of a forward pass; the last one of a step counts."""
        self._forward_ended = self.now()

    def step_ends(self) -> StepMarks:
        """Mark the end of a step, which is the beginning of the next. Return its marks."""
        marks = StepMarks(self._begun, self._forward_ended, self.now())
        self._begun = marks.ended
        return marks


def _seconds_between(first: Mark, second: Mark) -> float:
    if isinstance(first, torch.cuda.Event):
        assert isinstance(second, torch.cuda.Event)
        return float(first.elapsed_time(second)) / 1000
    assert isinstance(second, float)
    return second - first
