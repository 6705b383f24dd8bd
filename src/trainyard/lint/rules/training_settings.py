"""Settings of Trainyard's own training steps that the job itself would refuse."""

from __future__ import annotations

from collections.abc import Iterator

from trainyard.lint.checks import check
from trainyard.lint.context import LintContext
from trainyard.lint.placements import Placement
from trainyard.spec.diagnostic import Diagnostic
from trainyard.spec.training_settings import refused_settings


@check("placement")
def training_settings(placement: Placement, context: LintContext) -> Iterator[Diagnostic]:
    """What the step of a job would refuse."""
    yield from refused_settings(placement.use)
