"""MASTER_PORT: 6105 where it is free, as on Azure ML, else the next that is, never one for two jobs at once."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainyard.local.errors import RunError

AZURE_ML_MASTER_PORT = 6105
"""What Azure ML gives (Azure/azureml-cheatsheets, distributed-training.md)."""

# All below 32768, where Linux begins to hand out ports to clients that ask for any.
_CANDIDATES = range(AZURE_ML_MASTER_PORT, AZURE_ML_MASTER_PORT + 1000)
# What the system answers where it has no IPv6.
_NO_IPV6 = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})


@contextmanager
def reserved_port() -> Iterator[int]:
    """A free port that no other runner of this user takes while the block lasts: a lock file stands for it.

    The ranks can only bind it themselves, so it must be unbound when they start; the lock keeps runners apart until
    then. Raises `RunError` when every candidate is taken.
    """
    folder = Path(tempfile.gettempdir(), f"trainyard-ports-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    for port in _CANDIDATES:
        with (folder / str(port)).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            if is_free(port):
                yield port
                return
    raise RunError(
        f"MASTER_PORT: every port from {_CANDIDATES[0]} to {_CANDIDATES[-1]} is in use; stop what holds them"
    )


def is_free(port: int) -> bool:
    """Whether a server could listen on this port, on every address of the machine."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family) as server:
                # As servers do: a port whose last connections only wait for their end counts as free.
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                server.bind((address, port))
        except OSError as error:
            if error.errno in _NO_IPV6:
                continue
            return False
    return True
