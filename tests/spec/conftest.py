from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

DATA = Path(__file__).parent / "data"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the clean project."""
    copy = tmp_path / "project"
    shutil.copytree(DATA / "project", copy)
    return copy


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """Write a text into a file of a fresh folder, and give the file."""

    def write_file(name: str, text: str) -> Path:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file

    return write_file
