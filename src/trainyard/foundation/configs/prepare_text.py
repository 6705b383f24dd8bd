"""The settings of the step that turns text into a dataset of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainyard.foundation.step_fields import input_folder, output_folder, parameter


@dataclass(frozen=True)
class PrepareText:
    """Turn text into a dataset of tokens: a byte-level BPE vocabulary, and sequences of equal length in shards."""

    prepared: Path = output_folder()
    """Where the dataset is written: manifest.json, tokenizer.json and one or more arrays per split."""

    source: Path | None = input_folder(optional=True)
    """A folder with .txt, .md, .jsonl and .parquet files, also compressed as .gz or .zst. Not given, the text is the
    documentation that comes with Python."""

    text_field: str = parameter("text")
    """The field of a .jsonl object, or the column of a .parquet file, that holds the text."""

    tokenizer: Path | None = input_folder(optional=True)
    """A folder with the tokenizer.json to use, as a model of transformers has it; not given, one is trained."""

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

    workers: int = parameter(0, minimum=0, maximum=256)
    """Processes that tokenize for each rank; 0 means one per processor."""

    seed: int = parameter(0, minimum=0, maximum=2_147_483_647)
    """The seed of the assignment of documents to splits."""

    process_group_timeout_seconds: int = parameter(1800, minimum=1)
    """How long a rank waits for the others, if several nodes prepare together."""
