"""What one node is and how fast it is alone: hardware, GPUs as nvidia-smi or amd-smi report them, disk, arithmetic."""

from __future__ import annotations

import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from trainyard.settings.files import os_errors_name
from trainyard.settings.this_machine import available_processors, output_of
from trainyard.steps.runtime.errors import StepError

_BLOCK_BYTES = 2**20
_MATRIX_SIDE = {"cuda": 8192, "cpu": 1024}
_PRODUCTS_PER_ROUND = 4

# Names from `nvidia-smi --help-query-gpu`; ours beside them.
_NVIDIA_QUERY = {
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
# Paths in what `amd-smi static --json` and `amd-smi metric --json` print of a GPU
# (https://rocm.docs.amd.com/projects/amdsmi/en/latest/how-to/amdsmi-cli-tool.html). Names changed with versions.
_AMD_PATHS = {
    "index": ("gpu",),
    "name": ("asic.market_name",),
    "driver": ("driver.version", "driver.driver_version"),
    "memory_mib": ("vram.size", "vram.vram_size"),
    "clock_mhz": ("clock.gfx_0.clk",),
    "highest_clock_mhz": ("clock.gfx_0.max_clk",),
    "ecc": ("ras.ecc_block_state.UMC",),
    "uncorrected_ecc_errors": ("ecc.total_uncorrectable_count",),
    "temperature_celsius": ("temperature.hotspot",),
    "power_limit_watts": ("limit.max_power",),
}
_UNKNOWN = ("", "N/A", "None")

Facts = dict[str, object]
Gpu = dict[str, str]


def node_facts() -> Facts:
    """Return what this node is: host, kernel, processors, memory in bytes, and its GPUs as their driver has them."""
    return {
        "host": platform.node(),
        "kernel": platform.release(),
        "processors": available_processors(),
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
    dtype = torch.float32
    if device.type == "cuda":
        dtype = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
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


def gpu_facts() -> list[Gpu]:
    """Return this node's GPUs; with neither program, as little as PyTorch knows of them."""
    query = ("nvidia-smi", f"--query-gpu={','.join(_NVIDIA_QUERY.values())}", "--format=csv,noheader,nounits")
    if table := output_of(*query):
        return read_nvidia_table(table)
    static, metric = (output_of("amd-smi", command, "--json") for command in ("static", "metric"))
    if static and metric:
        return read_amd_documents(static, metric)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [{"index": str(index), "name": torch.cuda.get_device_name(index)} for index in range(count)]


def read_nvidia_table(text: str) -> list[Gpu]:
    """Return the rows of nvidia-smi's CSV; what a GPU does not support is left out."""
    gpus = []
    for line in filter(str.strip, text.splitlines()):
        cells = zip(_NVIDIA_QUERY, line.split(","), strict=True)
        gpus.append({name: cell.strip() for name, cell in cells if not cell.strip().startswith("[")})
    return gpus


def read_amd_documents(static: str, metric: str) -> list[Gpu]:
    """Return the GPUs of amd-smi's two documents; what one does not support, a virtual machine's often, is left out."""
    metrics = {gpu.get("gpu"): gpu for gpu in _amd_gpus(metric)}
    gpus = []
    for gpu in _amd_gpus(static):
        document = {**gpu, **metrics.get(gpu.get("gpu"), {})}
        facts = {name: _amd_value(document, paths) for name, paths in _AMD_PATHS.items()}
        known = {name: value for name, value in facts.items() if value not in _UNKNOWN}
        if "ecc" in known:
            known["ecc"] = known["ecc"].capitalize()
        gpus.append(known)
    return gpus


def _amd_gpus(text: str) -> list[dict[str, Any]]:
    """Return the entry of each GPU: a list, within an object since ROCm 6.4."""
    try:
        document = json.loads(text)
    except ValueError:
        return []
    gpus = document.get("gpu_data", []) if isinstance(document, dict) else document
    return [gpu for gpu in gpus if isinstance(gpu, dict)]


def _amd_value(document: Mapping[str, Any], paths: Sequence[str]) -> str:
    """Return what stands at the first of these paths that there is; numbers have their unit beside them."""
    for path in paths:
        value: Any = document
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, Mapping):
            value = value.get("value")
        if value is not None:
            return str(value)
    return ""
