"""A plan as one HTML page without a network: the graph, the memory and the scaling of its training, drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.plan import drawing, reporters
from trainyard.plan.estimate.estimator import Estimate, scaling_curve
from trainyard.plan.job_plans import JobPlan, Plan
from trainyard.settings.quantities import percentage
from trainyard.spec.model import Pipeline

if TYPE_CHECKING:
    from jinja2 import Template

_WIDTH, _HEIGHT = 560, 220
_LEFT, _BOTTOM, _TOP = 50, 190, 20


@dataclass(frozen=True)
class _Bar:
    """A part of the memory: where its rectangle begins and how wide it is, in pixels."""

    name: str
    gigabytes: float
    x: float
    width: float


@dataclass(frozen=True)
class _Point:
    """A point of the scaling curve, in pixels, with its label."""

    nodes: int
    share: str
    x: float
    y: float


def page_template(name: str) -> Template:
    """Return a template of this folder: HTML is escaped, and an undefined name is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    folder = FileSystemLoader(Path(__file__).parent)
    return Environment(loader=folder, autoescape=True, undefined=StrictUndefined, trim_blocks=True).get_template(name)


def as_html(plan: Plan, pipeline: Pipeline, profiles: Sequence[reporters.OnProfile]) -> str:
    """Return the page."""
    return page_template("plan.html.j2").render(
        plan=plan,
        graph=drawing.as_text(pipeline),
        jobs=[(job, reporters.facts_of(job), _pictures(job)) for job in plan.jobs],
        profile_header=reporters.profile_header(profiles) if profiles else (),
        profiles=reporters.profile_rows(profiles),
    )


def _pictures(job: JobPlan) -> dict[str, object] | None:
    """Return what is drawn of a training; None where nothing is estimated."""
    if job.estimate is None:
        return None
    available = job.estimate.available_bytes / 1e9
    scale = _WIDTH / max(available, job.estimate.memory.total / 1e9)
    return {
        "bars": _bars(job.estimate, scale),
        "limit": available * scale,
        "available": f"{available:.1f} GB",
        "width": _WIDTH,
        "height": _HEIGHT,
        "left": _LEFT,
        "bottom": _BOTTOM,
        "top": _TOP,
        "points": _points(job.estimate),
    }


def _bars(found: Estimate, scale: float) -> list[_Bar]:
    bars, x = [], 0.0
    for name, size in found.memory.parts().items():
        width = size / 1e9 * scale
        bars.append(_Bar(name, size / 1e9, x, width))
        x += width
    return bars


def _points(found: Estimate) -> list[_Point]:
    """Return the scaling curve: nodes on a logarithmic axis, the share of one node's rate from 0 to 100 %."""
    curve = scaling_curve(found.training)
    step = (_WIDTH - _LEFT - 20) / max(1, len(curve) - 1)
    return [
        _Point(nodes, percentage(share), _LEFT + place * step, _BOTTOM - share * (_BOTTOM - _TOP))
        for place, (nodes, share) in enumerate(curve)
    ]
