"""The settings of a DeepSpeed training that are worth measuring: those that fit into memory, fastest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainyard.plan.estimate.estimator import Estimate, estimate
from trainyard.plan.estimate.memory import RUNTIME_BYTES
from trainyard.plan.estimate.training import TrainingShape
from trainyard.settings.written_settings import Candidate

_CONFIGS: dict[str, dict[str, Any]] = {
    "zero0": {"engine": "zero0"},
    "zero1": {"engine": "zero1"},
    "zero2": {"engine": "zero2"},
    "zero3": {"engine": "zero3"},
    "zero2_offload": {"engine": "zero2", "offload_optimizer": True},
    "zero3_offload": {"engine": "zero3", "offload_optimizer": True, "offload_parameters": True},
}
"""What a configuration of DeepSpeed does to a training, by the name of templates/components/deepspeed/NAME.json.j2."""


@dataclass(frozen=True)
class Proposed:
    """A candidate, with what it is estimated to take; None where that is not known."""

    candidate: Candidate
    estimate: Estimate | None

    @property
    def memory_gib(self) -> float | None:
        """Estimated memory of each GPU, with what libraries take."""
        return None if self.estimate is None else (self.estimate.memory.total + RUNTIME_BYTES) / 2**30

    @property
    def step_seconds(self) -> float | None:
        """Estimated time of an optimizer step; None also with offload, whose copies are not estimated."""
        if self.estimate is None or self.estimate.time is None or self.estimate.training.offload_optimizer:
            return None
        return self.estimate.time.total


@dataclass(frozen=True)
class Proposal:
    """The candidates to measure, at most as many as asked for, of all that were `considered` and of those that fit.

    Where nothing is estimated, `reason` says why.
    """

    chosen: tuple[Proposed, ...]
    considered: int
    fitting: int
    reason: str = ""


def propose(training: TrainingShape, most: int) -> Proposal:
    """Return at most so many candidates that fit into the GPUs' memory, the fastest by the estimate first.

    The batch of a training stays the same, so each micro-batch divides the samples that a process has in a step. Last
    come candidates with activation checkpointing that fit without it, then those with offloading, whose time is not
    estimated. UsageError for a precision that the GPU lacks.
    """
    samples = training.micro_batch_size * training.accumulation_steps
    estimated = [
        Proposed(candidate, estimate(_with_candidate(training, candidate, samples)))
        for candidate in _candidates(samples, list(_CONFIGS))
    ]
    fitting = [each for each in estimated if each.estimate is not None and each.estimate.fits]
    keeping = {each.candidate for each in fitting if not each.candidate.activation_checkpointing}

    def order(each: Proposed) -> tuple[bool, bool, float, tuple[bool, int, int]]:
        is_needless = replace(each.candidate, activation_checkpointing=False) in keeping - {each.candidate}
        return each.step_seconds is None, is_needless, each.step_seconds or 0.0, _simplest_first(each)

    fitting.sort(key=order)
    return Proposal(tuple(fitting[:most]), len(estimated), len(fitting))


def propose_unestimated(samples: int, most: int, reason: str, *, has_gpu: bool) -> Proposal:
    """Return candidates of which nothing can be estimated: none is ruled out, the simplest come first.

    Without a GPU there is no offload, because everything is in main memory already.
    """
    configs = [name for name, changes in _CONFIGS.items() if has_gpu or "offload_optimizer" not in changes]
    unknown = sorted((Proposed(each, None) for each in _candidates(samples, configs)), key=_simplest_first)
    return Proposal(tuple(unknown[:most]), len(unknown), len(unknown), reason)


def _with_candidate(training: TrainingShape, candidate: Candidate, samples: int) -> TrainingShape:
    return replace(
        training,
        micro_batch_size=candidate.micro_batch_size,
        accumulation_steps=samples // candidate.micro_batch_size,
        activation_checkpointing="full" if candidate.activation_checkpointing else "none",
        **_CONFIGS[candidate.config],
    )


def _candidates(samples: int, configs: Sequence[str]) -> Iterator[Candidate]:
    for config in configs:
        for checkpointing in (False, True):
            for micro_batch_size in (size for size in range(1, samples + 1) if samples % size == 0):
                yield Candidate(config, micro_batch_size, checkpointing)


def _simplest_first(proposed: Proposed) -> tuple[bool, int, int]:
    """Activations kept, then large micro-batches, then what exchanges least."""
    candidate = proposed.candidate
    return (
        candidate.activation_checkpointing,
        -candidate.micro_batch_size,
        list(_CONFIGS).index(candidate.config),
    )
