"""A plan as text, as JSON for other tools, and as Markdown for a pull request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trainyard import printing
from trainyard.catalogue.prices import Price
from trainyard.catalogue.skus import Sku
from trainyard.plan import markdown
from trainyard.plan.estimate import reporters as estimates
from trainyard.plan.estimate.estimator import Estimate
from trainyard.plan.estimate.money import RESTART_SECONDS
from trainyard.plan.estimate.search import price_of_samples, slowness, ties
from trainyard.plan.job_plans import JobPlan, Measured, Plan, UnplannedJob
from trainyard.plan.markdown import prose
from trainyard.settings.quantities import count, counted, duration

_LABEL_WIDTH = 13
_NOT_OF_PROFILES = ("settings", "micro-batch", "MFU")

_OF_SKU = {"sku": "name", "gpu_model": "gpu_model", "gpus_per_node": "gpu_count", "rdma": "rdma"}
_BATCH_KEYS = (
    *("micro_batch_size", "accumulation_steps", "world_size", "global_batch_size"),
    *("sequence_length", "tokens_per_step", "fits", "nearest_global_batch_sizes"),
)


@dataclass(frozen=True)
class OnProfile:
    """A training of the plan on the machines of a profile."""

    profile: str
    job: str
    estimate: Estimate


def as_text(plan: Plan, profiles: Sequence[OnProfile] = ()) -> str:
    """The plan as indented lines, a paragraph for each job."""
    lines = [f"{plan.pipeline}   {plan.file}", ""]
    for job in plan.jobs:
        findings = [("! look at", finding) for finding in job.findings]
        lines += [_heading(job), *printing.facts([*facts_of(job), *findings], _LABEL_WIDTH), ""]
    for unplanned in plan.not_planned:
        lines += [_heading(unplanned), f"  {unplanned.reason}", ""]
    lines += ["at one time, at most", *printing.facts(totals_of(plan), _LABEL_WIDTH)]
    if profiles:
        lines += ["", f"{profiles[0].job} on the machines of each profile"]
        lines += printing.table(profile_table(profiles), indent=2)
    return "\n".join(lines)


def _heading(job: JobPlan | UnplannedJob) -> str:
    after = f"after {', '.join(job.waits_for)}" if job.waits_for else ""
    told = ", ".join(part for part in (job.component, after) if part)
    return f"{job.name}   {told}".rstrip()


def as_markdown(plan: Plan, profiles: Sequence[OnProfile] = ()) -> str:
    """The plan as a table of jobs, followed by its trainings and what to look at."""
    header = ("Job", "Machine", "Processes", "GPUs with a process", "Batch", "On demand, $/h", "Spot, $/h")
    rows = [_job_row(job) for job in plan.jobs]
    rows += [(markdown.code(job.name), job.reason, *["–"] * (len(header) - 2)) for job in plan.not_planned]
    lines = [f"### Plan of {markdown.code(plan.pipeline)}", "", *markdown.table(header, rows)]
    for job in plan.jobs:
        if job.is_training:
            lines += ["", f"**{prose(job.name)}**", ""]
            lines += [f"{f'- {label}:' if label else ' '} {prose(text)}" for label, text in training_facts(job)]
    lines += ["", "At one time, at most: " + "; ".join(f"{label} {text}" for label, text in totals_of(plan)) + "."]
    if profiles:
        columns, *of_profiles = profile_table(profiles)
        lines += ["", *markdown.table(columns, of_profiles)]
    sources = dict.fromkeys(price.seen for job in plan.jobs for price in (job.on_demand, job.spot) if price)
    if sources:
        lines += ["", f"Prices: {'; '.join(sources)}."]
    if plan.findings:
        lines += ["", "To look at:", "", *markdown.findings(plan.findings)]
    return "\n".join(lines)


def _job_row(job: JobPlan) -> tuple[str, ...]:
    return (
        markdown.code(job.name),
        f"{job.kind.machines} × {job.sku.name}" if job.sku else "not known",
        str(job.processes),
        _gpus(job) if job.sku else "not known",
        str(job.batch) if job.batch else "–",
        _amount(job.on_demand.usd_per_hour if job.on_demand else None),
        _amount(job.spot.usd_per_hour if job.spot else None),
    )


def as_json(plan: Plan, profiles: Sequence[OnProfile] = ()) -> str:
    """The plan as one JSON object of the format trainyard.plan/2 (schemas/plan.schema.json).

    Units are in the names; what is not known is null, with a `reason` beside it.
    """
    document = {
        "format": estimates.PLAN_FORMAT,
        "pipeline": plan.pipeline,
        "file": plan.file,
        "jobs": {job.name: _job_as_json(job) for job in plan.jobs},
        "not_planned": {
            job.name: {
                "component": job.component or None,
                "waits_for": list(job.waits_for),
                "compute": job.compute or None,
                "reason": job.reason,
            }
            for job in plan.not_planned
        },
        "at_one_time": {name.removesuffix("_at_once"): value for name, value in vars(plan.totals).items()},
        "profiles": {each.profile: estimates.job_as_json(each.estimate) for each in profiles},
    }
    return printing.json_text(document)


def facts_of(job: JobPlan) -> list[tuple[str, str]]:
    """Return what is known of a job, as labels and lines."""
    facts = [("processes", str(job.processes)), ("compute", job.compute or "none named")]
    facts += job.kind.facts
    if job.sku is not None:
        infiniband = f"InfiniBand {job.sku.infiniband_gbit_per_second_total:g} Gbit/s a node"
        network = infiniband if job.sku.rdma else "no InfiniBand"
        facts.append(("machine", f"{job.kind.machines} × {_machine(job.sku)}, {network}"))
        if job.sku.gpu_count and job.gpus_idle_per_node:
            facts.append(("GPUs", _gpus(job)))
    if job.batch is not None and job.batch.fits:
        facts.append(("batch", str(job.batch)))
    facts.append(("environment", job.environment))
    if job.is_training:
        facts += training_facts(job)
    if job.sku is not None and job.estimate is None:
        facts.append(("price", f"on demand {_price(job.on_demand)}; spot {_price(job.spot)}"))
    return facts


def training_facts(job: JobPlan) -> list[tuple[str, str]]:
    """Return what is estimated and measured of a training, as labels and lines."""
    facts: list[tuple[str, str]] = []
    if shares := job.data_shares:
        mixed = ", ".join(f"{share:.1%} of the samples from {name}" for name, share in shares.items() if share)
        once = f"each sample of {', '.join(shares)} once an epoch"
        facts.append(("mixed data", once if None in shares.values() else mixed))
    if job.estimate is None:
        facts.append(("estimate", f"memory and time are not estimated: {job.estimate_reason}"))
    else:
        facts.append(("model", estimates.model_text(job.estimate.training)))
        facts.append(("settings", estimates.settings_text(job.estimate.training)))
        facts += estimates.estimate_facts(job.estimate)
    if job.measured is not None:
        facts.append(("measured", _measured(job.measured)))
        if job.estimate is not None and job.measured.replaces and (differences := differences_of(job)):
            facts.append(("", "estimated: " + ", ".join(f"{name} {share:+.0%}" for name, share in differences.items())))
    if whole := _whole(job) or (f"not known: {job.steps_reason}" if job.steps_reason else ""):
        facts.append(("whole", whole))
    return facts


def differences_of(job: JobPlan) -> dict[str, float]:
    """Return how far the estimate is from what was measured on the same machines, as shares of the measured."""
    found, measured = job.estimate, job.measured
    if found is None or measured is None:
        return {}
    pairs = (
        ("step_seconds", found.time.total if found.time else None, measured.step_seconds),
        ("memory", found.memory.total, measured.peak_memory_bytes),
    )
    return {name: ours / theirs - 1 for name, ours, theirs in pairs if ours is not None and theirs}


def profile_table(profiles: Sequence[OnProfile]) -> list[tuple[str, ...]]:
    """Return a header, and a row for each profile; the fastest and the cheapest of those that surely fit are named.

    Those that tie are named alike. Prices of another region or day than most of the rows' are marked.
    """
    fitting = [each.estimate for each in profiles if each.estimate.verdict == "fits"]
    timed = [each for each in fitting if each.samples_per_second]
    priced = [each for each in fitting if each.usd_per_billion_samples]
    fastest = min(timed, key=slowness, default=None)
    cheapest = min(priced, key=price_of_samples, default=None)
    sources = Counter(price.seen for each in profiles if (price := each.estimate.money.on_demand))
    usual = max(sources, key=lambda source: sources[source], default="")
    table: list[tuple[str, ...]] = []
    for each in profiles:
        found, price = each.estimate, each.estimate.money.on_demand
        remarks = {
            "fastest": fastest is not None and found in timed and ties(found, fastest, slowness),
            "cheapest": cheapest is not None and found in priced and ties(found, cheapest, price_of_samples),
            found.verdict: found.verdict != "fits",
            "price of another region or day": price is not None and price.seen != usual,
        }
        cells = {name: text for name, text in estimates.cells_of(found).items() if name not in _NOT_OF_PROFILES}
        table = table or [("profile", *cells, "")]
        table.append((each.profile, *cells.values(), ", ".join(name for name, applies in remarks.items() if applies)))
    return table


def _measured(measured: Measured) -> str:
    seconds, rate, peak = measured.step_seconds, measured.tokens_per_second, measured.peak_memory_bytes
    parts = [
        f"{measured.source}: {counted(measured.steps, 'step')}",
        f"on {counted(measured.processes, 'process')}" if measured.processes is not None else "",
        f"{duration(seconds)} a step" if seconds is not None else "",
        f"{count(rate)} tokens a second" if rate is not None else "",
        estimates.gigabytes(peak) if peak is not None else "",
    ]
    return ", ".join(filter(None, parts))


def _whole(job: JobPlan) -> str | None:
    """Return how long all steps take and what they cost; None where either is not known."""
    if job.all_steps is None or job.seconds is None or job.step_seconds is None:
        return None
    prices = {"on demand": job.on_demand_usd, "on spot": job.spot_usd}
    costs = [f"${usd:,.2f} {kind}" for kind, usd in prices.items() if usd is not None]
    start = f"about {duration(RESTART_SECONDS)} to start (machine, image, data)"
    steps = f"{counted(job.all_steps, 'step')} in {duration(job.all_steps * job.step_seconds)}"
    return ", ".join([steps, start, *costs])


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
    return f"${_amount(price.usd_per_hour)} an hour ({price.seen})" if price else "no price found"


def _amount(usd_per_hour: float | None) -> str:
    return "not known" if usd_per_hour is None else f"{usd_per_hour:,.3f}"


def totals_of(plan: Plan) -> list[tuple[str, str]]:
    """Return what the jobs that run at one time take together, as labels and lines."""
    totals = plan.totals
    nodes = ", ".join(f"{nodes} of {compute or 'no compute'}" for compute, nodes in totals.nodes_at_once.items())
    facts = [("nodes", nodes or "not known")]
    if totals.vcpus_at_once:
        facts.append(("quota", quota_text(totals.vcpus_at_once)))
    for label, amount in (("on demand", totals.on_demand_usd_per_hour), ("spot", totals.spot_usd_per_hour)):
        facts.append((label, "not known" if amount is None else f"${_amount(amount)} an hour"))
    if plan.not_planned:
        facts.append(("not counted", ", ".join(each.name for each in plan.not_planned)))
    return facts


def quota_text(vcpus: Mapping[str, int]) -> str:
    """Return the processors that a quota has to cover, by VM size."""
    return ", ".join(f"{count(number)} vCPUs of {name}" for name, number in vcpus.items())


def _job_as_json(job: JobPlan) -> dict[str, Any]:
    memory = estimates.memory_as_json(job.estimate, job.estimate_reason)
    time = estimates.time_as_json(job.estimate, job.estimate_reason)
    if job.measured and job.measured.replaces:
        size, rate = job.measured.peak_memory_bytes, job.measured.tokens_per_second
        memory |= {"total_bytes_per_gpu": round(size)} if size is not None and job.estimate else {}
        time |= {"step_seconds": job.step_seconds}
        time |= {"tokens_per_second_per_gpu": rate / job.processes.world_size} if rate is not None else {}
    return {
        "type": job.kind.name,
        "component": job.component,
        "waits_for": list(job.waits_for),
        "compute": job.compute or None,
        **{key: getattr(job.sku, name, None) for key, name in _OF_SKU.items()},
        **{key: getattr(job.processes, key) for key in ("nodes", "processes_per_node", "world_size")},
        "machines_at_one_time": job.kind.machines,
        **{key: getattr(job, key) for key in ("gpus_used_per_node", "gpus_idle_per_node", "gpu_memory_gb")},
        "environment": job.environment,
        "global_batch_size": job.batch.global_batch_size if job.batch else None,
        "batch": {key: getattr(job.batch, key) for key in _BATCH_KEYS} if job.batch else None,
        "data_shares": dict(job.data_shares),
        "memory": memory,
        "time": time,
        "money": _money_as_json(job),
        "measured": {**asdict(job.measured), "estimate_differs_by": differences_of(job)} if job.measured else None,
        "findings": list(job.findings),
    }


def _money_as_json(job: JobPlan) -> dict[str, Any]:
    document = {
        **estimates.money_fields(job.on_demand, job.spot, job.estimate),
        "on_demand_usd": job.on_demand_usd,
        "spot_usd": job.spot_usd,
    }
    unknown = {
        "the machine is not known": job.sku is None,
        f"the catalogue lacks a price of {job.sku.name if job.sku else ''}": job.sku is not None
        and (job.on_demand is None or job.spot is None),
        "how long the job takes is not known": job.seconds is None,
        job.steps_reason: bool(job.steps_reason),
    }
    return estimates.with_reasons(document, *(reason for reason, applies in unknown.items() if applies))
