"""What is read: one JSON object per line, each a conversation, a prompt with its completion, or a pair of answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from trainyard.steps.data.text import PythonTopics, files_below
from trainyard.steps.data.text.compression import COMPRESSIONS, compression_of
from trainyard.steps.data.text.text_formats import JsonLinesFile
from trainyard.steps.data.text.text_source import first_names
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.files import require_folder

_HEADING = re.compile(r"^(.+)\n[*=~^-]{3,}\n+", re.MULTILINE)


class ChatLine(NamedTuple):
    """One line."""

    name: str
    """The same at every reading: it decides the split."""
    place: str
    """For messages: the file and the line."""
    fields: Mapping[str, Any]


class ExampleSource:
    """The examples of a folder, or those about Python. Read as often as they are asked for."""

    def __init__(self, folder: Path | None, *, pairs: bool = False) -> None:
        """`pairs` decides what the examples about Python are. StepError if the folder has no .jsonl file."""
        self._pairs = pairs
        self._files: list[JsonLinesFile] = []
        self.skipped: list[str] = []
        """The names of other files."""
        if folder is None:
            return
        require_folder("--source", folder)
        for path in sorted(files_below(folder), key=Path.as_posix):
            relative = PurePosixPath(path.relative_to(folder).as_posix())
            name = relative.with_suffix("") if compression_of(path) else relative
            if name.suffix.lower() == ".jsonl" and path.is_file() and not path.name.startswith("."):
                self._files.append(JsonLinesFile(path, str(name), ""))
            else:
                self.skipped.append(str(relative))
        if not self._files:
            found = f"found only {first_names(self.skipped)}" if self.skipped else "the folder is empty"
            raise StepError(
                f"--source {folder} holds no conversations: expected .jsonl, plain or as {' '.join(COMPRESSIONS)}; "
                f"{found}"
            )

    @property
    def size_bytes(self) -> int:
        """The bytes to be read."""
        return sum(file.size_bytes for file in self._files)

    def __iter__(self) -> Iterator[ChatLine]:
        if not self._files:
            yield from _pairs(_about_python()) if self._pairs else _about_python()
        for file in self._files:
            for block in file.blocks():
                for number, line in enumerate(block.data.split(b"\n"), start=block.first_line):
                    if line and not line.isspace():
                        place = f"{block.file}:{number}"
                        yield ChatLine(f"{file.name}:{number}", place, _parse(line, place))


def _parse(line: bytes, place: str) -> Mapping[str, Any]:
    try:
        found = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as failure:
        raise StepError(f"{place} is not valid JSON: {failure}") from None
    if not isinstance(found, dict):
        raise StepError(f"{place} is not a JSON object: {line[:60].decode(errors='replace')}")
    return found


def _about_python() -> Iterator[ChatLine]:
    """Questions that each topic's first paragraph answers."""
    for block in PythonTopics().blocks():
        for name, text in block.texts:
            found = _HEADING.search(text.decode())
            title = found[1] if found else name.rpartition(":")[2]
            body = text.decode()[found.end() if found else 0 :]
            answer = " ".join(body.partition("\n\n")[0].split())
            prompt = f"What does Python's documentation say about {title}?\n"
            yield ChatLine(name, name, {"prompt": prompt, "completion": answer})


def _pairs(answered: Iterator[ChatLine]) -> Iterator[ChatLine]:
    """Each answer is better than that to the question before."""
    for before, line in pairwise(answered):
        fields = {"prompt": line.fields["prompt"], "chosen": line.fields["completion"]}
        yield line._replace(fields={**fields, "rejected": before.fields["completion"]})
