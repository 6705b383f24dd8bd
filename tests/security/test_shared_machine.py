"""Others share the machine, and the temporary folder is everybody's."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from trainyard.rehearse.errors import RunError
from trainyard.rehearse.machine import reserved_port
from trainyard.rehearse.run_store import create_run_folder, hold_lock
from trainyard.settings.files import open_lock_file

PORTS = range(6105, 6205)


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the folder of locks will be, in a temporary folder of this test's."""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / f"trainyard-ports-{os.getuid()}"


def _link(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir()
    folder.symlink_to(folder.parent / "elsewhere")


def _open_to_all(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


def _of_somebody_else(folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    folder.mkdir(mode=0o700)
    os.chown(folder, 65534, 65534)


def _file(folder: Path) -> None:
    folder.write_text("")


@pytest.mark.parametrize("prepare", [_link, _open_to_all, _of_somebody_else, _file])
def test_a_prepared_folder_of_locks_is_refused(locks: Path, prepare: Callable[[Path], None]) -> None:
    prepare(locks)
    with pytest.raises(RunError, match="expected a folder that only you can write to"), reserved_port(PORTS):
        raise AssertionError("a port was reserved")


def test_the_folder_of_locks_is_private(locks: Path) -> None:
    with reserved_port(PORTS):
        assert stat.S_IMODE(locks.stat().st_mode) == 0o700
        assert {stat.S_IMODE(file.stat().st_mode) for file in locks.iterdir()} == {0o600}


def test_a_lock_follows_no_link_and_empties_no_file(locks: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "link").symlink_to(precious)
    with pytest.raises(OSError, match="symbolic links"):
        open_lock_file(tmp_path / "link")
    open_lock_file(precious).close()
    assert precious.read_text() == "mine"
    locks.mkdir(mode=0o700)
    for port in PORTS:
        (locks / str(port)).symlink_to(precious)
    with pytest.raises(OSError, match="symbolic links"), reserved_port(PORTS):
        raise AssertionError("a port was reserved")
    assert precious.read_text() == "mine"


def test_the_lock_of_a_run_follows_no_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.lock").symlink_to(precious)
    with pytest.raises(RunError), hold_lock(tmp_path / "run"):
        raise AssertionError("the run was locked")
    assert precious.read_text() == "mine"


def test_the_runtime_folder_of_the_session_is_used_if_it_is_private(
    locks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = tmp_path / "session"
    session.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(session))
    with reserved_port(PORTS):
        assert list((session / "trainyard-ports").iterdir())
        assert not locks.exists()
    session.chmod(0o777)
    with reserved_port(PORTS):
        assert locks.exists(), "somebody else could have prepared the session's"


def test_the_folder_of_a_run_is_private(tmp_path: Path) -> None:
    _, folder = create_run_folder(tmp_path / "runs", None, None, "ddp")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
