"""The catalogue as text: an overview, and one machine in full with the source of each figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from trainyard import printing
from trainyard.catalogue.prices import KINDS, price_of, prices_of
from trainyard.catalogue.skus import Sku, closest_current

_OVERVIEW = ("SKU", "GPUs", "GPU", "GB each", "bf16", "InfiniBand", "vCPUs", "RAM GiB", "$/hour", "status")
_RIGHT_ALIGNED = [_OVERVIEW.index(name) for name in ("GPUs", "GB each", "vCPUs", "RAM GiB", "$/hour")]


def overview(skus: Sequence[Sku]) -> str:
    """Return a table with one line per machine, available ones first."""
    usable_first = sorted(skus, key=lambda sku: sku.is_retired)
    rows = [_OVERVIEW, *(_overview_row(sku) for sku in usable_first)]
    return "\n".join(printing.table(rows, right_aligned=_RIGHT_ALIGNED))


def _overview_row(sku: Sku) -> tuple[str, ...]:
    price = price_of(sku, "on demand")
    return (
        sku.name,
        _gpus(sku),
        (sku.gpu_model or "-").split(" (")[0],
        _figure(sku.gpu_memory_gb_each),
        "yes" if sku.bf16 else "-",
        f"{_figure(sku.infiniband_gbit_per_second_total)} Gbit/s" if sku.rdma else "-",
        str(sku.vcpus),
        _figure(sku.ram_gib),
        f"{price.usd_per_hour:.2f}" if price else "-",
        f"retired {sku.retirement_date}" if sku.is_retired else sku.status.split(" (")[0],
    )


def one_in_full(sku: Sku) -> str:
    """Return everything known about one machine, with sources."""
    prices = [(kind, price) for kind in KINDS for price in prices_of(sku, kind)]
    facts: list[tuple[str, str | None]] = [
        ("status", _status(sku)),
        ("in Azure ML's table", sku.listed_in_azure_ml_docs),
        ("GPUs", f"{_gpus(sku)} x {sku.gpu_model} ({sku.gpu_architecture})" if sku.gpu_count else "none"),
        ("GPU memory", _with_unit(sku.gpu_memory_gb_each, f"GB each, {_figure(sku.gpu_memory_gb_total)} GB in all")),
        ("GPU memory bandwidth", _with_unit(sku.memory_gbyte_per_second_each, "GB/s each")),
        ("dense fp16", _with_unit(sku.fp16_dense_tflops_each, "TFLOP/s each")),
        (
            "dense bf16",
            _with_unit(sku.bf16_dense_tflops_each, "TFLOP/s each") or ("no hardware" if sku.gpu_count else None),
        ),
        ("dense fp8", _with_unit(sku.fp8_dense_tflops_each, "TFLOP/s each")),
        ("GPU interconnect", sku.nvlink if sku.gpu_count else None),
        ("InfiniBand", _infiniband(sku)),
        ("Ethernet", _with_unit(sku.ethernet_gbit_per_second, "Gbit/s")),
        ("processor", f"{sku.vcpus} vCPUs ({sku.cpu_architecture}), {_figure(sku.ram_gib)} GiB RAM"),
        ("disk", _disk(sku)),
        ("all-reduce floor", _with_unit(sku.health_check_allreduce_gbyte_per_second, "GB/s (Azure's health check)")),
        ("network floor", _with_unit(sku.network_floor_gbyte_per_second, "GB/s (three quarters of InfiniBand)")),
        ("NCCL settings", " ".join(f"{name}={value}" for name, value in sku.nccl_settings.items()) or None),
        *((kind, f"${each.usd_per_hour:.2f} an hour, {each.seen} ({each.source})") for kind, each in prices),
        ("price", None if prices else "no price found"),
        ("notes", sku.notes),
        ("source", sku.source),
        ("FLOP/s source", sku.flops_source),
        ("bandwidth source", sku.memory_bandwidth_source),
    ]
    known = [(label, text) for label, text in facts if text]
    return "\n".join([sku.name, *printing.facts(known, 22)])


def as_json(skus: Sequence[Sku]) -> str:
    """Return a JSON list of objects with every fact, for other programs."""
    prices = ([asdict(price) for kind in KINDS for price in prices_of(sku, kind)] for sku in skus)
    return printing.json_text([{**asdict(sku), "prices": each} for sku, each in zip(skus, prices, strict=True)])


def _status(sku: Sku) -> str:
    if sku.is_current:
        return sku.status
    closest = ", ".join(other.name for other in closest_current(sku))
    date = f" ({sku.retirement_date})" if sku.retirement_date else ""
    return f"{sku.status}{date}; closest current: {closest}"


def _gpus(sku: Sku) -> str:
    if sku.gpu_fraction is not None and sku.gpu_fraction < 1:
        return str(sku.gpu_fraction)
    return str(sku.gpu_count) if sku.gpu_count else "-"


def _infiniband(sku: Sku) -> str:
    if not sku.rdma:
        return "none: several nodes talk over Ethernet"
    each = _figure(sku.infiniband_gbit_per_second_per_link)
    return f"{sku.infiniband_links} x {each} Gbit/s, {_figure(sku.infiniband_gbit_per_second_per_gpu)} Gbit/s per GPU"


def _disk(sku: Sku) -> str | None:
    parts = [
        f"{_figure(size)} GiB {kind}"
        for size, kind in ((sku.temporary_disk_gib, "temporary"), (sku.nvme_gib_total, "NVMe"))
        if size
    ]
    return ", ".join(parts) or None


def _with_unit(value: float | None, unit: str) -> str | None:
    return f"{_figure(value)} {unit}" if value is not None else None


def _figure(value: float | None) -> str:
    return "-" if value is None else str(value)
