"""A plan as text for a terminal, as JSON for other tools, and as Markdown for a pull request."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from trainyard.catalogue.skus import Sku
from trainyard.plan.planner import NOT_ESTIMATED, JobPlan, Plan, Price

PLAN_FORMAT = "trainyard.plan/1"

_LABEL_WIDTH = 13


def as_text(plan: Plan) -> str:
    """The plan as indented lines, a paragraph for each job."""
    lines = [f"{plan.pipeline}   {plan.file}", ""]
    for job in plan.jobs:
        lines.append(f"{job.name}   {job.component}" + (f", after {', '.join(job.waits_for)}" if job.waits_for else ""))
        lines += [f"  {label:<{_LABEL_WIDTH}}{text}" for label, text in _facts(job)]
        lines += [f"  {'! look at':<{_LABEL_WIDTH}}{finding}" for finding in job.findings]
        lines.append("")
    lines.append("at one time, at most")
    lines += [f"  {label:<{_LABEL_WIDTH}}{text}" for label, text in _totals(plan)]
    lines += ["", f"not estimated: {_listed(NOT_ESTIMATED)}"]
    return "\n".join(lines)


def as_markdown(plan: Plan) -> str:
    """The plan as a table of jobs, followed by what to look at."""
    header = ("Job", "Machine", "Processes", "GPUs with a process", "Batch", "On demand, $/h", "Spot, $/h")
    lines = [f"### Plan of `{_cell(plan.pipeline)}`", "", _row(header), _row(["---"] * len(header))]
    for job in plan.jobs:
        machine = f"{job.processes.nodes} × {job.sku.name}" if job.sku else "not known"
        lines.append(
            _row(
                [
                    f"`{job.name}`",
                    machine,
                    str(job.processes),
                    _gpus(job) if job.sku else "not known",
                    str(job.batch) if job.batch else "–",
                    _amount(job.on_demand.usd_per_hour if job.on_demand else None),
                    _amount(job.spot.usd_per_hour if job.spot else None),
                ]
            )
        )
    lines += ["", "At one time, at most: " + "; ".join(f"{label} {text}" for label, text in _totals(plan)) + "."]
    prices = dict.fromkeys(_source(price) for job in plan.jobs for price in (job.on_demand, job.spot) if price)
    if prices:
        lines += ["", f"Prices: {'; '.join(prices)}."]
    findings = [f"- **{job.name}**: {_cell(finding)}" for job in plan.jobs for finding in job.findings]
    if findings:
        lines += ["", "To look at:", "", *findings]
    lines += ["", f"Not estimated: {_listed(NOT_ESTIMATED)}."]
    return "\n".join(lines)


def as_json(plan: Plan) -> str:
    """The plan as one JSON object of the format trainyard.plan/1; units are in the names, null is what is not known."""
    document = {
        "format": PLAN_FORMAT,
        "pipeline": plan.pipeline,
        "file": plan.file,
        "jobs": [_job_as_json(job) for job in plan.jobs],
        "at_one_time": {
            "nodes": plan.totals.nodes_at_once,
            "on_demand_usd_per_hour": plan.totals.on_demand_usd_per_hour,
            "spot_usd_per_hour": plan.totals.spot_usd_per_hour,
        },
        "not_estimated": list(NOT_ESTIMATED),
    }
    return json.dumps(document, indent=2, ensure_ascii=False)


def _facts(job: JobPlan) -> list[tuple[str, str]]:
    facts = [("processes", str(job.processes)), ("compute", job.compute or "none named")]
    if job.sku is not None:
        facts.append(("machine", f"{job.processes.nodes} × {_machine(job.sku)}"))
        if job.sku.gpu_count:
            facts.append(("GPUs", _gpus(job)))
            facts.append(("GPU memory", f"{job.gpu_memory_gb:g} GB over all nodes"))
        facts.append(
            ("RDMA", f"yes, {job.sku.infiniband_gbit_per_second_total:g} Gbit/s a node" if job.sku.rdma else "no")
        )
    if job.batch is not None and job.batch.fits:
        facts.append(("batch", str(job.batch)))
    facts.append(("environment", job.environment))
    if job.sku is not None:
        facts.append(("on demand", _price(job.on_demand)))
        facts.append(("spot", _price(job.spot)))
    return facts


def _machine(sku: Sku) -> str:
    if not sku.gpu_count:
        return f"{sku.name} ({sku.vcpus} vCPUs, {sku.ram_gib:g} GiB, no GPU)"
    share = f"{sku.gpu_fraction} of a " if sku.gpu_fraction is not None and sku.gpu_fraction < 1 else ""
    return f"{sku.name} ({sku.gpu_count} × {share}{sku.gpu_model}, {sku.vcpus} vCPUs, {sku.ram_gib:g} GiB)"


def _gpus(job: JobPlan) -> str:
    assert job.sku is not None
    if not job.sku.gpu_count:
        return "no GPU"
    text = f"{job.gpus_used_per_node} of {job.sku.gpu_count} a node"
    return f"{text}, {job.gpus_idle_per_node} idle" if job.gpus_idle_per_node else text


def _price(price: Price | None) -> str:
    return f"${_amount(price.usd_per_hour)} an hour ({_source(price)})" if price else "no price found"


def _source(price: Price) -> str:
    return ", ".join(part for part in (price.region, price.date) if part)


def _amount(usd_per_hour: float | None) -> str:
    return "not known" if usd_per_hour is None else f"{usd_per_hour:,.3f}"


def _totals(plan: Plan) -> list[tuple[str, str]]:
    totals = [
        (
            "nodes",
            ", ".join(f"{nodes} of {compute or 'no compute'}" for compute, nodes in plan.totals.nodes_at_once.items()),
        )
    ]
    for label, amount in (("on demand", plan.totals.on_demand_usd_per_hour), ("spot", plan.totals.spot_usd_per_hour)):
        totals.append((label, "not known" if amount is None else f"${_amount(amount)} an hour"))
    return totals


def _job_as_json(job: JobPlan) -> dict[str, Any]:
    return {
        "name": job.name,
        "component": job.component,
        "waits_for": list(job.waits_for),
        "nodes": job.processes.nodes,
        "processes_per_node": job.processes.processes_per_node,
        "world_size": job.processes.world_size,
        "compute": job.compute or None,
        "sku": job.sku.name if job.sku else None,
        "gpu_model": job.sku.gpu_model if job.sku else None,
        "gpus_per_node": job.sku.gpu_count if job.sku else None,
        "gpus_used_per_node": job.gpus_used_per_node,
        "gpus_idle_per_node": job.gpus_idle_per_node,
        "gpu_memory_gb": job.gpu_memory_gb,
        "rdma": job.sku.rdma if job.sku else None,
        "batch": {
            "micro_batch_size": job.batch.micro_batch_size,
            "accumulation_steps": job.batch.accumulation_steps,
            "world_size": job.batch.world_size,
            "global_batch_size": job.batch.global_batch_size,
            "sequence_length": job.batch.sequence_length,
            "tokens_per_step": job.batch.tokens_per_step,
            "fits": job.batch.fits,
            "nearest_global_batch_sizes": list(job.batch.nearest_global_batch_sizes),
        }
        if job.batch
        else None,
        "environment": job.environment,
        "on_demand": _price_as_json(job.on_demand),
        "spot": _price_as_json(job.spot),
        "findings": list(job.findings),
    }


def _price_as_json(price: Price | None) -> dict[str, Any] | None:
    if price is None:
        return None
    return {"usd_per_hour": round(price.usd_per_hour, 6), "region": price.region, "date": price.date}


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_cell(cell) for cell in cells)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _listed(things: Sequence[str]) -> str:
    return f"{', '.join(things[:-1])} and {things[-1]}"
