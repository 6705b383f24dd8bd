"""Ends all ranks together when one of them is out of memory, wherever the others wait for it."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch.distributed.distributed_c10d import _get_default_store

from trainyard.steps.runtime.meeting import PrefixStore
from trainyard.steps.runtime.world import World

_KEY, _REPORTED, _LEFT = "out_of_memory", "reported", "left"
_LOOK_EVERY_SECONDS = 0.5
_WAIT_FOR_OTHERS_SECONDS = 60.0
"""Longer than MLflow's log may take to close."""


_OUT_OF_MEMORY = re.compile(
    "|".join(
        (
            # Main memory, c10/core/impl/alloc_cpu.cpp: "DefaultCPUAllocator: can't allocate memory: you tried to …"
            "can't allocate memory",
            # A call of CUDA's runtime or driver (cudaErrorMemoryAllocation, CUDA_ERROR_OUT_OF_MEMORY), HIP's likewise:
            # c10/cuda/CUDAException.cpp, "CUDA error: out of memory"; ROCm builds say HIP.
            "(?:CUDA|HIP|CUDA driver) error: out of memory",
            # Handles and workspaces of the libraries, at::cuda::blas::_cublasGetErrorEnum and its like:
            # "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
            r"\b(?:CUBLAS|HIPBLAS|CUSPARSE|CUSOLVER|CUDNN)_STATUS_(?:INTERNAL_ERROR_DEVICE_)?ALLOC(?:ATION)?_FAILED\b",
            # NCCL's buffers: "ncclUnhandledCudaError: … Last error: Cuda failure 2 'out of memory'", its checks.h;
            # before NCCL 2.20 without the number.
            r"Cuda failure (?:\d+ )?'out of memory'",
        )
    )
)
"""What torch raises as RuntimeError where memory is exhausted, though not in its own allocator of GPU memory."""


class OutOfMemoryWatch:
    """A context in which running out of memory ends every rank with exit code 0, after `leave` with that rank's number.

    The others may be waiting in an exchange that nothing interrupts, so a thread of each looks in the store.
    """

    def __init__(self, world: World, leave: Callable[[int], None]) -> None:
        self._rank, self._size, self._leave = world.rank, world.size, leave
        default_store: Any = _get_default_store()  # torch's type of stores lacks `clone`
        self._store = PrefixStore("memory", default_store.clone())
        self._closed, self._ending = threading.Event(), threading.Lock()

    def __enter__(self) -> None:
        threading.Thread(target=self._look, name="memory-watch", daemon=True).start()

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        self._closed.set()
        if error is None:
            return
        if is_out_of_memory(error):
            self._store.set(_KEY, str(self._rank))
        # Whatever else went wrong may follow from a rank that has left.
        self._end_if_announced()

    def _look(self) -> None:
        while not self._closed.wait(_LOOK_EVERY_SECONDS):
            self._end_if_announced()

    def _end_if_announced(self) -> None:
        if not self._store.check([_KEY]):
            return
        self._ending.acquire()  # never released: two threads may come here, and one ends the process
        self._leave(int(self._store.get(_KEY)))
        # Rank 0 hosts the store, and reports before a connection of its own breaks: it is the last to leave.
        if self._rank == 0:
            self._store.set(_REPORTED, "yes")
            self._wait_for(lambda: self._store.add(_LEFT, 0) == self._size - 1)
        else:
            self._wait_for(lambda: self._store.check([_REPORTED]))
            self._store.add(_LEFT, 1)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def _wait_for(self, is_done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _WAIT_FOR_OTHERS_SECONDS
        while not is_done() and time.monotonic() < deadline:
            time.sleep(0.1)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that a GPU's or the machine's memory is exhausted."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None
