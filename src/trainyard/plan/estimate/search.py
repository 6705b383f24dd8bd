"""Settings worth choosing or measuring: on each kind of machines the best, of DeepSpeed those that fit into memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from trainyard.catalogue.gpus import gpu_of
from trainyard.catalogue.skus import all_skus
from trainyard.plan.estimate.estimator import Estimate, estimate
from trainyard.plan.estimate.memory import RUNTIME_BYTES
from trainyard.plan.estimate.training import Machines, TrainingShape, engines_that_train, machines_of_sku
from trainyard.settings.written_settings import Candidate

_MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64)

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
class Found:
    """The best settings on each kind of machines: by what it does in a second, and by what that costs, best first."""

    fastest: tuple[Estimate, ...]
    cheapest: tuple[Estimate, ...]


def search(wanted: TrainingShape, machines: Iterable[Machines]) -> Found:
    """Return the best of every engine, micro-batch and checkpointing on each of some machines that surely fits.

    Model, sequence length, precision, accumulation and compiling are as wanted. Machines that lack the precision, or
    whose time is unknown, are left out.
    """
    fastest: list[Estimate] = []
    cheapest: list[Estimate] = []
    for each in machines:
        timed = _timed(wanted, each)
        priced = [found for found in timed if found.usd_per_billion_samples is not None]
        fastest += sorted(timed, key=_slowness)[:1]
        cheapest += sorted(priced, key=_price)[:1]
    return Found(tuple(sorted(fastest, key=_slowness)), tuple(sorted(cheapest, key=_price)))


def what_if(wanted: TrainingShape, machines: Iterable[Machines]) -> list[Estimate]:
    """Return the fastest settings that surely fit of every engine on each of some machines, in their order.

    Machines that lack the precision, or whose time is unknown, are left out.
    """
    found: list[Estimate] = []
    for each in machines:
        fastest: dict[str, Estimate] = {}
        for candidate in sorted(_timed(wanted, each), key=_slowness):
            fastest.setdefault(candidate.training.engine, candidate)
        found += fastest.values()
    return found


def _timed(wanted: TrainingShape, machines: Machines) -> list[Estimate]:
    """Return what surely fits on some machines, and takes a time that is known; nothing if they lack the precision."""
    if machines.gpu.peak_tflops(wanted.product_precision) is None:
        return []
    estimates = map(estimate, search_settings(replace(wanted, machines=machines)))
    return [found for found in estimates if found.verdict == "fits" and found.samples_per_second is not None]


def _slowness(found: Estimate) -> float:
    return -(found.samples_per_second or 0)


def _price(found: Estimate) -> float:
    return found.usd_per_billion_samples or 0


def current_machines(nodes: int) -> Iterator[Machines]:
    """Yield so many nodes of each current Azure size with whole GPUs that the table knows."""
    for sku in all_skus():
        has_whole_gpus = sku.gpu_fraction is None or sku.gpu_fraction == 1
        if sku.is_current and has_whole_gpus and gpu_of(sku) is not None:
            yield machines_of_sku(sku, nodes)


def search_settings(training: TrainingShape) -> Iterator[TrainingShape]:
    """Yield the training with every engine, micro-batch and checkpointing that it can have."""
    for engine in engines_that_train(training.adapters):
        for checkpointing in training.checkpointing_choices:
            for micro_batch in _MICRO_BATCHES:
                yield replace(
                    training, engine=engine, activation_checkpointing=checkpointing, micro_batch_size=micro_batch
                )


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

    @property
    def simplest_first(self) -> tuple[bool, int, int]:
        """Its place in an order: activations kept, then large micro-batches, then what exchanges least."""
        chosen = self.candidate
        return chosen.activation_checkpointing, -chosen.micro_batch_size, list(_CONFIGS).index(chosen.config)


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
    """Return at most so many settings of DeepSpeed that fit into the GPUs' memory, the fastest by the estimate first.

    The batch of a training stays the same, so each micro-batch divides the samples that a process has in a step. Last
    come candidates with activation checkpointing that fit without it, then those with offloading, whose time is not
    estimated. UsageError for a precision that the GPU lacks.
    """
    candidates = list(_candidates(training.micro_batch_size * training.accumulation_steps))
    estimated = [(each, estimate(_with_candidate(training, each))) for each in candidates]
    fitting = [Proposed(candidate, found) for candidate, found in estimated if found.fits]
    keeping = {each.candidate for each in fitting if not each.candidate.activation_checkpointing}

    def order(each: Proposed) -> tuple[bool, bool, float, tuple[bool, int, int]]:
        is_needless = replace(each.candidate, activation_checkpointing=False) in keeping - {each.candidate}
        return each.step_seconds is None, is_needless, each.step_seconds or 0.0, each.simplest_first

    return Proposal(tuple(sorted(fitting, key=order)[:most]), len(candidates), len(fitting))


def propose_unestimated(samples: int, most: int, reason: str, *, has_gpu: bool) -> Proposal:
    """Return candidates of which nothing can be estimated: none is ruled out, the simplest come first.

    Without a GPU there is no offload, because everything is in main memory already.
    """
    candidates = [each for each in _candidates(samples) if has_gpu or "offload_optimizer" not in _CONFIGS[each.config]]
    unknown = sorted((Proposed(each, None) for each in candidates), key=lambda each: each.simplest_first)
    return Proposal(tuple(unknown[:most]), len(unknown), len(unknown), reason)


def _with_candidate(training: TrainingShape, candidate: Candidate) -> TrainingShape:
    samples = training.micro_batch_size * training.accumulation_steps
    return replace(
        training,
        micro_batch_size=candidate.micro_batch_size,
        accumulation_steps=samples // candidate.micro_batch_size,
        activation_checkpointing="full" if candidate.activation_checkpointing else "none",
        **_CONFIGS[candidate.config],
    )


def _candidates(samples: int) -> Iterator[Candidate]:
    for config in _CONFIGS:
        for checkpointing in (False, True):
            for micro_batch_size in (size for size in range(1, samples + 1) if samples % size == 0):
                yield Candidate(config, micro_batch_size, checkpointing)
