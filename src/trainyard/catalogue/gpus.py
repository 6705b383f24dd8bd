"""GPUs as data: peak rates, memory and links of `gpus.csv`, which names the sources of each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from trainyard.catalogue.csv_rows import rows_of
from trainyard.catalogue.skus import Sku
from trainyard.errors import UsageError
from trainyard.settings.suggestions import close_match

_CSV_FILE = Path(__file__).parent / "gpus.csv"
_VENDORS = re.compile(r"\b(nvidia|amd|instinct|tesla)\b")
_SOCKET = re.compile(r"sxm\d")


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU. Dense peak rates are in TFLOP/s, None where the hardware lacks the type.

    `link_gbyte_per_second` is what a GPU sends to the others of its machine, in one direction;
    `bridge_gbyte_per_second` what one of a pair with an NVLink bridge sends to the other,
    `host_gbyte_per_second` what it sends to main memory, over PCIe unless it has a link of its own to the processor.
    `network_gbit_per_second_per_gpu` and `gpus_per_node` are those of the machines it is usually in: Azure's ND and NC
    sizes, or DGX; the network is None where no source states one. `flash_attention` says whether a fused attention
    kernel runs on it; without one, the scores are written to memory. `source` are one or more addresses that together
    state every figure. An MI250X is one of its two dies, each of which is a GPU to torch.
    """

    name: str
    other_names: tuple[str, ...]
    catalogue_model: str
    generation: str
    memory_gb: float
    memory_type: str
    fp32_tflops: float | None
    fp16_tflops: float | None
    bf16_tflops: float | None
    fp8_tflops: float | None
    memory_gbyte_per_second: float
    link: str
    link_gbyte_per_second: float
    bridge_gbyte_per_second: float | None
    host_gbyte_per_second: float
    network_gbit_per_second_per_gpu: float | None
    gpus_per_node: int
    flash_attention: bool
    source: str

    def peak_tflops(self, precision: str) -> float | None:
        """Return the dense peak of `fp32`, `fp16`, `bf16` or `fp8`; None where the hardware lacks it."""
        rates = {"fp32": self.fp32_tflops, "fp16": self.fp16_tflops, "bf16": self.bf16_tflops, "fp8": self.fp8_tflops}
        return rates[precision]


@cache
def all_gpus() -> tuple[Gpu, ...]:
    """Return every GPU of the table, oldest first."""
    return rows_of(Gpu, _CSV_FILE)


def find_gpu(name: str) -> Gpu:
    """Return a GPU by its name or another name of it, ignoring case, vendor and separators. UsageError if unknown."""
    known_names = [(known, gpu) for gpu in all_gpus() for known in (*gpu.other_names, gpu.name)]
    for spelled in (_plain, _words):
        found = {spelled(known): gpu for known, gpu in known_names}.get(spelled(name))
        if found is not None:
            return found
    names = [gpu.name for gpu in all_gpus()]
    hint = close_match(name, [known for gpu in all_gpus() for known in (gpu.name, *gpu.other_names)])
    raise UsageError(" ".join(filter(None, (f"unknown GPU {name!r}.", hint, f"Known: {', '.join(names)}."))))


def gpu_of(sku: Sku) -> Gpu | None:
    """Return the GPU of an Azure size; None for a size without GPUs, or with one that the table lacks."""
    return next((gpu for gpu in all_gpus() if gpu.catalogue_model and gpu.catalogue_model == sku.gpu_model), None)


def _plain(name: str) -> str:
    words = _VENDORS.sub("", name.lower())
    return re.sub(r"[^a-z0-9]", "", _SOCKET.sub("sxm", words))


def _words(name: str) -> str:
    """Return a name's words in one order, as `H100 80GB SXM` and `H100-SXM-80G` have the same."""
    words = re.findall(r"[a-z0-9]+", _SOCKET.sub("sxm", _VENDORS.sub("", name.lower())))
    return " ".join(sorted(f"{word}b" if re.fullmatch(r"[0-9]+g", word) else word for word in words))
