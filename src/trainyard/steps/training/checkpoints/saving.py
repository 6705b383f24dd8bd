"""One checkpoint on its way to disk: copied to main memory at once, written in a thread beside the training."""

from __future__ import annotations

import mmap
import os
import sys
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from trainyard.steps.runtime.durable_files import make_names_durable, write_durably
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.checkpoints.checkpoint_to_resume import keep_newest_and_best, remove_checkpoint
from trainyard.steps.training.checkpoints.collectives import Ranks
from trainyard.steps.training.checkpoints.commit import Commit, SavedFile, write_commit
from trainyard.steps.training.checkpoints.state_files import state_file_header, state_file_name
from trainyard.steps.training.fragments import AVERAGE_KEY, MODEL_KEY, OPTIMIZER_KEY, Fragment
from trainyard.steps.training.samples.plan import Progress

_WRITER_NICENESS = 10
"""Above the training's 0: when all processors are busy, the training goes first."""


@dataclass(frozen=True)
class SaveRequest:
    """What to save, and which checkpoints to keep beside it."""

    folder: Path
    commit: Commit
    """Without its files, which are known once they are written."""
    keep: int
    keep_best: bool


class Saving:
    """Writes this rank's file, and commits once every rank has written its own. Starts when constructed."""

    def __init__(
        self, request: SaveRequest, pieces: Sequence[Fragment], copy: HostCopy, ranks: Ranks, *, beside_training: bool
    ) -> None:
        self._request, self._pieces, self._copy, self._ranks = request, pieces, copy, ranks
        self._beside_training = beside_training
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self._thread.start()

    @property
    def progress(self) -> Progress:
        """How far the training had come when its state was copied."""
        return self._request.commit.progress

    def is_done(self) -> bool:
        """Return whether `wait` would return at once."""
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Return once it is committed. StepError, on every rank, if any rank could not write its file."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            if self._beside_training and sys.platform == "linux":
                with suppress(PermissionError):
                    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _WRITER_NICENESS)
            self._write_and_commit()
        except BaseException as failure:  # `wait` raises it
            self._failure = failure

    def _write_and_commit(self) -> None:
        request, ranks = self._request, self._ranks
        ranks.main(self._make_folder)
        try:
            files = dict(ranks.each(self._write_own_file))
            ranks.main(lambda: write_commit(request.folder, replace(request.commit, files=files)))
        except StepError:
            if ranks.is_main:
                # On a full disk, what was written would leave no space for the next one.
                with suppress(OSError):
                    remove_checkpoint(request.folder)
            raise
        if ranks.is_main:
            keep_newest_and_best(request.folder, request.keep, keep_best=request.keep_best)

    def _make_folder(self) -> None:
        remove_checkpoint(self._request.folder)
        self._request.folder.mkdir(parents=True)

    def _write_own_file(self) -> tuple[str, SavedFile]:
        file = self._request.folder / state_file_name(self._ranks.rank)
        file.parent.mkdir(exist_ok=True)  # another node may not see yet that rank 0 made it
        header = state_file_header(self._pieces)
        saved = SavedFile(*write_durably(file, [header, self._copy.wait()]))
        make_names_durable(file.parent)
        return file.name, saved


class HostCopy:
    """The state as it was at one moment, in a buffer that each checkpoint reuses; pinned where a GPU copies into it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._copied: torch.cuda.Event | None = None
        self._sources: list[Fragment] = []

    def begin(self, pieces: Sequence[Fragment], state: Sequence[Fragment]) -> None:
        """Copy the pieces of this rank's state end to end.

        On a GPU this only queues the copies: see `before_update` and `wait`.
        """
        size_bytes = sum(piece.values.nbytes for piece in pieces)
        if self._buffer.numel() < size_bytes:
            self._buffer = torch.empty(0, dtype=torch.uint8)  # free the old one before allocating the new one
            self._buffer = torch.frombuffer(mmap.mmap(-1, size_bytes), dtype=torch.uint8)  # page-aligned
            if self._stream is not None:
                _pin(self._buffer)
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
            self._copy_beside(self._stream, later)
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

    def _copy_beside(self, stream: torch.cuda.Stream, copies: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Copy on a separate stream, so that forward and backward passes continue meanwhile."""
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for target, values in copies:
                target.copy_(values, non_blocking=True)
        self._copied = stream.record_event()


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
