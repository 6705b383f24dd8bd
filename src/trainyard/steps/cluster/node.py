"""What one node is and how fast it is alone: hardware, disk, mount, arithmetic."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from trainyard.foundation.files import os_errors_name
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.processors import usable_processors

# Names from `nvidia-smi --help-query-gpu`; ours beside them.
_GPU_QUERY = {
    "index": "index",
    "name": "name",
    "driver": "driver_version",
    "memory_mib": "memory.total",
    "clock_mhz": "clocks.current.sm",
    "highest_clock_mhz": "clocks.max.sm",
    "ecc": "ecc.mode.current",
    "uncorrected_ecc_errors": "ecc.errors.uncorrected.volatile.total",
    "temperature_celsius": "temperature.gpu",
    "power_limit_watts": "power.limit",
}
_BLOCK_BYTES = 2**20
_MATRIX_SIDE = {"cuda": 8192, "cpu": 1024}
_PRODUCTS_PER_ROUND = 4

Facts = dict[str, object]


def node_facts() -> Facts:
    """Return what this node is: host, kernel, processors, memory in bytes, and its GPUs as nvidia-smi reports them."""
    return {
        "host": platform.node(),
        "kernel": platform.release(),
        "processors": usable_processors(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": _gpus(),
    }


def _gpus() -> list[dict[str, str]]:
    command = ["nvidia-smi", f"--query-gpu={','.join(_GPU_QUERY.values())}", "--format=csv,noheader,nounits"]
    try:
        finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        finished = None
    if finished is not None and finished.returncode == 0:
        return read_gpu_table(finished.stdout)
    # No nvidia-smi: AMD's GPUs, or an image without it.
    return [{"index": str(index), "name": torch.cuda.get_device_name(index)} for index in range(_gpu_count())]


def _gpu_count() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def read_gpu_table(text: str) -> list[dict[str, str]]:
    """Return the rows of nvidia-smi's CSV; what a GPU does not support is left out."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    return [
        {name: cell for name, cell in zip(_GPU_QUERY, row, strict=True) if not cell.startswith("[")} for row in rows
    ]


def gpu_problems(gpus: list[dict[str, str]]) -> Iterator[str]:
    """Yield what is wrong with a node's GPUs, as phrases: memory errors, a low clock limit compared with the others."""
    for gpu in gpus:
        errors = gpu.get("uncorrected_ecc_errors", "0")
        if errors.isdigit() and int(errors) > 0:
            yield f"GPU {gpu['index']} has counted {errors} uncorrected memory errors (ECC); have the node replaced"
    for fact, phrase in (("driver", "drivers"), ("highest_clock_mhz", "highest clocks"), ("ecc", "ECC modes")):
        values = sorted({gpu[fact] for gpu in gpus if fact in gpu})
        if len(values) > 1:
            yield f"its GPUs have different {phrase}: {', '.join(values)}"


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
