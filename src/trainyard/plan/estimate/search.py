"""Settings worth choosing or measuring: on each kind of machines the best, of DeepSpeed those that fit into memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

from trainyard.catalogue.gpus import gpu_of
from trainyard.catalogue.skus import Sku, all_skus
from trainyard.plan.estimate import ENGINES
from trainyard.plan.estimate.compute import efficiency_curves
from trainyard.plan.estimate.estimator import Estimate, estimate, has_room
from trainyard.plan.estimate.memory import Memory
from trainyard.plan.estimate.training import Machines, TrainingShape, engines_that_train
from trainyard.settings.quantities import percentage
from trainyard.settings.written_settings import Candidate

HEADROOM = 0.12
"""The share of a GPU's memory that a search leaves free: fragments, and longer rows than the usual ones."""

MOST_FOUND = 5
TIE = 0.02
"""Rates, or prices, that differ by at most this share are a tie: far less than the estimate's own error."""

_MOST_CHANGES = 4
_MICRO_BATCHES = (256, 128, 64, 32, 16, 8, 4, 2, 1)
_CHUNK_TOKENS = 1024
_SHORTEST = 256

_IN_MAIN_MEMORY = {
    "zero1_offload": {"engine": "zero1", "offload_optimizer": True},
    "zero2_offload": {"engine": "zero2", "offload_optimizer": True},
    "zero3_offload": {"engine": "zero3", "offload_optimizer": True, "offload_parameters": True},
    "fsdp_offload": {"engine": "fsdp", "offload_optimizer": True, "offload_parameters": True},
}
_IN_GPU_MEMORY = {"offload_optimizer": False, "offload_parameters": False}
_ENGINES: Mapping[str, Mapping[str, Any]] = {
    name: {**_IN_GPU_MEMORY, **_IN_MAIN_MEMORY.get(name, {"engine": name})} for name in (*ENGINES, *_IN_MAIN_MEMORY)
}
"""What an engine does to a training; of DeepSpeed by the name of templates/components/deepspeed/NAME.json.j2."""
_CONFIGS = ("zero0", "zero1", "zero2", "zero3", "zero2_offload", "zero3_offload")

_OFFLOADS: tuple[tuple[Iterable[str], bool], ...] = tuple(product((ENGINES, _IN_MAIN_MEMORY), (False, True)))
"""What a search tries one after the other: engines, and whether activations are in main memory."""

_Choices = Sequence[Mapping[str, Any]]


def variants(training: TrainingShape, *choices: _Choices, fixed: Collection[str] = ()) -> Iterator[TrainingShape]:
    """Yield a training with one change of each of some choices, in every combination.

    Changes of what is `fixed`, by the names of the training's fields, are left out. Another engine has AdamW.
    """
    for combined in product(*choices):
        changes = {name: value for each in combined for name, value in each.items()}
        if any(getattr(training, name) != changes[name] for name in fixed if name in changes):
            continue
        if changes.get("engine", training.engine) != training.engine:
            changes = {"optimizer": "adamw", **changes}
        yield replace(training, **changes)


def _engines(training: TrainingShape, names: Iterable[str]) -> _Choices:
    possible = engines_that_train(training.adapters)
    return [_ENGINES[name] for name in names if _ENGINES[name]["engine"] in possible]


def _checkpointing(training: TrainingShape) -> _Choices:
    return [{"activation_checkpointing": kind} for kind in training.checkpointing_choices]


def _micro_batches(samples: int) -> _Choices:
    """Return the micro-batches of so many samples of a process in a step, the largest first."""
    sizes = (size for size in range(samples, 0, -1) if samples % size == 0)
    return [{"micro_batch_size": size, "accumulation_steps": samples // size} for size in sizes]


def _samples(training: TrainingShape) -> int:
    return training.micro_batch_size * training.accumulation_steps


def settings_that_fit(training: TrainingShape) -> tuple[Estimate, ...]:
    """Return trainings of the same batch on the same machines that surely fit, fastest first: one for each engine.

    What may change: the micro-batch (with accumulation, so that the global batch stays), activation checkpointing, the
    engine among those of the same library, and offloading with ZeRO.
    """
    names = dict.fromkeys((training.engine, "fsdp", "zero2", "zero3", "zero3_offload"))
    batches = _micro_batches(_samples(training))
    changed = variants(training, _engines(training, names), _checkpointing(training), batches)
    fitting = [found for found in map(estimate, changed) if found.verdict == "fits"]
    return _first_of_each(sorted(fitting, key=_seconds), _engine)[:_MOST_CHANGES]


def other_trainings_that_fit(training: TrainingShape) -> tuple[Estimate, ...]:
    """Return what fits of a training of which no settings do: with frozen weights in 4 bits, and with shorter rows."""
    ways = []
    if training.adapters is not None and not training.adapters.is_quantized:
        quantized = replace(training.adapters, is_quantized=True)
        ways.append([replace(training, adapters=quantized, shard_size=0, **_ENGINES["ddp"])])
    halves = (training.sequence_length >> times for times in range(1, training.sequence_length.bit_length()))
    ways.append([replace(training, sequence_length=length) for length in halves if length >= _SHORTEST])
    fitting: list[Estimate] = []
    for way in ways:
        of_way = (settings_that_fit(each) for each in way)
        fitting += next(filter(None, of_way), ())[:1]
    return tuple(fitting)


def _first_of_each(found: Iterable[Estimate], kind: Callable[[Estimate], Hashable]) -> tuple[Estimate, ...]:
    first: dict[Hashable, Estimate] = {}
    for each in found:
        first.setdefault(kind(each), each)
    return tuple(first.values())


def _engine(found: Estimate) -> Hashable:
    return found.training.engine, found.training.offload_optimizer, found.training.machines.nodes


def _seconds(found: Estimate) -> float:
    return found.time.total if found.time else float(found.training.activation_checkpointing != "none")


def memory_by_engine(training: TrainingShape) -> dict[str, tuple[Memory, str]]:
    """Return what the same training takes on each GPU with every engine that can train it, and the verdict on that.

    ZeRO 3 comes last with its state in main memory too. One GPU shards nothing: there it is empty.
    """
    if training.machines.world_size == 1:
        return {}
    found = map(estimate, variants(training, _engines(training, (*ENGINES, "zero3_offload"))))
    named = {f"{each.training.engine}{' offloaded' * each.training.offload_optimizer}": each for each in found}
    return {name: (each.memory, each.verdict) for name, each in named.items()}


@dataclass(frozen=True)
class Found:
    """The best settings: by what they do in a second, and by what that costs, best first."""

    fastest: tuple[Estimate, ...]
    cheapest: tuple[Estimate, ...]


@dataclass(frozen=True)
class Scope:
    """What a search may choose: it leaves a share of each GPU's memory free, and what is `fixed` as it is.

    That is named as the training's fields are. With a global batch the accumulation follows; otherwise it is fixed too.
    """

    headroom: float = HEADROOM
    fixed: frozenset[str] = frozenset()
    global_batch_size: int | None = None


def search(wanted: TrainingShape, machines: Sequence[Machines], scope: Scope) -> Found:
    """Return the best settings on some machines: one of each kind of machines, or of each engine if there is one kind.

    Model, length and precision are as wanted. Machines that lack the precision are left out. Offloading comes in only
    where nothing else fits on any of them.
    """
    found: list[Estimate] = []
    for offloads in _OFFLOADS:
        trainings = (replace(wanted, machines=some) for some in machines)
        found = found or [each for some in trainings for each in _fitting(some, scope, offloads)]
    priced = [each for each in found if each.usd_per_billion_samples is not None]
    is_one_kind = len({_machines(each) for each in found}) == 1
    fastest, cheapest = (
        _first_of_each(sorted(some, key=order), _engine if is_one_kind else _machines)[:MOST_FOUND]
        for some, order in ((found, slowness), (priced, price_of_samples))
    )
    return Found(fastest, cheapest)


def what_if(wanted: TrainingShape, machines: Iterable[Machines], scope: Scope) -> list[Estimate]:
    """Return the fastest settings of every engine on each of some machines, in their order, as `search` finds them."""
    found = (_fitting(replace(wanted, machines=each), scope, _OFFLOADS[0]) for each in machines)
    return [each for some in found for each in _first_of_each(sorted(some, key=slowness), _engine)]


def _machines(found: Estimate) -> Hashable:
    return found.training.machines.sku or found.training.machines.gpu.name


def _fitting(training: TrainingShape, scope: Scope, offloads: tuple[Iterable[str], bool]) -> list[Estimate]:
    """Return the largest micro-batch that fits with every combination of other settings.

    A smaller one is never faster: what is exchanged, and what the optimizer does, is for fewer samples.
    """
    machines, gpu = training.machines, training.machines.gpu
    if gpu.peak_tflops(training.product_precision) is None or gpu.generation not in efficiency_curves():
        return []
    sizes = sorted({*_MICRO_BATCHES, training.micro_batch_size}, reverse=True)
    batches: _Choices = [{"micro_batch_size": size} for size in sizes]
    if scope.global_batch_size is not None:
        samples, rest = divmod(scope.global_batch_size, machines.world_size)
        batches = [] if rest else _micro_batches(samples)
    kept = {name: getattr(training, name) for name in scope.fixed}
    batches = [each for each in batches if all(each.get(name, value) == value for name, value in kept.items())]
    chunks = {0, training.loss_chunk_tokens, 0 if training.is_of_images else _CHUNK_TOKENS}
    shards = {0, training.shard_size, 0 if machines.nodes == 1 else machines.gpus_per_node}
    engines, copies_activations = offloads
    others = variants(
        training,
        _engines(training, engines),
        _checkpointing(training),
        [{"compiled": each} for each in (True, False)],
        [{"offload_activations": copies_activations}],
        [{"loss_chunk_tokens": tokens} for tokens in sorted(chunks)],
        [{"shard_size": size} for size in sorted(shards)],
        fixed=scope.fixed,
    )
    found = []
    for other in filter(_is_possible, others):
        fits = partial(_has_room, other, scope.headroom)
        # The first may keep less than the next, as the only one of its step; from there on each keeps less.
        at = 0 if any(map(fits, batches[:1])) else bisect_left(batches, True, 1, key=fits)
        found += [estimate(replace(other, **batch)) for batch in batches[at : at + 1]]
    return found


def _has_room(training: TrainingShape, headroom: float, batch: Mapping[str, Any]) -> bool:
    return has_room(replace(training, **batch), headroom)


def _is_possible(training: TrainingShape) -> bool:
    """Return whether the steps take a combination: FSDP has replicas, and some cannot be compiled."""
    is_compiled_alone = training.engine != "zero3" and not training.offload_activations
    return (training.engine == "fsdp" or not training.shard_size) and (is_compiled_alone or not training.compiled)


def why_behind(each: Estimate, ahead: Estimate, order: Callable[[Estimate], float]) -> str:
    """Return how far settings are behind others in such an order, and in which part most of that is; or tie."""
    behind = _times_behind(each, ahead, order)
    if ties(each, ahead, order):
        return "tie"
    of_each, of_ahead = (found.time.parts() if found.time else {} for found in (each, ahead))
    totals = sum(of_each.values()), sum(of_ahead.values())
    grown = {name: behind * of_each[name] / totals[0] - of_ahead[name] / totals[1] for name in of_each}
    part = f"most of it {max(grown, key=grown.__getitem__).removeprefix('exposed_')}"
    if each.training.machines.world_size < ahead.training.machines.world_size and order is slowness:
        part = "with fewer GPUs"
    by = f"{percentage(behind - 1)} dearer" if order is price_of_samples else f"{percentage(1 - 1 / behind)} slower"
    return f"{by}, {part}"


def ties(each: Estimate, ahead: Estimate, order: Callable[[Estimate], float]) -> bool:
    """Return whether settings are so little behind others that the estimate cannot tell them apart."""
    return _times_behind(each, ahead, order) - 1 <= TIE


def _times_behind(each: Estimate, ahead: Estimate, order: Callable[[Estimate], float]) -> float:
    return order(each) / order(ahead) if order is price_of_samples else order(ahead) / order(each)


def slowness(found: Estimate) -> float:
    """Return what the fastest has least of."""
    return -(found.samples_per_second or 0)


def price_of_samples(found: Estimate) -> float:
    """Return the price of a billion samples; 0 where it is not known."""
    return found.usd_per_billion_samples or 0


def current_sizes() -> list[Sku]:
    """Return each current Azure size with whole GPUs that the table knows."""
    return [sku for sku in all_skus() if sku.is_current and sku.gpu_fraction in (None, 1) and gpu_of(sku) is not None]


@dataclass(frozen=True)
class Proposed:
    """A candidate, with what it is estimated to take; None where that is not known."""

    candidate: Candidate
    estimate: Estimate | None

    @property
    def memory_gib(self) -> float | None:
        """Estimated memory of each GPU, with what libraries take."""
        found = self.estimate
        return None if found is None else (found.memory.total + found.training.machines.runtime_bytes) / 2**30

    @property
    def step_seconds(self) -> float | None:
        """Estimated time of an optimizer step."""
        return self.estimate.time.total if self.estimate and self.estimate.time else None


@dataclass(frozen=True)
class Proposal:
    """The candidates to measure, at most as many as asked for, of all that were `considered` and of those that fit.

    Where nothing is estimated, `reason` says why.
    """

    chosen: tuple[Proposed, ...]
    considered: int
    fitting: int
    reason: str = ""


def propose(
    samples: int, most: int, training: TrainingShape | None, reason: str = "", *, has_gpu: bool = True
) -> Proposal:
    """Return at most so many settings of DeepSpeed that fit into the GPUs' memory, the fastest by the estimate first.

    The batch of a training stays the same, so each micro-batch divides the samples that a process has in a step. Last
    come candidates with activation checkpointing that fit without it, then those with offloading. UsageError for a
    precision that the GPU lacks. Without a training, for a reason, none is ruled out and the simplest come first;
    without a GPU there is no offload, because everything is in main memory already.
    """
    sizes = (each["micro_batch_size"] for each in _micro_batches(samples))
    every = (Candidate(*each) for each in product(_CONFIGS, sizes, (False, True)))
    candidates = [each for each in every if has_gpu or each.config not in _IN_MAIN_MEMORY]
    proposed = [Proposed(each, estimate(_with_candidate(training, each)) if training else None) for each in candidates]
    fitting = [each for each in proposed if each.estimate is None or each.estimate.fits]
    keeping = {each.candidate for each in fitting if not each.candidate.activation_checkpointing}

    def order(each: Proposed) -> tuple[bool, bool, float, bool, int, int]:
        chosen = each.candidate
        is_needless = replace(chosen, activation_checkpointing=False) in keeping - {chosen}
        # The simplest first: activations kept, then large micro-batches, then what exchanges least.
        simplest = chosen.activation_checkpointing, -chosen.micro_batch_size, _CONFIGS.index(chosen.config)
        return chosen.config in _IN_MAIN_MEMORY, is_needless, each.step_seconds or 0.0, *simplest

    return Proposal(tuple(sorted(fitting, key=order)[:most]), len(candidates), len(fitting), reason)


def _with_candidate(training: TrainingShape, candidate: Candidate) -> TrainingShape:
    return replace(
        training,
        micro_batch_size=candidate.micro_batch_size,
        accumulation_steps=_samples(training) // candidate.micro_batch_size,
        activation_checkpointing="full" if candidate.activation_checkpointing else "none",
        **_ENGINES[candidate.config],
    )
