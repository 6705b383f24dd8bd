"""Which network NCCL chose, as its log says; it does not tell its caller."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path

_CHOSEN = re.compile(r"(?:Using network|Assigned NET plugin|Initialized NET plugin) (\w+)")
_IN_USE = re.compile(r"NET/(\w+) ?: Using ")


@contextmanager
def nccl_log(environment: MutableMapping[str, str] = os.environ) -> Iterator[Path]:
    """Have NCCL write what it decides into files of the folder that is yielded; the variables are restored after."""
    names = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")
    before = {name: environment.get(name) for name in names}
    with tempfile.TemporaryDirectory() as folder:
        environment.update(
            NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET", NCCL_DEBUG_FILE=str(Path(folder) / "nccl.%p")
        )
        try:
            yield Path(folder)
        finally:
            for name, value in before.items():
                if value is None:
                    environment.pop(name, None)
                else:
                    environment[name] = value


def network_in_log(folder: Path) -> str | None:
    """Return the network between nodes by NCCL's name for it (`IB`, `Socket`, or a plugin's), None if nothing says."""
    text = "".join(file.read_text(errors="replace") for file in sorted(folder.iterdir()))
    for pattern in (_CHOSEN, _IN_USE):
        found = pattern.findall(text)
        if found:
            return str(found[-1])
    return None


def falls_back_to_sockets(network: str | None) -> bool:
    """Whether NCCL sends what goes between nodes over TCP, though it would prefer any other network."""
    return network is not None and network.lower() == "socket"
