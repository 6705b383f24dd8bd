"""Text: one module per format, each returning files that are read in blocks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TypeVar

from trainyard.settings.quantities import first_names
from trainyard.settings.steps.preparation import TextDataset
from trainyard.steps.data.text.source_files import COMPRESSIONS, SourcePath, compression_of
from trainyard.steps.data.text.text_formats import FileAtPath, JsonLinesFile, ParquetFile, PlainTextFile
from trainyard.steps.data.text.text_source import RowsBlock, TextFile, TextSource, skipped_files
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.files import require_folder

File = TypeVar("File", bound=TextFile)

_FORMATS: Mapping[str, type[FileAtPath]] = {
    ".txt": PlainTextFile,
    ".md": PlainTextFile,
    ".jsonl": JsonLinesFile,
    ".parquet": ParquetFile,
}


def open_source(settings: TextDataset) -> TextSource:
    """Return the text that the settings name. Raise StepError when there is none."""
    folder = settings.source
    if folder is None:
        if settings.pattern is not None:
            raise StepError(f"--pattern {settings.pattern} needs --source, the folder that holds the files")
        return TextSource([PythonTopics()], "the documentation of Python")
    require_folder("--source", folder)
    return open_files(files_below(folder), str(folder), settings)


def open_files(found: Iterable[tuple[PurePosixPath, SourcePath]], folder: str, settings: TextDataset) -> TextSource:
    """Return the text in the files of a folder, in the order of their relative paths. StepError when there is none."""
    notes: tuple[str, ...] = ()
    if settings.pattern is None:
        formats = {ending: partial(of_format, text_field=settings.text_field) for ending, of_format in _FORMATS.items()}
        files, skipped = files_of_formats(found, folder, formats, "text")
        notes = skipped_files(skipped, "text")
    else:
        open_file = partial(_open_if_named, [part.strip() for part in settings.pattern.split(",")])
        missing = f"--source {folder} holds no file that --pattern {settings.pattern} names"
        files, _ = _opened_files(found, open_file, missing)
    if len(files) == 1 and isinstance(files[0], PlainTextFile):
        divided = files[0].divided()
        notes += (f"{divided.name} is the only file: divided at line ends, from every {divided.document_bytes} bytes",)
        return TextSource([divided], folder, notes)
    return TextSource([*files], folder, notes)


def _open_if_named(patterns: Sequence[str], name: PurePosixPath, path: SourcePath) -> FileAtPath | None:
    is_named = any(fnmatchcase(str(name), pattern) or fnmatchcase(name.name, pattern) for pattern in patterns)
    return PlainTextFile(path, str(name), "") if is_named else None


def files_of_formats(
    found: Iterable[tuple[PurePosixPath, SourcePath]],
    folder: str,
    formats: Mapping[str, Callable[[SourcePath, str], File]],
    what: str,
) -> tuple[list[File], list[str]]:
    """Return the files with the endings of the formats, in the order of their relative paths, and what is skipped.

    `formats` open a file, given its path and the name of its documents. StepError, which says `what`, without any file.
    """

    def open_file(name: PurePosixPath, path: SourcePath) -> File | None:
        of_format = formats.get(name.suffix.lower())
        return of_format(path, str(name)) if of_format else None

    expected = f"expected {' '.join(formats)}, plain or as {' '.join(COMPRESSIONS)}"
    return _opened_files(found, open_file, f"--source {folder} holds no {what}: {expected}")


def _opened_files(
    found: Iterable[tuple[PurePosixPath, SourcePath]],
    open_file: Callable[[PurePosixPath, SourcePath], File | None],
    missing: str,
) -> tuple[list[File], list[str]]:
    """Return what `open_file` returns for names without the ending of a compression, and the files that it skips."""
    files: list[File] = []
    skipped: list[str] = []
    for relative, path in sorted(found, key=lambda each: each[0].as_posix()):
        name = relative.with_suffix("") if compression_of(relative) else relative
        is_visible = path.is_file() and not path.name.startswith(".")
        if is_visible and (opened := open_file(name, path)):
            files.append(opened)
        else:
            skipped.append(str(relative))
    if not files:
        present = f"found only {first_names(skipped)}" if skipped else "the folder is empty"
        raise StepError(f"{missing}; {present}")
    return files, skipped


def files_below(folder: Path) -> Iterator[tuple[PurePosixPath, Path]]:
    """Yield the files in a folder and its subfolders, following links, with their relative paths.

    Hidden folders, and links to a folder that they lie in, are yielded but not entered.
    """
    for path in _below(folder, frozenset()):
        yield PurePosixPath(path.relative_to(folder).as_posix()), path


def _below(folder: Path, folders_above: frozenset[str]) -> Iterator[Path]:
    folders_above |= {os.path.realpath(folder)}
    with os.scandir(folder) as entries:
        for entry in entries:
            is_folder = entry.is_dir() and not entry.name.startswith(".")
            if is_folder and os.path.realpath(entry.path) not in folders_above:
                yield from _below(Path(entry.path), folders_above)
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
        """Yield a block for each topic."""
        for name, text in self._topics:
            yield RowsBlock(self.name, len(text), ((name, text),))
