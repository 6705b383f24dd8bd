"""What ends the making of a dataset of tokens, whatever tokenized the text: enough of it, the manifest, the summary."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from trainyard.settings.steps.preparation import TextDataset
from trainyard.steps.data.dataset.manifest import Split
from trainyard.steps.data.dataset.writer import DatasetWriter, settings_named
from trainyard.steps.data.text.text_source import TextSource
from trainyard.steps.data.tokenizing.encoding import Counts
from trainyard.steps.data.tokenizing.rows import SPLITS, SplitRows, Tokens
from trainyard.steps.data.tokenizing.splits import SplitRule
from trainyard.steps.data.tokenizing.vocabulary import Vocabulary, learn_vocabulary, plain_tokenizer
from trainyard.steps.runtime.errors import StepError


def learn(source: TextSource, rule: SplitRule, settings: TextDataset) -> Vocabulary:
    """Learn the vocabulary that the settings ask for, and say so."""
    print(f"learning a vocabulary from {source.description}", flush=True)
    vocabulary = learn_vocabulary(source, rule, settings.vocabulary_size, settings.vocabulary_sample_bytes)
    if vocabulary.size < settings.vocabulary_size:
        print(f"the text yields only {vocabulary.size} tokens for the vocabulary", flush=True)
    return vocabulary


def rows_of_splits(
    counts: Counts, tokens_of_parts: Sequence[Mapping[str, int]], settings: TextDataset
) -> list[SplitRows]:
    """Return how the tokens of consecutive parts of the text make rows; `counts` are of all parts.

    Raise StepError where a split that was asked for has no document, or the training text makes no row.
    """
    total = sum(counts.documents.values())
    wanted = {"validation": settings.validation_fraction, "test": settings.test_fraction}
    for name, fraction in wanted.items():
        if fraction > 0 and not counts.documents[name]:
            raise StepError(
                f"none of the {total} documents is in the split {name}: --{name}-fraction {fraction:g} is too small; "
                "set it higher, or to 0 to omit the split"
            )
    splits = [
        SplitRows(
            split,
            (0, *itertools.accumulate(tokens[split] for tokens in tokens_of_parts)),
            settings.sequence_length,
            settings.shard_samples,
        )
        for split in SPLITS
        if counts.documents[split]
    ]
    train = next((split for split in splits if split.name == "train"), None)
    if train is None or not train.rows:
        raise StepError(
            f"the training text has {train.tokens - 1 if train else 0} tokens, too few for one row of "
            f"--sequence-length {settings.sequence_length}; give more text or a shorter length"
        )
    return splits


def finish(
    settings: TextDataset,
    dataset: DatasetWriter,
    written: Mapping[SplitRows, Split],
    counts: Counts,
    left_out: Tokens,
    vocabulary: Vocabulary,
) -> None:
    """Write the vocabulary and the manifest, and print a summary.

    `left_out` are the tokens that end the training text and do not fill a row.
    """
    for rows, of_split in written.items():
        dataset.add_split(rows.name, of_split)
    vocabulary.write(dataset.folder)
    splits = list(written)
    text_bytes = {split.name: counts.text_bytes[split.name] for split in splits}
    unused = plain_tokenizer(vocabulary.tokenizer_json).decode(left_out[left_out != vocabulary.end_of_text].tolist())
    text_bytes["train"] -= len(unused.encode())
    text = vocabulary.token_text(
        documents={split.name: counts.documents[split.name] for split in splits},
        tokens={split.name: split.predicted_tokens for split in splits},
        text_bytes=text_bytes,
    )
    source = {
        "text": "Python's documentation" if settings.source is None else "files",
        "vocabulary": "learned" if settings.tokenizer is None else "given",
    }
    source |= settings_named(settings, "text_field", "sequence_length", "seed", "validation_fraction", "test_fraction")
    dataset.finish("tokens", (), source, text)
    for split in splits:
        print(
            f"{split.name}: {text.documents[split.name]} documents, {text.text_bytes[split.name]} bytes, "
            f"{text.tokens[split.name]} tokens in {split.rows} rows of {split.sequence_length}",
            flush=True,
        )
    if len(left_out):
        print(f"left out the last {len(left_out)} tokens of the training text, which do not fill a row", flush=True)
    print(f"{text.vocabulary_size} tokens in the vocabulary: {settings.prepared}", flush=True)
