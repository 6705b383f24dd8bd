"""Where text comes from: one module per format, each giving the same thing, files that are read in blocks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePosixPath

from trainyard.steps.configs.prepare_text import PrepareText
from trainyard.steps.errors import StepError
from trainyard.steps.text_sources.compression import COMPRESSIONS
from trainyard.steps.text_sources.json_lines import JsonLinesFile
from trainyard.steps.text_sources.parquet import ParquetFile
from trainyard.steps.text_sources.plain_text import PlainTextFile
from trainyard.steps.text_sources.python_topics import PythonTopics
from trainyard.steps.text_sources.source import TextFile, TextSource, first_names

_FORMATS: dict[str, Callable[[Path, str, str], TextFile]] = {
    ".txt": lambda path, name, _: PlainTextFile(path, name),
    ".md": lambda path, name, _: PlainTextFile(path, name),
    ".jsonl": JsonLinesFile,
    ".parquet": ParquetFile,
}
"""How each kind of file is opened: by its path, its documents' name, and the field that holds the text."""


def open_source(settings: PrepareText) -> tuple[TextSource, list[str]]:
    """The text that the settings name, and the files passed over. StepError when there is no text at all."""
    folder = settings.source
    if folder is None:
        return TextSource([PythonTopics()], "the documentation of Python"), []
    if not folder.is_dir():
        raise StepError(f"--source {folder} is not a folder")
    files: list[TextFile] = []
    passed_over: list[str] = []
    for path in sorted((path for path in folder.rglob("*") if path.is_file()), key=Path.as_posix):
        relative = PurePosixPath(path.relative_to(folder).as_posix())
        name = relative.with_suffix("") if relative.suffix in COMPRESSIONS else relative
        if name.suffix in _FORMATS:
            files.append(_FORMATS[name.suffix](path, str(name), settings.text_field))
        else:
            passed_over.append(str(relative))
    if not files:
        kinds = " ".join(_FORMATS)
        there = f"there is {first_names(passed_over)}" if passed_over else "it is empty"
        raise StepError(f"--source {folder} has no text: {kinds} are read, also as {' '.join(COMPRESSIONS)}; {there}")
    return TextSource(files, str(folder)), passed_over
