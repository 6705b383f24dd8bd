"""Rows read by threads, from a mount or from copies on the node's own disk: the same samples in the same order."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rank_processes import training_arguments

from trainyard.steps import train_ddp
from trainyard.steps.data.dataset.local_copies import LocalCopies, default_folder
from trainyard.steps.data.dataset.manifest import ArrayType, read_manifest
from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.data.dataset.shards import Shard
from trainyard.steps.data.dataset.writer import DatasetWriter

EVERYTHING = 1 << 30


@pytest.fixture
def shards(digits: Path) -> tuple[Shard, ...]:
    return read_manifest(digits).splits["train"].shards


def copies_of(source: Path, shards: tuple[Shard, ...], folder: Path, limit_bytes: int) -> LocalCopies:
    """With everything copied that fits."""
    copies = LocalCopies({source: shards}, folder, limit_bytes, threads=2)
    copies.wait()
    return copies


def test_rows_are_those_of_memory_maps(digits: Path, tmp_path: Path, shards: tuple[Shard, ...]) -> None:
    manifest = read_manifest(digits)
    wanted = np.array([1292, 0, 499, 500, 999, 1000, 0])
    expected = SplitReader(digits, manifest, "train").gather(wanted)
    half = sum(shard.bytes for shard in shards) // 2
    for limit_bytes in (0, half, EVERYTHING):
        copies = copies_of(digits, shards, tmp_path / str(limit_bytes), limit_bytes)
        found = SplitReader(digits, manifest, "train", copies.copy_of).gather(wanted)
        assert all(np.array_equal(found[name], expected[name]) for name in expected)
        here = list((tmp_path / str(limit_bytes)).iterdir())
        assert sum(file.stat().st_size for file in here) <= limit_bytes
        assert (len(here) > 0, len(here) == len(shards)) == (limit_bytes > 0, limit_bytes == EVERYTHING)


def test_what_other_datasets_left_makes_room_oldest_first(
    digits: Path, tmp_path: Path, shards: tuple[Shard, ...]
) -> None:
    needed = sum(shard.bytes for shard in shards)
    for age, name in enumerate(("new", "old")):
        (tmp_path / name).write_bytes(bytes(1000))
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    copies_of(digits, shards, tmp_path, needed + 1500)
    assert {file.name for file in tmp_path.iterdir()} == {"new", *(shard.sha256 for shard in shards)}


def test_a_file_that_is_not_what_was_written_is_not_copied(
    digits: Path, tmp_path: Path, shards: tuple[Shard, ...]
) -> None:
    other = Shard(shards[0].array, shards[0].file, shards[0].samples, shards[0].bytes, "0" * 64)
    copies = copies_of(digits, (other,), tmp_path, EVERYTHING)
    assert copies.copy_of(other) is None
    assert not list(tmp_path.iterdir())


def test_what_killed_processes_left_unfinished_makes_room_and_what_others_write_does_not(
    digits: Path, tmp_path: Path, shards: tuple[Shard, ...]
) -> None:
    needed = sum(shard.bytes for shard in shards)
    left = tmp_path / f"{shards[0].sha256}.1"
    left.write_bytes(bytes(needed))
    written = tmp_path / "other.2"
    written.write_bytes(bytes(1000))
    with written.open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        copies_of(digits, shards, tmp_path, needed + 1000)
    assert {file.name for file in tmp_path.iterdir()} == {"other.2", *(shard.sha256 for shard in shards)}


def test_a_copy_that_another_job_removed_is_read_where_it_comes_from(
    digits: Path, tmp_path: Path, shards: tuple[Shard, ...]
) -> None:
    manifest, wanted = read_manifest(digits), np.array([1292, 0, 499])
    copies = copies_of(digits, shards, tmp_path, EVERYTHING)
    for file in tmp_path.iterdir():
        file.unlink()
    found = SplitReader(digits, manifest, "train", copies.copy_of).gather(wanted)
    expected = SplitReader(digits, manifest, "train").gather(wanted)
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def write_images(folder: Path, samples: int, seed: int) -> Path:
    """Write images of random pixels in many small shards, about 1 kB each."""
    random = np.random.default_rng(seed)
    arrays = {"images": ArrayType("uint8", (32, 32)), "labels": ArrayType("int64", ())}
    with DatasetWriter(folder, arrays, 16) as dataset:
        with dataset.split("train") as split:
            images = random.integers(0, 256, (samples, 32, 32), dtype=np.uint8)
            split.add({"images": images, "labels": random.integers(0, 10, samples)})
        dataset.finish("labelled_images", tuple("0123456789"), {})
    return folder


def test_a_corpus_that_does_not_fit_streams_with_the_same_bits_also_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two datasets of 1.6 MB, copies of at most 1 MB: those read most often, none of which makes room for another."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    large, small = write_images(tmp_path / "large", 1200, 1), write_images(tmp_path / "small", 400, 2)
    copied: list[LocalCopies] = []

    class Waiting(LocalCopies):
        """Copies everything that fits before the training begins, so that the training reads both kinds of rows."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.wait()
            copied.append(self)

    monkeypatch.setattr("trainyard.steps.training.samples.training_data.LocalCopies", Waiting)

    def train(out: Path, *flags: object) -> bytes:
        mixture = ("--data-2", small, "--data-weights", "1,1", "--learning-rate-schedule", "constant")
        arguments = training_arguments(large, out, "tiny_task:TinyTask", *mixture, "--warmup-fraction", 0, *flags)
        assert train_ddp.main([str(argument) for argument in arguments]) == 0
        return (out / "model" / "model.safetensors").read_bytes()

    mapped = train(tmp_path / "mapped", "--max-steps", 20)
    streaming = ("--read-threads", 3, "--data-cache-mb", 1)
    assert train(tmp_path / "streamed", "--max-steps", 20, *streaming) == mapped
    here = list(default_folder().iterdir())
    assert 900_000 < sum(file.stat().st_size for file in here) <= 1_000_000
    # Each of the small dataset's samples is read three times as often: all of it is here, and a part of the large one.
    assert all(copied[0].copy_of(shard) for shard in read_manifest(small).splits["train"].shards)

    train(tmp_path / "resumed", "--max-steps", 10, *streaming)
    for file in here[::2]:
        file.unlink()  # the next attempt is on a node that has other copies
    assert train(tmp_path / "resumed", "--max-steps", 20, *streaming) == mapped
    assert sum(file.stat().st_size for file in default_folder().iterdir()) <= 1_000_000
