"""Walking through folders, links followed, without walking in circles."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path


def files_beneath(folder: Path, enters: Callable[[str], bool] = lambda _: True) -> Iterator[tuple[Path, str]]:
    """Every file beneath a folder with its relative name, in a stable order.

    `enters` is asked with a subfolder's relative name whether to look into it. Links are followed, save those to a
    folder that they lie in, and those that lead nowhere.
    """
    yield from _walk(folder, "", (os.path.realpath(folder),), enters)


def _walk(
    folder: Path, prefix: str, above: tuple[str, ...], enters: Callable[[str], bool]
) -> Iterator[tuple[Path, str]]:
    with os.scandir(folder) as entries:
        ordered = sorted(entries, key=lambda entry: entry.name)
    for entry in ordered:
        name = prefix + entry.name
        if entry.is_file():
            yield Path(entry.path), name
        elif entry.is_dir() and enters(name):
            place = os.path.realpath(entry.path) if entry.is_symlink() else os.path.join(above[-1], entry.name)
            if place not in above:
                yield from _walk(Path(entry.path), name + "/", (*above, place), enters)
