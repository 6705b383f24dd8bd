"""What the jobs of a pipeline take at one time, when each may run as soon as those before it are done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainyard.plan.estimate.money import Price

if TYPE_CHECKING:
    from trainyard.plan.planner import JobPlan


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
        vcpus_at_once={sku.name: sku.vcpus * machines_at_once(job for job in jobs if job.sku is sku) for sku in skus},
        on_demand_usd_per_hour=price_at_once(lambda job: job.on_demand),
        spot_usd_per_hour=price_at_once(lambda job: job.spot),
    )


def most_at_once(weights: Mapping[str, float], waits_for: Mapping[str, frozenset[str]]) -> float:
    """The greatest total weight of jobs none of which waits for another, directly or through others.

    By Dilworth's theorem with weights that is the sum of all weights less the greatest flow from jobs to jobs that
    come after them, where no job gives or takes more than its weight.
    """
    before = _all_before(waits_for)
    after = {job: [other for other in weights if job in before[other]] for job in weights}
    can_give, can_take = dict(weights), dict(weights)
    flow: dict[tuple[str, str], float] = {}
    total = 0.0
    for source in weights:
        while (amount := _push(source, can_give[source], set(), after, can_take, flow)) > 1e-9:
            can_give[source] -= amount
            total += amount
    return sum(weights.values()) - total


def _push(
    source: str,
    amount: float,
    visited: set[str],
    after: Mapping[str, list[str]],
    can_take: dict[str, float],
    flow: dict[tuple[str, str], float],
) -> float:
    """Send up to `amount` along one augmenting path: to a job that can take it, or by re-routing another's flow."""
    if amount <= 1e-9:
        return 0.0
    for target in after[source]:
        if target in visited:
            continue
        visited.add(target)
        sent = min(amount, can_take[target])
        if sent > 1e-9:
            can_take[target] -= sent
            flow[source, target] = flow.get((source, target), 0.0) + sent
            return sent
        for other in [giver for giver, taker in flow if taker == target and giver != source]:
            rerouted = _push(other, min(amount, flow[other, target]), visited, after, can_take, flow)
            if rerouted > 1e-9:
                flow[other, target] -= rerouted
                flow[source, target] = flow.get((source, target), 0.0) + rerouted
                return rerouted
    return 0.0


def _all_before(waits_for: Mapping[str, frozenset[str]]) -> dict[str, set[str]]:
    """For each job all that must be done before it, however indirectly. There are no cycles."""
    before: dict[str, set[str]] = {}

    def collect(job: str) -> set[str]:
        if job not in before:
            before[job] = set().union(*({other} | collect(other) for other in waits_for[job]))
        return before[job]

    for job in waits_for:
        collect(job)
    return before
