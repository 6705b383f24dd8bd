"""VM sizes and clusters: unknown and retired sizes, Spot machines, too many machines, machines without InfiniBand.

The size comes from `resources.instance_type`, from the project's compute files and profiles, or from `computes` in the
settings. For machines of unknown size, only what no machine could satisfy is reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from trainyard.lint.checks import LintContext, LintedFile, check, sku_named
from trainyard.lint.placements import Placement
from trainyard.settings.regex import regex
from trainyard.spec.diagnostic import Diagnostic, Related
from trainyard.spec.documents import Value, shorten
from trainyard.spec.rule import Rule

# Numbers of CPUs of the families D, E and F from their third (F: second) to their fifth version, constrained ones
# aside: https://learn.microsoft.com/azure/virtual-machines/sizes/overview
_CPU_SIZE = regex(r"Standard_([DEF])([0-9]+)[a-z]*_v([2-5])", re.IGNORECASE)
_DS_V2 = regex(r"Standard_D(\d+)s_v2", re.IGNORECASE)
_CPUS = frozenset({2, 4, 8, 16, 20, 32, 48, 64, 72, 80, 96, 104, 112, 128, 144, 160, 192})
_GPU_SIZE = regex(r"Standard_N[CD]\d", re.IGNORECASE)


def machine_related(placement: Placement) -> list[Related]:
    """Where the machine is chosen."""
    if placement.resources is not None and placement.resources.instance_type is not None:
        return [Related(placement.resources.instance_type.span, "the machine is chosen here")]
    compute = placement.known_compute
    if compute is not None and compute.span is not None:
        return [Related(compute.span, f"the cluster '{compute.name}' has this size")]
    return []


NODES_WITHOUT_RDMA = Rule("AML604", "nodes-without-rdma", "warning").explained(
    summary="There are several machines, but no InfiniBand between them.",
    why="Gradients then travel over Ethernet, tens of times slower. An `r` in the size's name means RDMA.",
)


@check("placement")
def _nodes_without_rdma(placement: Placement, context: LintContext) -> Iterator[Diagnostic]:
    sku, count = placement.sku, _several_nodes(placement)
    if count is not None and sku is not None and sku.gpu_count and not sku.rdma and placement.distribution is not None:
        message = f"{placement.nodes} machines of size {sku.name}, which has no InfiniBand"
        hint = "Use one machine, or a size with an 'r' such as Standard_ND96asr_v4."
        yield NODES_WITHOUT_RDMA.at(count.span, message, hint, machine_related(placement))


RETIRED_SKU = Rule("AML605", "retired-sku", "warning").explained(
    summary="Azure has retired this VM size.",
    why="New clusters of this size cannot be created, and existing ones get no machines.",
)


MORE_NODES_THAN_CLUSTER = Rule("AML609", "more-nodes-than-cluster", "warning").explained(
    summary="The job needs more machines than its cluster can have.",
    why="It waits in the queue forever.",
)


@check("placement")
def _more_nodes_than_cluster(placement: Placement, context: LintContext) -> Iterator[Diagnostic]:
    compute, count, nodes = placement.known_compute, _several_nodes(placement), placement.nodes
    if compute is None or compute.max_instances is None or count is None or nodes is None:
        return
    if nodes > compute.max_instances:
        message = f"{nodes} machines, but the cluster '{compute.name}' has at most {compute.max_instances}"
        related = [Related(compute.span, f"'{compute.name}' is declared here")] if compute.span is not None else []
        yield MORE_NODES_THAN_CLUSTER.at(count.span, message, "Raise `max_instances`, or use fewer machines.", related)


UNKNOWN_SKU = Rule("AML610", "unknown-sku", "warning").explained(
    summary="Azure has no known GPU machine of this size.",
    why="Only reported for names that start with Standard_NC or Standard_ND; `trainyard skus` lists the known ones.",
)


@check("file")
def _size_of_cluster(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    size = file.root.find_text({"compute": "size", "online_deployment": "instance_type"}.get(file.kind, ""))
    # On Kubernetes an instance type is a name of the cluster's own.
    if size is not None and file.root.word("type") != "kubernetes":
        yield from _judged(size.value)


@check("placement")
def _instance_type(placement: Placement, context: LintContext) -> Iterator[Diagnostic]:
    size = placement.resources.instance_type if placement.resources is not None else None
    if size is not None and isinstance(size.data, str):
        yield from _judged(size)


def _judged(size: Value) -> Iterator[Diagnostic]:
    """What is wrong with a VM size: it is retired, or there is none of this name."""
    from trainyard.catalogue.skus import closest_by_name, closest_current

    sku = sku_named(size.text)
    if sku is not None and not size.text.lower().startswith("standard_"):
        message = f"'{size.text}' is not a VM size: their names start with Standard_"
        yield UNKNOWN_SKU.at(size.span, message, f"Write {sku.name}.", replacement=sku.name)
    elif sku is not None and sku.is_retired:
        others = ", ".join(other.name for other in closest_current(sku, most=2))
        yield RETIRED_SKU.at(size.span, f"{sku.name} was retired on {sku.retirement_date}", f"Use instead: {others}.")
    elif sku is not None:
        return
    elif _GPU_SIZE.match(size.text):
        close = ", ".join(each.name for each in closest_by_name(size.text))
        hint = f"Closest: {close}." if close else "`trainyard skus` lists the known ones."
        yield UNKNOWN_SKU.at(size.span, f"unknown VM size '{shorten(size.text)}'", hint)
    elif (meant := _names_without_separators().get(_without_separators(size.text))) is not None:
        yield UNKNOWN_SKU.at(size.span, f"unknown VM size '{size.text}'", f"Write {meant}.", replacement=meant)
    elif (dsv2 := _DS_V2.fullmatch(size.text)) is not None:
        yield UNKNOWN_SKU.at(size.span, f"unknown VM size '{size.text}'", f"Write Standard_DS{dsv2[1]}_v2.")
    elif (cpu_size := _CPU_SIZE.fullmatch(size.text)) is not None:
        family, cpus, generation = cpu_size[1].upper(), int(cpu_size[2]), int(cpu_size[3])
        if cpus not in _CPUS and generation >= (2 if family == "F" else 3):
            near = sorted(sorted(_CPUS, key=lambda known: abs(known - cpus))[:2])
            message = f"no {family} machine has {cpus} CPUs, as '{shorten(size.text)}' says"
            yield UNKNOWN_SKU.at(size.span, message, f"Known ones have {near[0]} and {near[1]}.")


def _without_separators(name: str) -> str:
    return re.sub(r"[_\- ]", "", name).lower()


@cache
def _names_without_separators() -> dict[str, str]:
    """All sizes, by their letters and digits."""
    from trainyard.catalogue.skus import all_skus

    return {_without_separators(sku.name): sku.name for sku in all_skus()}


LOW_PRIORITY = Rule("AML611", "low-priority", "info").explained(
    summary="`low_priority` means Spot machines.",
    why="Low-priority machines were discontinued on 2026-03-31. The word now stands for Spot capacity, which can be "
    "reclaimed at 30 seconds' notice: the job has to save checkpoints where they survive.",
)


@check("file")
def _low_priority(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    tier = file.root.get("tier")
    if file.kind == "compute" and tier is not None and tier.text.lower().replace("_", "") == "lowpriority":
        message = (
            "low-priority machines were discontinued on 2026-03-31: these are Spot machines, which can be preempted"
        )
        yield LOW_PRIORITY.at(tier.span, message, "Save checkpoints to a mounted output, or write `tier: dedicated`.")


def _several_nodes(placement: Placement) -> Value | None:
    """The `instance_count` of a job on more than one machine, where it is written; None for one, or if unknown."""
    count, nodes = placement.resources.instance_count if placement.resources is not None else None, placement.nodes
    return placement.settled(count) if count is not None and nodes is not None and nodes > 1 else None
