"""What this machine has for a run: GPUs, folders, and a port for the ranks to meet at."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from trainyard.rehearse.errors import RunError, writing
from trainyard.settings.files import is_private_folder, open_lock_file

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"

AZURE_ML_MASTER_PORT = 6105
"""The MASTER_PORT on Azure ML (Azure/azureml-cheatsheets, distributed-training.md)."""

# What a shell, or a script that calls one, does not take as part of a name.
_NEEDS_QUOTES = re.compile(r"[^A-Za-z0-9_./+@%=:,-]")
# What the system answers where it has no IPv6.
_NO_IPV6 = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})


def job_path(python: Path, inherited: str | None) -> str:
    """Return the PATH of jobs: the programs beside the Python that runs them come first."""
    return os.pathsep.join([os.path.dirname(python), inherited or os.defpath])


def available_gpus(environment: Mapping[str, str], devices: Path = Path("/dev")) -> list[str]:
    """Return this machine's GPUs, as numbers or names in the form of CUDA_VISIBLE_DEVICES, and limited by it."""
    count = len(list(devices.glob("nvidia[0-9]*")))
    chosen = environment.get(VISIBLE_DEVICES)
    if not count or chosen is None:
        return [str(number) for number in range(count)]
    return [name.strip() for name in chosen.split(",") if name.strip()]


@contextmanager
def reserved_port(candidates: Sequence[int]) -> Iterator[int]:
    """Yield a free port, the first if possible, that no other runner of this user takes while the block lasts.

    The ranks themselves bind the port, so it must be unbound when they start; a lock file keeps other runners away
    until then. Raise `RunError` when every candidate is taken.
    """
    folder = _private_folder("trainyard-ports", "the locks of ports")
    for port in candidates:
        with open_lock_file(folder / str(port)) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            if is_free(port):
                yield port
                return
    raise RunError(
        f"MASTER_PORT: every port from {candidates[0]} to {candidates[-1]} is in use; stop the programs that use them"
    )


def folder_for_jobs(run_folder: Path) -> Path:
    """Return the path under which jobs see a run's folder: its own if that needs no quotes, else a short one.

    Azure ML's paths have neither spaces nor letters beyond ASCII, and commands are written for them.
    """
    if not _NEEDS_QUOTES.search(str(run_folder)):
        return run_folder
    digest = hashlib.sha256(os.fsencode(run_folder)).hexdigest()[:12]
    return _folder_of_user("trainyard-runs") / digest


@contextmanager
def seen_at(place: Path, run_folder: Path) -> Iterator[None]:
    """Have a run's folder at the path that `folder_for_jobs` returned for it. RunError where that cannot be."""
    if place == run_folder:
        yield
        return
    _private_folder("trainyard-runs", "paths without spaces")
    with writing(place):
        place.unlink(missing_ok=True)
        place.symlink_to(run_folder)
    try:
        yield
    finally:
        place.unlink(missing_ok=True)


def _folder_of_user(name: str) -> Path:
    session = os.environ.get("XDG_RUNTIME_DIR", "")
    if session and not _NEEDS_QUOTES.search(session) and is_private_folder(Path(session)):
        return Path(session, name)
    temporary = tempfile.gettempdir()
    return Path("/tmp" if _NEEDS_QUOTES.search(temporary) else temporary, f"{name}-{os.getuid()}")


def _private_folder(name: str, purpose: str) -> Path:
    """Return a folder of this user alone, made if need be. RunError for one that somebody else may have prepared."""
    folder = _folder_of_user(name)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if not is_private_folder(folder):
        raise RunError(
            f"{folder}: expected a folder that only you can write to, for {purpose}; remove it, or set "
            "XDG_RUNTIME_DIR to a folder of your own"
        )
    return folder


def is_free(port: int) -> bool:
    """Return whether a server could listen on this port, on every address of the machine."""
    import socket  # takes 3 ms, and only jobs of several processes need a port

    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family) as server:
                # As servers do: a port that only has connections in TIME_WAIT counts as free.
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                server.bind((address, port))
        except OSError as error:
            if error.errno in _NO_IPV6:
                continue
            return False
    return True
