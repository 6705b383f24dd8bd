"""A pull request can hold anything that git can: what is read is a regular file of a bounded size."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from trainyard.settings.files import TooLarge, read_regular


def test_a_regular_file_is_read_also_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link", 7) == b"content"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file") as caught:
        read_regular(tmp_path / "pipe", 100)
    assert caught.value.filename == str(tmp_path / "pipe")


def test_a_link_to_an_endless_device_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "zeros").symlink_to("/dev/zero")
    with pytest.raises(OSError, match="not a regular file"):
        read_regular(tmp_path / "zeros", 100)


def test_a_large_file_is_refused_and_its_limit_named(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(TooLarge, match="larger than 1,000 bytes"):
        read_regular(tmp_path / "sparse", 1000)


def test_a_folder_and_a_circle_of_links_are_errors_of_the_operating_system(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        read_regular(tmp_path, 100)
    (tmp_path / "here").symlink_to("there")
    (tmp_path / "there").symlink_to("here")
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        read_regular(tmp_path / "here", 100)
