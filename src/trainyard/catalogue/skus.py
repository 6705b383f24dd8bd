"""Azure's VM sizes (SKUs) for training: typed lookup over `skus.csv`, which names a source and a date for each fact."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from trainyard.catalogue.csv_rows import rows_of
from trainyard.errors import UsageError

_CSV_FILE = Path(__file__).parent / "skus.csv"
_PREFIX = "Standard_"
# Of difflib's ratio, 1 being equal: below this, a suggestion would be a guess.
_LEAST_LIKENESS = 0.5
_NETWORK_FLOOR_SHARE = 0.75


class UnknownSku(UsageError):
    """A VM size that the catalogue does not have; the message names the closest current ones."""


class Sku(NamedTuple):
    """One VM size. None means that no source gives the figure; rates are per second.

    Where a size has a fraction of a GPU (`gpu_fraction` below 1), FLOP rates and bandwidth are a whole GPU's.
    """

    name: str
    status: str
    retirement_date: str | None
    listed_in_azure_ml_docs: str
    cpu_architecture: str
    gpu_vendor: str | None
    gpu_model: str | None
    gpu_architecture: str | None
    gpu_count: int
    gpu_fraction: Fraction | None
    gpu_memory_gb_each: float | None
    gpu_memory_gb_total: float | None
    vcpus: int
    ram_gib: float
    temporary_disk_gib: float | None
    nvme_gib_total: float | None
    ethernet_gbit_per_second: float | None
    rdma: bool
    infiniband_links: int
    infiniband_gbit_per_second_per_link: float
    infiniband_gbit_per_second_total: float
    infiniband_gbit_per_second_per_gpu: float
    nvlink: str
    bf16: bool
    fp16_dense_tflops_each: float | None
    bf16_dense_tflops_each: float | None
    fp8_dense_tflops_each: float | None
    memory_gbyte_per_second_each: float | None
    health_check_gpu_count: int | None
    health_check_infiniband_links: int | None
    health_check_infiniband_gbit_per_second: float | None
    health_check_allreduce_gbyte_per_second: float | None
    health_check_infiniband_bandwidth_gbit_per_second: float | None
    nccl_settings: Mapping[str, str]
    flops_source: str | None
    memory_bandwidth_source: str | None
    source: str
    notes: str | None

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def is_retired(self) -> bool:
        """Whether Azure has retired this size."""
        return self.status == "retired"

    @property
    def is_current(self) -> bool:
        """Whether new clusters can use this size: it is neither retired nor announced to be."""
        return self.status.startswith("current")

    @property
    def network_floor_gbyte_per_second(self) -> float | None:
        """What NCCL must reach between two machines in each direction, or None without InfiniBand.

        Azure's health checks have a floor for NCCL within a machine only: 228 of NVLink's 300 GB/s on ND A100 v4, 110
        of 150 on ND40rs v2. The same share, three quarters, of all its InfiniBand links; 78 % to 95 % of one link is
        what these checks expect of InfiniBand without NCCL
        (https://github.com/Azure/azurehpc-health-checks/tree/main/conf).
        """
        if not self.infiniband_gbit_per_second_total:
            return None
        return _NETWORK_FLOOR_SHARE * self.infiniband_gbit_per_second_total / 8

    @property
    def family(self) -> str:
        """The letters before the first digit, which name the family: NC (compute), ND (training), NV, HB …"""
        bare = self.name.removeprefix(_PREFIX)
        return bare[: next(place for place, letter in enumerate(bare) if letter.isdigit())]


@cache
def all_skus() -> tuple[Sku, ...]:
    """Return every size of the catalogue in the order of the file: oldest GPUs first, CPU sizes last."""
    return rows_of(Sku, _CSV_FILE)


def find_sku(name: str) -> Sku:
    """Return a size by its name, ignoring case; `Standard_` may be left out. Retired sizes are found too.

    Raise UnknownSku, which names the closest current sizes.
    """
    found = _by_plain_name().get(_plain(name))
    if found is not None:
        return found
    with_gpu = [sku for sku in all_skus() if sku.is_current and name.lower() in (sku.gpu_model or "").lower().split()]
    if with_gpu:
        raise UnknownSku(f"unknown VM size {name!r}. Sizes with this GPU: {', '.join(sku.name for sku in with_gpu)}")
    close = ", ".join(sku.name for sku in closest_by_name(name))
    closest = f" Closest: {close}." if close else ""
    raise UnknownSku(f"unknown VM size {name!r}.{closest} `trainyard skus` lists all.")


def family(beginning: str) -> tuple[Sku, ...]:
    """Return the sizes whose names begin like this, ignoring case; `Standard_` may be left out."""
    return tuple(sku for name, sku in _by_plain_name().items() if name.startswith(_plain(beginning)))


def closest_by_name(name: str, most: int = 3) -> tuple[Sku, ...]:
    """Return the current sizes that a mistyped name most likely means, likeliest first.

    When the name is nearest to a retired size, what replaces that size comes first.
    """
    from difflib import get_close_matches

    known = _by_plain_name()
    similar = (known[each] for each in get_close_matches(_plain(name), known, n=len(known), cutoff=_LEAST_LIKENESS))
    return tuple(dict.fromkeys(sku if sku.is_current else closest_current(sku)[0] for sku in similar))[:most]


def closest_current(sku: Sku, most: int = 3) -> tuple[Sku, ...]:
    """Return the current sizes that can replace another, best first.

    What counts, in this order: that the same images run; as many GPUs; whole GPUs where it has whole ones; the same
    family (what Azure made it for) and kind of network; no slower GPUs; enough memory of much the same size; as many
    processors. A size without GPUs is only replaced by one with the same kind of network.
    """

    def distance(other: Sku) -> tuple[Any, ...]:
        return (
            other.cpu_architecture != sku.cpu_architecture,
            (other.gpu_count > 0) != (sku.gpu_count > 0),
            abs(other.gpu_count - sku.gpu_count),
            other.gpu_fraction != sku.gpu_fraction,
            other.family != sku.family,
            other.rdma != sku.rdma,
            (other.fp16_dense_tflops_each or 0) < (sku.fp16_dense_tflops_each or 0),
            (other.gpu_memory_gb_each or 0) < (sku.gpu_memory_gb_each or 0),
            abs((other.gpu_memory_gb_each or 0) - (sku.gpu_memory_gb_each or 0)),
            abs(other.vcpus - sku.vcpus),
        )

    candidates = [other for other in all_skus() if other.is_current and (sku.gpu_count or other.rdma == sku.rdma)]
    return tuple(sorted(candidates, key=distance)[:most])


def retirement_of(sku: Sku) -> str:
    """Return what to know before using a size that is retired, or is to be; empty for a current one."""
    if sku.is_current:
        return ""
    when = f" on {sku.retirement_date}" if sku.retirement_date else ""
    what = f"{'was' if sku.is_retired else 'is to be'} retired{when}"
    return f"{sku.name} {what}; closest current sizes: {', '.join(other.name for other in closest_current(sku))}"


def _plain(name: str) -> str:
    return name.strip().lower().removeprefix(_PREFIX.lower())


@cache
def _by_plain_name() -> dict[str, Sku]:
    return {_plain(sku.name): sku for sku in all_skus()}
