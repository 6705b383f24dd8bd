"""Text: one module per format, each returning files that are read in blocks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath

from trainyard.settings.steps.preparation import TextDataset
from trainyard.steps.data.text.compression import COMPRESSIONS, SourcePath, compression_of
from trainyard.steps.data.text.text_formats import JsonLinesFile, ParquetFile, PlainTextFile
from trainyard.steps.data.text.text_source import BLOCK_BYTES, RowsBlock, TextFile, TextSource, first_names
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.files import require_folder

_FORMATS: dict[str, Callable[[SourcePath, str, str], TextFile]] = {
    ".txt": lambda path, name, _: PlainTextFile(path, name),
    ".md": lambda path, name, _: PlainTextFile(path, name),
    ".jsonl": JsonLinesFile,
    ".parquet": ParquetFile,
}
"""How each kind of file is opened: with its path, the name of its documents, and the field that holds the text."""


def open_source(settings: TextDataset) -> tuple[TextSource, list[str]]:
    """Return the text that the settings name, and the files in its folder that are skipped: hidden, or not text.

    Raise StepError when there is no text.
    """
    folder = settings.source
    if folder is None:
        return TextSource([PythonTopics()], "the documentation of Python"), []
    require_folder("--source", folder)
    found = ((PurePosixPath(path.relative_to(folder).as_posix()), path) for path in files_below(folder))
    return open_files(found, str(folder), settings.text_field)


def open_files(
    found: Iterable[tuple[PurePosixPath, SourcePath]], folder: str, text_field: str
) -> tuple[TextSource, list[str]]:
    """Return the text in the files of a folder, in the order of their relative paths, and the files that are skipped.

    Raise StepError when there is no text.
    """
    files: list[TextFile] = []
    skipped: list[str] = []
    for relative, path in sorted(found, key=lambda each: each[0].as_posix()):
        name = relative.with_suffix("") if compression_of(relative) else relative
        open_file = _FORMATS.get(name.suffix.lower())
        if open_file is not None and path.is_file() and not path.name.startswith("."):
            files.append(open_file(path, str(name), text_field))
        else:
            skipped.append(str(relative))
    if not files:
        present = f"found only {first_names(skipped)}" if skipped else "the folder is empty"
        raise StepError(
            f"--source {folder} holds no text: expected {' '.join(_FORMATS)}, "
            f"plain or as {' '.join(COMPRESSIONS)}; {present}"
        )
    return TextSource(files, folder), skipped


def files_below(folder: Path, folders_above: frozenset[str] = frozenset()) -> Iterator[Path]:
    """Yield the files in a folder and its subfolders, following links. Hidden folders are yielded but not entered."""
    folders_above |= {os.path.realpath(folder)}
    with os.scandir(folder) as entries:
        for entry in entries:
            is_folder = entry.is_dir() and not entry.name.startswith(".")
            if is_folder and os.path.realpath(entry.path) not in folders_above:
                yield from files_below(Path(entry.path), folders_above)
            else:
                yield Path(entry.path)


class PythonTopics(TextFile):
    """The documentation that comes with Python: half a megabyte of English, so that the first run needs no data.

    It is what `help("topics")` shows, from the module `pydoc_data.topics`, and varies a little with Python's version.
    Each topic is a document.
    """

    name = "pydoc_data.topics"

    def __init__(self) -> None:
        try:
            from pydoc_data.topics import topics
        except ImportError as failure:
            raise StepError(
                f"this Python comes without documentation ({failure}); give your own text by --source"
            ) from None
        self._topics = sorted((f"{self.name}:{name}", text.encode()) for name, text in topics.items())
        self.size_bytes = sum(len(text) for _, text in self._topics)

    def blocks(self) -> Iterator[RowsBlock]:
        """Yield topics by name, as many as make a block."""
        waiting: list[tuple[str, bytes]] = []
        waiting_bytes = 0
        for name, text in self._topics:
            waiting.append((name, text))
            waiting_bytes += len(text)
            if waiting_bytes >= BLOCK_BYTES:
                yield RowsBlock(self.name, waiting_bytes, tuple(waiting))
                waiting, waiting_bytes = [], 0
        if waiting:
            yield RowsBlock(self.name, waiting_bytes, tuple(waiting))
