"""What one node is and how fast it is alone: hardware, disk, mount, arithmetic."""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

import torch

from trainyard.settings.files import os_errors_name
from trainyard.steps.cluster.gpus import gpu_facts
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.long_work import usable_processors

_BLOCK_BYTES = 2**20
_MATRIX_SIDE = {"cuda": 8192, "cpu": 1024}
_PRODUCTS_PER_ROUND = 4

Facts = dict[str, object]


def node_facts() -> Facts:
    """Return what this node is: host, kernel, processors, memory in bytes, and its GPUs as their driver has them."""
    return {
        "host": platform.node(),
        "kernel": platform.release(),
        "processors": usable_processors(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": gpu_facts(),
    }


def measure_disk(size_bytes: int) -> Facts:
    """Return the folder for temporary files with its speed of writing and reading in bytes per second."""
    block = os.urandom(_BLOCK_BYTES)
    blocks = max(1, size_bytes // _BLOCK_BYTES)
    folder = Path(tempfile.gettempdir())
    with os_errors_name(folder), tempfile.TemporaryFile(dir=folder) as file:
        start = time.perf_counter()
        for _ in range(blocks):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        written = time.perf_counter()
        _forget_cached(file.fileno())
        file.seek(0)
        reading = time.perf_counter()
        while file.read(_BLOCK_BYTES):
            pass
        read = time.perf_counter()
    size = blocks * _BLOCK_BYTES
    return {
        "folder": str(folder),
        "bytes": size,
        "write_bytes_per_second": size / (written - start),
        "read_bytes_per_second": size / (read - reading),
    }


def measure_mount(folder: Path, most_bytes: int) -> Facts:
    """Return the speed at which the folder's files are read, one after the other, up to so many bytes.

    Pages that the operating system has cached are dropped first, where it allows that. StepError without any files.
    """
    size = files = 0
    seconds = 0.0
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        if size >= most_bytes:
            break
        with os_errors_name(path), path.open("rb", buffering=0) as file:
            _forget_cached(file.fileno())
            start = time.perf_counter()
            while size < most_bytes and (block := file.read(_BLOCK_BYTES)):
                size += len(block)
            seconds += time.perf_counter() - start
        files += 1
    if size == 0:
        raise StepError(f"--data: no file to read in {folder}")
    return {"folder": str(folder), "files": files, "bytes": size, "read_bytes_per_second": size / seconds}


def _forget_cached(descriptor: int) -> None:
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def measure_arithmetic(device: torch.device, repetitions: int) -> float:
    """Return the rate of this rank's matrix products in FLOP per second: bf16 on a GPU, fp32 on a CPU.

    A product of n x n matrices is 2 n^3 operations. Median of several rounds.
    """
    side = _MATRIX_SIDE[device.type]
    supports_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported()
    dtype = torch.bfloat16 if supports_bf16 else torch.float16 if device.type == "cuda" else torch.float32
    left, right = (torch.ones(side, side, device=device, dtype=dtype) for _ in range(2))

    def seconds() -> float:
        start = time.perf_counter()
        for _ in range(_PRODUCTS_PER_ROUND):
            torch.mm(left, right)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    seconds()
    return 2 * side**3 * _PRODUCTS_PER_ROUND / statistics.median(seconds() for _ in range(repetitions))
