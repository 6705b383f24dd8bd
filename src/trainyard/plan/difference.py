"""How two versions of a pipeline differ: in figures of their plans, and in settings by their meaning."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any

from trainyard.plan.estimate.reporters import gigabytes
from trainyard.plan.job_plans import JobPlan, Plan, UnplannedJob
from trainyard.plan.pipeline_settings import Change
from trainyard.plan.reporters import quota_text
from trainyard.settings.quantities import count, duration


@dataclass(frozen=True)
class PlanFigure:
    """A figure of a job's plan or of the totals: its name in JSON, with its unit, its label, and its text."""

    name: str
    label: str
    of: Callable[[Any], Any]
    write: Callable[[Any], str] = str

    def text(self, value: Any) -> str:
        """Return a value of it as text; a dash for None."""
        return "–" if value is None else self.write(value)


@dataclass(frozen=True)
class FigureChange:
    """A figure that differs; None is one that is not known, or of a job that is not there."""

    figure: PlanFigure
    before: Any
    after: Any

    @property
    def texts(self) -> tuple[str, str]:
        """The old and the new figure as text."""
        return self.figure.text(self.before), self.figure.text(self.after)

    @property
    def ratio(self) -> float | None:
        """The new figure as a multiple of the old one; None for texts, and where the old one is unknown or nothing."""
        before, after = self.before, self.after
        numbers = not isinstance(before, bool) and isinstance(before, (int, float)) and isinstance(after, (int, float))
        return after / before if numbers and before else None


def _usd(value: float) -> str:
    return f"${value:,.2f}"


def _at(*names: str) -> Callable[[Any], Any]:
    """Return a reader of an attribute of an attribute; what it reads is None where any of them is."""
    return lambda value: reduce(lambda found, name: None if found is None else getattr(found, name), names, value)


def _machines_of_trials(job: JobPlan) -> int | None:
    return job.kind.machines if job.kind.machines != job.processes.nodes else None


FIGURES = (
    PlanFigure("sku", "machine", _at("sku", "name")),
    PlanFigure("nodes", "nodes", _at("processes", "nodes"), count),
    PlanFigure("machines_at_one_time", "machines at one time", _machines_of_trials, count),
    PlanFigure("world_size", "processes", _at("processes", "world_size"), count),
    PlanFigure("gpus", "GPUs", lambda job: job.processes.nodes * (job.sku.gpu_count if job.sku else 0) or None, count),
    PlanFigure("micro_batch_size", "micro-batch", _at("batch", "micro_batch_size"), count),
    PlanFigure("accumulation_steps", "accumulation", _at("batch", "accumulation_steps"), count),
    PlanFigure("global_batch_size", "effective batch", _at("batch", "global_batch_size"), count),
    PlanFigure("tokens_per_step", "tokens a step", _at("batch", "tokens_per_step"), count),
    PlanFigure("steps", "steps", _at("all_steps"), count),
    PlanFigure("parameters", "parameters", _at("estimate", "training", "architecture", "parameters"), count),
    PlanFigure("trained_parameters", "trained", _at("estimate", "training", "trained_parameters"), count),
    PlanFigure("memory_bytes_per_gpu", "memory of a GPU", _at("estimate", "memory", "total"), gigabytes),
    PlanFigure("fits", "fits", _at("estimate", "fits"), {True: "yes", False: "no"}.__getitem__),
    PlanFigure("step_seconds", "time of a step", _at("step_seconds"), duration),
    PlanFigure("tokens_per_second", "tokens a second", _at("estimate", "tokens_per_second"), count),
    PlanFigure("samples_per_second", "samples a second", _at("estimate", "samples_per_second"), count),
    PlanFigure("training_seconds", "time of all steps", _at("seconds"), duration),
    PlanFigure("on_demand_usd_per_hour", "on demand, an hour", _at("on_demand", "usd_per_hour"), _usd),
    PlanFigure("spot_usd_per_hour", "spot, an hour", _at("spot", "usd_per_hour"), _usd),
    PlanFigure("usd_per_billion_tokens", "a billion tokens", _at("estimate", "usd_per_billion_tokens"), _usd),
    PlanFigure("on_demand_usd", "all steps on demand", _at("on_demand_usd"), _usd),
)
"""What is compared of each job, in the order in which it is shown."""

_TOTALS = (
    PlanFigure("vcpus", "quota", _at("vcpus_at_once"), lambda vcpus: quota_text(vcpus) or "none known"),
    PlanFigure("on_demand_usd_per_hour", "on demand, an hour", _at("on_demand_usd_per_hour"), _usd),
    PlanFigure("spot_usd_per_hour", "spot, an hour", _at("spot_usd_per_hour"), _usd),
)

_RUN = (
    PlanFigure("training_seconds", "time of all trainings", _at("training_seconds"), duration),
    PlanFigure("on_demand_usd", "all trainings on demand", _at("training_usd"), _usd),
)


@dataclass(frozen=True)
class PlanDifference:
    """What changes from one version of a pipeline to another. `against` names the version before."""

    before: Plan
    after: Plan
    against: str
    changes: tuple[Change, ...]

    @property
    def added(self) -> list[JobPlan | UnplannedJob]:
        """The jobs that only the new version has."""
        return _jobs_missing(self.after, self.before)

    @property
    def removed(self) -> list[JobPlan | UnplannedJob]:
        """The jobs that only the old version has."""
        return _jobs_missing(self.before, self.after)

    @property
    def is_empty(self) -> bool:
        """Whether both mean the same."""
        return not (self.added or self.removed or self.changes or self.figures or self.totals)

    @property
    def figures(self) -> dict[str, list[FigureChange]]:
        """The figures that differ, by the job, of jobs that both versions have."""
        old = {job.name: job for job in self.before.jobs}
        changed = {job.name: _changed(FIGURES, old[job.name], job) for job in self.after.jobs if job.name in old}
        return {name: figures for name, figures in changed.items() if figures}

    @property
    def totals(self) -> list[FigureChange]:
        """The differing figures of what the pipeline takes at one time, at most."""
        return _changed(_TOTALS, self.before.totals, self.after.totals)

    @property
    def run_totals(self) -> list[FigureChange]:
        """The differing figures of a whole run: time and price of all its trainings."""
        return _changed(_RUN, self.before, self.after)

    @property
    def new_findings(self) -> list[tuple[str, str]]:
        """What to look at that the old version does not have, with the job's name."""
        return [finding for finding in self.after.findings if finding not in self.before.findings]

    @property
    def solved_findings(self) -> list[tuple[str, str]]:
        """What the old version had to look at, and the new one does not."""
        return [finding for finding in self.before.findings if finding not in self.after.findings]


def _jobs_missing(of: Plan, without: Plan) -> list[JobPlan | UnplannedJob]:
    known = {job.name for job in without.jobs} | {job.name for job in without.not_planned}
    jobs: list[JobPlan | UnplannedJob] = [*of.jobs, *of.not_planned]
    return [job for job in jobs if job.name not in known]


def _changed(figures: Iterable[PlanFigure], was: Any, now: Any) -> list[FigureChange]:
    changes = (FigureChange(figure, figure.of(was), figure.of(now)) for figure in figures)
    return [each for each in changes if each.before != each.after]
