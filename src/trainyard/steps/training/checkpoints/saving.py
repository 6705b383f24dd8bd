"""One checkpoint on its way to disk: copied to main memory at once, written in a thread beside the training."""

from __future__ import annotations

import mmap
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch

from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.files import make_names_durable, write_durably
from trainyard.steps.training.checkpoints.checkpoint_to_resume import remove_checkpoint
from trainyard.steps.training.checkpoints.collectives import Ranks
from trainyard.steps.training.checkpoints.commit import Commit, SavedFile, write_commit
from trainyard.steps.training.checkpoints.state_files import state_file_header, state_file_name
from trainyard.steps.training.fragments import AVERAGE_KEY, MODEL_KEY, OPTIMIZER_KEY, Fragment

Value = TypeVar("Value")

_WRITER_NICENESS = 10
"""Above the training's 0: when all processors are busy, the training goes first."""


def write_and_commit(
    folder: Path, commit: Commit, pieces: Sequence[Fragment], copy: HostCopy, ranks: Ranks, *, beside_training: bool
) -> None:
    """Write this rank's file, and commit once every rank has written its own.

    `commit` is without its files, which are known only then. StepError, on every rank, if any could not write its file.
    """
    if beside_training and sys.platform == "linux":
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _WRITER_NICENESS)

    def make_folder() -> None:
        remove_checkpoint(folder)
        folder.mkdir(parents=True)

    def write_own_file() -> tuple[str, SavedFile]:
        file = folder / state_file_name(ranks.rank)
        file.parent.mkdir(exist_ok=True)  # another node may not see yet that rank 0 made it
        saved = SavedFile(*write_durably(file, [state_file_header(pieces), copy.wait()]))
        make_names_durable(file.parent)
        return file.name, saved

    ranks.main(make_folder)
    try:
        files = dict(ranks.each(write_own_file))
        ranks.main(lambda: write_commit(folder, replace(commit, files=files)))
    except StepError:
        if ranks.is_main:
            # On a full disk, what was written would leave no space for the next one.
            with suppress(OSError):
                remove_checkpoint(folder)
        raise


def in_thread(work: Callable[[], Value]) -> Future[Value]:
    """Return what a thread of its own will have done."""
    thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
    done = thread.submit(work)
    thread.shutdown(wait=False)
    return done


class HostCopy:
    """The state as it was at one moment, in a buffer that each checkpoint reuses; pinned where a GPU copies into it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._coming: Future[torch.Tensor] | None = None
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._copied: torch.cuda.Event | None = None
        self._sources: list[Fragment] = []

    def prepare(self, pieces: Sequence[Fragment]) -> None:
        """Make the buffer for pieces like these in a thread, beside the first steps.

        To pin memory takes longer than to fill it, and the first checkpoint would hold up the training for both.
        """
        self._coming = in_thread(lambda: self._new_buffer(sum(piece.values.nbytes for piece in pieces)))

    def _new_buffer(self, size_bytes: int) -> torch.Tensor:
        buffer = torch.frombuffer(mmap.mmap(-1, size_bytes), dtype=torch.uint8)  # page-aligned
        if self._stream is not None:
            with torch.cuda.device(self._device):  # a new thread would begin with GPU 0, and take memory there
                _pin(buffer)
        return buffer

    def begin(self, pieces: Sequence[Fragment], state: Sequence[Fragment]) -> None:
        """Copy the pieces of this rank's state end to end.

        On a GPU this only queues the copies: see `before_update` and `wait`.
        """
        size_bytes = sum(piece.values.nbytes for piece in pieces)
        if self._coming is not None:
            self._buffer, self._coming = self._coming.result(), None
        if self._buffer.numel() < size_bytes:
            self._buffer = torch.empty(0, dtype=torch.uint8)  # free the old one before allocating the new one
            self._buffer = self._new_buffer(size_bytes)
        self._size_bytes = size_bytes
        start = 0
        later = []
        stepped = {piece.key.split("/")[1] for piece in state if piece.key.startswith(OPTIMIZER_KEY)}
        for piece in pieces:
            target = self._buffer[start : start + piece.values.nbytes].view(piece.values.dtype)
            start += piece.values.nbytes
            if self._stream is not None and _is_written_by_steps_only(piece, stepped):
                later.append((target, piece.values))
            else:
                target.copy_(piece.values, non_blocking=True)
        if self._stream is not None:
            # On a separate stream, so that forward and backward passes continue meanwhile.
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(self._stream):
                for target, values in later:
                    target.copy_(values, non_blocking=True)
            self._copied = self._stream.record_event()
            self._sources = list(pieces)

    def before_update(self) -> None:
        """Let the device finish copying before it changes what is copied. The host does not wait."""
        if self._copied is not None:
            torch.cuda.current_stream(self._device).wait_event(self._copied)
            self._copied = None

    def wait(self) -> memoryview:
        """Return the bytes once all are copied. May be called from another thread."""
        if self._stream is not None:
            self._stream.synchronize()
        self._sources = []
        return self._buffer[: self._size_bytes].numpy().data


def _pin(buffer: torch.Tensor) -> None:
    """Pin a tensor's memory for as long as the tensor lives.

    `pin_memory` would not do: its allocator rounds up to a power of two, up to twice the state of a whole node's ranks.
    """
    runtime = torch.cuda.cudart()
    torch.cuda.check_error(int(runtime.cudaHostRegister(buffer.data_ptr(), buffer.nbytes, 0)))
    weakref.finalize(buffer, runtime.cudaHostUnregister, buffer.data_ptr()).atexit = False


def _is_written_by_steps_only(piece: Fragment, stepped: set[str]) -> bool:
    """Return whether only optimizer steps change a piece: not buffers, which may change in any forward pass."""
    is_trained = piece.key.removeprefix(MODEL_KEY) in stepped
    return piece.key.startswith((OPTIMIZER_KEY, AVERAGE_KEY)) or is_trained
