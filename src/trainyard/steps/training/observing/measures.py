"""How fast a training is, what it waits for and how much memory it needs, between two lines of metrics.jsonl; and
guards against steps that make no sense: not finite, or loss spikes.

docs/metrics.md explains each figure.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.samples.plan import NO_TOKENS, AgreedStep, TokenCounts, total_counts

_PERCENTILES = (50, 90, 99)
_MOST_RANKS_LISTED = 16
"""Each rank is a figure of every line, in MLflow too."""
_MEAN_OVER_STEPS = 50
_STEPS_BEFORE_WARNING = 10
"""The first losses of a training fall too fast for their mean to be meaningful."""


@dataclass(frozen=True)
class ModelFlops:
    """What training a model takes: FLOPs per sample, or per token and per pair of tokens that may see each other."""

    per_sample: float = 0.0
    per_token: float = 0.0
    per_pair: float = 0.0


@dataclass(frozen=True)
class Work:
    """What a sample consists of and costs, for rates. None where it does not apply."""

    tokens_per_sample: int | None = None
    """With padding."""
    flops: ModelFlops | None = None
    peak_flops_per_second: float | None = None
    """Of all ranks together."""
    tokens_vary: bool = False
    """Whether a sample may have padding, and documents that do not see each other: each step counts its own."""


class StepMeasures:
    """Collects steps; `window` returns the figures since it was last called, `whole` those of all steps."""

    def __init__(
        self, work: Work, data_wait_seconds: Callable[[], float], checkpoint_stall_seconds: Callable[[], float]
    ) -> None:
        self._work = work
        self._data_wait_seconds = _Difference(data_wait_seconds)
        self._checkpoint_stall_seconds = _Difference(checkpoint_stall_seconds)
        self._step_seconds = array("d")
        self._window_start = 0
        self._samples = 0
        self._counts = NO_TOKENS
        self._rank_seconds: list[float] = []
        self._rank_waits: Sequence[float] = ()
        self._rank_waits_before: Sequence[float] = ()
        self._rank_peaks: Sequence[float] = ()

    def add(self, agreed: AgreedStep) -> None:
        """Count a step."""
        self._step_seconds.append(agreed.seconds)
        self._samples += agreed.step.samples
        self._counts = total_counts([self._counts, self._counts_of(agreed)])
        before = self._rank_seconds or [0.0] * len(agreed.rank_own_seconds)
        self._rank_seconds = [sum(both) for both in zip(before, agreed.rank_own_seconds, strict=True)]
        self._rank_waits, self._rank_peaks = agreed.rank_data_wait_seconds, agreed.rank_peak_bytes

    def window(self) -> dict[str, float | int]:
        """Return the figures of the steps since the last call, of which there is at least one."""
        window = self._step_seconds[self._window_start :]
        seconds, steps = sum(window), len(window)
        figures: dict[str, float | int] = {
            "step_seconds": seconds / steps,
            **percentiles("step_seconds", window),
            **self._rates(seconds),
            "data_wait_seconds": self._data_wait_seconds() / steps,
            "checkpoint_stall_seconds": self._checkpoint_stall_seconds(),
            **_slowest_and_fastest([rank_seconds / steps for rank_seconds in self._rank_seconds]),
            **self._longest_wait(steps),
            **_highest("peak_memory", "bytes", self._rank_peaks),
        }
        self._window_start, self._samples, self._rank_seconds = len(self._step_seconds), 0, []
        self._counts = NO_TOKENS
        return figures

    def _longest_wait(self, steps: int) -> dict[str, float | int]:
        before = self._rank_waits_before or [0.0] * len(self._rank_waits)
        waits = [(now - then) / steps for now, then in zip(self._rank_waits, before, strict=True)]
        self._rank_waits_before = self._rank_waits
        return _highest("longest_data_wait", "seconds", waits)

    def whole(self) -> dict[str, float | int]:
        """Return percentiles over all steps so far."""
        return percentiles("run_step_seconds", self._step_seconds)

    def summary(self, whole_seconds: float) -> str:
        """Return in words how long the steps took so far, and which part of all time was spent waiting."""
        seconds = [f"{seconds:.4f}" for seconds in self.whole().values()]
        return (
            f"step seconds p50 {seconds[0]}, p90 {seconds[1]}, p99 {seconds[2]}; waited "
            f"{self._data_wait_seconds.total() / whole_seconds:.1%} of the time for data and "
            f"{self._checkpoint_stall_seconds.total() / whole_seconds:.1%} for checkpoints"
        )

    def _counts_of(self, agreed: AgreedStep) -> TokenCounts:
        length, samples = self._work.tokens_per_sample, agreed.step.samples
        if length is None or self._work.tokens_vary:
            return agreed.counts
        return TokenCounts(samples * length, samples * length, samples * length**2)

    def _rates(self, seconds: float) -> dict[str, float]:
        work, counts, rates = self._work, self._counts, {"samples_per_second": self._samples / seconds}
        if work.tokens_per_sample is not None:
            rates["tokens_per_second"] = counts.tokens / seconds
            if work.tokens_vary:
                rates["supervised_tokens_per_second"] = counts.predicted / seconds
                rates["padding_share"] = 1 - counts.tokens / (self._samples * work.tokens_per_sample)
        if work.flops is not None and work.peak_flops_per_second is not None:
            each = work.flops
            flops = each.per_sample * self._samples + each.per_token * counts.tokens + each.per_pair * counts.attended
            rates["mfu"] = flops / seconds / work.peak_flops_per_second
        return rates


class _Difference:
    """The increase of a running total since the last call."""

    def __init__(self, total: Callable[[], float]) -> None:
        self.total, self._last = total, total()

    def __call__(self) -> float:
        before, self._last = self._last, self.total()
        return self._last - before


def percentiles(name: str, values: Sequence[float]) -> dict[str, float | int]:
    """Return `name_p50` etc.: the smallest value that so many percent of the values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return {f"{name}_p{percent}": ordered[-(-percent * len(ordered) // 100) - 1] for percent in _PERCENTILES}


def _slowest_and_fastest(rank_seconds: list[float]) -> dict[str, float | int]:
    """Return nothing before the ranks know their times, which takes two agreements."""
    slowest, fastest = max(rank_seconds), min(rank_seconds)
    if fastest == 0:
        return {}
    listed = rank_seconds if 1 < len(rank_seconds) <= _MOST_RANKS_LISTED else []
    return {
        "slowest_rank": rank_seconds.index(slowest),
        "slowest_rank_seconds": slowest,
        "fastest_rank_seconds": fastest,
        **{f"rank_{rank}_seconds": seconds for rank, seconds in enumerate(listed)},
    }


def _highest(name: str, unit: str, by_rank: Sequence[float]) -> dict[str, float | int]:
    """Return the highest of the ranks' figures, and which rank's it is; nothing where ranks do not say."""
    if not by_rank:
        return {}
    highest = max(by_rank)
    return {f"{name}_{unit}": highest, f"{name}_rank": by_rank.index(highest)}


class StepGuards:
    """Counts steps that were skipped, too many of which in a row end the training, and losses far above the mean of
    those before."""

    def __init__(self, nonfinite_steps_limit: int, loss_spike_factor: float, skipped_steps: int = 0) -> None:
        self.skipped_steps = skipped_steps
        self.loss_spikes = 0
        """Since the start of this attempt."""
        self._limit, self._skipped_in_a_row = nonfinite_steps_limit, 0
        self._factor = loss_spike_factor
        self._losses: deque[float] = deque(maxlen=_MEAN_OVER_STEPS)

    def observe(self, agreed: AgreedStep) -> str | None:
        """Count a step. Return a warning if its loss is a spike. StepError after too many skipped ones in a row."""
        if agreed.is_finite:
            self._skipped_in_a_row = 0
            return self._spike(agreed)
        self.skipped_steps += 1
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row == self._limit:
            raise StepError(
                f"the last {self._limit} steps, up to step {agreed.step.number}, had a loss or gradient that is not "
                "finite; earlier checkpoints are kept. Try a lower --learning-rate or another --precision"
            )
        return None

    def _spike(self, agreed: AgreedStep) -> str | None:
        steps = len(self._losses)
        mean = sum(self._losses) / max(1, steps)
        # Spikes count in the mean, so that a plateau is not warned about forever.
        self._losses.append(agreed.loss)
        if steps < _STEPS_BEFORE_WARNING or not 0 < mean * self._factor < agreed.loss:
            return None
        self.loss_spikes += 1
        return (
            f"loss spike: {agreed.loss:.4g} at step {agreed.step.number} is {agreed.loss / mean:.1f} times the mean of "
            f"the last {steps} steps (--loss-spike-factor {self._factor:g})"
        )
