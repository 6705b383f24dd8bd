"""Azure's VM sizes (SKUs) for training: typed lookup over `skus.csv`, which names a source and a date for each fact."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

from trainyard.errors import UsageError

_CSV_FILE = Path(__file__).parent / "skus.csv"
_PREFIX = "Standard_"
# Of difflib's ratio, 1 being equal: below this, a suggestion would be a guess.
_LEAST_LIKENESS = 0.5
_NETWORK_FLOOR_SHARE = 0.75


class UnknownSku(UsageError):
    """A VM size that the catalogue does not have; the message names the closest current ones."""


def _column(name: str, convert: Callable[[str], Any]) -> Any:
    """Declare a field that is read from a column of the CSV; an empty cell is None, or what `convert` returns."""
    return field(metadata={"column": name, "convert": convert})


def _optional(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda cell: convert(cell) if cell else None


def _number(cell: str) -> float:
    """Return a number of the CSV; whole numbers stay integers, so that 8 is not printed as 8.0."""
    number = float(cell)
    return int(number) if number.is_integer() else number


def _assignments(cell: str) -> Mapping[str, str]:
    """Return `A=1;B=2` as a mapping; a remark without an equals sign is skipped."""
    return dict(part.split("=", 1) for part in cell.split(";") if "=" in part)


def _yes(cell: str) -> bool:
    return cell == "true"


@dataclass(frozen=True)
class Sku:
    """One VM size. None means that no source gives the figure; rates are per second, prices per hour of one VM.

    Where a size has a fraction of a GPU (`gpu_fraction` below 1), FLOP rates and bandwidth are a whole GPU's.
    """

    name: str = _column("sku", str)
    status: str = _column("status", str)
    retirement_date: str | None = _column("retirement_date", _optional(str))
    listed_in_azure_ml_docs: str = _column("aml_doc_listed", str)
    cpu_architecture: str = _column("cpu_arch", str)
    gpu_vendor: str | None = _column("gpu_vendor", _optional(str))
    gpu_model: str | None = _column("gpu_model", _optional(str))
    gpu_architecture: str | None = _column("gpu_arch", _optional(str))
    gpu_count: int = _column("gpu_count", int)
    gpu_fraction: Fraction | None = _column("gpu_fraction", _optional(Fraction))
    gpu_memory_gb_each: float | None = _column("gpu_mem_gb_each", _optional(_number))
    gpu_memory_gb_total: float | None = _column("gpu_mem_gb_total", _optional(_number))
    vcpus: int = _column("vcpus", int)
    ram_gib: float = _column("ram_gib", _number)
    temporary_disk_gib: float | None = _column("temp_disk_gib", _optional(_number))
    nvme_gib_total: float | None = _column("nvme_gib_total", _optional(_number))
    ethernet_gbit_per_second: float | None = _column("eth_gbps", _optional(_number))
    rdma: bool = _column("rdma", _yes)
    infiniband_links: int = _column("ib_links", int)
    infiniband_gbit_per_second_per_link: float = _column("ib_gbps_per_link", _number)
    infiniband_gbit_per_second_total: float = _column("ib_gbps_total", _number)
    infiniband_gbit_per_second_per_gpu: float = _column("ib_gbps_per_gpu", _number)
    nvlink: str = _column("nvlink", str)
    bf16: bool = _column("bf16_hw", _yes)
    fp16_dense_tflops_each: float | None = _column("fp16_dense_tflops", _optional(_number))
    bf16_dense_tflops_each: float | None = _column("bf16_dense_tflops", _optional(_number))
    fp8_dense_tflops_each: float | None = _column("fp8_dense_tflops", _optional(_number))
    memory_gbyte_per_second_each: float | None = _column("mem_bw_gbps_each", _optional(_number))
    health_check_gpu_count: int | None = _column("nhc_gpu_count", _optional(int))
    health_check_infiniband_links: int | None = _column("nhc_ib_links", _optional(int))
    health_check_infiniband_gbit_per_second: float | None = _column("nhc_ib_gbps", _optional(_number))
    health_check_allreduce_gbyte_per_second: float | None = _column("nhc_min_nccl_allreduce_gbs", _optional(_number))
    health_check_infiniband_bandwidth_gbit_per_second: float | None = _column("nhc_min_ib_bw_gbps", _optional(_number))
    nccl_settings: Mapping[str, str] = _column("nccl_conf", _assignments)
    on_demand_usd_per_hour: float | None = _column("ondemand_usd_h", _optional(_number))
    on_demand_region: str | None = _column("ondemand_region", _optional(str))
    on_demand_date: str | None = _column("ondemand_date", _optional(str))
    on_demand_recheck_usd_per_hour: float | None = _column("ondemand_recheck_usd_h", _optional(_number))
    on_demand_recheck_date: str | None = _column("ondemand_recheck_date", _optional(str))
    spot_usd_per_hour: float | None = _column("spot_usd_h", _optional(_number))
    spot_region: str | None = _column("spot_region", _optional(str))
    spot_date: str | None = _column("spot_date", _optional(str))
    flops_source: str | None = _column("flops_source", _optional(str))
    memory_bandwidth_source: str | None = _column("mem_bw_source", _optional(str))
    source: str = _column("source", str)
    price_source: str = _column("price_source", str)
    notes: str | None = _column("notes", _optional(str))

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
    def newest_on_demand_price(self) -> tuple[float, str, str] | None:
        """The latest known price as (US dollars per hour, region, date), or None."""
        if self.on_demand_recheck_usd_per_hour is not None:
            return (
                self.on_demand_recheck_usd_per_hour,
                self.on_demand_region or "",
                self.on_demand_recheck_date or "",
            )
        if self.on_demand_usd_per_hour is None:
            return None
        return self.on_demand_usd_per_hour, self.on_demand_region or "", self.on_demand_date or ""

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
    columns = [(each.name, each.metadata["column"], each.metadata["convert"]) for each in fields(Sku)]
    with _CSV_FILE.open(encoding="utf-8", newline="") as file:
        return tuple(
            Sku(**{name: convert(row[column]) for name, column, convert in columns}) for row in csv.DictReader(file)
        )


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


def closest_by_name(name: str, most: int = 3) -> tuple[Sku, ...]:
    """Return the current sizes that a mistyped name most likely means, likeliest first.

    When the name is nearest to a retired size, what replaces that size comes first.
    """
    likeness = {sku: _likeness(_plain(name), plain) for plain, sku in _by_plain_name().items()}
    similar = sorted((sku for sku in likeness if likeness[sku] >= _LEAST_LIKENESS), key=lambda sku: -likeness[sku])
    suggestions: list[Sku] = []
    for sku in similar:
        current = sku if sku.is_current else closest_current(sku)[0]
        if current not in suggestions:
            suggestions.append(current)
    return tuple(suggestions[:most])


def closest_current(sku: Sku, most: int = 3) -> tuple[Sku, ...]:
    """Return the current sizes that can replace another, best first.

    What counts, in this order: that the same images run; as many GPUs; whole GPUs where it has whole ones; the same
    family (what Azure made it for) and kind of network; enough memory of much the same size; as many processors.
    """

    def distance(other: Sku) -> tuple[Any, ...]:
        return (
            other.cpu_architecture != sku.cpu_architecture,
            (other.gpu_count > 0) != (sku.gpu_count > 0),
            abs(other.gpu_count - sku.gpu_count),
            other.gpu_fraction != sku.gpu_fraction,
            other.family != sku.family,
            other.rdma != sku.rdma,
            (other.gpu_memory_gb_each or 0) < (sku.gpu_memory_gb_each or 0),
            abs((other.gpu_memory_gb_each or 0) - (sku.gpu_memory_gb_each or 0)),
            abs(other.vcpus - sku.vcpus),
        )

    candidates = [other for other in all_skus() if other.is_current and other is not sku]
    return tuple(sorted(candidates, key=distance)[:most])


def _plain(name: str) -> str:
    return name.strip().lower().removeprefix(_PREFIX.lower())


def _likeness(first: str, second: str) -> float:
    from difflib import SequenceMatcher  # only where a name is unknown

    return SequenceMatcher(None, first, second).ratio()


@cache
def _by_plain_name() -> dict[str, Sku]:
    return {_plain(sku.name): sku for sku in all_skus()}
