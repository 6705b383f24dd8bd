"""Plans as pages without a network, with the look of a run's report: a pipeline, a change, trainings on machines."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain, cycle, repeat
from pathlib import Path
from typing import Any

from trainyard.plan.difference import PlanDifference
from trainyard.plan.difference_reporters import NOTHING, rows_of
from trainyard.plan.drawing import carried_data
from trainyard.plan.estimate.estimator import Estimate, scaling_curve
from trainyard.plan.estimate.reporters import gigabytes, machines_text, model_text, settings_text, table_of, units_of
from trainyard.plan.job_plans import JobPlan, Plan, UnplannedJob
from trainyard.plan.reporters import OnProfile, facts_of, profile_table, totals_of
from trainyard.report.curves import STYLES
from trainyard.report.drawings import Drawing, draw_graph
from trainyard.report.page_templates import page_templates
from trainyard.report.sweeps import Scale
from trainyard.settings.quantities import duration
from trainyard.settings.run_record import JobRecord
from trainyard.spec.model import Pipeline

_RATIO_OF_LOGARITHMIC = 4.0


def as_html(plan: Plan, pipeline: Pipeline, profiles: Sequence[OnProfile] = ()) -> str:
    """Return the page: its text, which names no other file."""
    return _page(
        "plan.html.j2",
        plan=plan,
        totals=totals_of(plan),
        graphs=[_graph(plan, pipeline, tall=tall) for tall in (False, True)] if plan.jobs else [],
        jobs=[_shown(job) for job in plan.jobs],
        profiles=profile_table(profiles),
    )


def difference_as_html(found: PlanDifference) -> str:
    """Return the page of what changes in a pipeline, which names no other file."""
    return _page("difference.html.j2", found=found, nothing=NOTHING, **rows_of(found))


def what_if_as_html(found: Sequence[Estimate], samples: float | None) -> str:
    """Return the page of a training on several machines: its time against its price, and each in a table.

    Without a number of rows or images, they are of a billion tokens, or of a million images.
    """
    training = found[0].training if found else None
    amount = f"{samples * training.sequence_length:,.0f} {units_of(training)[0]}" if samples and training else ""
    return _page(
        "what_if.html.j2",
        title=model_text(training) if training else "",
        amount=amount or (f"a {units_of(training)[1]}" if training else ""),
        rows=table_of(found, samples),
        chart=_time_and_price(found, samples),
    )


def _time_and_price(found: Sequence[Estimate], samples: float | None) -> dict[str, Any]:
    """Return the scales of time and price, and the trainings of each size as dots on them, the cheapest size first.

    A dot has its places, its number of nodes and what is shown under the pointer.
    """
    sizes: dict[str, list[tuple[float, float, Estimate]]] = {}
    for each in found:
        training = each.training
        whole = each.whole_training(samples or (1e6 if training.is_of_images else 1e9 / training.sequence_length))
        if whole and whole.on_demand_usd is not None and training.machines.sku:
            sizes.setdefault(training.machines.sku.name, []).append((whole.seconds, whole.on_demand_usd, each))
    if not sizes:
        return {}
    points = list(chain.from_iterable(sizes.values()))
    unit, divisor = ("days", 86400) if max(seconds for seconds, _, _ in points) > 2 * 86400 else ("hours", 3600)
    across = Scale([seconds / divisor for seconds, _, _ in points], _RATIO_OF_LOGARITHMIC)
    up = Scale([usd for _, usd, _ in points], _RATIO_OF_LOGARITHMIC)

    def dot(seconds: float, usd: float, each: Estimate) -> tuple[float, float, int, str]:
        training = each.training
        lines = (machines_text(training), settings_text(training), f"{duration(seconds)}, ${usd:,.0f}")
        return across.place(seconds / divisor), up.place(usd), training.machines.nodes, "\n".join(lines)

    cheapest_first = sorted(sizes, key=lambda name: min(usd for _, usd, _ in sizes[name]))
    styled = zip(cheapest_first, chain(STYLES, repeat("other")), strict=False)
    drawn = [{"name": name, "style": style, "dots": [dot(*each) for each in sizes[name]]} for name, style in styled]
    return {"unit": unit, "across": across.ticks(), "up": up.ticks(), "sizes": drawn}


def _page(template: str, **values: Any) -> str:
    return page_templates(Path.cwd()).get_template(template).render(**values, is_live=False)


def _graph(plan: Plan, pipeline: Pipeline, *, tall: bool) -> Drawing:
    """Return the drawing of a run's graph for jobs that have not run: machines take the place of states."""
    planned: list[JobPlan | UnplannedJob] = [*plan.jobs, *plan.not_planned]
    known = {job.name for job in planned}
    jobs = {
        job.name: JobRecord(
            job.name,
            component=job.component,
            depends_on=[name for name in job.waits_for if name in known],
            nodes=job.processes.nodes if isinstance(job, JobPlan) else 1,
            processes_per_node=job.processes.processes_per_node if isinstance(job, JobPlan) else 1,
        )
        for job in planned
    }
    captions = {job.name: job.sku.name.removeprefix("Standard_") if job.sku else job.compute for job in plan.jobs}
    return draw_graph(
        jobs, carried_data(pipeline), tall=tall, captions={**dict.fromkeys(jobs, "not known"), **captions}
    )


def _shown(job: JobPlan) -> dict[str, Any]:
    """Return what the page shows of a job: lines by their label, and what is drawn of a training."""
    facts: dict[str, list[str]] = {}
    for label, text in facts_of(job):
        facts.setdefault(label or next(reversed(facts)), []).append(text)
    return {
        "job": job,
        "facts": facts,
        "memory": _memory(job.estimate) if job.estimate else None,
        "scaling": scaling_curve(job.estimate.training) if job.estimate else [],
    }


def _memory(found: Estimate) -> dict[str, Any]:
    """Return the parts of a GPU's memory in per cent of what there is, or of what is used where that is more."""
    parts = found.memory.parts()
    whole = max(found.available_bytes, found.memory.total)
    starts = accumulate(parts.values(), initial=0.0)
    return {
        "used": gigabytes(found.memory.total),
        "available": gigabytes(found.available_bytes),
        "parts": [
            {
                "name": name, "size": gigabytes(size), "style": style,
                "start": round(start / whole * 100, 2), "length": round(size / whole * 100, 2),
            }
            for (name, size), start, style in zip(parts.items(), starts, cycle(STYLES), strict=False)
        ],
    }  # fmt: skip
