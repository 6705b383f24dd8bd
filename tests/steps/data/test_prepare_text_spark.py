"""Preparation on Spark: the bytes of prepare_text, without duplicates, however the files are divided."""

from __future__ import annotations

import gzip
import itertools
import json
import random
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as some
from pyarrow import parquet

from trainyard.settings.steps.preparation import PrepareTextSpark
from trainyard.steps import prepare_text, prepare_text_spark
from trainyard.steps.data.at_scale.duplicates import document_key, without
from trainyard.steps.data.at_scale.signatures import Signature, SignatureBuilder, bands_for, similarity
from trainyard.steps.data.at_scale.text_shards import sections_of
from trainyard.steps.data.text import open_source
from trainyard.steps.data.tokenizing.rows import SplitRows

SMALL = ("--vocabulary-size", "300", "--sequence-length", "16", "--shard-samples", "100")
WORDS = [
    f"{first}{second}" for first in ("bal", "dor", "fin", "gul", "kem") for second in ("a", "ent", "ish", "or", "us")
]


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tasks at a time in this process's own Spark."""
    pytest.importorskip("pyspark", reason="pyspark is not installed: make setup-spark")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master local[2] --conf spark.ui.enabled=false pyspark-shell")


def on_one_machine(source: Path, prepared: Path, *flags: object) -> Path:
    arguments = ["--source", source, "--prepared", prepared, *SMALL, *flags]
    assert prepare_text.main([str(argument) for argument in arguments]) == 0
    return prepared


def on_spark(source: Path | str, prepared: Path | str, *flags: object) -> int:
    arguments = ["--source", source, "--prepared", prepared, *SMALL, *flags]
    return prepare_text_spark.main([str(argument) for argument in arguments])


def files_in(folder: Path) -> dict[str, bytes]:
    """The dataset; the report on duplicates, which only Spark writes, lies beside it."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name != "duplicates.json"}


def report_in(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / "duplicates.json").read_bytes())
    return report


def text_of(generator: random.Random, words: int) -> str:
    return " ".join(f"{generator.choice(WORDS)}{generator.randrange(1000)}" for _ in range(words))


def changed(generator: random.Random, text: str, share: float) -> str:
    """The text with a share of its words replaced."""
    words = text.split()
    for place in generator.sample(range(len(words)), round(share * len(words))):
        words[place] = f"other{generator.randrange(10**6)}"
    return " ".join(words)


@pytest.fixture(scope="module")
def every_format(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of every kind of file, one of several blocks, and none like another."""
    folder, generator = tmp_path_factory.mktemp("every-format"), random.Random(1)
    (folder / "a.txt").write_text(text_of(generator, 60_000))
    (folder / "b").mkdir()
    for number in range(9):
        (folder / "b" / f"{number}.md").write_text(text_of(generator, 200))
    lines = [json.dumps({"text": text_of(generator, 100)}) + "\n" for _ in range(40)]
    (folder / "c.jsonl.gz").write_bytes(gzip.compress("".join(lines).encode()))
    parquet.write_table(pyarrow.table({"text": [text_of(generator, 50) for _ in range(30)]}), folder / "d.parquet")
    (folder / "e.png").write_bytes(b"")
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("flags", [("--partitions", 1), ("--partitions", 7), ("--drop-duplicates", "none")], ids=str)
def test_documents_without_duplicates_become_the_files_of_prepare_text(
    every_format: Path, tmp_path: Path, flags: tuple[object, ...]
) -> None:
    expected = files_in(on_one_machine(every_format, tmp_path / "one"))
    assert on_spark(every_format, tmp_path / "spark", *flags) == 0
    assert files_in(tmp_path / "spark") == expected


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_duplicates_are_dropped_and_the_first_stays(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    generator = random.Random(2)
    originals = [text_of(generator, 300) for _ in range(30)]
    repeats = {
        "copy.txt": originals[3],
        "copy-of-copy.txt": originals[3],
        "near.txt": changed(generator, originals[5], 0.01),
        "case.txt": originals[7].upper(),
    }
    source, alone = tmp_path / "source", tmp_path / "alone"
    for folder in (source, alone):
        folder.mkdir()
        for number, text in enumerate(originals):
            (folder / f"{number:02}.txt").write_text(text)
        # Half of the words are others: too different to be dropped.
        (folder / "related.txt").write_text(changed(random.Random(3), originals[9], 0.5))
    for name, text in repeats.items():
        (source / name).write_text(text)

    expected = files_in(on_one_machine(alone, tmp_path / "expected"))
    assert on_spark(source, tmp_path / "few", "--partitions", 2) == 0
    assert "dropped 4 of 35 documents: 2 exact and 2 near duplicates" in capfd.readouterr().out
    assert on_spark(source, tmp_path / "many", "--partitions", 35) == 0
    assert files_in(tmp_path / "few") == files_in(tmp_path / "many") == expected
    report = report_in(tmp_path / "few")
    assert report == report_in(tmp_path / "many")
    found = {pair["dropped"]: (pair["repeats"], pair["similarity"]) for pair in report["sample"]}
    assert found.pop("near.txt") == ("05.txt", pytest.approx(0.92, abs=0.08))
    assert found == {"copy.txt": ("03.txt", 1), "copy-of-copy.txt": ("03.txt", 1), "case.txt": ("07.txt", 1)}
    assert report["dropped"]["exact"] == 2

    # The same in one file: the documents' names, and with them their splits, are those of all lines.
    shutil.rmtree(source)
    source.mkdir()
    texts = [*originals, *repeats.values()]
    (source / "all.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    assert on_spark(source, tmp_path / "lines", "--drop-duplicates", "exact") == 0
    assert report_in(tmp_path / "lines")["dropped"] | {"text_bytes": 0} == {"exact": 2, "near": 0, "text_bytes": 0}
    documents = json.loads((tmp_path / "lines" / "manifest.json").read_bytes())["text"]["documents"]
    assert sum(documents.values()) == len(texts) - 2


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_folders_may_be_addresses(every_format: Path, tmp_path: Path) -> None:
    expected = files_in(on_one_machine(every_format, tmp_path / "one"))
    assert on_spark(f"file://{every_format}", f"file://{tmp_path}/spark", "--tokenizer", f"file://{tmp_path}/one") == 0
    found = files_in(tmp_path / "spark")
    # The manifest says that the vocabulary was given, and the given one was learned from this very text.
    assert found.keys() == expected.keys()
    assert {name for name in found if found[name] != expected[name]} == {"manifest.json"}


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_what_a_task_cannot_read_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.txt").write_text("text")
    (source / "broken.txt.gz").write_bytes(b"no gzip")
    assert on_spark(source, tmp_path / "prepared") == 1
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith(f"trainyard.steps.prepare_text_spark: error: {source}/broken.txt.gz is not valid gzip data")
    assert not (tmp_path / "prepared" / "manifest.json").exists()


def test_what_is_missing_is_named_with_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert on_spark(tmp_path, tmp_path) == 2
    assert 'needs the package pyspark; pip install "trainyard-azureml[spark]"' in capsys.readouterr().err

    monkeypatch.setitem(sys.modules, "pyspark", pytest)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert on_spark(tmp_path, tmp_path) == 2
    assert "needs Java 8, 11 or 17, and JAVA_HOME=" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--near-duplicate-threshold", "0.1"), "below the minimum of 0.3"),
        (("--near-duplicate-threshold", "1.5"), "above the maximum of 1"),
        (("--minhash-values", "8"), "below the minimum of 16"),
        (("--drop-duplicates", "some"), "near, exact, none"),
    ],
)
def test_settings_out_of_range_are_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, str], message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        on_spark(tmp_path, tmp_path, *flags)
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert flags[0] in shown
    assert message in shown


def test_a_folder_without_text_is_refused_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed: make setup-spark")
    assert on_spark(tmp_path, tmp_path / "prepared") == 1
    assert "holds no text" in capsys.readouterr().err


def signature_of(text: str, pieces: Sequence[int] = ()) -> Signature:
    builder = SignatureBuilder(shingle_words=5, minhash_values=128)
    for start, stop in itertools.pairwise([0, *pieces, len(text)]):
        builder.add(text[start:stop])
    return builder.finish()


def test_of_a_divided_file_only_the_documents_that_repeat_are_dropped(tmp_path: Path) -> None:
    (tmp_path / "all.txt").write_text("\n".join(f"line {number} of the only file" for number in range(2000)))
    source = open_source(PrepareTextSpark(source=tmp_path, prepared=tmp_path / "prepared"))
    names = list(source.files[0].documents())
    assert len(names) > 2

    kept = without(source, {0: np.array([document_key(names[1])], dtype=np.uint64)})
    assert [name for file in kept.files for name in file.documents()] == [names[0], *names[2:]]


def test_signatures_estimate_the_exact_similarity_and_bands_find_what_is_alike() -> None:
    """On a small corpus every pair is compared exactly: 30 texts, each with copies of 0 to 30 % other words."""
    generator = random.Random(4)
    texts = []
    for _ in range(30):
        original = text_of(generator, 200)
        texts += [original, *(changed(generator, original, share) for share in (0.005, 0.01, 0.02, 0.03, 0.06, 0.3))]
    words = [text.lower().split() for text in texts]
    shingles = [{tuple(of_text[at : at + 5]) for at in range(len(of_text) - 4)} for of_text in words]
    signatures = [signature_of(text).values for text in texts]
    threshold = 0.8
    bands = bands_for(threshold, 128)
    bands_of = [set(enumerate(bands.of(signature))) for signature in signatures]
    errors, too_different, alike, found = [], [], 0, 0
    for left, right in itertools.combinations(range(len(texts)), 2):
        exact = len(shingles[left] & shingles[right]) / len(shingles[left] | shingles[right])
        estimate = similarity(signatures[left], signatures[right])
        errors.append(estimate - exact)
        is_found = bool(bands_of[left] & bands_of[right]) and estimate >= threshold
        if exact >= threshold + 0.05:
            alike += 1
            found += is_found
        if is_found:
            too_different.append(exact < threshold - 0.1)
    assert alike > 50
    assert found / alike >= 0.9  # recall
    assert np.mean(too_different) <= 0.02  # precision
    assert abs(np.mean(errors)) < 0.01
    assert max(map(abs, errors)) < 4 * 0.5 / np.sqrt(128)


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.8, 0.95, 1.0])
def test_bands_find_pairs_at_the_threshold(threshold: float) -> None:
    bands = bands_for(threshold, 128)
    assert bands.probability(threshold) >= 0.99
    assert bands.count * bands.rows <= 128


@hypothesis_settings(max_examples=30, deadline=None)
@given(words=some.integers(0, 40), cuts=some.sets(some.integers(0, 39), max_size=4), seed=some.integers(0, 99))
def test_a_signature_does_not_depend_on_how_the_text_is_cut(words: int, cuts: set[int], seed: int) -> None:
    texts = text_of(random.Random(seed), words).split(" ")
    text = " ".join(texts)
    places = sorted(len(" ".join(texts[:cut])) for cut in cuts if cut < len(texts))
    assert signature_of(text, places) == signature_of(text)


@given(
    tokens=some.integers(2, 200),
    length=some.integers(1, 20),
    shard_samples=some.integers(1, 7),
    split=some.sampled_from(["train", "validation"]),
)
def test_sections_take_every_token(tokens: int, length: int, shard_samples: int, split: str) -> None:
    """Shards share the token between them, and the end of the training text has a section of its own."""
    sections = sections_of([SplitRows(split, (0, tokens), length, shard_samples)])
    shards = [section for section in sections if section.shard is not None]
    for left, right in itertools.pairwise(shards):
        assert left.stop == right.start + 1
    rest = [section for section in sections if section.shard is None]
    end = rest[0].start if rest else tokens
    assert not shards or (shards[0].start, shards[-1].stop) == (0, end)
    assert len(rest) <= (split == "train")
    assert all(section.stop == tokens for section in rest)
