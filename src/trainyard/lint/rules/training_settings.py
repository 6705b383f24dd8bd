"""Settings of Trainyard's own steps that the job itself would refuse."""

from __future__ import annotations

from collections.abc import Iterator

from trainyard.lint.checks import check
from trainyard.lint.context import LintContext
from trainyard.lint.placements import Placement
from trainyard.spec.diagnostic import Diagnostic
from trainyard.spec.model import Sweep
from trainyard.spec.parsed import ParsedPipeline
from trainyard.spec.training_settings import refused_settings


@check("placement")
def _training_settings(placement: Placement, context: LintContext) -> Iterator[Diagnostic]:
    """What the step of a job would refuse."""
    yield from refused_settings(placement.use, is_complete=not placement.is_component)


@check("pipeline")
def _settings_of_trials(pipeline: ParsedPipeline, context: LintContext) -> Iterator[Diagnostic]:
    """What the step of a sweep's trials would refuse."""
    if context.is_used(pipeline.model):
        return
    for use in context.resolution_of(pipeline.model).jobs.values():
        if isinstance(use.component.task, Sweep):
            yield from refused_settings(use)
