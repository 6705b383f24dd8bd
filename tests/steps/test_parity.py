"""Every engine learns the same from the same samples, whatever the number of ranks and micro-batches.

289 samples in batches of 32: each tenth step has the one sample that is left, fewer than there are ranks. The figures
that were measured are in the tests' output (`pytest -rP`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from rank_processes import run_ranks

pytestmark = pytest.mark.slow

STEPS, SINGLE_STEPS = 50, 10
DDP, FSDP = {"engine": "ddp"}, {"engine": "fsdp"}
ZERO: list[dict[str, Any]] = [{"engine": "deepspeed", "zero": {"stage": stage}} for stage in range(4)]
OFFLOADED = {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}
IN_MICRO_BATCHES = {"micro_batch_size": 4}
OTHERWISE = {"activation_checkpointing": True, "fused_optimizer": False}

Trainings = dict[str, dict[str, Any]]
Figures = dict[str, dict[str, list[float]]]


class World(NamedTuple):
    """What is trained with so many ranks: curves of 50 steps, and single steps, whose learning rate is zero."""

    ranks: int
    curves: Trainings
    single: Trainings


WORLDS = {
    "alone": World(1, {"alone": DDP}, {"alone": DDP, "alone, micro-batches": DDP | IN_MICRO_BATCHES}),
    "ddp and fsdp": World(
        2,
        {"ddp": DDP, "fsdp": FSDP},
        {
            "ddp": DDP,
            "ddp, micro-batches": DDP | IN_MICRO_BATCHES,
            "fsdp": FSDP,
            "fsdp, micro-batches": FSDP | IN_MICRO_BATCHES,
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
    "compiled": World(
        2,
        {},
        {
            "ddp, compiled": DDP | {"compile": True},
            "fsdp, compiled": FSDP | {"compile": True, "activation_checkpointing": True},
            "zero2, compiled": ZERO[2] | {"compile": True},
        },
    ),
    "four ranks": World(
        4,
        {"ddp, 4 ranks, micro-batches": DDP | IN_MICRO_BATCHES},
        {"ddp, 4 ranks, micro-batches": DDP | IN_MICRO_BATCHES, "fsdp, 4 ranks": FSDP},
    ),
}


def run_trainings(digits: Path, out: Path, world: World, limit_seconds: float = 90) -> Figures:
    curves = {f"curve {name}": how | {"steps": STEPS} for name, how in world.curves.items()}
    still = {"steps": SINGLE_STEPS, "learning_rate": 0.0}
    trainings = curves | {f"single {name}": how | still for name, how in world.single.items()}
    (out / "trainings.json").write_text(json.dumps(trainings))
    arguments = [out / "trainings.json", digits, out]
    exit_codes, outputs = run_ranks("engine_trainings", arguments, world.ranks, limit_seconds=limit_seconds)
    assert exit_codes == [0] * world.ranks, "\n".join(outputs)
    assert outputs == [""] * world.ranks, "engines are quiet"
    return {name: json.loads((out / f"{name}.json").read_text()) for name in trainings}


@pytest.fixture(scope="module")
def alone(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Figures:
    return run_trainings(digits, tmp_path_factory.mktemp("alone"), WORLDS["alone"])


@pytest.fixture(scope="module", params=["ddp and fsdp", "zero", "four ranks"])
def together(request: pytest.FixtureRequest, digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Figures:
    return run_trainings(digits, tmp_path_factory.mktemp("together"), WORLDS[request.param])


def largest_difference(found: list[float], expected: list[float]) -> float:
    """Relative."""
    assert len(found) == len(expected)
    return max(abs(one - other) / abs(other) for one, other in zip(found, expected, strict=True))


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
        assert max(differences.values()) <= 1e-6


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_compiled_models_agree(alone: Figures, digits: Path, tmp_path: Path) -> None:
    """Apart from the others, because the first compilation takes most of a minute."""
    compiled = run_trainings(digits, tmp_path, WORLDS["compiled"], limit_seconds=300)
    for figures in compiled.values():
        for measure in ("losses", "norms"):
            assert largest_difference(figures[measure], alone["single alone"][measure]) <= 1e-6


def test_one_process_in_micro_batches_agrees(alone: Figures) -> None:
    for measure in ("losses", "norms"):
        found, expected = alone["single alone, micro-batches"][measure], alone["single alone"][measure]
        assert largest_difference(found, expected) <= 1e-6
