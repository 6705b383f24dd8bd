"""The settings of the steps that turn text into a dataset of tokens: on a machine or several, and on Spark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainyard.settings.step_fields import input_folder, output_folder, parameter


@dataclass(frozen=True)
class TextDataset:
    """What decides a dataset of tokens, whatever prepares it."""

    prepared: Path = output_folder()
    """Where the dataset is written: manifest.json, tokenizer.json and one or more arrays per split."""

    source: Path | None = input_folder(optional=True)
    """A folder with .txt, .md, .jsonl and .parquet files, also compressed as .gz or .zst. Not given, the text is the
    documentation that comes with Python."""

    text_field: str = parameter("text")
    """The field of a .jsonl object, or the column of a .parquet file, that holds the text."""

    tokenizer: Path | None = input_folder(optional=True)
    """A folder with the tokenizer.json to use, as in a transformers model; not given, one is trained."""

    vocabulary_size: int = parameter(8192, minimum=257, maximum=1000000)
    """Tokens in the vocabulary, if one is trained."""

    vocabulary_sample_bytes: int = parameter(100000000, minimum=1)
    """The most bytes of text to learn the vocabulary from, taken evenly from all files."""

    sequence_length: int = parameter(256, minimum=8)
    """The length of a sample, in tokens."""

    validation_fraction: float = parameter(0.05, minimum=0.0, maximum=0.9)
    """The share of all documents held out for validation."""

    test_fraction: float = parameter(0.05, minimum=0.0, maximum=0.9)
    """The share of all documents held out for testing."""

    shard_samples: int = parameter(65536, minimum=1)
    """The most samples in one array file."""

    replace_undecodable: bool = parameter(False)
    """Replace bytes that are not UTF-8 by U+FFFD, and count them, instead of failing."""

    seed: int = parameter(0, minimum=0, maximum=2_147_483_647)
    """The seed of the assignment of documents to splits."""


@dataclass(frozen=True)
class PrepareText(TextDataset):
    """Turn text into a dataset of tokens: a byte-level BPE vocabulary, and sequences of equal length in shards."""

    workers: int = parameter(0, minimum=0, maximum=256)
    """Processes that tokenize for each rank; 0 means one per processor."""

    process_group_timeout_seconds: int = parameter(1800, minimum=1)
    """How long a rank waits for the others, if several nodes prepare together."""


@dataclass(frozen=True)
class PrepareTextSpark(TextDataset):
    """Turn text that outgrows one machine into a dataset of tokens, on Spark: without duplicates, and otherwise the
    files that prepare_text writes."""

    prepared: Path = output_folder(mode="direct")

    drop_duplicates: str = parameter("near", choices=("near", "exact", "none"))
    """Which documents to drop: near drops those that share most of their shingles with an earlier one, and exact
    those with the very text of an earlier one. The first of equal ones always stays."""

    near_duplicate_threshold: float = parameter(0.8, minimum=0.3, maximum=1.0)
    """How many of all their different shingles two documents must share to be near duplicates (Jaccard similarity),
    as MinHash estimates it."""

    shingle_words: int = parameter(5, minimum=1, maximum=32)
    """The words in a shingle; a document's shingles are all runs of so many words."""

    minhash_values: int = parameter(128, minimum=16, maximum=1024)
    """Values in a document's MinHash signature. The estimate's standard error is at most 0.5 / sqrt(values)."""

    partitions: int = parameter(0, minimum=0, maximum=1000000)
    """Parts that the files are divided into, each read by one task. 0 makes four per core of the cluster, or one for
    each 256 MB if those are more. The dataset is the same for any number."""
