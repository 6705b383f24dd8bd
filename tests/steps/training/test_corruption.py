"""Two hundred ways in which a disk alters a checkpoint: none goes unnoticed."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from numbers_engine import NumbersEngine, same, some_tensors, write_as_ranks

from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.world import World
from trainyard.steps.training.checkpoints.checkpoints import Checkpoints
from trainyard.steps.training.samples.plan import Progress

CASES = 200
STEPS = (4, 8)


def truncate(file: Path, chance: random.Random) -> str:
    size = chance.randrange(file.stat().st_size)
    with file.open("r+b") as stream:
        stream.truncate(size)
    return f"cut to {size} bytes"


def flip_bits(file: Path, chance: random.Random) -> str:
    content = bytearray(file.read_bytes())
    flipped = [chance.randrange(len(content) * 8) for _ in range(chance.choice((1, 1, 3)))]
    for bit in flipped:
        content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)
    return f"bits {flipped} flipped"


def overwrite(file: Path, chance: random.Random) -> str:
    """A range of zeros: a block that never reached the disk."""
    content = bytearray(file.read_bytes())
    start = chance.randrange(len(content))
    stop = min(len(content), start + 512)
    content[start:stop] = bytes(stop - start)
    file.write_bytes(content)
    return f"bytes {start} to {stop} zero"


def delete(file: Path, _: random.Random) -> str:
    file.unlink()
    return "deleted"


def exchange(file: Path, chance: random.Random) -> str:
    """The same file of the other checkpoint: of the right size, and complete."""
    other = next(folder for folder in file.parent.parent.iterdir() if folder != file.parent)
    shutil.copy(other / file.name, file)
    return f"that of {other.name}"


@pytest.mark.parametrize("divided", [True, False])
def test_altered_checkpoints_are_detected_or_harmless(tmp_path: Path, divided: bool) -> None:
    sound = tmp_path / "sound"
    width = 40 if divided else 300  # what is replicated is divided from a mebibyte on
    states = {step: some_tensors(step, width=width) for step in STEPS}
    for step, tensors in states.items():
        write_as_ranks(sound / f"step-{step:08d}", tensors, 2, Progress(step, 1, 10 * step), divided=divided)

    chance = random.Random(5)
    results: dict[int | str, int] = {}
    with World(30, {}) as world:
        for case in range(CASES // 2):
            altered = tmp_path / "altered"
            shutil.copytree(sound, altered)
            done = []
            for _ in range(chance.choice((1, 1, 1, 2))):
                file = chance.choice(sorted(altered.rglob("*.*")))
                how = chance.choice((truncate, flip_bits, overwrite, delete, exchange))
                done.append(f"{file.relative_to(altered)} {how(file, chance)}")
            engine = NumbersEngine(some_tensors(0, width=width))
            checkpoints = Checkpoints(altered, world, {"seed": 1})
            try:
                _, progress = checkpoints.resume("auto", engine, seed=0) or (None, Progress())
            except StepError:
                results["refused"] = results.get("refused", 0) + 1
            else:
                expected = states.get(progress.step, some_tensors(0, width=width))
                assert checkpoints.is_engine_damaged or same(engine.tensors, expected), (case, done)
                assert not (checkpoints.is_engine_damaged and progress.step), (case, done)
                assert progress == (Progress(progress.step, 1, 10 * progress.step) if progress.step else Progress())
                results[progress.step] = results.get(progress.step, 0) + 1
            shutil.rmtree(altered)
    # About half of the alterations hit the older one, which is then not read.
    assert results[4] > CASES // 8, results
    assert results[8] > CASES // 8, results
    assert results.get("refused", 0) + results.get(0, 0) < CASES // 8, results
