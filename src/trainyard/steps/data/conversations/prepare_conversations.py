"""Making a dataset of conversations, or of pairs of answers, from the settings."""

from __future__ import annotations

import bisect
import functools
import importlib
import inspect
import itertools
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from trainyard.settings.steps.preparation import PrepareChat
from trainyard.settings.this_machine import available_processors
from trainyard.steps.data.conversations.rendering import Documents, Renderer, TokenizedConversation
from trainyard.steps.data.dataset.manifest import ArrayType
from trainyard.steps.data.dataset.writer import DatasetWriter, settings_named
from trainyard.steps.data.text import files_below, files_of_formats
from trainyard.steps.data.text.text_formats import JsonLine, JsonLinesFile
from trainyard.steps.data.text.text_source import skipped_files
from trainyard.steps.data.tokenizing.encoding import tokenize_in_processes
from trainyard.steps.data.tokenizing.rows import SPLITS
from trainyard.steps.data.tokenizing.splits import split_rule
from trainyard.steps.data.tokenizing.vocabulary import CHAT_TEMPLATE_FILE, Vocabulary, load_vocabulary
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.files import find_model, require_folder, require_writable

_EXAMPLES_AT_ONCE = 256
_OPEN_ROWS = 1024
_LEAST_TOKENS = 2
"""Shorter documents have nothing to predict."""

_MODULES = (
    "builtins calendar cmath collections datetime decimal difflib fractions functools heapq inspect io ipaddress "
    "itertools logging math operator os pathlib random re shutil statistics string sys textwrap threading time"
)
"""Of the standard library: those whose documentation says in sentences what a function does. Without a source, a model
is tuned on questions about it."""
_FIRST_SENTENCE = re.compile(r"([A-Z][a-z]+ [^.:(]{15,150}\.)(\s|$)")

Row = list[TokenizedConversation]


@dataclass
class _SplitCounts:
    examples: int = 0
    documents: int = 0
    rows: int = 0
    answers: int = 0
    """Tokens that are predicted."""
    answer_bytes: int = 0
    cut: int = 0
    """Conversations, or answers of pairs with their prompts, that are longer than they may be."""
    cut_tokens: int = 0
    left_out: int = 0
    """Examples of which no answer is left, or pairs of which nothing is left that differs."""


def prepare_conversations(settings: PrepareChat) -> int:
    """Read, tokenize and pack the conversations; report what was cut and what was left out."""
    folder = find_model(settings.base_model)
    source, vocabulary = ExampleSource(settings.source, pairs=settings.preferences), load_vocabulary(folder)
    require_writable([settings.prepared], rank=0)
    for note in skipped_files(source.skipped, ".jsonl"):
        print(note, flush=True)
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

            def write(split: str, rows: Iterable[list[TokenizedConversation]]) -> None:
                for row in rows:
                    counts[split].rows += 1
                    writers[split].add(_rows_arrays(row, settings, vocabulary))

            renderer = Renderer(folder, vocabulary.end_of_text, vocabulary.dtype, settings.preferences)
            for documents in _documents(source, renderer, settings.workers):
                split = rule.split_of(documents[0].name)
                write(split, packers[split].add(kept) if (kept := _kept(documents, counts[split], settings)) else ())
            for split in SPLITS:
                write(split, packers[split].finish())
        if not counts["train"].rows:
            raise StepError(_nothing_to_learn(settings))
        _write_tokenizer(settings.prepared, folder, vocabulary)
        _finish(dataset, settings, vocabulary, {split: of for split, of in counts.items() if of.rows})
    for split in SPLITS:
        _say(split, counts[split], settings)
    return 0


def _documents(source: ExampleSource, renderer: Renderer, workers: int) -> Iterator[Documents]:
    """Yield each example's documents in the order of the examples, whatever the number of processes."""
    examples = iter(source)
    batches: Iterator[list[JsonLine]] = iter(lambda: list(itertools.islice(examples, _EXAMPLES_AT_ONCE)), [])
    workers = workers or available_processors()
    for _, documents in tokenize_in_processes(renderer, batches, source.size_bytes, workers, "tokenized conversations"):
        yield from documents


def _longest(settings: PrepareChat) -> int:
    """Return how many tokens a document may have; a pair's two share a row."""
    return settings.sequence_length // 2 if settings.preferences else settings.sequence_length


def _kept(documents: Documents, counts: _SplitCounts, settings: PrepareChat) -> Documents:
    """Return what of an example's documents fits a row; nothing if there is nothing to learn from that."""
    longest = _longest(settings)
    kept = tuple(each._replace(tokens=each.tokens[:longest], is_answer=each.is_answer[:longest]) for each in documents)
    is_same = settings.preferences and np.array_equal(kept[0].tokens, kept[1].tokens)
    if is_same or not all(each.is_answer[1:].any() for each in kept):
        counts.left_out += 1
        return ()
    counts.examples += 1
    for document, part in zip(documents, kept, strict=True):
        counts.documents += 1
        counts.answers += int(part.is_answer[1:].sum())
        counts.answer_bytes += document.answer_bytes * int(part.is_answer.sum()) // int(document.is_answer.sum())
        if len(part.tokens) < len(document.tokens):
            counts.cut += 1
            counts.cut_tokens += len(document.tokens) - len(part.tokens)
    return kept


def _nothing_to_learn(settings: PrepareChat) -> str:
    if settings.preferences:
        return (
            f"no pair for training has two different answers within half of --sequence-length "
            f"{settings.sequence_length}: each needs chosen and rejected"
        )
    return (
        f"no conversation for training has an answer within --sequence-length {settings.sequence_length}: each needs "
        "a completion, or a message of the role assistant"
    )


def _rows_arrays(
    row: list[TokenizedConversation], settings: PrepareChat, vocabulary: Vocabulary
) -> dict[str, np.ndarray]:
    numbered = settings.packing or settings.preferences
    return arrays_of(row, settings.sequence_length, vocabulary.padding, vocabulary.dtype, numbered=numbered)


def _write_tokenizer(prepared: Path, folder: Path, vocabulary: Vocabulary) -> None:
    """Write the tokenizer's files and the chat template, for the trained model to have them too."""
    vocabulary.write(prepared)
    (prepared / CHAT_TEMPLATE_FILE).unlink(missing_ok=True)
    if (folder / CHAT_TEMPLATE_FILE).is_file():
        shutil.copyfile(folder / CHAT_TEMPLATE_FILE, prepared / CHAT_TEMPLATE_FILE)


def _finish(
    dataset: DatasetWriter, settings: PrepareChat, vocabulary: Vocabulary, counts: dict[str, _SplitCounts]
) -> None:
    text = vocabulary.token_text(
        documents={split: of.documents for split, of in counts.items()},
        tokens={split: of.answers for split, of in counts.items()},
        text_bytes={split: of.answer_bytes for split, of in counts.items()},
    )
    content = "preferences" if settings.preferences else "conversations"
    source = {
        content: "questions about Python" if settings.source is None else "files",
        **settings_named(settings, "sequence_length", "packing", "seed", "validation_fraction", "test_fraction"),
    }
    dataset.finish(content, (), source, text)


def _say(split: str, counts: _SplitCounts, settings: PrepareChat) -> None:
    examples, longest = "pairs" if settings.preferences else "conversations", _longest(settings)
    if counts.examples:
        found = f"{counts.examples} {examples} with {counts.answers} tokens of answers"
        print(f"{split}: {found}, in {counts.rows} rows of {settings.sequence_length}", flush=True)
    if counts.cut:
        cut, of = ("answers with their prompts", 2) if settings.preferences else ("conversations", 1)
        print(
            f"warning: {split}: {counts.cut} of {of * counts.examples} {cut} are longer than {longest} tokens and were "
            f"cut, by {counts.cut_tokens} tokens in total (--sequence-length)",
            flush=True,
        )
    if counts.left_out:
        why = "two different answers" if settings.preferences else "answer"
        print(
            f"warning: {split}: {counts.left_out} {examples} were left out, which have no {why} within {longest} "
            "tokens",
            flush=True,
        )


class RowPacker:
    """Packs documents in the order they come; only so many rows are held at a time. Those of a pair stay together."""

    def __init__(self, length: int, *, packing: bool) -> None:
        self._length, self._packing = length, packing
        self._rooms: list[tuple[int, int]] = []
        """How many tokens each open row has room for, and its number; sorted."""
        self._rows: dict[int, Row] = {}
        self._opened = 0

    def add(self, documents: Sequence[TokenizedConversation]) -> Iterator[Row]:
        """Put documents into one row. Yield a row if one is full, or if too many are open: the fullest."""
        size = sum(len(document.tokens) for document in documents)
        assert size <= self._length
        if not self._packing:
            yield [*documents]
            return
        place = bisect.bisect_left(self._rooms, (size, -1))
        if place < len(self._rooms):
            room, number = self._rooms.pop(place)
        else:
            room, number = self._length, self._opened
            self._opened += 1
        self._rows.setdefault(number, []).extend(documents)
        if room - size < _LEAST_TOKENS:
            yield self._rows.pop(number)
            return
        bisect.insort(self._rooms, (room - size, number))
        if len(self._rooms) > _OPEN_ROWS:
            yield self._rows.pop(self._rooms.pop(0)[1])

    def finish(self) -> Iterator[Row]:
        """Yield the rows that are left, in the order in which they were opened."""
        yield from self._rows.values()


def arrays_of(row: Row, length: int, padding: int, dtype: str, *, numbered: bool) -> dict[str, npt.NDArray[Any]]:
    """Return a row's arrays, each [1, length]: its tokens, which are answers, and the number of each one's document.

    Documents count from 1; padding has the number 0. The first token of a document is not predicted, so it is not an
    answer. Rows of one document need no numbers.
    """
    tokens = np.full((1, length), padding, dtype=dtype)
    answers = np.zeros((1, length), dtype=np.bool_)
    documents = np.zeros((1, length), dtype=np.uint16)
    start = 0
    for number, document in enumerate(row, start=1):
        stop = start + len(document.tokens)
        tokens[0, start:stop] = document.tokens
        answers[0, start + 1 : stop] = document.is_answer[1:]
        documents[0, start:stop] = number
        start = stop
    arrays = {"tokens": tokens, "answers": answers}
    return {**arrays, "documents": documents} if numbered else arrays


class ExampleSource:
    """The examples of a folder, or those about Python: each a line of JSON. Read as often as they are asked for."""

    def __init__(self, folder: Path | None, *, pairs: bool = False) -> None:
        """`pairs` decides what the examples about Python are. StepError if the folder has no .jsonl file."""
        self._pairs = pairs
        self._files: list[JsonLinesFile] = []
        self.skipped: list[str] = []
        """The names of other files."""
        if folder is not None:
            require_folder("--source", folder)
            formats = {".jsonl": functools.partial(JsonLinesFile, text_field="")}
            self._files, self.skipped = files_of_formats(files_below(folder), str(folder), formats, "conversations")

    @property
    def size_bytes(self) -> int:
        """The bytes to be read."""
        return sum(file.size_bytes for file in self._files)

    def __iter__(self) -> Iterator[JsonLine]:
        if not self._files:
            yield from _pairs_about_python() if self._pairs else _about_python()
        for file in self._files:
            for block in file.blocks():
                yield from block.lines()


def _about_python() -> Iterator[JsonLine]:
    """Questions what a function or method does, each answered by the first sentence of its documentation, once."""
    answered = set()
    for module in _MODULES.split():
        for name, documented in sorted(_functions(importlib.import_module(module)).items()):
            found = _FIRST_SENTENCE.match(inspect.getdoc(documented) or "")
            answer = " ".join(found[1].split()) if found else ""
            if answer and answer not in answered:
                answered.add(answer)
                yield JsonLine(name, name, {"prompt": f"What does {name} do?\n", "completion": answer})
    if not answered:
        raise StepError("this Python comes without documentation; give your own conversations by --source")


def _functions(module: ModuleType) -> dict[str, object]:
    """Return a module's public functions, and the methods of its classes, by name."""
    found: dict[str, object] = {}
    for name, value in vars(module).items():
        members = vars(value) if inspect.isclass(value) else {}
        for full_name, each in {name: value, **{f"{name}.{key}": member for key, member in members.items()}}.items():
            if inspect.isroutine(each) and "._" not in f".{full_name}":
                found[f"{module.__name__}.{full_name}"] = each
    return found


def _pairs_about_python() -> Iterator[JsonLine]:
    """`Return …` is better than `It returns …`, as PEP 257 has it; a model of other text finds the latter likelier."""
    for line in _about_python():
        prompt, answer = line.fields["prompt"], line.fields["completion"]
        if answer.startswith("Return "):
            rejected = f"It returns {answer.removeprefix('Return ')}"
            yield line._replace(fields={"prompt": prompt, "chosen": answer, "rejected": rejected})
