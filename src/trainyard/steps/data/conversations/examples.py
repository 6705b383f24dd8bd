"""What is read: one JSON object per line, each a conversation, a prompt with its completion, or a pair of answers."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from trainyard.steps.data.text import PythonTopics, files_below, files_of_formats
from trainyard.steps.data.text.text_formats import JsonLine, JsonLinesFile
from trainyard.steps.runtime.files import require_folder

_HEADING = re.compile(r"^(.+)\n[*=~^-]{3,}\n+", re.MULTILINE)


class ExampleSource:
    """The examples of a folder, or those about Python. Read as often as they are asked for."""

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
            yield from _pairs(_about_python()) if self._pairs else _about_python()
        for file in self._files:
            for block in file.blocks():
                yield from block.lines()


def _about_python() -> Iterator[JsonLine]:
    """Questions that each topic's first paragraph answers."""
    for block in PythonTopics().blocks():
        for name, text in block.rows:
            found = _HEADING.search(text.decode())
            title = found[1] if found else name.rpartition(":")[2]
            body = text.decode()[found.end() if found else 0 :]
            answer = " ".join(body.partition("\n\n")[0].split())
            prompt = f"What does Python's documentation say about {title}?\n"
            yield JsonLine(name, name, {"prompt": prompt, "completion": answer})


def _pairs(answered: Iterator[JsonLine]) -> Iterator[JsonLine]:
    """Each answer is better than that to the question before."""
    for before, line in pairwise(answered):
        fields = {"prompt": line.fields["prompt"], "chosen": line.fields["completion"]}
        yield line._replace(fields={**fields, "rejected": before.fields["completion"]})
