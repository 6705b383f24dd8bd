"""Files written past the page cache where possible: the same bytes, whatever their alignment and length."""

from __future__ import annotations

import hashlib
import mmap
import os
from pathlib import Path

import pytest

from trainyard.steps.runtime.files import BLOCK_BYTES, write_durably


@pytest.mark.parametrize("before", [0, 7, BLOCK_BYTES])
@pytest.mark.parametrize("length", [0, 1, BLOCK_BYTES, 3 * BLOCK_BYTES + 5, 1025 * BLOCK_BYTES, 2048 * BLOCK_BYTES + 1])
@pytest.mark.parametrize("offset_in_memory", [0, 8])
def test_bytes_and_digest_are_as_written(tmp_path: Path, before: int, length: int, offset_in_memory: int) -> None:
    memory = mmap.mmap(-1, length + BLOCK_BYTES)
    memory[:] = os.urandom(len(memory))
    contents = [b"h" * before, memoryview(memory)[offset_in_memory : offset_in_memory + length]]
    size_bytes, sha256 = write_durably(tmp_path / "file", contents)
    written = (tmp_path / "file").read_bytes()
    assert written == b"".join(contents)
    assert (size_bytes, sha256) == (len(written), hashlib.sha256(written).hexdigest())


def test_an_earlier_file_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 3 * BLOCK_BYTES)
    write_durably(file, [b"short"])
    assert file.read_bytes() == b"short"
