"""Making a dataset of conversations from the settings."""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainyard.foundation.configs.prepare_chat import PrepareChat
from trainyard.steps.data.conversations.examples import ChatLine, ExampleSource
from trainyard.steps.data.conversations.packing import RowPacker, arrays_of
from trainyard.steps.data.conversations.rendering import Renderer, TokenizedConversation, chat_template_of
from trainyard.steps.data.dataset.manifest import ArrayType, TokenText
from trainyard.steps.data.dataset.writer import DatasetWriter
from trainyard.steps.data.text.source import first_names
from trainyard.steps.data.tokenizing.rows import SPLITS
from trainyard.steps.data.tokenizing.splits import split_rule
from trainyard.steps.data.tokenizing.vocabulary import CHAT_TEMPLATE_FILE, TOKENIZER_FILE, Vocabulary, load_vocabulary
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.files import require_writable
from trainyard.steps.runtime.long_work import in_processes
from trainyard.steps.runtime.model_folders import find_model
from trainyard.steps.runtime.world import usable_processors

_EXAMPLES_AT_ONCE = 256
_LEAST_BYTES_FOR_PROCESSES = 1 << 22
"""Less is tokenized faster than processes start."""


@dataclass
class _SplitCounts:
    documents: int = 0
    rows: int = 0
    answers: int = 0
    """Tokens that are predicted."""
    answer_bytes: int = 0
    cut: int = 0
    """Conversations longer than a row."""
    cut_tokens: int = 0
    without_answer: int = 0
    """Conversations that have none, or whose answers begin after the end of a row; they are left out."""


def prepare_conversations(settings: PrepareChat) -> int:
    """Read, tokenize and pack the conversations; report what was cut and what was left out."""
    folder = find_model(settings.base_model)
    source, vocabulary = ExampleSource(settings.source), load_vocabulary(folder)
    require_writable([settings.prepared], rank=0)
    if source.skipped:
        print(f"skipped files that are not .jsonl: {first_names(source.skipped)}", flush=True)
    names = (example.name for example in source)
    rule = split_rule(names, settings.validation_fraction, settings.test_fraction, settings.seed)
    arrays = {
        name: ArrayType(values.dtype.name, values.shape[1:])
        for name, values in _rows_arrays([], settings, vocabulary).items()
    }
    counts = {split: _SplitCounts() for split in SPLITS}
    packers = {split: RowPacker(settings.sequence_length, packing=settings.packing) for split in SPLITS}
    with DatasetWriter(settings.prepared, arrays, settings.shard_samples) as dataset:
        with ExitStack() as opened:
            # The last to be opened is closed first, and so comes first in the manifest.
            writers = {split: opened.enter_context(dataset.split(split)) for split in reversed(SPLITS)}

            def write(split: str, rows: Iterator[list[TokenizedConversation]]) -> None:
                for row in rows:
                    counts[split].rows += 1
                    writers[split].add(_rows_arrays(row, settings, vocabulary))

            for document in _documents(source, Renderer.of(folder, vocabulary), settings.workers):
                split = rule.split_of(document.name)
                kept = _kept(document, counts[split], settings.sequence_length)
                if kept is not None:
                    write(split, packers[split].add(kept))
            for split in SPLITS:
                write(split, packers[split].finish())
        if not counts["train"].rows:
            raise StepError(
                f"no conversation for training has an answer within --sequence-length {settings.sequence_length}: each "
                "needs a completion, or a message of the role assistant"
            )
        _write_tokenizer(settings.prepared, folder, vocabulary)
        _finish(dataset, settings, vocabulary, {split: of for split, of in counts.items() if of.rows})
    for split in SPLITS:
        _say(split, counts[split], settings)
    return 0


def _documents(source: ExampleSource, renderer: Renderer, workers: int) -> Iterator[TokenizedConversation]:
    """Yield the documents in the order of the examples, whatever the number of processes."""
    examples = iter(source)
    batches: Iterator[list[ChatLine]] = iter(lambda: list(itertools.islice(examples, _EXAMPLES_AT_ONCE)), [])
    if source.size_bytes < _LEAST_BYTES_FOR_PROCESSES:
        for batch in batches:
            yield from renderer(batch)
    else:
        work = functools.partial(_render_alone, renderer)
        for _, documents in in_processes(work, batches, workers or usable_processors(), "tokenized conversations"):
            yield from documents


def _render_alone(renderer: Renderer, examples: list[ChatLine]) -> list[TokenizedConversation]:
    """Render in one of several processes, without the tokenizer's threads, which would compete with them."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return renderer(examples)


def _kept(document: TokenizedConversation, counts: _SplitCounts, length: int) -> TokenizedConversation | None:
    """Return what of a document fits a row; None if that has no answer."""
    tokens, is_answer = document.tokens[:length], document.is_answer[:length]
    if not is_answer[1:].any():
        counts.without_answer += 1
        return None
    counts.documents += 1
    counts.answers += int(is_answer[1:].sum())
    counts.answer_bytes += document.answer_bytes * int(is_answer.sum()) // int(document.is_answer.sum())
    if len(tokens) < len(document.tokens):
        counts.cut += 1
        counts.cut_tokens += len(document.tokens) - len(tokens)
    return document._replace(tokens=tokens, is_answer=is_answer)


def _rows_arrays(
    row: list[TokenizedConversation], settings: PrepareChat, vocabulary: Vocabulary
) -> dict[str, np.ndarray]:
    return arrays_of(row, settings.sequence_length, vocabulary.padding, vocabulary.dtype, packing=settings.packing)


def _write_tokenizer(prepared: Path, folder: Path, vocabulary: Vocabulary) -> None:
    """Write the tokenizer's files and the chat template, for the trained model to have them too."""
    vocabulary.write(prepared)
    template = chat_template_of(folder)
    if template is None:
        (prepared / CHAT_TEMPLATE_FILE).unlink(missing_ok=True)
    else:
        (prepared / CHAT_TEMPLATE_FILE).write_text(template, encoding="utf-8")


def _finish(
    dataset: DatasetWriter, settings: PrepareChat, vocabulary: Vocabulary, counts: dict[str, _SplitCounts]
) -> None:
    text = TokenText(
        vocabulary_size=vocabulary.size,
        end_of_text=vocabulary.end_of_text,
        padding=vocabulary.padding,
        tokenizer_sha256=hashlib.sha256((settings.prepared / TOKENIZER_FILE).read_bytes()).hexdigest(),
        documents={split: of.documents for split, of in counts.items()},
        tokens={split: of.answers for split, of in counts.items()},
        text_bytes={split: of.answer_bytes for split, of in counts.items()},
    )
    source = {
        "conversations": "questions about Python" if settings.source is None else "files",
        "sequence_length": settings.sequence_length,
        "packing": settings.packing,
        "seed": settings.seed,
        "validation_fraction": settings.validation_fraction,
        "test_fraction": settings.test_fraction,
    }
    dataset.finish("conversations", (), source, text)


def _say(split: str, counts: _SplitCounts, settings: PrepareChat) -> None:
    length = settings.sequence_length
    if counts.documents:
        found = f"{counts.documents} conversations with {counts.answers} tokens of answers"
        print(f"{split}: {found}, in {counts.rows} rows of {length}", flush=True)
    if counts.cut:
        print(
            f"warning: {split}: {counts.cut} of {counts.documents} conversations are longer than {length} tokens and "
            f"were cut, by {counts.cut_tokens} tokens in total (--sequence-length)",
            flush=True,
        )
    if counts.without_answer:
        print(
            f"warning: {split}: {counts.without_answer} conversations were left out, which have no answer within "
            f"{length} tokens",
            flush=True,
        )
