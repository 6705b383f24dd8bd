"""The environments that are written in a file: those of jobs and components in place, and a file that is one."""

from __future__ import annotations

from collections.abc import Iterator

from trainyard.lint.checks import LintedFile
from trainyard.spec.documents import Node


def environments_in(file: LintedFile) -> Iterator[Node]:
    """The keys of each environment that a file defines in place."""
    root = file.document.root
    if file.kind == "environment":
        yield root
    jobs = (entry.value for entry in root.entries_of("jobs").values() if entry.value.is_mapping)
    for holder in (root, *jobs):
        for inner in (holder, holder.get("task"), holder.get("trial"), holder.get("component")):
            environment = inner.get("environment") if inner is not None and inner.is_mapping else None
            if environment is not None and environment.is_mapping:
                yield environment
