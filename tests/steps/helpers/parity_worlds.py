"""Trainings with several engines in worlds of several sizes, whose losses and norms must agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from forked_ranks import forked_ranks

STEPS, SINGLE_STEPS = 50, 10
DDP, FSDP, HOROVOD = {"engine": "ddp"}, {"engine": "fsdp"}, {"engine": "horovod"}
ZERO: list[dict[str, Any]] = [{"engine": "deepspeed", "zero": {"stage": stage}} for stage in range(4)]
IN_MICRO_BATCHES = {"micro_batch_size": 4}

Trainings = dict[str, dict[str, Any]]
Figures = dict[str, dict[str, list[float]]]


class World(NamedTuple):
    """What is trained with so many ranks: curves of 50 steps, and single steps, whose learning rate is zero."""

    ranks: int
    curves: Trainings
    single: Trainings


ALONE = World(1, {"alone": DDP}, {"alone": DDP, "alone, micro-batches": DDP | IN_MICRO_BATCHES})


_SAID_BY_RANK_0 = ("rank 0 has built the whole model", "ranks sum gradients after ")
"""Why a model is not drawn in parts, and when FSDP sums gradients."""


def run_trainings(digits: Path, out: Path, world: World, limit_seconds: float = 400) -> Figures:
    curves = {f"curve {name}": how | {"steps": STEPS} for name, how in world.curves.items()}
    still = {"steps": SINGLE_STEPS, "learning_rate": 0.0}
    trainings = curves | {f"single {name}": how | still for name, how in world.single.items()}
    (out / "trainings.json").write_text(json.dumps(trainings))
    arguments = [out / "trainings.json", digits, out]
    exit_codes, outputs = forked_ranks().run("engine_trainings", arguments, world.ranks, limit_seconds=limit_seconds)
    assert exit_codes == [0] * world.ranks, "\n".join(outputs)
    said = [line for line in outputs[0].splitlines() if not line.startswith(_SAID_BY_RANK_0)]
    assert [said, *outputs[1:]] == [[], *[""] * (world.ranks - 1)], "engines are quiet otherwise"
    return {name: json.loads((out / f"{name}.json").read_text()) for name in trainings}


def largest_difference(found: list[float], expected: list[float]) -> float:
    """Relative."""
    assert len(found) == len(expected)
    return max(abs(one - other) / abs(other) for one, other in zip(found, expected, strict=True))
