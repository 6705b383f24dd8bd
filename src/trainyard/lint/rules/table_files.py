"""The files MLTable of local tables: what is missing in them, and words that differ by a typo from those they know."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from trainyard.lint.checks import LintContext, LintedFile, check, known_words
from trainyard.lint.rules.data_paths import Data, data_in
from trainyard.project_files import names_in
from trainyard.settings.suggestions import only_close
from trainyard.spec.diagnostic import Diagnostic, SpecError
from trainyard.spec.documents import Node, shorten
from trainyard.spec.parsed import is_address, is_there
from trainyard.spec.rule import Rule

_KEYS: list[str] = known_words("mltable")
_PATH_KEYS = ("file", "folder", "pattern")
_TRANSFORMATIONS: list[str] = known_words("mltable_transformations")
# By setting: the few words that it takes.
_WORDS: dict[str, list[str]] = known_words("mltable_words")
# What else is taken, and hints do not name.
_OTHER_SPELLINGS = frozenset(
    ("utf-8", "utf8 bom", "utf-8 bom", "iso-8859-1", "latin-1", "utf-16", "utf-32", "windows-1252")
)


TABLE_FILE = Rule("AML421", "table-file", "warning").explained(
    summary="The file MLTable of a local table cannot be read, has no list of paths, or has a misspelt word.",
    why="The client uploads the folder as it is, and the job fails where it loads the table. A file that a path names "
    "is only missed if another one of almost that name lies there: scripts may write it first.",
)


@check("file")
def _table_file(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    for data in data_in(file):
        table = _table(data, file)
        if table is None:
            continue
        try:
            root = context.computes.store.peek(table).root
        except SpecError as error:
            for found in error.diagnostics[:1]:
                yield TABLE_FILE.at(found.span, f"this file MLTable cannot be read: {found.message}")
            continue
        if not root.is_mapping:
            yield TABLE_FILE.at(data.path.span, "the file MLTable in this folder has no 'paths'")
            continue
        yield from _keys(root)
        yield from _paths(root, table.parent)
        yield from _transformations(root)


def _table(data: Data, file: LintedFile) -> Path | None:
    """The file MLTable of a local folder."""
    text = data.path.text
    if data.type != "mltable" or not data.is_input or is_address(text) or "${{" in text:
        return None
    table = Path(os.path.normpath(file.document.file.parent / text.removeprefix("file:"))) / "MLTable"
    return table if is_there(table, folder=False) else None


def _keys(root: Node) -> Iterator[Diagnostic]:
    kind = root.get("type")
    if kind is not None and kind.text and kind.text.lower() != "mltable":
        yield TABLE_FILE.at(kind.span, f"the type in a file MLTable is mltable, not '{shorten(kind.text)}'")
    for name, entry in root.entries.items():
        free = [key for key in _KEYS if key == name or key not in root.entries]
        yield from TABLE_FILE.misspelt(entry.key.span, name, free, f"an MLTable has no '{shorten(name)}'")
    if "paths" not in root.entries and not any(only_close(name, ["paths"]) for name in root.entries):
        message = "an MLTable lists the files that it consists of, and this one has no 'paths'"
        yield TABLE_FILE.at(root.key_span(next(iter(root.entries))) if root.entries else root.span, message)


def _paths(root: Node, folder: Path) -> Iterator[Diagnostic]:
    paths = root.get("paths")
    if paths is None:
        return
    if paths.is_mapping or paths.is_text:
        yield TABLE_FILE.at(root.key_span("paths"), "'paths' is a list", "Write `- file: …` beneath it.")
    for item in paths.items:
        for name, entry in item.entries.items():
            message = f"a path of an MLTable has no '{shorten(name)}'"
            yield from TABLE_FILE.misspelt(entry.key.span, name, _PATH_KEYS, message)
            if name in ("file", "folder") and entry.value.is_text:
                yield from _missing(entry.value, folder)


def _missing(path: Node, folder: Path) -> Iterator[Diagnostic]:
    """A file that is not there, where another of almost its name is."""
    if is_address(path.text) or "${{" in path.text or os.path.lexists(folder / path.text):
        return
    named = Path(os.path.normpath(folder / path.text))
    yield from TABLE_FILE.misspelt(path.span, named.name, names_in(named.parent), f"there is no '{shorten(path.text)}'")


def _transformations(root: Node) -> Iterator[Diagnostic]:
    for item in root.items_of("transformations"):
        named = [(item.text, item)] if item.is_text else [(name, entry.key) for name, entry in item.entries.items()]
        for name, place in named:
            message = f"an MLTable has no transformation '{shorten(name)}'"
            yield from TABLE_FILE.misspelt(place.span, name, _TRANSFORMATIONS, message)
        for entry in item.entries.values():
            for key, words in _WORDS.items():
                given = entry.value.get(key)
                if given is not None and given.is_text and given.text.lower() not in (*words, *_OTHER_SPELLINGS):
                    message = f"'{key}' is one of {', '.join(words)}, not '{shorten(given.text)}'"
                    yield from TABLE_FILE.misspelt(given.span, given.text, words, message)
