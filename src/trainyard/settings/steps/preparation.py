"""The settings of the steps that make datasets: of images, of text, also on Spark, and of conversations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainyard.settings.step_fields import input_folder, output_folder, parameter, same_field


@dataclass(frozen=True)
class PrepareImages:
    """Turn labelled images into a dataset of memory-mapped arrays with train, validation and test splits."""

    prepared: Path = output_folder()
    """Where the dataset is written: manifest.json and one or more arrays per split."""

    format: str = parameter("digits", choices=("digits", "folder", "table"))
    """The format of the images: scikit-learn's handwritten digits (needs no source), one folder of image files (PNG,
    JPEG, WebP, BMP, TIFF) per class (also below train/, validation/ or val/, and test/), or a table (CSV or parquet) of
    paths and labels."""

    source: Path | None = input_folder(optional=True)
    """The folder that holds the images. Every format but digits needs it."""

    image_size: int = parameter(0, minimum=0, maximum=4096)
    """Height and width in pixels to scale the images of a folder or table to. 0 keeps them as they are if they all have
    the same size, and otherwise takes the median of their shorter sides, at most 224."""

    path_column: str = parameter("path")
    """The column of a table with the images' paths, relative to the source."""

    label_column: str = parameter("label")
    """The column of a table with the images' classes. A column `split`, if there is one, says train, validation (or
    val) or test."""

    validation_fraction: float = parameter(0.1, minimum=0.0, maximum=0.9)
    """The share of the training images held out for validation."""

    test_fraction: float = parameter(0.2, minimum=0.0, maximum=0.9)
    """The share of all images held out for testing, if the source has no test set."""

    shard_samples: int = parameter(65536, minimum=1)
    """The most samples in one array file."""

    skip_undecodable: bool = parameter(False)
    """Skip images that cannot be decoded, naming and counting them, instead of failing."""

    workers: int = parameter(0, minimum=0, maximum=256)
    """Processes that decode images; 0 means one per processor."""

    seed: int = parameter(0, minimum=0, maximum=2_147_483_647)
    """The seed of the assignment of images to splits."""


@dataclass(frozen=True)
class TextDataset:
    """What decides a dataset of tokens, whatever prepares it."""

    prepared: Path = output_folder()
    """Where the dataset is written: manifest.json, tokenizer.json and one or more arrays per split."""

    source: Path | None = input_folder(optional=True)
    """A folder with .txt, .md, .jsonl and .parquet files, also compressed as .gz or .zst. A single .txt or .md file is
    divided at line ends. Not given, the text is the documentation that comes with Python."""

    pattern: str | None = parameter(None)
    """Which files to read instead, each as one plain text whatever its ending: names with * and ?, such as *.py or
    src/*.c, with commas between several. * also stands for folders."""

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

    shard_samples: int = same_field(PrepareImages, "shard_samples")

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


@dataclass(frozen=True)
class PrepareChat:
    """Turn conversations, or prompts and completions, into a dataset of tokens for fine-tuning a language model, whose
    own tokenizer and chat template are used. Only answers are learned."""

    base_model: Path = input_folder(type="custom_model")
    """The model that will be fine-tuned: a folder with its tokenizer.json, and its chat template for conversations."""

    prepared: Path = output_folder()
    """Where the dataset is written: manifest.json, the tokenizer's files and one or more arrays per split."""

    source: Path | None = input_folder(optional=True)
    """A folder with .jsonl files, also compressed as .gz or .zst. Each line is an object with messages (of role and
    content), or with prompt and completion, as text or as messages; for `preferences` with prompt, chosen and
    rejected. The conversations of ShareGPT, and instruction, input and output of Alpaca, are read too. Not given, it is
    what functions of Python's standard library do, by their documentation; in pairs `Return …` is chosen, and
    `It returns …` rejected."""

    preferences: bool = parameter(False)
    """Read pairs of answers to one prompt, of which one was chosen and one rejected, for the task preferences. Both are
    put into one row, and each is cut at half its length."""

    sequence_length: int = parameter(2048, minimum=8)
    """The length of a row, in tokens. Longer conversations are cut, and counted."""

    packing: bool = parameter(True)
    """Put several conversations into a row. Attention and positions begin again with each, so each has the loss that it
    has alone. false fills the rest of each row with padding."""

    validation_fraction: float = parameter(0.05, minimum=0.0, maximum=0.9)
    """The share of all conversations held out for validation."""

    test_fraction: float = parameter(0.05, minimum=0.0, maximum=0.9)
    """The share of all conversations held out for testing."""

    shard_samples: int = parameter(65536, minimum=1)
    """The most rows in one array file."""

    workers: int = parameter(0, minimum=0, maximum=256)
    """Processes that tokenize; 0 means one per processor."""

    seed: int = parameter(0, minimum=0, maximum=2_147_483_647)
    """The seed of the assignment of conversations to splits."""
