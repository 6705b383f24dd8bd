"""A dataset on disk: what is altered is noticed, and any samples come back in the order asked for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainyard.steps.dataset.manifest import ArrayType, read_manifest
from trainyard.steps.dataset.reader import SplitReader
from trainyard.steps.dataset.writer import DatasetWriter
from trainyard.steps.errors import StepError


@pytest.fixture
def copy(digits: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(digits, tmp_path / "copy"))


def rewrite(folder: Path, **changes: Any) -> None:
    file = folder / "manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_samples_come_in_the_order_asked_for(digits: Path) -> None:
    reader = SplitReader(digits, read_manifest(digits), "train")
    everything = reader.gather(np.arange(reader.samples))
    wanted = np.array([1292, 0, 499, 500, 999, 1000, 0])
    some = reader.gather(wanted)
    assert np.array_equal(some["images"], everything["images"][wanted])
    assert np.array_equal(some["labels"], everything["labels"][wanted])


def test_a_gathered_batch_is_a_copy_that_may_be_written_to(digits: Path) -> None:
    reader = SplitReader(digits, read_manifest(digits), "test")
    batch = reader.gather(np.array([0, 1]))
    batch["images"][:] = 0
    assert reader.gather(np.array([0]))["images"].any()


def test_a_missing_shard(copy: Path) -> None:
    (copy / "train-00001.images.bin").unlink()
    with pytest.raises(StepError, match=r"train-00001\.images\.bin is missing: the dataset's manifest names it"):
        read_manifest(copy)


def test_a_truncated_shard(copy: Path) -> None:
    file = copy / "test-00000.images.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(StepError, match=r"test-00000\.images\.bin has 22975 bytes where .* says 22976"):
        read_manifest(copy)


def test_an_altered_shard_is_noticed_when_digests_are_checked(copy: Path) -> None:
    file = copy / "test-00000.labels.bin"
    altered = bytearray(file.read_bytes())
    altered[8] ^= 1
    file.write_bytes(altered)
    read_manifest(copy)
    with pytest.raises(StepError, match=r"test-00000\.labels\.bin is not what was written"):
        read_manifest(copy, check_digests=True)


def test_a_format_of_another_version(copy: Path) -> None:
    rewrite(copy, format="trainyard.dataset/2")
    with pytest.raises(StepError, match=r"has the format 'trainyard.dataset/2'; .* reads 'trainyard.dataset/1'"):
        read_manifest(copy)


def test_a_half_written_manifest(copy: Path) -> None:
    text = (copy / "manifest.json").read_text()
    (copy / "manifest.json").write_text(text[: len(text) // 2])
    with pytest.raises(StepError, match="is not valid JSON"):
        read_manifest(copy)


def test_a_manifest_without_what_it_must_say(copy: Path) -> None:
    rewrite(copy, splits=3)
    with pytest.raises(StepError, match="is not a manifest that a prepare step wrote"):
        read_manifest(copy)


def test_a_split_that_is_not_there(digits: Path) -> None:
    with pytest.raises(StepError, match="has no split 'dev'; it has train, validation, test"):
        SplitReader(digits, read_manifest(digits), "dev")


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def write() -> None:
        with DatasetWriter(tmp_path, {"x": ArrayType("int32", (2,))}, 3) as dataset, dataset.split("train") as split:
            split.add({"x": np.zeros((5, 2))})
            assert len(list(tmp_path.iterdir())) == 2
            raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        write()
    assert list(tmp_path.iterdir()) == []


def test_arrays_are_little_endian_bytes_and_nothing_else(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path, {"x": ArrayType("int32", (2,))}, shard_samples=2) as dataset:
        with dataset.split("train") as split:
            split.add({"x": np.array([[1, 2], [3, 4], [5, 6]], dtype=">i8")})
        dataset.finish("numbers", [], {})
    assert (tmp_path / "train-00000.x.bin").read_bytes() == bytes.fromhex("01000000020000000300000004000000")
    assert (tmp_path / "train-00001.x.bin").read_bytes() == bytes.fromhex("0500000006000000")
