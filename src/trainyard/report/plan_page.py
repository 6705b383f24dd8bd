"""A pipeline's plan as one page without a network, with the look of a run's report: graph, memory, scaling, terms."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, cycle
from pathlib import Path
from typing import Any

from trainyard.plan.drawing import carried_data
from trainyard.plan.estimate.estimator import Estimate, scaling_curve
from trainyard.plan.estimate.reporters import gigabytes
from trainyard.plan.job_plans import JobPlan, Plan, UnplannedJob
from trainyard.plan.reporters import OnProfile, facts_of, profile_header, profile_rows, totals_of
from trainyard.report.drawings import Drawing, draw_graph
from trainyard.report.page_templates import page_templates
from trainyard.settings.run_record import JobRecord
from trainyard.spec.model import Pipeline

_STYLES = ("first", "second", "third", "fourth", "fifth", "sixth")
_TERMS = {
    "micro-batch": "The samples that one process takes through the model at once. Activations grow with it.",
    "accumulation": "How many micro-batches a process adds up before a step changes the weights.",
    "batch": "The samples of one step: micro-batch × accumulation × processes.",
    "parameters": "The model's weights, as they lie on one GPU.",
    "gradients": "The change that a step computes for each parameter.",
    "optimizer": "What AdamW keeps of earlier steps: two values for each parameter, and the weights in full precision.",
    "buffers": "Weights and gradients on their way between GPUs.",
    "activations": "What layers keep of a micro-batch for the backward pass; checkpointing computes it again instead.",
    "logits": "The scores of all words at the loss.",
    "exchange": "The time in which GPUs send each other gradients and weights; a part is hidden behind computing.",
    "MFU": "The share of the GPU's peak that goes into the model's own arithmetic.",
    "on demand, spot": "The prices of machines that stay yours, and of machines that Azure may take back.",
    "quota": "The vCPUs that your subscription needs to be allowed for this size and region.",
}


def as_html(plan: Plan, pipeline: Pipeline, profiles: Sequence[OnProfile] = ()) -> str:
    """Return the page: its text, which names no other file."""
    return (
        page_templates(Path.cwd())
        .get_template("plan.html.j2")
        .render(
            plan=plan,
            totals=totals_of(plan),
            graphs=[_graph(plan, pipeline, tall=tall) for tall in (False, True)] if plan.jobs else [],
            jobs=[_shown(job) for job in plan.jobs],
            profile_header=profile_header(profiles) if profiles else (),
            profiles=profile_rows(profiles),
            terms=_TERMS,
            is_live=False,
        )
    )


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
            for (name, size), start, style in zip(parts.items(), starts, cycle(_STYLES), strict=False)
        ],
    }  # fmt: skip
