"""Text to rows of tokens: every format, every mistake, and the same bytes for any number of processes and ranks."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import zstandard
from forked_ranks import forked_ranks
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as some
from pyarrow import parquet
from tokenizers import Tokenizer, models, pre_tokenizers

from trainyard.steps import prepare_text
from trainyard.steps.data.dataset.manifest import ArrayType, read_manifest
from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.data.dataset.shards import require_digests
from trainyard.steps.data.dataset.writer import DatasetWriter
from trainyard.steps.data.text.text_source import PIECE_BYTES, pieces
from trainyard.steps.data.tokenizing import encoding
from trainyard.steps.data.tokenizing.prepare_tokens import TokenSpool, write_rows
from trainyard.steps.data.tokenizing.rows import SplitRows
from trainyard.steps.data.tokenizing.splits import split_rule
from trainyard.steps.runtime.world import World

ONLY_TRAIN = ("--validation-fraction", "0", "--test-fraction", "0")
SMALL = ("--vocabulary-size", "300", "--sequence-length", "8")


def prepare(source: Path | None, prepared: Path, *flags: object) -> int:
    arguments = ["--prepared", prepared, *(("--source", source) if source else ()), *flags]
    return prepare_text.main([str(argument) for argument in arguments])


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def rows_of(folder: Path, split: str) -> np.ndarray[Any, Any]:
    manifest = read_manifest(folder)
    return SplitReader(folder, manifest, split).gather(np.arange(manifest.splits[split].samples))["tokens"]


def stream_of(folder: Path, split: str) -> list[int]:
    """The tokens that a split's rows are cut from: rows share their ends, and the last may be padded."""
    rows, text = rows_of(folder, split), read_manifest(folder).text
    assert text is not None
    assert (rows[1:, 0] == rows[:-1, -1]).all()
    tokens = np.concatenate([rows[0, :1], rows[:, 1:].ravel()])
    return tokens[tokens != text.padding].tolist()  # type: ignore[no-any-return]


def documents_of(folder: Path, split: str) -> list[str]:
    """The split's text, taken apart at its end-of-text tokens."""
    text = read_manifest(folder).text
    assert text is not None
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    first, *rest = stream_of(folder, split)
    assert first == text.end_of_text
    documents: list[list[int]] = [[]]
    for token in rest:
        if token == text.end_of_text:
            documents.append([])
        else:
            documents[-1].append(token)
    return [tokenizer.decode(tokens) for tokens in documents]


def test_the_default_text_is_the_documentation_of_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pydoc_data.topics import topics

    assert prepare(None, tmp_path, "--vocabulary-size", 512, "--sequence-length", 64) == 0
    manifest = read_manifest(tmp_path)
    require_digests(tmp_path, manifest.shards())
    assert manifest.content == "tokens"
    assert manifest.arrays == {"tokens": ArrayType("uint16", (65,))}
    text = manifest.text
    assert text is not None
    assert (text.vocabulary_size, text.padding) == (512, 0xFFFF)
    assert sum(text.documents.values()) == len(topics)
    assert text.documents["validation"] == text.documents["test"] == round(0.05 * len(topics))
    for split in ("validation", "test"):
        *documents, rest = documents_of(tmp_path, split)
        assert rest == ""
        assert set(documents) <= set(topics.values())
        assert sum(len(document.encode()) for document in documents) == text.text_bytes[split]
        assert text.tokens[split] == len(stream_of(tmp_path, split)) - 1
    trained = documents_of(tmp_path, "train")
    assert set(trained[:-1]) <= set(topics.values())  # the last one's end filled no row
    assert sum(len(document.encode()) for document in trained) == text.text_bytes["train"]
    assert "left out" in capsys.readouterr().out


def json_lines(*texts: str) -> bytes:
    return b"".join(json.dumps({"id": 1, "text": text}).encode() + b"\n" for text in texts)


def table(folder: Path, **columns: list[Any]) -> bytes:
    parquet.write_table(pyarrow.table(columns), folder / "table", row_group_size=2)
    data = (folder / "table").read_bytes()
    (folder / "table").unlink()
    return data


def test_every_format_also_compressed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = {
        "a.txt": b"\xef\xbb\xbffirst of all",
        "b/c.md": "# zweitens, ü\r\n".encode(),
        "d.jsonl": json_lines("third <|endoftext|> is text", "", "fourth\n") + b'\n{"text": null}',
        "e.parquet": table(tmp_path, text=["fifth", None, "sixth"], other=[1, 2, 3]),
        "f.txt": b"the end, of which a few tokens fill no row",
    }
    expected = ["first of all", "# zweitens, ü\r\n", "third <|endoftext|> is text", "fourth\n", "fifth", "sixth"]
    compress = {"": lambda data: data, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}
    for suffix, compressed in compress.items():
        files = {name + suffix: compressed(data) for name, data in plain.items()}
        source = write_files(tmp_path / f"source{suffix}", {**files, "notes.pdf": b"%PDF"})
        assert prepare(source, tmp_path / f"out{suffix}", *SMALL, *ONLY_TRAIN) == 0
        assert "warning: skipped 1 file, hidden or not text: notes.pdf\n" in capsys.readouterr().out
        assert documents_of(tmp_path / f"out{suffix}", "train")[:-1] == expected
    digests = {read_manifest(tmp_path / f"out{suffix}").digest() for suffix in compress}
    assert len(digests) == 1  # the same documents, whatever they lie in


@hypothesis_settings(max_examples=60, deadline=None)
@given(
    tokens=some.lists(some.integers(0, 999), min_size=2, max_size=200),
    length=some.integers(1, 20),
    shard_samples=some.integers(1, 7),
    split=some.sampled_from(["train", "validation"]),
)
def test_the_rows_of_a_split_are_its_tokens(
    tmp_path_factory: pytest.TempPathFactory, tokens: list[int], length: int, shard_samples: int, split: str
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    rows = SplitRows(split, (0, len(tokens)), length, shard_samples)
    spool = TokenSpool(folder, "uint16")
    spool.add(split, np.array(tokens))
    with (
        World(60, {}) as world,
        DatasetWriter(folder, {"tokens": ArrayType("uint16", (length + 1,))}, shard_samples) as dataset,
    ):
        if rows.rows == 0:
            assert split == "train"
            assert len(tokens) <= length
            return
        written = write_rows(spool, [rows], dataset, world, padding=0xFFFF)[rows]
    spool.close()
    found = np.concatenate([np.fromfile(folder / shard.file, "<u2") for shard in written.shards])
    found = found.reshape(written.samples, length + 1)
    stream = [*found[0, :1].tolist(), *found[:, 1:].ravel().tolist()]
    padding = stream.count(0xFFFF)
    stream = stream[: len(stream) - padding]
    assert stream == tokens[: len(stream)]
    assert rows.predicted_tokens == len(stream) - 1
    left_out = len(tokens) - len(stream)
    assert (padding < length and left_out == 0) if split == "validation" else (padding == 0 and left_out < length)


@given(
    counts=some.lists(some.integers(0, 50), min_size=1, max_size=5).filter(lambda counts: sum(counts) > 1),
    length=some.integers(1, 9),
    shard_samples=some.integers(1, 5),
)
def test_shards_over_ranks_take_every_token_in_order(counts: list[int], length: int, shard_samples: int) -> None:
    bounds = (0, *(int(bound) for bound in np.cumsum(counts)))
    rows = SplitRows("validation", bounds, length, shard_samples)
    taken: list[int] = []
    for shard in rows.shards():
        start, stop = shard.token_bounds(shard.first_row, shard.stop_row)
        own = [bounds[rank] + token for rank, *part in shard.parts(start, stop) for token in range(*part)]
        assert own == list(range(start, stop))
        taken += own[1:] if taken else own
    assert taken == list(range(sum(counts)))


@pytest.fixture(scope="module")
def long_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several blocks in files of several formats."""
    random = np.random.default_rng(0)
    words = ["".join(chr(97 + letter) for letter in random.integers(0, 26, 5)) for _ in range(200)]

    def text(count: int) -> str:
        return " ".join(words[number] for number in random.integers(0, 200, count))

    return write_files(
        tmp_path_factory.mktemp("long"),
        {
            "a.txt": text(60_000).encode(),
            "b.jsonl.gz": gzip.compress(json_lines(*(text(100) for _ in range(700)))),
            "c.txt.zst": zstandard.ZstdCompressor().compress(text(50_000).encode()),
            "d.md": text(20_000).encode(),
        },
    )


LONG = ("--vocabulary-size", 300, "--sequence-length", 64, "--shard-samples", 300)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_the_same_bytes_for_any_number_of_processes(
    long_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert prepare(long_text, tmp_path / "in-this-process", *LONG) == 0
    monkeypatch.setattr(encoding, "_LEAST_BYTES_FOR_PROCESSES", 0)
    assert prepare(long_text, tmp_path / "in-two", *LONG, "--workers", 2) == 0
    assert contents(tmp_path / "in-this-process") == contents(tmp_path / "in-two")


@pytest.mark.slow
def test_the_same_bytes_for_any_number_of_ranks(long_text: Path, tmp_path: Path) -> None:
    assert prepare(long_text, tmp_path / "one", *LONG) == 0
    flags = ["--source", long_text, "--prepared", tmp_path / "three", *LONG]
    exit_codes, outputs = forked_ranks().run("prepare_text", flags, 3)
    assert exit_codes == [0, 0, 0], outputs
    assert contents(tmp_path / "one") == contents(tmp_path / "three")


def test_long_lines_and_characters_on_the_bounds_of_blocks(tmp_path: Path) -> None:
    text = "é" * 300_000 + "x" * 300_001
    source = write_files(tmp_path / "source", {"a.txt": text.encode(), "b.jsonl": json_lines(text)})
    assert prepare(source, tmp_path / "out", *SMALL, *ONLY_TRAIN) == 0
    documents = documents_of(tmp_path / "out", "train")
    assert documents[0] == text
    assert text.startswith(documents[1])


@given(some.text(alphabet="aé漢\n 🙂", max_size=400), some.integers(0, 40))
def test_pieces_are_the_text_and_break_no_character(part: str, times: int) -> None:
    data = (part * (1 + times * 20)).encode()
    bounds = list(pieces(data))
    assert b"".join(data[start:stop] for start, stop in bounds) == data
    assert all(data[start:stop].decode() and stop - start <= PIECE_BYTES for start, stop in bounds)


@example(documents=4, validation=0.375, test=0.375, seed=0)
@given(
    documents=some.integers(3, 60), validation=some.floats(0, 0.49), test=some.floats(0, 0.5), seed=some.integers(0, 9)
)
def test_few_documents_are_counted_out(documents: int, validation: float, test: float, seed: int) -> None:
    names = [f"document {number}" for number in range(documents)]
    rule = split_rule(names, validation, test, seed)
    found = [rule.split_of(name) for name in names]
    wanted = {"validation": validation, "test": test}
    counts = {name: max(1, round(share * documents)) if share else 0 for name, share in wanted.items()}
    if sum(counts.values()) >= documents:  # one is left to train on
        counts[max(counts, key=lambda name: counts[name])] -= sum(counts.values()) + 1 - documents
    assert {name: found.count(name) for name in counts} == counts
    assert "train" in found


def test_many_documents_are_split_by_their_names_alone() -> None:
    names = [f"document {number}" for number in range(20_000)]
    rule = split_rule(iter(names), 0.1, 0.05, seed=1)
    found = [rule.split_of(name) for name in names]
    assert found.count("validation") == pytest.approx(2000, rel=0.1)
    assert found.count("test") == pytest.approx(1000, rel=0.1)
    assert split_rule(reversed(names), 0.1, 0.05, seed=1) == rule
    assert split_rule(names, 0.1, 0.05, seed=2) != rule


def test_a_given_tokenizer(tmp_path: Path) -> None:
    source = write_files(tmp_path / "source", {"a.txt": b"some words to learn from, some more words " * 20})
    assert prepare(source, tmp_path / "first", *SMALL, *ONLY_TRAIN) == 0
    flags = ("--sequence-length", 16, *ONLY_TRAIN, "--tokenizer", tmp_path / "first")
    assert prepare(source, tmp_path / "second", *flags) == 0
    assert stream_of(tmp_path / "second", "train")[:100] == stream_of(tmp_path / "first", "train")[:100]
    assert (tmp_path / "first" / "tokenizer.json").read_bytes() == (tmp_path / "second" / "tokenizer.json").read_bytes()


def complaint(capsys: pytest.CaptureFixture[str], source: Path | None, prepared: Path, *flags: object) -> str:
    capsys.readouterr()
    assert prepare(source, prepared, *flags) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert not (prepared / "manifest.json").exists()
    return line.removeprefix("trainyard.steps.prepare_text: error: ").replace(f"{source}/", "")


MISTAKES: dict[str, tuple[bytes, str]] = {
    "a.txt": (
        b"good \xff bad",
        "a.txt, byte 5: the byte 0xff is not UTF-8 (invalid start byte); --replace",
    ),
    "b.jsonl": (b'{"text": "a"}\n\n{"text": ', "b.jsonl:3 is not valid JSON: "),
    "c.jsonl": (b'{"text": "a"}\n["b"]\n', 'c.jsonl:2 is not a JSON object: ["b"]'),
    "d.jsonl": (
        b'{"txet": "a", "id": 1}\n',
        "d.jsonl:1: no field 'text' (--text-field); found txet, id; did you mean --text-field txet?",
    ),
    "e.jsonl": (b'{"text": 3}\n', "e.jsonl:1: the field 'text' is not text: 3"),
    "f.jsonl": (b'{"text": "a"}\n{"text": "\xff"}\n', "f.jsonl:2: the byte 0xff is not UTF-8 "),
    "g.txt.gz": (gzip.compress(b"text " * 99)[:-9], "g.txt.gz is not valid gzip data: "),
    "h.txt.gz": (b"no gzip at all", "h.txt.gz is not valid gzip data: Not a gzipped file"),
    "i.txt.zst": (zstandard.compress(b"text " * 99)[:-3], "i.txt.zst is not valid Zstandard data: "),
    "j.txt.zst": (b"no zstd at all", "j.txt.zst is not valid Zstandard data: "),
    "k.parquet": (b"PAR1 or not", "k.parquet is not a valid parquet file: "),
    "l.txt": (b"", "no text: every file is empty"),
    "m.txt": (b"word", "the training text has 5 tokens, too few for one row of --sequence-length 8; give more text"),
}


MISTAKES |= {
    "n.txt": (
        "text".encode("utf-16"),
        "n.txt is UTF-16, expected UTF-8; convert it with `iconv -f UTF-16 -t UTF-8`",
    ),
    "o.jsonl": (json_lines("text").decode().encode("utf-32"), "o.jsonl is UTF-32, expected UTF-8; convert it with "),
    "p.txt.gz": (gzip.compress(b""), "no text: every file is empty"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_text_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    data, message = MISTAKES[name]
    source = write_files(tmp_path / "source", {name: data})
    assert complaint(capsys, source, tmp_path / "out", *SMALL, *ONLY_TRAIN).startswith(message)


def test_tables_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_files(tmp_path / "source", {"a.parquet": table(tmp_path, body=["a"], number=[3])})
    said = complaint(capsys, source, tmp_path / "out", *SMALL, *ONLY_TRAIN)
    assert said == "a.parquet: no field 'text' (--text-field); found body, number"
    said = complaint(capsys, source, tmp_path / "out", *SMALL, *ONLY_TRAIN, "--text-field", "number")
    assert said == "a.parquet: the column 'number' is not text: int64"


def test_a_column_of_text_may_lie_in_a_table_in_many_ways(tmp_path: Path) -> None:
    texts = ["first of all", None, "the second"]
    source = write_files(
        tmp_path / "source",
        {
            "a.parquet": table(tmp_path, text=pyarrow.array(texts).dictionary_encode()),
            "b.parquet": table(tmp_path, text=pyarrow.array(texts, pyarrow.string_view())),
            "c.parquet": table(tmp_path, text=pyarrow.array([b"third", b"fourth"], pyarrow.binary())),
            "d.parquet": table(tmp_path, text=pyarrow.nulls(3)),
            "e.txt": b"the end, of which a few tokens fill no row",
        },
    )
    assert prepare(source, tmp_path / "out", *SMALL, *ONLY_TRAIN) == 0
    expected = ["first of all", "the second", "first of all", "the second", "third", "fourth"]
    assert documents_of(tmp_path / "out", "train")[:-1] == expected


def test_a_table_whose_text_is_not_utf8_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lengths, data = pyarrow.py_buffer(np.array([0, 3], "int32")), pyarrow.py_buffer(b"ab\xff")
    column = pyarrow.Array.from_buffers(pyarrow.string(), 1, [None, lengths, data])
    source = write_files(tmp_path / "source", {"a.parquet": table(tmp_path, text=column)})
    assert complaint(capsys, source, tmp_path / "out", *SMALL, *ONLY_TRAIN).startswith(
        "a.parquet, document a.parquet:1, byte 2: the byte 0xff is not UTF-8"
    )


def test_a_number_of_any_length_beside_the_text(tmp_path: Path) -> None:
    line = b'{"id": ' + b"1" * 5000 + b', "text": "a text that is long enough for a row"}\n'
    source = write_files(tmp_path / "source", {"a.jsonl": line})
    assert prepare(source, tmp_path / "out", *SMALL, *ONLY_TRAIN) == 0


def test_links_are_followed_and_hidden_files_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    elsewhere = write_files(
        tmp_path / "elsewhere", {"deep/B.TXT": b"the second", "deep/.ipynb_checkpoints/b.txt": b"no"}
    )
    source = write_files(tmp_path / "source", {"a.txt": b"first of all", "._a.txt": b"\xff", "z.md": b"z" * 99})
    (source / "linked").symlink_to(elsewhere)
    (source / "circle").symlink_to(source)
    (source / "nowhere.txt").symlink_to(source / "none")
    assert prepare(source, tmp_path / "out", *SMALL, *ONLY_TRAIN) == 0
    skipped = "._a.txt, circle, linked/deep/.ipynb_checkpoints, nowhere.txt"
    assert f"warning: skipped 4 files, hidden or not text: {skipped}\n" in capsys.readouterr().out
    assert documents_of(tmp_path / "out", "train")[:-1] == ["first of all", "the second"]


def numbered_lines(count: int) -> bytes:
    return b"".join(b"line %d of many, all alike\n" % number for number in range(count))


def test_one_large_file_is_divided_at_line_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = numbered_lines(20_000)
    source = write_files(tmp_path / "source", {"input.txt": whole})
    assert prepare(source, tmp_path / "out", *SMALL) == 0

    said = capsys.readouterr().out
    assert f"input.txt is the only file: divided at line ends, from every {len(whole) // 200} bytes" in said
    text = read_manifest(tmp_path / "out").text
    assert text is not None
    assert 190 <= sum(text.documents.values()) <= 200
    assert min(text.documents.values()) >= 5
    found = [each for split in text.documents for each in documents_of(tmp_path / "out", split)[:-1]]
    assert all(each.startswith("line ") and each.endswith("alike\n") for each in found)


def test_one_file_of_a_single_line_is_divided_between_words(tmp_path: Path) -> None:
    source = write_files(tmp_path / "source", {"text8.txt": b"word after word " * 100_000})
    assert prepare(source, tmp_path / "out", *SMALL) == 0
    text = read_manifest(tmp_path / "out").text
    assert text is not None
    assert 150 <= sum(text.documents.values()) <= 200
    assert min(text.documents.values()) >= 5


def test_files_that_a_pattern_names_are_read_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {"a.py": b"import os\n" * 9, "pkg/b.py": b"import sys\n" * 9, "c.rs": b"fn main() {}", "README.md": b"no"}
    source = write_files(tmp_path / "source", files)
    assert prepare(source, tmp_path / "py", *SMALL, *ONLY_TRAIN, "--pattern", "*.py, *.rs") == 0
    assert documents_of(tmp_path / "py", "train")[:2] == ["import os\n" * 9, "fn main() {}"]
    capsys.readouterr()

    said = complaint(capsys, source, tmp_path / "out", "--pattern", "*.go")
    assert said.startswith(f"--source {source} holds no file that --pattern *.go names; found only README.md, a.py")
    said = complaint(capsys, None, tmp_path / "out", "--pattern", "*.py")
    assert said == "--pattern *.py needs --source, the folder that holds the files"


def test_an_empty_document_cannot_be_held_out(tmp_path: Path) -> None:
    empty = {f"empty{number}.txt.gz": gzip.compress(b"") for number in range(20)}
    source = write_files(tmp_path / "source", {"a.txt": b"word " * 99, "b.txt": b"word " * 99, **empty})
    assert prepare(source, tmp_path / "out", *SMALL, "--test-fraction", 0, "--validation-fraction", 0.5) == 0
    text = read_manifest(tmp_path / "out").text
    assert text is not None
    assert text.documents == {"train": 1, "validation": 1}


def test_a_killed_step_leaves_no_spooled_tokens(tmp_path: Path) -> None:
    spool = TokenSpool(tmp_path, "uint16")
    spool.add("train", np.arange(9))
    assert spool.read("train", 2, 5).tolist() == [2, 3, 4]
    assert list(tmp_path.iterdir()) == []
    spool.close()


def test_invalid_sources_and_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert complaint(capsys, tmp_path / "none", out) == f"--source {tmp_path}/none: no such folder"
    source = write_files(tmp_path / "source", {"picture.png": b"", "table.csv.gz": b""})
    assert complaint(capsys, source, out) == (
        f"--source {source} holds no text: expected .txt .md .jsonl .parquet, plain or as .gz .zst; "
        "found only picture.png, table.csv.gz"
    )
    write_files(source, {"one.txt": b"one document"})
    assert complaint(capsys, source, out).startswith(
        "one document cannot be divided into training, validation (--validation-fraction 0.05) and test"
    )
    assert complaint(capsys, None, out, "--test-fraction", 0.6, "--validation-fraction", 0.4) == (
        "--validation-fraction 0.4 and --test-fraction 0.6 leave nothing to train on"
    )
    assert complaint(capsys, None, out, "--tokenizer", source) == f"--tokenizer {source} has no tokenizer.json"
    (source / "tokenizer.json").write_text("{}")
    assert complaint(capsys, None, out, "--tokenizer", source).startswith(
        f"{source}/tokenizer.json is not a tokenizer that the package tokenizers reads: "
    )
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(source / "tokenizer.json"))
    assert complaint(capsys, None, out, "--tokenizer", source).startswith(
        f"--tokenizer {source} has no end-of-text token: name it as eos_token in tokenizer_config.json, or add one of "
    )


def test_bytes_that_are_not_utf8_replaced_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    half_a_pair = b'{"text": "\\ud800 alone"}\n'
    source = write_files(tmp_path / "source", {"a.txt": b"good \xff bad \xc3 text", "b.jsonl": half_a_pair})
    assert prepare(source, tmp_path / "out", *SMALL, *ONLY_TRAIN, "--replace-undecodable") == 0
    said = capsys.readouterr().out
    assert f"{source}/a.txt: 2 characters stand for bytes that are not UTF-8" in said
    assert documents_of(tmp_path / "out", "train")[0] == "good \ufffd bad \ufffd text"
