"""One server and one project for all tests of a module; each test leaves no file open."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from project import plant

from editor import Editor


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Editor]:
    folder = tmp_path_factory.mktemp("project").resolve()
    plant(folder)
    server = Editor(folder)
    yield server
    server.close()


@pytest.fixture
def editor(server: Editor) -> Iterator[Editor]:
    plant(server.folder)
    yield server
    server.close_all()
