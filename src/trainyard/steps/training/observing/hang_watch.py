"""Names the late ranks when the ranks have waited for each other too long.

A thread in each rank publishes how far that rank has come in a store. When nothing has moved for half of the process
group's timeout, each rank dumps the stacks of its threads to its log, and rank 0 and the late ranks log who is late.

A rank that fails says so in the store, and ranks that go on waiting are ended: a GPU's kernel would wait for the failed
rank until NCCL's watchdog aborts the process, which takes the whole timeout and does not tell the cause.
"""

from __future__ import annotations

import faulthandler
import json
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TextIO

import torch

from trainyard.steps.runtime.errors import LOST_EXIT_CODE, StepError, first_line
from trainyard.steps.runtime.meeting import PrefixStore, Store, open_store
from trainyard.steps.runtime.rank_variables import RankVariables, attempt_of_ranks, ranks_in_words
from trainyard.steps.runtime.watcher import is_worker

_PART_OF_TIMEOUT = 0.5
_PART_IN_LONG_WORK = 0.9
_LOOKS_PER_LIMIT = 8
_PART_BEFORE_WATCHDOG = 0.95
_LONGEST_PAUSE_SECONDS = 5.0
_PAUSES_AFTER_FAILURE = 4
"""For what a rank does by itself once another is gone: gloo reports a lost connection at once."""
_FAILURE = "failure"
_FOR_EVER = timedelta(days=365)
_SILENT_STORE = "rank 0, which hosts the store of the process group, does not answer"
FILE_PREFIX = "collectives_rank_"
"""For `torchfrtrace --prefix`, which compares the files of all ranks."""


class Place(NamedTuple):
    """How far a rank has come. All ranks take the same path, so the lowest (step, stage) is the latest rank."""

    step: int
    stage: int
    """How many places were reached within the step."""
    doing: str

    def __str__(self) -> str:
        return f"step {self.step}, {self.doing}"


class HangWatch:
    """Watches one rank. `reached` costs next to nothing; the rest runs in a thread."""

    def __init__(
        self,
        variables: RankVariables,
        timeout_seconds: int,
        log: TextIO | None = None,
        *,
        ends_before_timeout: bool = False,
        collectives_folder: Path | None = None,
    ) -> None:
        """With `ends_before_timeout` a rank that waits for late ones is ended shortly before the group's timeout.

        What torch's flight recorder has is written into `collectives_folder` when nothing moves.
        """
        self._collectives_folder = collectives_folder
        self._rank, self._size = variables.rank, variables.world_size
        self._ends_before_timeout = ends_before_timeout
        self._variables = variables
        self._timeout_seconds, self._part_of_timeout = timeout_seconds, _PART_OF_TIMEOUT
        self._pause_seconds = min(self._limit_seconds / _LOOKS_PER_LIMIT, _LONGEST_PAUSE_SECONDS)
        self._patience_seconds = _PAUSES_AFTER_FAILURE * self._pause_seconds
        # A replaced sys.stderr may have no file descriptor, to which stacks are dumped.
        self._log = log or sys.__stderr__ or sys.stderr
        self._place = Place(0, 0, "starting")
        self._beats = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hang-watch", daemon=True)
        self._listener = threading.Thread(target=self._end_after_failure, name="hang-watch-failures", daemon=True)
        self._failure: str | None = None
        self._waits_for: str | None = None
        """The finding, where it means that this rank is not itself late."""
        self.finding: str | None = None
        """Which rank is late, while nothing moves; None again once this rank makes progress."""

    def start(self) -> None:
        """Start watching."""
        self._thread.start()
        self._listener.start()

    def reached(self, step: int, doing: str) -> None:
        """Note what this rank now does; every rank calls it with the same arguments in the same order."""
        stage = self._place.stage + 1 if step == self._place.step else 0
        self._place = Place(step, stage, doing)
        self._beats += 1

    def still_at_work(self) -> None:
        """Note that this rank makes progress with what it does."""
        self._beats += 1

    @contextmanager
    def long_work(self, doing: str, step: int = 0) -> Iterator[None]:
        """A context for work in which a rank is silent for long, such as writing a checkpoint: the limit is longer."""
        self.reached(step, doing)
        self._part_of_timeout = _PART_IN_LONG_WORK
        yield
        # Not after an error, whose handler reads the finding.
        self._beats += 1
        self._part_of_timeout = _PART_OF_TIMEOUT

    @property
    def _limit_seconds(self) -> float:
        return self._timeout_seconds * self._part_of_timeout

    def failed(self, failure: Exception) -> None:
        """Note why this rank ends; `close` tells the others."""
        self._failure = first_line(failure)

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(self._pause_seconds)
        faulthandler.cancel_dump_traceback_later()

    def _run(self) -> None:
        store = self._connect()
        beats, since, has_dumped = self._beats, time.monotonic(), False
        while not self._closed.wait(self._pause_seconds):
            if self._beats != beats:
                beats, since, has_dumped = self._beats, time.monotonic(), False
                self.finding = self._waits_for = None
            waited_seconds = time.monotonic() - since
            if not has_dumped:
                # If this thread gets no turn (the GIL is held, the store hangs), faulthandler's own thread dumps.
                latest_seconds = max(self._limit_seconds - waited_seconds, 0) + 4 * self._pause_seconds
                faulthandler.dump_traceback_later(latest_seconds, file=self._log)
            if store is not None:
                with suppress(RuntimeError):  # rank 0 is gone: the process group notices soon
                    store.set(str(self._rank), json.dumps(self._place))
            if waited_seconds >= self._limit_seconds and not has_dumped:
                has_dumped = True
                faulthandler.cancel_dump_traceback_later()
                self._dump(waited_seconds)
                self._find_late_ranks(store)
            is_due = waited_seconds >= self._timeout_seconds * _PART_BEFORE_WATCHDOG
            if is_due and self._ends_before_timeout and self._waits_for is not None:
                if self._waits_for != _SILENT_STORE:
                    _publish_failure(store, self._rank, f"it waited for others; {self._waits_for}")
                self._end(self._waits_for)
        if self._failure is not None:
            _publish_failure(store, self._rank, self._failure)

    def _end_after_failure(self) -> None:
        """Wait until a rank fails, then end this one unless it makes progress or ends by itself."""
        store = self._connect()
        if store is None:
            return
        try:
            store.wait([_FAILURE], _FOR_EVER)
            failure = store.get(_FAILURE).decode()
        except RuntimeError:
            failure = "rank 0, which hosts the store of the process group, has ended"
        beats = None
        while beats != self._beats:
            beats = self._beats
            if self._closed.wait(self._patience_seconds):
                return
        self._end(failure)

    def _end(self, why: str) -> NoReturn:
        """End the process although its main thread waits: nothing else can wake it from a kernel of a GPU."""
        print(f"rank {self._rank}: error: waited at {self._place}, but {why}", file=self._log, flush=True)
        os._exit(LOST_EXIT_CODE if is_worker() else 1)

    def _dump(self, waited_seconds: float) -> None:
        print(
            f"rank {self._rank}: no progress for {waited_seconds:.1f} seconds at {self._place}; stacks of its threads:",
            file=self._log,
            flush=True,
        )
        # The thread that trains comes first: faulthandler begins with the youngest and stops after a hundred.
        main = sys._current_frames().get(threading.main_thread().ident or 0)
        print("Main thread (most recent call last):", file=self._log)
        traceback.print_stack(main, file=self._log)
        self._log.flush()
        faulthandler.dump_traceback(self._log)
        if self._collectives_folder is not None:
            try:
                written = write_collectives(self._collectives_folder, self._rank)
            except OSError as failure:
                written = f"its last collectives cannot be written: {failure}"
            if written is not None:
                print(f"rank {self._rank}: {written}", file=self._log, flush=True)

    def _find_late_ranks(self, store: Store | None) -> None:
        # By then the others have published where they are.
        self._closed.wait(2 * self._pause_seconds)
        places = self._places(store) if store else {0: self._place}
        self.finding = _SILENT_STORE if places is None else late_ranks(places)
        self._waits_for = self.finding if places is None or self._rank not in ranks_behind(places) else None
        if places is None or self._rank == 0 or self._rank in ranks_behind(places):
            print(f"rank {self._rank}: {self.finding}", file=self._log, flush=True)

    def _places(self, store: Store) -> Mapping[int, Place | None] | None:
        """Return where every rank is, or None if the store does not answer: torch itself would wait forever."""
        answers: queue.SimpleQueue[Mapping[int, Place | None]] = queue.SimpleQueue()
        threading.Thread(
            target=lambda: answers.put(_published(store, self._size)), name="hang-watch-question", daemon=True
        ).start()
        try:
            return answers.get(timeout=2 * self._pause_seconds)
        except queue.Empty:
            return None

    def _connect(self) -> Store | None:
        """Open a separate connection: the main thread may be waiting on the process group's."""
        if self._size == 1 or self._variables.master_address is None:
            return None
        try:
            store = open_store(self._variables.master_address, self._variables.master_port)
        except RuntimeError:
            return None  # rank 0, which hosts the store, is already gone
        return PrefixStore(f"hang_watch/{attempt_of_ranks()}", store)


@contextmanager
def late_ranks_named(watch: HangWatch) -> Iterator[None]:
    """Add to an error that ends the step which rank was late, if a hang was noticed before. Tell the others of it."""
    try:
        yield
    except Exception as failure:
        watch.failed(failure)
        if watch.finding is None or not isinstance(failure, StepError):
            raise
        raise type(failure)(f"{failure} ({watch.finding})") from None
    finally:
        watch.close()


def late_ranks(places: Mapping[int, Place | None]) -> str:
    """Return in words which ranks are behind the others."""
    behind = ranks_behind(places)
    if places[behind[0]] is None:
        return f"nothing heard from {ranks_in_words(behind)}"
    if len(behind) == len(places):
        return f"all ranks are at {places[0]}"
    ahead = max(places.values(), key=_position)
    return f"late: {ranks_in_words(behind)}, at {places[behind[0]]}; others are at {ahead}"


def ranks_behind(places: Mapping[int, Place | None]) -> list[int]:
    """Return the ranks that have come least far, or those that never published where they are."""
    least = min(_position(place) for place in places.values())
    return [rank for rank, place in places.items() if _position(place) == least]


def _position(place: Place | None) -> tuple[int, int]:
    return (-1, -1) if place is None else (place.step, place.stage)


def _publish_failure(store: Store | None, rank: int, failure: str) -> None:
    """Publish why this rank ends, unless another has ended before, which is then the cause."""
    if store is not None:
        with suppress(RuntimeError):  # rank 0 is gone, which the others see as well
            store.compare_set(_FAILURE, "", f"rank {rank} failed: {failure}")


def _published(store: Store, size: int) -> dict[int, Place | None]:
    """Return where every rank is, in one request if each has published its place."""
    ranks = range(size)
    try:
        keys = [str(rank) for rank in ranks]
        known = keys if store.check(keys) else [key for key in keys if store.check([key])]
        published = dict(zip(known, store.multi_get(known), strict=True))
    except RuntimeError:
        published = {}
    return {rank: Place(*json.loads(published[str(rank)])) if str(rank) in published else None for rank in ranks}


def write_collectives(folder: Path, rank: int) -> str | None:
    """Write the recorded collectives into a folder. Return in words where, and the oldest that is not finished.

    None if nothing was recorded. OSError if the folder cannot be written.
    """
    library: Any = torch._C._distributed_c10d
    # NCCL's are in a recorder of their own where torch is built for GPUs.
    for name in ("_dump_nccl_trace", "_dump_fr_trace"):
        dump_json = getattr(library, f"{name}_json", None)
        if dump_json is not None and (entries := json.loads(dump_json()).get("entries")):
            folder.mkdir(parents=True, exist_ok=True)
            file = folder / f"{FILE_PREFIX}{rank}"
            file.write_bytes(getattr(library, name)())
            return f"its last {len(entries)} collectives are in {file}; {_oldest_unfinished(entries)}"
    return None


def _oldest_unfinished(entries: list[dict[str, Any]]) -> str:
    for entry in entries:
        if not entry["retired"]:
            sizes = " and ".join("x".join(map(str, size)) or "one number" for size in entry["input_sizes"])
            name, number = entry["profiling_name"], entry["collective_seq_id"]
            return f"not finished: {name} of {sizes}, number {number} of its group"
    return "all are finished"
