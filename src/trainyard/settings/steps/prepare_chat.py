"""The settings of the step that turns conversations, or pairs of answers, into a dataset of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainyard.settings.step_fields import input_folder, output_folder, parameter


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
    content), or with prompt and completion, as texts or as messages; for `preferences` with prompt, chosen and
    rejected. Not given, it is questions about Python, answered by the documentation that comes with it."""

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
