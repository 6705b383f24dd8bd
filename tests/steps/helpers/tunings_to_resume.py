"""Fine-tunings that are stopped and resumed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from base_models import make_llama, make_small_text, write_pairs
from engines_to_resume import ResumableEngine
from forked_ranks import RankServer
from killing import Training

from trainyard.steps import compute_reference, prepare_chat


@dataclass(frozen=True)
class Tuning:
    """One way to tune a model."""

    name: str
    flags: tuple[object, ...]
    task: str = "language_modeling"

    def __str__(self) -> str:
        return self.name


FULL = Tuning("full", ("--tuning", "full"))
LORA = Tuning("lora", ("--tuning", "lora", "--lora-dropout", 0.1))
PREFERENCES = Tuning("preferences", (*LORA.flags, "--beta", 0.3), "preferences")
MIXED = Tuning("mixed", (*FULL.flags, "--data-weights", "2,1"))
_STEPS = 12
_PAIRS = 400


def new_tuning(
    server: RankServer, engine: ResumableEngine, tuning: Tuning, data: Path, folder: Path
) -> Callable[[str], Training]:
    """Return what makes trainings of one kind, each in a folder of its own. `data` is text, for the base model."""
    base = make_llama(folder / "base", data)
    if tuning.task == "preferences":
        data = _pairs_with_reference(base, folder)
    more = ("--data-2", make_small_text(data, folder / "more")) if tuning is MIXED else ()
    flags = ("--base-model", base, "--max-steps", _STEPS, *more, *tuning.flags, *engine.flags(folder))

    def training(name: str) -> Training:
        return Training(server, engine.step, data, folder / name, flags, engine.ranks, tuning.task)

    return training


def _pairs_with_reference(base: Path, folder: Path) -> Path:
    pairs, referred = folder / "pairs", folder / "referred"
    flags = ("--base-model", base, "--source", write_pairs(folder / "source", _PAIRS), "--prepared", pairs)
    more = ("--preferences", "true", "--sequence-length", 64, "--packing", "false")
    assert prepare_chat.main([str(flag) for flag in (*flags, *more)]) == 0
    flags = ("--data", pairs, "--base-model", base, "--prepared", referred, "--micro-batch-size", 64)
    assert compute_reference.main([str(flag) for flag in flags]) == 0
    return referred
