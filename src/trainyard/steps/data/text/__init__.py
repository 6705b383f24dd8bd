"""Where text comes from: one module per format, each giving the same thing, files that are read in blocks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from trainyard.foundation.configs.prepare_text import PrepareText
from trainyard.steps.data.text.compression import COMPRESSIONS, compression_of
from trainyard.steps.data.text.json_lines import JsonLinesFile
from trainyard.steps.data.text.parquet import ParquetFile
from trainyard.steps.data.text.plain_text import PlainTextFile
from trainyard.steps.data.text.python_topics import PythonTopics
from trainyard.steps.data.text.source import TextFile, TextSource, first_names
from trainyard.steps.runtime.errors import StepError

_FORMATS: dict[str, Callable[[Path, str, str], TextFile]] = {
    ".txt": lambda path, name, _: PlainTextFile(path, name),
    ".md": lambda path, name, _: PlainTextFile(path, name),
    ".jsonl": JsonLinesFile,
    ".parquet": ParquetFile,
}
"""How each kind of file is opened: by its path, its documents' name, and the field that holds the text."""


def open_source(settings: PrepareText) -> tuple[TextSource, list[str]]:
    """The text that the settings name, and what in its folder was passed over: what is hidden, or no text.

    StepError when there is no text at all.
    """
    folder = settings.source
    if folder is None:
        return TextSource([PythonTopics()], "the documentation of Python"), []
    if not folder.is_dir():
        raise StepError(f"--source {folder} is not a folder")
    files: list[TextFile] = []
    passed_over: list[str] = []
    for path in sorted(_below(folder, frozenset()), key=Path.as_posix):
        relative = PurePosixPath(path.relative_to(folder).as_posix())
        name = relative.with_suffix("") if compression_of(path) else relative
        open_file = _FORMATS.get(name.suffix.lower())
        if open_file is not None and path.is_file() and not path.name.startswith("."):
            files.append(open_file(path, str(name), settings.text_field))
        else:
            passed_over.append(str(relative))
    if not files:
        kinds = " ".join(_FORMATS)
        there = f"there is {first_names(passed_over)}" if passed_over else "it is empty"
        raise StepError(f"--source {folder} has no text: {kinds} are read, also as {' '.join(COMPRESSIONS)}; {there}")
    return TextSource(files, str(folder)), passed_over


def _below(folder: Path, folders_above: frozenset[str]) -> Iterator[Path]:
    """What lies in a folder and the folders below it, links followed; of what is hidden, no more than itself."""
    folders_above |= {os.path.realpath(folder)}
    with os.scandir(folder) as entries:
        for entry in entries:
            is_folder = entry.is_dir() and not entry.name.startswith(".")
            if is_folder and os.path.realpath(entry.path) not in folders_above:
                yield from _below(Path(entry.path), folders_above)
            else:
                yield Path(entry.path)
