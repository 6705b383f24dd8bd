"""A dataset on disk: what is altered is noticed, and any samples come back in the order asked for."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rank_processes import Ranks, clean_environment, free_port, rank_variables

from trainyard.steps.data.dataset import shards
from trainyard.steps.data.dataset.manifest import ArrayType, Manifest, Split, read_manifest
from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.data.dataset.shards import Shard, verify_dataset
from trainyard.steps.data.dataset.writer import DatasetWriter
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.world import World


@pytest.fixture
def copy(digits: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(digits, tmp_path / "copy"))


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest as another program might write it: without a digest of itself."""
    file = folder / "manifest.json"
    document = json.loads(file.read_text())
    del document["sha256"]
    change(document)
    file.write_text(json.dumps(document))


def test_samples_are_gathered_in_the_requested_order(digits: Path) -> None:
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


def test_a_shard_larger_than_the_memory_of_this_machine(tmp_path: Path) -> None:
    """Half a tebibyte that takes no room: all but its end is a hole."""
    sample_bytes, samples = 1 << 20, 1 << 19
    with (tmp_path / "train-00000.x.bin").open("wb") as stream:
        stream.seek(sample_bytes * samples - 2)
        stream.write(b"\x05\x07")
    shard = Shard("x", "train-00000.x.bin", samples, sample_bytes * samples, "0" * 64)
    Manifest("zeros", {"x": ArrayType("uint8", (sample_bytes,))}, {"train": Split(samples, (shard,))}).write(tmp_path)
    last = SplitReader(tmp_path, read_manifest(tmp_path), "train").gather(np.array([samples - 1]))["x"]
    assert last[0, -3:].tolist() == [0, 5, 7]


def test_a_missing_shard(copy: Path) -> None:
    (copy / "train-00001.images.bin").unlink()
    with pytest.raises(StepError, match=r"train-00001\.images\.bin is missing: the dataset's manifest lists it"):
        read_manifest(copy)


def test_a_truncated_shard(copy: Path) -> None:
    file = copy / "test-00000.images.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(StepError, match=r"test-00000\.images\.bin has 22975 bytes, expected 22976"):
        read_manifest(copy)


def test_an_altered_shard_is_noticed_when_digests_are_checked(copy: Path) -> None:
    file = copy / "test-00000.labels.bin"
    altered = bytearray(file.read_bytes())
    altered[8] ^= 1
    file.write_bytes(altered)
    manifest = read_manifest(copy)
    with (
        pytest.raises(StepError, match=r"test-00000\.labels\.bin is not what was written"),
        World(30, {}) as world,
    ):
        verify_dataset(copy, manifest.shards(), world)


def verified_with(how: str, folder: Path) -> None:
    manifest = read_manifest(folder)
    with World(30, {}) as world:
        verify_dataset(folder, manifest.shards(), world, how)


def test_a_flipped_byte_of_a_small_dataset_is_noticed_by_default(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    verified_with("auto", copy)
    assert "verified every byte of the dataset's 10 files" in capsys.readouterr().out
    file = copy / "test-00000.labels.bin"
    file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])
    verified_with("sizes", copy)
    with pytest.raises(StepError, match=r"test-00000\.labels\.bin is not what was written"):
        verified_with("auto", copy)


def test_digests_that_take_too_long_are_left_out_with_a_note(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shards, "_ALWAYS_SPENT_SECONDS", 0.0)
    monkeypatch.setattr(shards, "_SECONDS_PER_GIGABYTE", 1e-6)
    verified_with("auto", copy)
    said = capsys.readouterr().out
    assert "checked only the sizes of the dataset's 10 files: their digests would take about " in said
    assert "--verify-data digests checks them all the same" in said


def test_a_format_of_another_version(copy: Path) -> None:
    rewrite(copy, lambda document: document.update(format="trainyard.dataset/2"))
    with pytest.raises(StepError, match=r"has the format 'trainyard.dataset/2'; .* reads 'trainyard.dataset/1'"):
        read_manifest(copy)


def test_a_half_written_manifest(copy: Path) -> None:
    text = (copy / "manifest.json").read_text()
    (copy / "manifest.json").write_text(text[: len(text) // 2])
    with pytest.raises(StepError, match="is not valid JSON"):
        read_manifest(copy)


def test_an_altered_manifest(copy: Path) -> None:
    file = copy / "manifest.json"
    file.write_text(file.read_text().replace('"3"', '"5"'))
    with pytest.raises(StepError, match="was altered: the SHA-256 of the rest of it differs from its 'sha256'"):
        read_manifest(copy)


def test_a_manifest_of_another_program_needs_no_digest_of_itself(copy: Path) -> None:
    whole = read_manifest(copy)
    rewrite(copy, lambda document: None)
    assert read_manifest(copy) == whole


def shard(document: dict[str, Any], number: int, split: str = "train") -> dict[str, Any]:
    found: dict[str, Any] = document["splits"][split]["shards"][number]
    return found


BAD_MANIFESTS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "not an object": (lambda m: m.update(splits=3), "manifest.splits is 3; expected an object"),
    "a field is missing": (lambda m: shard(m, 2).pop("bytes"), r"splits\.train\.shards\[2\] lacks 'bytes'"),
    "a text for a number": (
        lambda m: shard(m, 0).update(samples="500"),
        "samples is '500'; expected an integer",
    ),
    "true for a number": (lambda m: m["splits"]["test"].update(samples=True), "samples is True; expected an integer"),
    "no samples": (lambda m: m["splits"]["test"].update(samples=0), "samples is 0; expected at least 1"),
    "an empty shard": (lambda m: shard(m, 0).update(samples=0), r"shards\[0\].samples is 0; expected at least 1"),
    "an unknown dtype": (
        lambda m: m["arrays"]["images"].update(dtype="unit8"),
        "dtype is 'unit8'; expected one of bool, uint8",
    ),
    "a dtype that runs code": (
        lambda m: m["arrays"]["images"].update(dtype="object"),
        "dtype is 'object'; expected one of",
    ),
    "an impossible shape": (lambda m: m["arrays"]["images"].update(shape=[1, -8, 8]), r"shape is \[1, -8, 8\]"),
    "an unknown array": (
        lambda m: shard(m, 0).update(array="image"),
        "array is 'image'; expected one of images, labels",
    ),
    "samples that do not add up": (
        lambda m: m["splits"]["train"].update(samples=1294),
        "splits.train.samples is 1294, but its shards of images add up to 1293",
    ),
    "arrays of different lengths": (
        lambda m: m["splits"]["train"]["shards"].pop(1),
        "splits.train.samples is 1293, but its shards of labels add up to 793",
    ),
    "bytes that do not add up": (
        lambda m: shard(m, 0).update(bytes=31999),
        r"bytes is 31999, but 500 samples of uint8 \[1, 8, 8\] are 32000",
    ),
    "no digest": (lambda m: shard(m, 0).update(sha256="abc"), "sha256 is not a SHA-256: 'abc'"),
    "a shard named twice": (
        lambda m: shard(m, 2).update(file="./train-00000.images.bin"),
        r"splits.train.shards\[2\].file ./train-00000.images.bin is also the file of splits.train.shards\[0\]",
    ),
    "a shard of another split": (
        lambda m: shard(m, 0, "test").update(file="validation-00000.images.bin"),
        r"splits.test.shards\[0\].file validation-00000.images.bin is also the file of splits.validation.shards\[0\]",
    ),
    "an absolute path": (
        lambda m: shard(m, 0).update(file="/etc/passwd"),
        "file is '/etc/passwd'; expected a path within",
    ),
    "a path out of the folder": (
        lambda m: shard(m, 0).update(file="a/../../b"),
        r"file is 'a/../../b'; expected a path within",
    ),
    "no path": (lambda m: shard(m, 0).update(file=""), "file is ''; expected a path within"),
    "a class that is not a name": (lambda m: m.update(classes=[1, 2]), r"classes\[0\] is 1; expected a string"),
}


@pytest.mark.parametrize("name", BAD_MANIFESTS)
def test_an_invalid_manifest_is_refused_at_its_place(copy: Path, name: str) -> None:
    change, message = BAD_MANIFESTS[name]
    rewrite(copy, change)
    with pytest.raises(StepError, match=rf"manifest\.json is not a valid manifest: .*{message}"):
        read_manifest(copy)


def test_a_class_that_the_dataset_does_not_have_is_named_with_its_sample(copy: Path) -> None:
    manifest = read_manifest(copy)
    first = next(shard for shard in manifest.splits["train"].shards if shard.array == "labels")
    labels = np.fromfile(copy / first.file, dtype=manifest.arrays["labels"].dtype)
    labels[7] = 10
    labels.tofile(copy / first.file)
    reader = SplitReader(copy, manifest, "train")
    reader.gather(np.arange(7))
    with pytest.raises(StepError, match="sample 7 of train has 10 among its labels, but the dataset has 10 classes"):
        reader.gather(np.arange(5, 9))


def test_a_folder_in_place_of_a_shard(copy: Path) -> None:
    (copy / "train-00001.images.bin").unlink()
    (copy / "train-00001.images.bin").mkdir()
    with pytest.raises(StepError, match=r"train-00001\.images\.bin is not a file"):
        read_manifest(copy)


VERIFY_EACH = """
import sys
from pathlib import Path
from trainyard.steps.data.dataset.manifest import read_manifest
from trainyard.steps.data.dataset.shards import verify_dataset
from trainyard.steps.runtime.entrypoint import end_process
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.world import World

with World(60) as world:
    for folder in map(Path, sys.argv[1:]):
        try:
            verify_dataset(folder, read_manifest(folder).shards(), world)
        except StepError as mistake:
            print(mistake)
end_process(0)
"""


@pytest.mark.slow
def test_ranks_divide_the_digests_and_all_of_them_report_a_mismatch(digits: Path, copy: Path) -> None:
    file = copy / "train-00000.labels.bin"  # the second of the files: rank 1's to check
    file.write_bytes(file.read_bytes()[:-1] + b"\x7f")
    port = free_port()
    ranks = Ranks(
        [
            subprocess.Popen(
                [sys.executable, "-c", VERIFY_EACH, str(digits), str(copy)],
                env={**clean_environment(), **rank_variables(rank, 2, port)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in (0, 1)
        ]
    )
    assert ranks.wait() == [0, 0]
    sound = "verified every byte of the dataset's 10 files\n"
    mistake = f"{file} is not what was written: its SHA-256 differs from the dataset's manifest\n"
    assert ranks.outputs == [sound + mistake, mistake]


def test_a_missing_split(digits: Path) -> None:
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


def test_several_processes_can_remove_the_same_shards(tmp_path: Path) -> None:
    """As after a failed writing, which every process tidies up."""
    for number in range(1000):
        (tmp_path / f"train-{number:05d}.x.bin").touch()
    writers = [DatasetWriter(tmp_path, {}, 3) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        for removal in [threads.submit(writer.__enter__) for writer in writers]:
            removal.result()
    assert list(tmp_path.iterdir()) == []


def test_arrays_are_little_endian_bytes_and_nothing_else(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path, {"x": ArrayType("int32", (2,))}, shard_samples=2) as dataset:
        with dataset.split("train") as split:
            split.add({"x": np.array([[1, 2], [3, 4], [5, 6]], dtype=">i8")})
        dataset.finish("numbers", [], {})
    assert (tmp_path / "train-00000.x.bin").read_bytes() == bytes.fromhex("01000000020000000300000004000000")
    assert (tmp_path / "train-00001.x.bin").read_bytes() == bytes.fromhex("0500000006000000")
