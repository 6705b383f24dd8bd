"""What a node's GPUs say of themselves, through nvidia-smi or amd-smi, and what is wrong with them."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

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
_COMPARED = (("driver", "drivers"), ("highest_clock_mhz", "highest clocks"), ("ecc", "ECC modes"))

Gpu = dict[str, str]


def gpu_facts() -> list[Gpu]:
    """Return this node's GPUs; with neither program, as little as PyTorch knows of them."""
    query = ("nvidia-smi", f"--query-gpu={','.join(_NVIDIA_QUERY.values())}", "--format=csv,noheader,nounits")
    if table := _output(*query):
        return read_nvidia_table(table)
    static, metric = (_output("amd-smi", command, "--json") for command in ("static", "metric"))
    if static and metric:
        return read_amd_documents(static, metric)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [{"index": str(index), "name": torch.cuda.get_device_name(index)} for index in range(count)]


def _output(*command: str) -> str:
    """Return what a program prints; nothing if it is missing, fails or hangs."""
    try:
        finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return finished.stdout if finished.returncode == 0 else ""


def read_nvidia_table(text: str) -> list[Gpu]:
    """Return the rows of nvidia-smi's CSV; what a GPU does not support is left out."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    return [
        {name: cell for name, cell in zip(_NVIDIA_QUERY, row, strict=True) if not cell.startswith("[")} for row in rows
    ]


def read_amd_documents(static: str, metric: str) -> list[Gpu]:
    """Return the GPUs of amd-smi's two documents; what one does not support, a virtual machine's often, is left out."""
    metrics = {each.get("gpu"): each for each in _amd_gpus(metric)}
    return [_amd_gpu({**each, **metrics.get(each.get("gpu"), {})}) for each in _amd_gpus(static)]


def _amd_gpus(text: str) -> list[dict[str, Any]]:
    """Return the entry of each GPU: a list, within an object since ROCm 6.4."""
    try:
        document = json.loads(text)
    except ValueError:
        return []
    gpus = document.get("gpu_data", []) if isinstance(document, dict) else document
    return [gpu for gpu in gpus if isinstance(gpu, dict)]


def _amd_gpu(document: Mapping[str, Any]) -> Gpu:
    facts = {name: _amd_value(document, paths) for name, paths in _AMD_PATHS.items()}
    known = {name: value for name, value in facts.items() if value not in _UNKNOWN}
    return {**known, "ecc": known["ecc"].capitalize()} if "ecc" in known else known


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


def gpu_problems(gpus: Sequence[Gpu]) -> Iterator[str]:
    """Yield what is wrong with a node's GPUs, as phrases: memory errors, a low clock limit compared with the others."""
    for gpu in gpus:
        errors = gpu.get("uncorrected_ecc_errors", "0")
        if errors.isdigit() and int(errors) > 0:
            yield f"GPU {gpu['index']} has counted {errors} uncorrected memory errors (ECC); have the node replaced"
    for fact, phrase in _COMPARED:
        values = sorted({gpu[fact] for gpu in gpus if fact in gpu})
        if len(values) > 1:
            yield f"its GPUs have different {phrase}: {', '.join(values)}"


def differences_between_nodes(nodes: Sequence[Sequence[Gpu]]) -> Iterator[tuple[int, str]]:
    """Yield the nodes whose GPUs differ from most nodes' in driver, highest clock or ECC: the number, and a phrase."""
    for fact, phrase in _COMPARED:
        values = [tuple(sorted({gpu[fact] for gpu in gpus if fact in gpu})) for gpus in nodes]
        if not values:
            continue
        usual = Counter(values).most_common(1)[0][0]
        for number, value in enumerate(values):
            if value != usual:
                given, others = (", ".join(each) or "unknown" for each in (value, usual))
                yield number, f"its GPUs' {phrase} are {given}, those of most nodes {others}"
