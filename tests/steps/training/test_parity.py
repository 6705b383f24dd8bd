"""Every engine learns the same from the same samples, whatever the number of ranks and micro-batches.

289 samples in batches of 32: each tenth step has the one sample that is left, fewer than there are ranks. The figures
that were measured are in the tests' output (`pytest -rP`).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from parity_worlds import (
    ALONE,
    DDP,
    FSDP,
    IN_MICRO_BATCHES,
    SINGLE_STEPS,
    ZERO,
    Figures,
    World,
    largest_difference,
    run_trainings,
)

pytestmark = pytest.mark.slow

OFFLOADED = {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}
HYBRID = FSDP | {"shard_size": 2}
SUMMED_EACH_TIME = {"gradient_sync": "every"}
OTHERWISE = {"activation_checkpointing": True, "fused_optimizer": False}

WORLDS = {
    "ddp and fsdp": World(
        2,
        {"ddp": DDP, "fsdp": FSDP},
        {
            "ddp": DDP,
            "ddp, micro-batches": DDP | IN_MICRO_BATCHES,
            "ddp, summed in bf16": DDP | {"reduce_precision": "bf16"},
            "fsdp": FSDP,
            "fsdp, micro-batches": FSDP | IN_MICRO_BATCHES,
            "fsdp, each micro-batch summed": FSDP | IN_MICRO_BATCHES | SUMMED_EACH_TIME,
            "fsdp, each micro-batch summed, offloaded": FSDP
            | IN_MICRO_BATCHES
            | SUMMED_EACH_TIME
            | {"cpu_offload": True},
            "fsdp, offloaded": FSDP | {"cpu_offload": True, "reshard_after_forward": False},
            "fsdp, otherwise": FSDP | OTHERWISE,
        },
    ),
    "zero": World(
        2,
        {f"zero{stage}": zero for stage, zero in enumerate(ZERO)},
        {
            **{f"zero{stage}": zero for stage, zero in enumerate(ZERO)},
            **{f"zero{stage}, micro-batches": zero | IN_MICRO_BATCHES for stage, zero in enumerate(ZERO)},
            "zero3, offloaded": ZERO[3] | {"zero": OFFLOADED},
            "zero3, otherwise": ZERO[3] | OTHERWISE,
        },
    ),
    "four ranks": World(
        4,
        {"fsdp, 2 x 2 ranks": HYBRID},
        {
            "ddp, 4 ranks, micro-batches": DDP | IN_MICRO_BATCHES,
            "fsdp, 4 ranks": FSDP,
            "fsdp, 2 x 2 ranks, micro-batches": HYBRID | IN_MICRO_BATCHES,
            "fsdp, 2 x 2 ranks, each micro-batch summed": HYBRID | IN_MICRO_BATCHES | SUMMED_EACH_TIME,
            "fsdp, 4 x 1 ranks, offloaded": HYBRID | {"shard_size": 1, "cpu_offload": True},
        },
    ),
}


@pytest.fixture(scope="module")
def alone(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Figures:
    return run_trainings(digits, tmp_path_factory.mktemp("alone"), ALONE)


@pytest.fixture(scope="module", params=WORLDS)
def together(request: pytest.FixtureRequest, digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Figures:
    return run_trainings(digits, tmp_path_factory.mktemp("together"), WORLDS[request.param])


def test_fifty_steps_agree(alone: Figures, together: Figures) -> None:
    expected = alone["curve alone"]["losses"]
    assert expected[-1] < 0.7 * expected[0], "it learns"
    differences = {
        name: largest_difference(figures["losses"], expected)
        for name, figures in together.items()
        if name.startswith("curve ")
    }
    print("largest relative difference of a loss in 50 steps:", differences)
    assert max(differences.values()) <= 1e-4


def test_single_steps_from_the_same_weights_agree(alone: Figures, together: Figures) -> None:
    expected = alone["single alone"]
    assert len(set(expected["losses"])) == SINGLE_STEPS, "each step has other samples"
    for measure in ("losses", "norms"):
        differences = {
            name: largest_difference(figures[measure], expected[measure])
            for name, figures in together.items()
            if name.startswith("single ")
        }
        print(f"largest relative difference of a single step's {measure}:", differences)
        in_bf16 = {name for name in differences if name.endswith("summed in bf16") and measure == "norms"}
        assert max(difference for name, difference in differences.items() if name not in in_bf16) <= 1e-6
        assert all(1e-6 < differences[name] < 1e-2 for name in in_bf16)


def test_one_process_in_micro_batches_agrees(alone: Figures) -> None:
    for measure in ("losses", "norms"):
        found, expected = alone["single alone, micro-batches"][measure], alone["single alone"][measure]
        assert largest_difference(found, expected) <= 1e-6
