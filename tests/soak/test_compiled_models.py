"""Compiled models learn what others do, in every engine. Here because the first compilation takes most of a minute."""

from __future__ import annotations

from pathlib import Path

import pytest
from parity_worlds import ALONE, DDP, FSDP, ZERO, World, largest_difference, run_trainings

pytestmark = pytest.mark.soak

COMPILED = World(
    2,
    {},
    {
        "ddp, compiled": DDP | {"compile": True},
        "fsdp, compiled": FSDP | {"compile": True, "activation_checkpointing": True},
        "zero2, compiled": ZERO[2] | {"compile": True},
    },
)


def test_compiled_models_agree(digits: Path, tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    (tmp_path / "compiled").mkdir()
    alone = run_trainings(digits, tmp_path / "alone", ALONE)["single alone"]
    for figures in run_trainings(digits, tmp_path / "compiled", COMPILED, limit_seconds=300).values():
        for measure in ("losses", "norms"):
            assert largest_difference(figures[measure], alone[measure]) <= 1e-6
