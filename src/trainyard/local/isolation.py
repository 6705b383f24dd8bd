"""`--isolate`: each node of a job in a network of its own, so that what only shows between hosts shows here.

A node is a network namespace with an `eth0`, one end of a veth pair; the other ends meet in a bridge, which lies in a
namespace too. Nothing of this machine's own network is changed, and nothing outside can be reached. Programs find
their own and each other's addresses by host names, as on a cluster, for which a node has a host name and /etc/hosts of
its own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trainyard.local.errors import RunError

_PROGRAMS = ("ip", "nsenter", "unshare", "mount", "hostname")
_NETWORK = "10.213.0"
_NAME = re.compile(r"trainyard-(\d+)-\w+")
# As the first process of a node's part of the machine: its own names, then the command.
_BEGIN = 'mount --bind "$1" /etc/hosts && hostname "$2" && shift 2 && exec "$@"'


@dataclass(frozen=True)
class IsolatedNode:
    """A node's address, and the words that a command starts with to run there."""

    address: str
    prefix: tuple[str, ...]


def check_isolation() -> None:
    """Raise `RunError` where this machine does not allow it."""
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if missing:
        raise RunError(f"--isolate needs {', '.join(missing)}, which is not on PATH; install iproute2 and util-linux")
    tried = ["unshare", "--net", "--uts", "--mount", "ip", "link", "add", "near", "type", "veth", "peer", "name", "far"]
    found = subprocess.run(tried, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        said = found.stderr.strip().splitlines()
        why = said[-1] if said else "refused"
        raise RunError(f"--isolate: this machine allows no network namespaces ({why}); run it as root")


@contextmanager
def isolated_nodes(count: int, folder: Path) -> Iterator[list[IsolatedNode]]:
    """Yield nodes that reach each other and nothing else; `folder` is for their /etc/hosts.

    They are gone with the block, and what killed runners left is removed before. Raise `RunError` when they cannot be
    made.
    """
    _remove_left_behind()
    mark = f"trainyard-{os.getpid()}-{os.urandom(3).hex()}"
    switch, names = f"{mark}_s", [f"{mark}_{node}" for node in range(count)]
    addresses = [f"{_NETWORK}.{node + 1}" for node in range(count)]
    hosts = folder / "hosts"
    own = [f"{address} node-{node}\n" for node, address in enumerate(addresses)]
    hosts.write_text("127.0.0.1 localhost\n" + "".join(own), encoding="utf-8")
    try:
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for node, (name, address) in enumerate(zip(names, addresses, strict=True)):
            port = f"node{node}"
            _ip("netns", "add", name)
            _ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", switch, "link", "set", port, "master", "bridge", "up")
            _ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
        yield [
            IsolatedNode(address, _prefix(name, hosts, f"node-{node}"))
            for node, (name, address) in enumerate(zip(names, addresses, strict=True))
        ]
    finally:
        _remove([name for name in _namespaces() if name.startswith(mark)])


def _prefix(namespace: str, hosts: Path, name: str) -> tuple[str, ...]:
    inside = ("unshare", "--uts", "--mount", "sh", "-c", _BEGIN, "sh", str(hosts), name)
    return ("nsenter", f"--net=/run/netns/{namespace}", *inside)


def _ip(*words: str) -> None:
    found = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        raise RunError(f"--isolate: ip {' '.join(words)}: {found.stderr.strip()}")


def _namespaces() -> list[str]:
    """The names of this machine's network namespaces."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    return [line.split()[0] for line in listed.splitlines() if line.strip()]


def _remove_left_behind() -> None:
    """Remove the namespaces of runners that are gone."""
    owners = {name: int(found[1]) for name in _namespaces() if (found := _NAME.fullmatch(name))}
    _remove([name for name, owner in owners.items() if not Path(f"/proc/{owner}").exists()])


def _remove(namespaces: Sequence[str]) -> None:
    for name in namespaces:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
