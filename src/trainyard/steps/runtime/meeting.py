"""How ranks find each other before they form a process group; if one cannot, the others report which.

They meet in a store, a table of keys and values. A process group alone waits for its whole timeout, several times over,
and then names nobody.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import NoReturn

from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore

# torch.distributed passes the same classes on, but hides their types.
from torch.distributed import DistNetworkError, DistStoreError

from trainyard.steps.runtime.errors import StepError, first_line
from trainyard.steps.runtime.rank_variables import RankVariables, attempt_of_ranks, ranks_in_words, watch_siblings

_PAUSE_SECONDS = 0.2
_FOR_OTHERS_TO_READ_SECONDS = 3.0
"""How long rank 0, which hosts the store, outlives a failed meeting."""
_PART_FOR_REACHING = 0.5
"""Of the time that is left: the rest is for saying who was not reached."""
_GLOO_VARIABLE = "GLOO_SOCKET_IFNAME"
_ELSEWHERE = "192.0.2.1"
"""An address of nobody (RFC 5737): the route to it is the default route."""
_SIOCGIFADDR = 0x8915
"""From linux/sockios.h: asks for an interface's IPv4 address, which is in bytes 20 to 24 of the answer."""
_NAME_BYTES = 15
__all__ = ["HashStore", "PrefixStore", "Store", "TCPStore", "open_store"]

_ANSWERS_WITHIN = timedelta(minutes=5)


@dataclass(frozen=True)
class _Place:
    """Where a rank runs."""

    rank: int
    host: str
    address: str
    port: int
    """Where it can be reached until all have met; 0 for all but a node's first rank."""

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host} ({self.address})"


class Meeting:
    """The ranks of one job around a store. StepError, on every rank that can be told, says who is missing."""

    def __init__(self, variables: RankVariables, timeout: timedelta) -> None:
        assert variables.master_address is not None
        self._variables, self._timeout = variables, timeout
        self._master = (variables.master_address, variables.master_port)
        self._deadline = time.monotonic() + timeout.total_seconds()
        self._siblings = watch_siblings()
        own_address = choose_gloo_interface(variables.master_address) or ""
        self._host, self._own_address = socket.gethostname(), own_address
        self.nodes: list[list[int]] = []
        """The ranks of each node, once they have met."""

    def store(self) -> Store:
        """Return the store for the process group, once every rank is here and every node reaches every other."""
        store = self._open_store()
        # The store may outlive the processes, and gloo would find addresses of ranks that are gone.
        attempt = attempt_of_ranks()
        self._board = PrefixStore(f"meeting/{attempt}", store)
        with self._listening() as port:
            place = _Place(self._variables.rank, self._host, self._own_address, port)
            self._board.set(str(place.rank), json.dumps([place.host, place.address, place.port]))
            ranks = [str(rank) for rank in range(self._variables.world_size)]
            self._wait_for_all("here", lambda: self._board.check(ranks), self._fail_for_missing)
            self._reach_other_nodes(place, ranks)
        return PrefixStore(f"group/{attempt}", store)

    @contextmanager
    def ends_with_siblings(self) -> Iterator[None]:
        """End the process if a rank of this node ends meanwhile: gloo, which is connecting, cannot be interrupted."""
        has_joined = threading.Event()

        def watch() -> None:
            while not has_joined.wait(_PAUSE_SECONDS):
                if gone := self._siblings.gone():
                    print(f"error: {self._ended(gone)}", file=sys.stderr, flush=True)
                    os._exit(1)

        threading.Thread(target=watch, name="joining", daemon=True).start()
        try:
            yield
        finally:
            has_joined.set()
            self._siblings.close()

    def _open_store(self) -> Store:
        hosted_by_torchrun = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        is_master = self._variables.rank == 0 and not hosted_by_torchrun
        if not is_master:
            self._wait_for_master()
        timeout = timedelta(seconds=max(1.0, self._left_seconds()))
        watch = threading.Timer(timeout.total_seconds(), self._end_without_answer)
        watch.daemon = True
        watch.start()
        try:
            return open_store(*self._master, world_size=self._variables.world_size, hosts=is_master, timeout=timeout)
        except (DistNetworkError, DistStoreError) as failure:
            if is_master:
                raise
            # Somebody else, or only for a moment, listened there.
            raise StepError(self._cannot_reach_master(first_line(failure))) from None
        finally:
            watch.cancel()

    def _end_without_answer(self) -> None:
        """End the process: torch waits without end for the answer of a listener that accepted the connection."""
        print(f"error: {self._cannot_reach_master('what listens there does not answer')}", file=sys.stderr, flush=True)
        os._exit(1)

    def _wait_for_master(self) -> None:
        """Wait until rank 0 listens. StepError if it does not in time, or has ended."""
        failure: OSError | None = None
        while (left := self._left_seconds()) > 0:
            try:
                socket.create_connection(self._master, timeout=min(left, 5.0)).close()
            except OSError as refused:
                failure = refused
            else:
                return
            if gone := self._siblings.gone():
                raise StepError(self._ended(gone))
            time.sleep(_PAUSE_SECONDS)
        raise StepError(self._cannot_reach_master(str(failure)))

    def _cannot_reach_master(self, why: str) -> str:
        return (
            f"rank {self._variables.rank} of {self._variables.world_size} on {self._host} ({self._own_address}) cannot "
            f"reach rank 0 at {self._master[0]}:{self._master[1]} (MASTER_ADDR:MASTER_PORT) within "
            f"{self._timeout.total_seconds():.0f} seconds (--process-group-timeout-seconds): {why}"
        )

    @contextmanager
    def _listening(self) -> Iterator[int]:
        """Listen for the other nodes on the address that gloo will use, if this is a node's first rank."""
        if self._variables.local_rank != 0 or not self._own_address:
            yield 0
            return
        with socket.socket() as listener:
            listener.bind((self._own_address, 0))
            listener.listen(1024)
            yield listener.getsockname()[1]

    def _reach_other_nodes(self, own: _Place, ranks: list[str]) -> None:
        """Connect to every other node, as gloo will do. StepError, on every rank, names one that is not reached."""
        places = [_Place(rank, *json.loads(text)) for rank, text in enumerate(self._board.multi_get(ranks))]
        listening = [place for place in places if place.port]
        node_of: dict[str, list[int]] = {}
        for place in places:  # not every launcher counts ranks node by node
            if place.port or place.host not in node_of:
                node_of[place.host] = []
                self.nodes.append(node_of[place.host])
            node_of[place.host].append(place.rank)
        if len({place.address for place in listening}) < 2:
            return
        if own.port:
            seconds = max(1.0, self._left_seconds() * _PART_FOR_REACHING)
            for place in listening:
                try:
                    socket.create_connection((place.address, place.port), timeout=seconds).close()
                except OSError as failure:
                    self._fail(
                        f"{own} cannot reach {place}: {failure}; let the nodes reach each other at these addresses, or "
                        "name the interface to use in GLOO_SOCKET_IFNAME"
                    )
            self._board.add("reached", 1)
        self._wait_for_all(
            "reachable",
            lambda: self._board.add("reached", 0) == len(listening),
            lambda: self._fail("not every node has reached every other in time"),
        )

    def _wait_for_all(self, key: str, holds: Callable[[], bool], fail: Callable[[], object]) -> None:
        """Wait until rank 0 finds that something holds and says so under a key; fail at the deadline."""
        while True:
            if self._variables.rank == 0 and holds():
                self._board.set(key, "")
            if self._board.check([key]):
                return
            if self._board.check(["problem"]):
                self._leave(self._board.get("problem").decode())
            if gone := self._siblings.gone():
                self._fail(self._ended(gone))
            if self._left_seconds() <= 0:
                fail()
            time.sleep(_PAUSE_SECONDS)

    def _fail_for_missing(self) -> None:
        missing = [rank for rank in range(self._variables.world_size) if not self._board.check([str(rank)])]
        self._fail(
            f"{ranks_in_words(missing)} of {self._variables.world_size} did not connect to "
            f"{self._master[0]}:{self._master[1]} (MASTER_ADDR:MASTER_PORT) within {self._timeout.total_seconds():.0f} "
            "seconds (--process-group-timeout-seconds)"
        )

    def _ended(self, gone: list[int]) -> str:
        return (
            f"{ranks_in_words(gone)} of {self._variables.world_size} on {self._host} ended before joining the others; "
            "the log of that process says why"
        )

    def _fail(self, problem: str) -> NoReturn:
        """Tell the other ranks, and raise."""
        self._board.set("problem", problem)
        self._leave(problem)

    def _leave(self, problem: str) -> NoReturn:
        if self._variables.rank == 0:
            time.sleep(_FOR_OTHERS_TO_READ_SECONDS)
        raise StepError(problem)

    def _left_seconds(self) -> float:
        return self._deadline - time.monotonic()


def choose_gloo_interface(master_address: str) -> str | None:
    """Let gloo use the interface of the route to MASTER_ADDR, unless GLOO_SOCKET_IFNAME names one of this machine.

    Without it gloo takes the one that the host's name leads to, which is often the loopback interface, where no other
    node can reach it. Return this node's address there, or None if it cannot be found, as on systems other than Linux.
    """
    if sys.platform != "linux":
        return None
    addresses = dict(_interfaces())
    given = os.environ.get(_GLOO_VARIABLE)
    if given in addresses:
        return addresses[given]
    address = _address_towards(master_address)
    is_on_this_machine = master_address == "localhost" or _is_loopback(master_address)
    if address is None or (_is_loopback(address) and not is_on_this_machine):
        # A name of this machine's own may lead to the loopback interface here, and to another address elsewhere.
        address = _address_towards(_ELSEWHERE) or next((a for a in addresses.values() if not _is_loopback(a)), address)
    found = next((name for name, own in addresses.items() if own == address), None)
    if found is not None:
        os.environ[_GLOO_VARIABLE] = found
        if given is not None:
            print(f"warning: {_GLOO_VARIABLE}={given}: this machine has no such interface; using {found}", flush=True)
    return address


def _address_towards(address: str) -> str | None:
    """Return this machine's address on the route to another, or None. Nothing is sent."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect((address, 9))
        return str(asking.getsockname()[0])
    return None


def _interfaces() -> Iterator[tuple[str, str]]:
    """Yield this machine's interfaces that have an IPv4 address."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, struct.pack("256s", name[:_NAME_BYTES].encode()))
                yield name, socket.inet_ntoa(answer[20:24])


def _is_loopback(address: str) -> bool:
    return address.startswith("127.")


def open_store(
    address: str, port: int, *, world_size: int | None = None, hosts: bool = False, timeout: timedelta = _ANSWERS_WITHIN
) -> Store:
    """Connect to the store at an address, or host it there, without waiting for the other ranks.

    `timeout` is for connecting and for each request. RuntimeError if nobody answers, or the port is taken.
    """
    return TCPStore(address, port, world_size, is_master=hosts, timeout=timeout, wait_for_workers=False)
