"""Which machines and settings train a model fastest, and which cheapest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from trainyard.catalogue.gpus import gpu_of
from trainyard.catalogue.skus import Sku, all_skus
from trainyard.plan.estimate.adapters import engines_that_train
from trainyard.plan.estimate.estimator import Estimate, estimate
from trainyard.plan.estimate.training import Machines, TrainingShape, machines_of_sku

_MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Found:
    """The best settings on each kind of machines: by what it does in a second, and by what that costs, best first."""

    fastest: tuple[Estimate, ...]
    cheapest: tuple[Estimate, ...]


def search(wanted: TrainingShape, machines: Iterable[Machines]) -> Found:
    """Return the best of every engine, micro-batch and checkpointing on each of some machines, of those that fit.

    Model, sequence length, precision, accumulation and compiling are as wanted. Machines that lack the precision, or
    whose time is unknown, are left out.
    """
    best_rate: list[Estimate] = []
    best_price: list[Estimate] = []
    for each in machines:
        if each.gpu.peak_tflops(wanted.product_precision) is None:
            continue
        fitting = [
            candidate
            for candidate in map(estimate, search_settings(replace(wanted, machines=each)))
            if candidate.fits and candidate.samples_per_second is not None
        ]
        if fitting:
            best_rate.append(max(fitting, key=lambda found: found.samples_per_second or 0))
        priced = [candidate for candidate in fitting if candidate.usd_per_billion_samples is not None]
        if priced:
            best_price.append(min(priced, key=lambda found: found.usd_per_billion_samples or 0))
    return Found(
        tuple(sorted(best_rate, key=lambda found: -(found.samples_per_second or 0))),
        tuple(sorted(best_price, key=lambda found: found.usd_per_billion_samples or 0)),
    )


def current_machines(nodes: int) -> Iterator[Machines]:
    """Yield so many nodes of each current Azure size with whole GPUs that the table knows."""
    for sku in all_skus():
        if sku.is_current and gpu_of(sku) is not None and _has_whole_gpus(sku):
            yield machines_of_sku(sku, nodes)


def _has_whole_gpus(sku: Sku) -> bool:
    return sku.gpu_fraction is None or sku.gpu_fraction == 1


def search_settings(training: TrainingShape) -> Iterator[TrainingShape]:
    """Yield the training with every engine, micro-batch and checkpointing that it can have."""
    for engine in engines_that_train(training.adapters):
        for checkpointing in training.checkpointing_choices:
            for micro_batch in _MICRO_BATCHES:
                yield replace(
                    training, engine=engine, activation_checkpointing=checkpointing, micro_batch_size=micro_batch
                )
