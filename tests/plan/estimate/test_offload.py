"""What offloading adds to the time of a step, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainyard.catalogue.skus import find_sku
from trainyard.plan.estimate.architectures import find_architecture
from trainyard.plan.estimate.estimator import Estimate, estimate
from trainyard.plan.estimate.training import TrainingShape, machines_of_sku

MODEL = find_architecture("llama-2-7b")


def _estimate(**settings: object) -> Estimate:
    machines = machines_of_sku(find_sku("Standard_ND96asr_v4"), 1)
    return estimate(replace(TrainingShape(MODEL, machines, "zero2", 1, 1, 2048), **settings))


def test_an_offloaded_optimizer_runs_on_the_processors_and_half_of_its_copies_is_hidden() -> None:
    """An eighth of 2-byte gradients goes over PCIe 4, at most half hidden, and an eighth of the weights comes back."""
    inside, outside = _estimate().time, _estimate(offload_optimizer=True).time
    assert inside is not None
    assert outside is not None
    assert (inside.copies, outside.forward, outside.backward) == (0, inside.forward, inside.backward)
    one_way = 2 * MODEL.parameters / 8 / (0.8 * 32e9)
    assert outside.copies == pytest.approx(1.5 * one_way)
    # Ren et al. 2021, table 4: 2.57 s for 10 billion parameters on 96 vCPUs, which ND96asr v4 has.
    assert outside.optimizer == pytest.approx(2.57 * MODEL.parameters / 10e9)
    assert outside.total > inside.total


def test_copies_grow_with_micro_batches_and_the_update_does_not() -> None:
    once, fourfold = (_estimate(offload_optimizer=True, accumulation_steps=steps).time for steps in (1, 4))
    assert once is not None
    assert fourfold is not None
    one_way = 2 * MODEL.parameters / 8 / (0.8 * 32e9)
    assert fourfold.copies - once.copies == pytest.approx(3 * one_way / 2)
    assert fourfold.optimizer == once.optimizer


@pytest.mark.parametrize(("engine", "size"), [("zero3", 2), ("fsdp", 4)])
def test_offloaded_parameters_come_for_both_passes_and_need_not_come_back(engine: str, size: int) -> None:
    time = _estimate(engine=engine, offload_optimizer=True, offload_parameters=True, micro_batch_size=8).time
    assert time is not None
    assert time.copies == pytest.approx(3 * size * MODEL.parameters / 8 / (0.8 * 32e9) / 2)


def test_activations_go_to_main_memory_and_back() -> None:
    plain, offloaded = _estimate(engine="fsdp"), _estimate(engine="fsdp", offload_activations=True)
    assert plain.time is not None
    assert offloaded.time is not None
    copying = 2 * plain.memory.activations / (0.8 * 32e9)
    hidden = 0.5 * min(copying, plain.time.forward + plain.time.backward)
    assert offloaded.time.copies == pytest.approx(copying - hidden)
    assert offloaded.time.optimizer == plain.time.optimizer
