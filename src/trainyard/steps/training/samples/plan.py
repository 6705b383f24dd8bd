"""Which positions of the sample order each step and each rank takes, and how far a training has come."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from trainyard.settings.batch_arithmetic import BatchArithmetic


class Step(NamedTuple):
    """One optimizer step: positions start…stop-1 of its epoch's order. Steps and epochs count from 1."""

    number: int
    epoch: int
    start: int
    stop: int
    samples_consumed: int
    ends_epoch: bool
    is_last: bool

    @property
    def samples(self) -> int:
        """The number of samples over all ranks; fewer than a global batch only at an epoch's end."""
        return self.stop - self.start


@dataclass(frozen=True)
class Progress:
    """How far a training has come: what must be known, besides tensors, to continue. Epochs count from 1."""

    step: int = 0
    epoch: int = 1
    samples_consumed: int = 0
    skipped_steps: int = 0
    validated_step: int = 0
    """The last step after which the model was validated."""
    figure_to_beat: float | None = None
    """What a validation is compared with, to stop early where there is no progress."""
    idle_validations: int = 0
    """How many validations in a row have not beaten it."""

    def after(self, step: Step, skipped_steps: int) -> Progress:
        """Return the progress once a step is taken."""
        return replace(
            self,
            step=step.number,
            epoch=step.epoch,
            samples_consumed=step.samples_consumed,
            skipped_steps=skipped_steps,
        )


class MicroBatchRange(NamedTuple):
    """Positions that one rank takes at once. A stand-in keeps a rank without samples in step, and does not count."""

    start: int
    stop: int
    is_stand_in: bool
    is_last: bool


@dataclass(frozen=True)
class TrainingPlan:
    """Every epoch visits each sample exactly once; its last batch has what is left."""

    samples: int
    batch: BatchArithmetic
    epochs: int
    max_steps: int | None = None
    max_samples: int | None = None
    """The last step is the one in which so many samples have been taken."""

    @cached_property
    def steps_per_epoch(self) -> int:
        """The number of optimizer steps in an epoch."""
        return math.ceil(self.samples / self.batch.global_batch_size)

    @cached_property
    def total_steps(self) -> int:
        """The number of optimizer steps in the whole training."""
        limits = [self.epochs * self.steps_per_epoch]
        if self.max_steps is not None:
            limits.append(self.max_steps)
        if self.max_samples is not None:
            epochs, rest = divmod(self.max_samples, self.samples)
            limits.append(epochs * self.steps_per_epoch + math.ceil(rest / self.batch.global_batch_size))
        return min(limits)

    def step(self, number: int) -> Step:
        """Return step `number`, counted from 1."""
        epoch, step_of_epoch = divmod(number - 1, self.steps_per_epoch)
        start = step_of_epoch * self.batch.global_batch_size
        stop = min(start + self.batch.global_batch_size, self.samples)
        return Step(
            number=number,
            epoch=epoch + 1,
            start=start,
            stop=stop,
            samples_consumed=epoch * self.samples + stop,
            ends_epoch=stop == self.samples,
            is_last=number == self.total_steps,
        )

    def micro_batches(self, step: Step, rank: int) -> list[MicroBatchRange]:
        """Return one rank's part of a step, in as many pieces as every other rank's.

        Engines that communicate in each forward pass need equal numbers of pieces. In a small last batch some ranks may
        have no samples: they take the step's first sample as a stand-in, with weight zero.
        """
        largest_share = math.ceil(step.samples / self.batch.world_size)
        pieces = math.ceil(largest_share / self.batch.micro_batch_size)
        start, stop = even_part(step.samples, rank, self.batch.world_size)
        ranges = []
        for piece in range(pieces):
            piece_start, piece_stop = even_part(stop - start, piece, pieces)
            is_empty = piece_start == piece_stop
            ranges.append(
                MicroBatchRange(
                    start=step.start if is_empty else step.start + start + piece_start,
                    stop=step.start + 1 if is_empty else step.start + start + piece_stop,
                    is_stand_in=is_empty,
                    is_last=piece == pieces - 1,
                )
            )
        return ranges


def even_part(total: int, part: int, parts: int) -> tuple[int, int]:
    """Return the bounds of part `part` of `total` items cut into `parts` parts whose sizes differ by at most one."""
    return part * total // parts, (part + 1) * total // parts


class TokenCounts(NamedTuple):
    """What rows of tokens consist of, where that varies."""

    tokens: float = 0
    """Without padding."""
    predicted: float = 0
    """Those that a loss is computed of."""
    attended: float = 0
    """Pairs of tokens that may see each other: of each document, the square of its length."""


NO_TOKENS = TokenCounts()


def total_counts(counts: Iterable[TokenCounts]) -> TokenCounts:
    """Return the sums of each kind."""
    return TokenCounts(*map(sum, zip(NO_TOKENS, *counts, strict=True)))


class GpuUse(NamedTuple):
    """One rank's GPU at one moment: in which percentage of the time it just computed, if that is known, and how much
    memory is taken."""

    utilization_percent: float
    memory_bytes: float


class AgreedStep(NamedTuple):
    """A step as all ranks know it; all but `seconds` is the same on every rank."""

    step: Step
    learning_rate: float
    loss: float
    gradient_norm: float
    stop: bool
    """Whether any rank had been asked to stop when it had taken this step."""
    rank_own_seconds: list[float]
    """By rank, of the last step whose times that rank knew (0 before there is one), from its beginning to the end of
    the last forward pass: waiting for data and computing, before gradients are exchanged and a rank waits for the
    slowest. Engines that gather parameters in the forward pass wait there too."""
    seconds: float
    """On this rank, from the end of the step before (or of what came between, such as an evaluation) to its own."""
    counts: TokenCounts = NO_TOKENS
    """Of the step's samples; zeros where they do not vary."""
    rank_data_wait_seconds: Sequence[float] = ()
    """By rank, how long it has waited for samples since the training began; empty where ranks do not say."""
    rank_peak_bytes: Sequence[float] = ()
    """By rank, the peak of its memory so far; empty where ranks do not say."""
    rank_gpu_uses: Sequence[GpuUse] = ()
    """By rank, at most a second old; empty without GPUs."""

    @property
    def is_finite(self) -> bool:
        """Whether the step was taken. The engine skips it, on every rank, when the norm is not finite."""
        return math.isfinite(self.gradient_norm)
