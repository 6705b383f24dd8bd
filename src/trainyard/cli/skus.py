"""`trainyard skus`: Azure's machines for training, as a table, and one in full with the source of each figure."""

from __future__ import annotations

from collections.abc import Sequence

import click

from trainyard import printing
from trainyard.catalogue.prices import all_prices, price_of
from trainyard.catalogue.skus import Sku, UnknownSku, all_skus, family, find_sku, retirement_of
from trainyard.cli.parameters import OneOf

_OVERVIEW = ("SKU", "GPUs", "GPU", "GB each", "bf16", "InfiniBand", "vCPUs", "RAM GiB", "$/hour", "status")
_RIGHT_ALIGNED = [_OVERVIEW.index(name) for name in ("GPUs", "GB each", "vCPUs", "RAM GiB", "$/hour")]
_UNKNOWN = "None"
_INFINIBAND = (
    "{0.infiniband_links} x {0.infiniband_gbit_per_second_per_link} Gbit/s, "
    "{0.infiniband_gbit_per_second_per_gpu} Gbit/s per GPU"
)
_OF_GPUS = (
    ("GPU memory", "{0.gpu_memory_gb_each} GB each, {0.gpu_memory_gb_total} GB in all"),
    ("GPU memory bandwidth", "{0.memory_gbyte_per_second_each} GB/s each"),
    ("dense fp16", "{0.fp16_dense_tflops_each} TFLOP/s each"),
    ("dense bf16", "{0.bf16_dense_tflops_each} TFLOP/s each"),
    ("dense fp8", "{0.fp8_dense_tflops_each} TFLOP/s each"),
    ("GPU interconnect", "{0.nvlink}"),
)
_OF_MACHINE = (
    ("Ethernet", "{0.ethernet_gbit_per_second} Gbit/s"),
    ("processor", "{0.vcpus} vCPUs ({0.cpu_architecture}), {0.ram_gib} GiB RAM"),
    ("temporary disk", "{0.temporary_disk_gib} GiB"),
    ("NVMe", "{0.nvme_gib_total} GiB"),
    ("all-reduce floor", "{0.health_check_allreduce_gbyte_per_second} GB/s (Azure's health check)"),
    ("network floor", "{0.network_floor_gbyte_per_second} GB/s (three quarters of InfiniBand)"),
    ("in Azure ML's table", "{0.listed_in_azure_ml_docs}"),
    ("notes", "{0.notes}"),
    ("source", "{0.source}"),
    ("FLOP/s source", "{0.flops_source}"),
    ("bandwidth source", "{0.memory_bandwidth_source}"),
)


@click.command()
@click.argument("name", required=False)
@click.option("--format", "output_format", type=OneOf(("text", "json")), default="text", show_default=True)
def skus(name: str | None, output_format: str) -> None:
    """List Azure's machines for training; with NAME, show one in full, with sources, or a family.

    \b
    Examples:
      trainyard skus
      trainyard skus Standard_ND96asr_v4
      trainyard skus ND96
    """
    chosen = all_skus()
    if name:
        try:
            chosen = (find_sku(name),)
        except UnknownSku:
            chosen = family(name)
            if not chosen:
                raise
    if output_format == "json":
        click.echo(as_json(chosen))
    elif name and len(chosen) == 1:
        click.echo(one_in_full(chosen[0]))
    else:
        click.echo(overview(chosen))


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
    prices = [price for price in all_prices() if price.sku == sku.name]
    facts = [
        ("status", retirement_of(sku) or sku.status),
        ("GPUs", f"{_gpus(sku)} x {sku.gpu_model} ({sku.gpu_architecture})" if sku.gpu_count else "none"),
        *((label, text.format(sku)) for label, text in _OF_GPUS if sku.gpu_count),
        ("InfiniBand", _INFINIBAND.format(sku) if sku.rdma else "none: several nodes talk over Ethernet"),
        *((label, text.format(sku)) for label, text in _OF_MACHINE),
        ("NCCL settings", " ".join(f"{name}={value}" for name, value in sku.nccl_settings.items()) or _UNKNOWN),
        *((each.kind, f"${each.usd_per_hour:.2f} an hour, {each.seen} ({each.source})") for each in prices),
        ("price", _UNKNOWN if prices else "no price found"),
    ]
    known = [(label, text) for label, text in facts if not text.startswith(_UNKNOWN)]
    return "\n".join([sku.name, *printing.facts(known, 22)])


def as_json(skus: Sequence[Sku]) -> str:
    """Return a JSON list of objects with every fact, for other programs."""
    prices = [price._asdict() for price in all_prices()]
    return printing.json_text(
        [{**sku._asdict(), "prices": [each for each in prices if each["sku"] == sku.name]} for sku in skus]
    )


def _gpus(sku: Sku) -> str:
    if sku.gpu_fraction is not None and sku.gpu_fraction < 1:
        return str(sku.gpu_fraction)
    return str(sku.gpu_count) if sku.gpu_count else "-"


def _figure(value: float | None) -> str:
    return "-" if value is None else str(value)
