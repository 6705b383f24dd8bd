"""Fine-tunings that are stopped and resumed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from base_models import make_llama
from engines_to_resume import ResumableEngine
from forked_ranks import RankServer
from killing import Training


class Tuning(tuple[object, ...]):
    """The flags of one way to tune a model."""

    def __str__(self) -> str:
        return str(self[1])


FULL = Tuning(("--tuning", "full"))
LORA = Tuning(("--tuning", "lora", "--lora-dropout", 0.1))
_STEPS = 12


def new_tuning(
    server: RankServer, engine: ResumableEngine, tuning: Tuning, data: Path, folder: Path
) -> Callable[[str], Training]:
    """Return what makes trainings of one kind, each in a folder of its own."""
    base = make_llama(folder / "base", data)
    flags = ("--base-model", base, "--max-steps", _STEPS, *tuning, *engine.flags(folder))

    def training(name: str) -> Training:
        return Training(server, engine.step, data, folder / name, flags, task="language_modeling")

    return training
