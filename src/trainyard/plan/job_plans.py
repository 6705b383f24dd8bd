"""What a plan holds: each job, and what all take at one time, when each runs as soon as those before it are done."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter

from trainyard.catalogue.prices import Price
from trainyard.catalogue.skus import Sku
from trainyard.plan.estimate.estimator import Estimate
from trainyard.plan.estimate.money import RESTART_SECONDS
from trainyard.plan.job_sizes import JobBatch, JobKind
from trainyard.spec.model import ProcessCounts

METRICS_FILE = "metrics.jsonl"


@dataclass(frozen=True)
class Measured:
    """Figures of a run; None is what it did not log. `replaces` says whether they stand in for the estimate's.

    `source` names the run. Steps count from the start of the training.
    """

    source: str
    steps: int
    step_seconds: float | None
    tokens_per_second: float | None
    peak_memory_bytes: float | None
    processes: int | None
    replaces: bool


@dataclass(frozen=True)
class JobPlan:
    """What one job takes. Figures of the machine are None where it is not known which machine that is.

    `gpus_idle_per_node` counts the GPUs that no process uses: a rank takes one, a process of TensorFlow or Ray all.
    `estimate` is of trainings; where there is none, `estimate_reason` says why. `may_train` is of other programs
    in several processes. `steps` is how many a training takes, if that is known. `data_shares` are those of the
    datasets that a training mixes, None where each sample comes once.
    `kind` says how many machines it takes at one time, which for a sweep are those of several trials; prices are of
    these. The rest is of one trial.
    """

    name: str
    component: str
    waits_for: tuple[str, ...]
    processes: ProcessCounts
    compute: str
    sku: Sku | None
    gpus_idle_per_node: int | None
    gpu_memory_gb: float | None
    batch: JobBatch | None
    environment: str
    on_demand: Price | None
    spot: Price | None
    findings: tuple[str, ...]
    kind: JobKind
    estimate: Estimate | None = None
    estimate_reason: str = ""
    is_training: bool = False
    may_train: bool = False
    steps: int | None = None
    data_shares: Mapping[str, float | None] = field(default_factory=dict)
    measured: Measured | None = None

    @property
    def gpus_used_per_node(self) -> int | None:
        """The GPUs of a node that have a process."""
        if self.sku is None or self.gpus_idle_per_node is None:
            return None
        return self.sku.gpu_count - self.gpus_idle_per_node

    @property
    def all_steps(self) -> int | None:
        """The optimizer steps of the whole training: as the pipeline says, else as the run took that was named.

        A local run may have had other data and settings.
        """
        if self.steps is None and self.measured is not None and self.measured.replaces:
            return self.measured.steps
        return self.steps

    @property
    def steps_reason(self) -> str:
        """What to state where the number of a training's steps is not known; empty where it is."""
        is_text = self.batch is not None and self.batch.sequence_length
        limit, flag = ("max_steps or max_tokens", "--tokens") if is_text else ("max_steps", "--images")
        is_known = self.all_steps is not None or not self.is_training
        return "" if is_known else f"set {limit}, or give the size of its data with `trainyard plan {flag}`"

    @property
    def step_seconds(self) -> float | None:
        """The time of a step: as measured on the same machines, else as estimated."""
        if self.measured is not None and self.measured.replaces and self.measured.step_seconds is not None:
            return self.measured.step_seconds
        if self.estimate is None or self.estimate.time is None:
            return None
        return self.estimate.time.total

    @property
    def seconds(self) -> float | None:
        """The time that is billed: of a start and of all steps."""
        steps, of_step = self.all_steps, self.step_seconds
        return None if steps is None or of_step is None else RESTART_SECONDS + steps * of_step

    @property
    def on_demand_usd(self) -> float | None:
        """The price of a start and all steps on demand."""
        return self._usd(self.on_demand)

    @property
    def spot_usd(self) -> float | None:
        """The price of a start and all steps on spot machines that are never taken away."""
        return self._usd(self.spot)

    def _usd(self, price: Price | None) -> float | None:
        return price.usd_per_hour * self.seconds / 3600 if price and self.seconds is not None else None


@dataclass(frozen=True)
class UnplannedJob:
    """A job of which only Azure ML knows what it runs, and so what it takes.

    `component` is the reference to what is kept there; empty for job types that only Azure ML runs.
    """

    name: str
    component: str
    waits_for: tuple[str, ...]
    compute: str
    reason: str


@dataclass(frozen=True)
class Totals:
    """The most that the planned jobs take at one time, when every job starts as soon as it can.

    Prices are None where that of a job is not known, planned or not. Nodes are by compute; processors, which Azure's
    quotas count, by VM size.
    """

    nodes_at_once: dict[str, int]
    vcpus_at_once: dict[str, int]
    on_demand_usd_per_hour: float | None
    spot_usd_per_hour: float | None


@dataclass(frozen=True)
class Plan:
    """A pipeline's jobs, each after those it waits for, and what they take together.

    Those in `not_planned` may come before others of `jobs`, which name them in `waits_for` then.
    """

    pipeline: str
    file: str
    jobs: tuple[JobPlan, ...]
    totals: Totals
    not_planned: tuple[UnplannedJob, ...] = ()

    @property
    def training_seconds(self) -> float | None:
        """The time of all steps of all trainings, one after another; None where that of one is not known."""
        return self._of_all_trainings(lambda job: job.seconds)

    @property
    def training_usd(self) -> float | None:
        """The price of all steps of all trainings on demand; None where that of one is not known."""
        return self._of_all_trainings(lambda job: job.on_demand_usd)

    def _of_all_trainings(self, figure: Callable[[JobPlan], float | None]) -> float | None:
        figures = [figure(job) for job in self.jobs if job.is_training]
        known = [each for each in figures if each is not None]
        return sum(known) if len(known) == len(figures) else None

    def beyond(self, max_usd: float | None, *, must_fit: bool) -> list[str]:
        """Return in words what takes more than is allowed: dollars for the trainings, and the memory of machines."""
        found = []
        if max_usd is not None and self.training_usd is None:
            trainings = (job for job in self.jobs if job.is_training and job.on_demand_usd is None)
            why = next((f"; {why}" for job in trainings if (why := job.estimate_reason or job.steps_reason)), "")
            found.append(f"{self.file}: the price of its trainings is not known, and --max-usd is {max_usd:,.2f}{why}")
        elif max_usd is not None and self.training_usd is not None and self.training_usd > max_usd:
            found.append(f"{self.file}: its trainings cost ${self.training_usd:,.2f}, and --max-usd is {max_usd:,.2f}")
        if must_fit:
            jobs = (job for job in self.jobs if job.estimate is not None and not job.estimate.fits)
            found += [f"{self.file}: {job.name} {job.estimate.memory_finding}" for job in jobs if job.estimate]
            unknown = (job for job in self.jobs if job.is_training and job.estimate is None)
            found += [f"{self.file}: whether {job.name} fits is not known: {job.estimate_reason}" for job in unknown]
        if max_usd is not None or must_fit:
            found += [f"{self.file}: what {job.name} takes is not known: {job.reason}" for job in self.not_planned]
            own = (job for job in self.jobs if job.may_train)
            found += [f"{self.file}: what {job.name} takes is not known: {job.estimate_reason}" for job in own]
        return found

    @property
    def findings(self) -> list[tuple[str, str]]:
        """What to look at before paying for this, each with the job's name."""
        return [(job.name, finding) for job in self.jobs for finding in job.findings]


def totals_of(jobs: Sequence[JobPlan], waits_for: Mapping[str, frozenset[str]], *, are_all_jobs: bool) -> Totals:
    """Return what planned jobs take; without the price if there are others that are not planned."""

    def machines_at_once(some: Iterable[JobPlan]) -> int:
        return round(most_at_once({job.name: job.kind.machines for job in some}, waits_for))

    def price_at_once(price_of: Callable[[JobPlan], Price | None]) -> float | None:
        prices = {job.name: price.usd_per_hour for job in jobs if (price := price_of(job)) is not None}
        if not are_all_jobs or len(prices) < len(jobs):
            return None
        return round(most_at_once(prices, waits_for), 6)

    computes = dict.fromkeys(job.compute for job in jobs)
    skus = dict.fromkeys(job.sku for job in jobs if job.sku is not None)
    return Totals(
        nodes_at_once={name: machines_at_once(job for job in jobs if job.compute == name) for name in computes},
        vcpus_at_once={sku.name: sku.vcpus * machines_at_once(job for job in jobs if job.sku == sku) for sku in skus},
        on_demand_usd_per_hour=price_at_once(lambda job: job.on_demand),
        spot_usd_per_hour=price_at_once(lambda job: job.spot),
    )


def most_at_once(weights: Mapping[str, float], waits_for: Mapping[str, frozenset[str]]) -> float:
    """The greatest total weight of jobs none of which waits for another, directly or through others.

    By Dilworth's theorem with weights that is the sum of all weights less the greatest flow from jobs to jobs that
    come after them, where no job gives or takes more than its weight.
    """
    before: dict[str, set[str]] = {}
    for job in TopologicalSorter(waits_for).static_order():
        before[job] = set(waits_for[job]).union(*(before[other] for other in waits_for[job]))
    free: dict[str, dict[str, float]] = {"": {}, "end": {}}
    for job, weight in weights.items():
        free[""][f"gives {job}"] = weight
        free[f"gives {job}"] = {f"takes {other}": math.inf for other in weights if job in before[other]}
        free[f"takes {job}"] = {"end": weight}
    flow = 0.0
    while sent := _send(free, "", math.inf, set()):
        flow += sent
    return sum(weights.values()) - flow


def _send(free: dict[str, dict[str, float]], place: str, amount: float, visited: set[str]) -> float:
    """Send up to an amount from a place to the end by what is free on one way, which can then be sent back on it."""
    if place == "end" or amount <= 1e-9:
        return amount if amount > 1e-9 else 0.0
    visited.add(place)
    for other in [each for each in free[place] if each not in visited]:
        if sent := _send(free, other, min(amount, free[place][other]), visited):
            free[place][other] -= sent
            free[other][place] = free[other].get(place, 0.0) + sent
            return sent
    return 0.0
