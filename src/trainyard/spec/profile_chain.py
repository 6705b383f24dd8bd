"""A profile and those it extends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from trainyard.spec.documents import Document


def profile_chain(folder: Path, name: str, read: Callable[[Path], Document]) -> Iterator[Document]:
    """Yield a profile of a folder and those it extends, nearest first.

    The chain ends where nothing is extended, and where `extends` is not the name of another profile: the last document
    has the key then. What `read` raises is raised.
    """
    met: set[str] = set()
    while name not in met and (folder / f"{name}.yaml").is_file():
        met.add(name)
        document = read(folder / f"{name}.yaml")
        yield document
        extended = document.root.get("extends")
        if extended is None or not extended.is_text:
            return
        name = extended.text
