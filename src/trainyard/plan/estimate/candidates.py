"""The settings of a DeepSpeed training that are worth measuring: those that fit into memory, fastest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from trainyard.plan.estimate.architectures import Architecture
from trainyard.plan.estimate.estimator import Estimate, estimate
from trainyard.plan.estimate.memory import RUNTIME_BYTES
from trainyard.plan.estimate.training import Machines, TrainingShape
from trainyard.settings.tuning_candidates import Candidate


@dataclass(frozen=True)
class _Config:
    """What one of DeepSpeed's configurations does to memory and time."""

    engine: str
    offload_optimizer: bool = False
    offload_parameters: bool = False


_CONFIGS = {
    "zero0": _Config("zero0"),
    "zero1": _Config("zero1"),
    "zero2": _Config("zero2"),
    "zero3": _Config("zero3"),
    "zero2_offload": _Config("zero2", offload_optimizer=True),
    "zero3_offload": _Config("zero3", offload_optimizer=True, offload_parameters=True),
}
"""By the name of the file, templates/components/deepspeed/NAME.json.j2."""


@dataclass(frozen=True)
class TuningRequest:
    """What stays the same for all candidates. `samples` are those of one process in one optimizer step."""

    samples: int
    sequence_length: int
    precision: str
    most: int
    loss_chunk_tokens: int = 0


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


def propose(request: TuningRequest, architecture: Architecture, machines: Machines) -> Proposal:
    """Return the candidates that fit into the GPUs' memory, the fastest by the estimate first.

    The global batch stays the same, so each micro-batch divides `samples`. Last come candidates with activation
    checkpointing that fit without it, then those with offloading, whose time is not estimated. UsageError for a
    precision that the GPU lacks.
    """
    estimated = [
        Proposed(candidate, estimate(_shape(request, candidate, architecture, machines)))
        for candidate in _candidates(request.samples, list(_CONFIGS))
    ]
    fitting = [each for each in estimated if each.estimate is not None and each.estimate.fits]
    keeping = {each.candidate for each in fitting if not each.candidate.activation_checkpointing}

    def order(each: Proposed) -> tuple[bool, bool, float, tuple[bool, int, int]]:
        is_needless = replace(each.candidate, activation_checkpointing=False) in keeping - {each.candidate}
        return each.step_seconds is None, is_needless, each.step_seconds or 0.0, _simplest_first(each)

    fitting.sort(key=order)
    return Proposal(tuple(fitting[: request.most]), len(estimated), len(fitting))


def propose_unestimated(request: TuningRequest, reason: str, *, has_gpu: bool) -> Proposal:
    """Return candidates of which nothing can be estimated: none is ruled out, the simplest come first.

    Without a GPU there is no offload, because everything is in main memory already.
    """
    configs = [name for name, config in _CONFIGS.items() if has_gpu or not config.offload_optimizer]
    unknown = sorted((Proposed(each, None) for each in _candidates(request.samples, configs)), key=_simplest_first)
    return Proposal(tuple(unknown[: request.most]), len(unknown), len(unknown), reason)


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


def _shape(
    request: TuningRequest, candidate: Candidate, architecture: Architecture, machines: Machines
) -> TrainingShape:
    config = _CONFIGS[candidate.config]
    return TrainingShape(
        architecture=architecture,
        machines=machines,
        engine=config.engine,
        micro_batch_size=candidate.micro_batch_size,
        accumulation_steps=request.samples // candidate.micro_batch_size,
        sequence_length=request.sequence_length,
        precision=request.precision,
        activation_checkpointing="full" if candidate.activation_checkpointing else "none",
        offload_optimizer=config.offload_optimizer,
        offload_parameters=config.offload_parameters,
        loss_chunk_tokens=request.loss_chunk_tokens,
    )
