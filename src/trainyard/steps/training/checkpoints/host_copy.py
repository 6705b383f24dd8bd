"""The state as it was at one moment, copied to main memory while the training goes on."""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Sequence

import torch

from trainyard.steps.training.fragments import Fragment


class HostCopy:
    """One buffer in main memory, used again for each checkpoint; pinned where a GPU copies into it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._copied: torch.cuda.Event | None = None
        self._sources: list[Fragment] = []

    def begin(self, pieces: Sequence[Fragment], state: Sequence[Fragment]) -> None:
        """Copy the pieces of the rank's state end to end.

        On a GPU this only queues the copies: see `before_update` and `wait`.
        """
        size_bytes = sum(piece.values.nbytes for piece in pieces)
        if self._buffer.numel() < size_bytes:
            self._buffer = torch.empty(0, dtype=torch.uint8)  # the old one goes before the new one comes
            self._buffer = torch.frombuffer(mmap.mmap(-1, size_bytes), dtype=torch.uint8)  # begins at a page
            if self._stream is not None:
                _pin(self._buffer)
        self._size_bytes = size_bytes
        start = 0
        later = []
        stepped = {piece.key.split("/")[1] for piece in state if piece.key.startswith("optimizer/")}
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
        """The bytes, once they are all there. May be called in another thread."""
        if self._stream is not None:
            self._stream.synchronize()
        self._sources = []
        return self._buffer[: self._size_bytes].numpy().data

    def _copy_beside(self, stream: torch.cuda.Stream, copies: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """On a stream of its own, so that forward and backward passes go on meanwhile."""
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for target, values in copies:
                target.copy_(values, non_blocking=True)
        self._copied = stream.record_event()


def _pin(buffer: torch.Tensor) -> None:
    """Lock a tensor's memory for a GPU to copy into, for as long as the tensor lives.

    Not with `pin_memory`, whose allocator takes the next power of two: up to twice the state of a whole node's ranks.
    """
    runtime = torch.cuda.cudart()
    torch.cuda.check_error(int(runtime.cudaHostRegister(buffer.data_ptr(), buffer.nbytes, 0)))
    weakref.finalize(buffer, runtime.cudaHostUnregister, buffer.data_ptr()).atexit = False


def _is_written_by_steps_only(piece: Fragment, stepped: set[str]) -> bool:
    """Parameters with optimizer state, and that state. Buffers may change in any forward pass."""
    kind, _, rest = piece.key.partition("/")
    return kind == "optimizer" or (kind == "model" and rest in stepped)
