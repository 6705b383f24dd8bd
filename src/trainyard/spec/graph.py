"""The bindings within a value, and cycles of jobs that wait for each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainyard.spec.diagnostic import Diagnostic
from trainyard.spec.expressions import Binding, ExpressionError, bindings_in
from trainyard.spec.model import Job
from trainyard.spec.rules.bindings import CYCLE


def job_bound_to(binding: Binding) -> str:
    """The job that `${{parent.jobs.NAME.…}}` names, or an empty text."""
    path = binding.path
    return path[2] if path[:2] == ("parent", "jobs") and len(path) > 2 else ""


def bindings_of_value(data: Any) -> Iterator[Binding]:
    """All bindings in a value, however nested. Malformed ones, which loading reports, are skipped."""
    if isinstance(data, str):
        try:
            yield from bindings_in(data)
        except ExpressionError:
            return
    elif isinstance(data, dict):
        for member in data.values():
            yield from bindings_of_value(member)
    elif isinstance(data, list):
        for member in data:
            yield from bindings_of_value(member)


def find_cycle(waits_for: Mapping[str, frozenset[str]]) -> list[str] | None:
    """Jobs that wait for each other, in order and with the first again at the end; None when there are none."""
    finished: set[str] = set()
    for start in waits_for:
        path: list[str] = []
        stack: list[Iterator[str]] = [iter([start])]
        while stack:
            name = next(stack[-1], None)
            if name is None:
                stack.pop()
                if path:
                    finished.add(path.pop())
            elif name in path:
                return [*path[path.index(name) :], name]
            elif name not in finished:
                path.append(name)
                stack.append(iter(sorted(waits_for[name])))
    return None


def cycle_diagnostic(cycle: list[str], first: Job) -> Diagnostic:
    """The diagnostic of a cycle, at the job it begins with."""
    return CYCLE.at(first.key_span, cycle_message(cycle), hint=CYCLE_HINT)


CYCLE_HINT = "Bind one of them to something else."


def cycle_message(cycle: list[str]) -> str:
    """The whole cycle in words."""
    if len(cycle) == 2:
        return f"the job '{cycle[0]}' waits for itself"
    return f"the jobs wait for each other: {' → '.join(cycle)}"
