"""Edits at random of files that an editor has open, through the real server, compared with a fresh lint."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from editor import Editor
from trainyard.lint.linter import lint
from trainyard.spec.findings import DocumentStore

sys.path.insert(0, str(Path(__file__).parents[1] / "lint"))

import fuzzing

_CHECKED_EACH = 50
_RESTORED_EACH = 5


def run(folder: Path, edits: int, seed: int) -> None:
    """Make so many edits, and compare what is shown with what lint finds in the same texts, every few edits.

    Raise AssertionError where they differ.
    """
    seeds = fuzzing.plant(folder)
    originals = {file.relative_to(folder).as_posix(): _text(content) for file, content in seeds.contents.items()}
    editor = Editor(folder)
    chance = random.Random(seed)
    try:
        texts: dict[str, str] = {}
        for number in range(edits):
            file, content = fuzzing.spoilt(seeds, seed + number)
            name = file.relative_to(folder).as_posix()
            if name not in texts:
                editor.open(name, originals[name])
            texts[name] = originals[name] if number % _RESTORED_EACH == 0 else _text(content)
            editor.change(name, texts[name])
            if chance.random() < 0.1:
                closed = chance.choice(sorted(texts))
                editor.close_file(closed)
                del texts[closed]
            if number % _CHECKED_EACH == _CHECKED_EACH - 1:
                compare(editor, folder, texts)
        compare(editor, folder, texts)
    finally:
        editor.close()


def compare(editor: Editor, folder: Path, texts: dict[str, str]) -> None:
    """Compare everything that is shown with a fresh lint of the same texts."""
    editor.settle()
    buffers = {folder / name: text.removeprefix("\ufeff") for name, text in texts.items()}
    expected: dict[str, list[tuple[str, str]]] = {}
    for each in lint([folder], store=DocumentStore(buffers)).diagnostics:
        message = "\n".join(filter(None, (each.message, each.hint)))
        expected.setdefault(each.span.file.relative_to(folder).as_posix(), []).append((each.rule, message))
    shown = {
        name: [(each["code"], each["message"]) for each in published["diagnostics"]]
        for name, published in editor.published.items()
        if published["diagnostics"]
    }
    assert {name: sorted(found) for name, found in shown.items()} == {
        name: sorted(found) for name, found in expected.items()
    }
    assert not editor.messages, editor.messages


def _text(content: bytes) -> str:
    """What an editor would hold of a file: always text, and never half of a surrogate pair."""
    return content.decode("utf-8", errors="replace")
