"""How ranks find each other before they form a process group; if one cannot, the others report which.

A process group alone waits for its whole timeout, several times over, and then names nobody.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import NoReturn

from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.interfaces import choose_gloo_interface
from trainyard.steps.runtime.rank_variables import RankVariables, attempt_of_ranks
from trainyard.steps.runtime.siblings import watch_siblings
from trainyard.steps.runtime.stores import PrefixStore, Store, open_store

_PAUSE_SECONDS = 0.2
_FOR_OTHERS_TO_READ_SECONDS = 3.0
"""How long rank 0, which hosts the store, outlives a failed meeting."""
_PART_FOR_REACHING = 0.5
"""Of the time that is left: the rest is for saying who was not reached."""
_NAMED_RANKS = 8


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
            self._reach_other_nodes(place)
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
        return open_store(*self._master, world_size=self._variables.world_size, hosts=is_master, timeout=timeout)

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
        raise StepError(
            f"rank {self._variables.rank} of {self._variables.world_size} on {self._host} ({self._own_address}) cannot "
            f"reach rank 0 at {self._master[0]}:{self._master[1]} (MASTER_ADDR:MASTER_PORT) within "
            f"{self._timeout.total_seconds():.0f} seconds (--process-group-timeout-seconds): {failure}"
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

    def _reach_other_nodes(self, own: _Place) -> None:
        """Connect to every other node, as gloo will do. StepError, on every rank, names one that is not reached."""
        keys = [str(rank) for rank in range(self._variables.world_size)]
        places = [_Place(rank, *json.loads(text)) for rank, text in enumerate(self._board.multi_get(keys))]
        listening = [place for place in places if place.port]
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
        more = f" and {len(missing) - _NAMED_RANKS} more" if len(missing) > _NAMED_RANKS else ""
        self._fail(
            f"rank {', '.join(map(str, missing[:_NAMED_RANKS]))}{more} of {self._variables.world_size} did not come to "
            f"{self._master[0]}:{self._master[1]} (MASTER_ADDR:MASTER_PORT) within {self._timeout.total_seconds():.0f} "
            "seconds (--process-group-timeout-seconds)"
        )

    def _ended(self, gone: list[int]) -> str:
        ranks = ("rank " if len(gone) == 1 else "ranks ") + ", ".join(map(str, gone))
        return (
            f"{ranks} of {self._variables.world_size} on {self._host} ended before joining the others; "
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
