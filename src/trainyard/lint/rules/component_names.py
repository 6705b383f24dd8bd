"""Components that have no name: they can be used by their file, and not be registered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trainyard.lint.checks import LintedFile, check
from trainyard.lint.context import LintContext
from trainyard.spec.diagnostic import Diagnostic
from trainyard.spec.model import Component, PipelineComponent
from trainyard.spec.rules.keys import MISSING_KEY


@check("file")
def _without_a_name(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    """A component that no pipeline uses by its file is there to be registered."""
    root = file.document.root
    if file.kind not in ("component", "pipeline_component") or "name" in root.entries:
        return
    if file.document.file not in context.cached("used files", lambda: _files_of_used_components(context)):
        message = "there is no 'name': a component is registered under one"
        yield MISSING_KEY.at(next(iter(root.entries.values())).key.span, message, "Write `name: …`.")


def _files_of_used_components(context: LintContext) -> frozenset[Path]:
    jobs = (job for pipeline in context.parsed.pipelines for job in pipeline.model.jobs.values())
    named = (job.component for job in jobs if isinstance(job.component, (Component, PipelineComponent)))
    return frozenset(component.file for component in named)
