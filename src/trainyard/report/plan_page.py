"""Plans as pages without a network, with the look of a run's report: a pipeline, a change, trainings on machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, cycle, repeat
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
    """Return the page of a training on several machines, at least one: its time against its price, and a table.

    Without a number of rows or images, they are of a billion tokens, or of a million images.
    """
    training = found[0].training
    unit, many = units_of(training)
    amount = f"{samples * training.sequence_length:,.0f} {unit}" if samples else f"a {many}"
    chart = _time_and_price(found, samples or (1e6 if training.is_of_images else 1e9 / training.sequence_length))
    model, rows = (training.architecture.name, model_text(training)), table_of(found, samples)
    return _page("what_if.html.j2", model=model, amount=amount, rows=rows, chart=chart)


def _time_and_price(found: Sequence[Estimate], samples: float) -> dict[str, Any]:
    """Return the scales of time and price, a style for each size with a price, the cheapest first, and the dots.

    A dot has its size, its places, its number of nodes and what is shown under the pointer.
    """
    wholes = [(each.training, whole) for each in found if (whole := each.whole_training(samples))]
    priced = [(training, each.seconds, each.on_demand_usd) for training, each in wholes if each.on_demand_usd]
    if not priced:
        return {}
    unit, divisor = ("days", 86400) if max(seconds for _, seconds, _ in priced) > 2 * 86400 else ("hours", 3600)
    across = Scale([seconds / divisor for _, seconds, _ in priced], _RATIO_OF_LOGARITHMIC)
    up = Scale([usd for _, _, usd in priced], _RATIO_OF_LOGARITHMIC)
    dots: list[tuple[str, float, float, int, str]] = []
    for training, seconds, usd in sorted(priced, key=lambda each: each[2]):
        lines = machines_text(training), settings_text(training), f"{duration(seconds)}, ${usd:,.0f}"
        size = training.machines.sku.name if training.machines.sku else ""
        dots.append((size, across.place(seconds / divisor), up.place(usd), training.machines.nodes, "\n".join(lines)))
    styles = dict(zip(dict.fromkeys(dot[0] for dot in dots), chain(STYLES, repeat("other")), strict=False))
    return {"unit": unit, "across": across.ticks(), "up": up.ticks(), "styles": styles, "dots": dots}


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
        "bars": list(_bars(job.estimate)) if job.estimate else [],
        "scaling": scaling_curve(job.estimate.training) if job.estimate else [],
    }


def _bars(found: Estimate) -> Iterator[dict[str, Any]]:
    """Yield what is drawn by part: a GPU's memory within what there is, and the time of a step where it is known."""
    used, available, time = found.memory.total, found.available_bytes, found.time
    ends = f"{gigabytes(used)} used", f"{gigabytes(available)} there is"
    parts = _drawn(found.memory.parts(), max(available, used), gigabytes)
    yield {"of": "memory", "title": "Memory of a GPU", "ends": ends, "parts": parts}
    if time is not None:
        hidden = f"{duration(time.communication - time.exposed_communication)} of the exchange is hidden"
        ends, parts = (duration(time.total), hidden), _drawn(time.parts(), time.total, duration)
        yield {"of": "time", "title": "Time of a step", "ends": ends, "parts": parts}


def _drawn(parts: Mapping[str, float], whole: float, shown: Callable[[float], str]) -> list[tuple[str | float, ...]]:
    """Return the name, the percentage of the whole, the text and the style of each part that there is."""
    sizes = ((name, size) for name, size in parts.items() if size)
    return [
        (name.replace("exposed_communication", "exchange").replace("_", " "), 100 * size / whole, shown(size), style)
        for (name, size), style in zip(sizes, cycle(STYLES), strict=False)
    ]
