"""`--only J` and `--from J`: which jobs are run, and of which others an earlier run's outputs are reused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainyard.foundation.suggestions import did_you_mean
from trainyard.local.errors import UsageError


@dataclass(frozen=True)
class Selection:
    """`run` are the jobs to run, `reused` those whose earlier outputs they read, `named` the one the user named."""

    run: frozenset[str]
    reused: frozenset[str]
    named: str | None


def select(upstream: Mapping[str, frozenset[str]], *, only: str | None, from_job: str | None) -> Selection:
    """Return the selected jobs of a graph, given as what each job directly depends on.

    `only` is one job alone; `from_job` is a job and all that depend on it. Raise `UsageError` for an unknown job, or if
    both are given.
    """
    if only is not None and from_job is not None:
        raise UsageError("--only and --from cannot be used together")
    named = only if only is not None else from_job
    if named is None:
        return Selection(frozenset(upstream), frozenset(), None)
    if named not in upstream:
        flag = "--only" if only is not None else "--from"
        raise UsageError(f"{flag} {named}: unknown job. {did_you_mean(named, upstream)}")
    run = {named} if only is not None else _with_dependents(upstream, named)
    reused = {name for job in run for name in upstream[job]} - run
    return Selection(frozenset(run), frozenset(reused), named)


def _with_dependents(upstream: Mapping[str, frozenset[str]], job: str) -> set[str]:
    found = {job}
    while True:
        more = {name for name, needs in upstream.items() if needs & found} - found
        if not more:
            return found
        found |= more
