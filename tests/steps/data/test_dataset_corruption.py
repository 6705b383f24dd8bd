"""Two hundred times a dataset is damaged at random: each damage is noticed, or changes nothing that is read."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from trainyard.steps.data.dataset.manifest import ArrayType, Manifest, read_manifest
from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.data.dataset.shards import verify_dataset
from trainyard.steps.data.dataset.writer import DatasetWriter
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.world import World

DAMAGES = 200


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    arrays = {"images": ArrayType("uint8", (3, 4, 4)), "labels": ArrayType("int64", ())}
    values = np.random.default_rng(0)
    with DatasetWriter(folder, arrays, shard_samples=10) as dataset:
        for name, samples in (("train", 35), ("test", 12)):
            with dataset.split(name) as split:
                split.add(
                    {"images": values.integers(0, 256, (samples, 3, 4, 4)), "labels": values.integers(0, 3, samples)}
                )
        dataset.finish("labelled_images", ["cat", "dog", "newt"], {"seed": 1})
    return folder


@pytest.fixture
def world() -> Iterator[World]:
    with World(30, {}) as world:
        yield world


def damage(folder: Path, chance: random.Random) -> str:
    """Truncate, delete, or flip one bit of one file; the manifest as often as all shards together."""
    shards = sorted(folder.glob("*.bin"))
    file = folder / "manifest.json" if chance.random() < 0.5 else chance.choice(shards)
    kind = chance.choices(("flipped bit", "truncated", "deleted"), weights=(6, 3, 1))[0]
    content = bytearray(file.read_bytes())
    if kind == "deleted":
        file.unlink()
    elif kind == "truncated":
        file.write_bytes(content[: chance.randrange(len(content))])
    else:
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        file.write_bytes(content)
    return kind


def contents(folder: Path, manifest: Manifest) -> dict[str, bytes]:
    """Every array of every split, as it is read."""
    read = {}
    for name in manifest.splits:
        split = SplitReader(folder, manifest, name)
        read |= {
            f"{name} {array}": values.tobytes() for array, values in split.gather(np.arange(split.samples)).items()
        }
    return read


def test_two_hundred_damages(whole: Path, tmp_path: Path, world: World) -> None:
    chance = random.Random(20261121)
    sound = read_manifest(whole)
    sound_contents = contents(whole, sound)
    noticed: Counter[str] = Counter()
    for number in range(DAMAGES):
        folder = Path(shutil.copytree(whole, tmp_path / f"{number}"))
        kind = damage(folder, chance)
        try:
            manifest = read_manifest(folder)
            verify_dataset(folder, manifest.shards(), world)
        except StepError:
            noticed[kind] += 1
        else:
            assert manifest == sound, f"damage {number}, {kind}: another manifest was read in silence"
            assert contents(folder, manifest) == sound_contents, f"damage {number}, {kind}: read in silence"
        if kind != "flipped bit":
            with pytest.raises(StepError):
                read_manifest(folder)
    assert noticed.total() >= DAMAGES - 5, "harmless are only such as another layout of the manifest's text"
    assert all(noticed[kind] > 10 for kind in ("flipped bit", "truncated", "deleted"))
