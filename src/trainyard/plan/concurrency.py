"""How much of something is needed at one time, when each job may run as soon as those before it are done."""

from __future__ import annotations

from collections.abc import Mapping


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
