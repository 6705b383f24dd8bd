"""`trainyard plan --against`: what a change of a pipeline means, compared with a git revision."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from trainyard.cli.git_revision import Revision, revision_of
from trainyard.errors import UsageError, UserError
from trainyard.lint.config import computes_for
from trainyard.plan import difference_reporters
from trainyard.plan.difference import PlanDifference
from trainyard.plan.job_plans import Plan
from trainyard.plan.pipeline_settings import Setting, changes_between, settings_of
from trainyard.plan.planner import plan as plan_pipeline
from trainyard.plan.planner import without_jobs
from trainyard.project_files import limit_reading
from trainyard.spec.computes import Computes
from trainyard.spec.diagnostic import SpecError
from trainyard.spec.file_kinds import kind_of
from trainyard.spec.findings import DocumentStore
from trainyard.spec.loading import load_job
from trainyard.terminal import short


def plan_against(file: Path, output_format: str, ref: str) -> str:
    """Return what to print of how a pipeline differs from its version at a git revision."""
    with revision_of(file.resolve().parent, ref) as revision:
        if not revision.place_of(file).is_file():
            raise UsageError(
                f"{short(file)} does not exist at {revision}; a pipeline that is new has nothing to compare with: "
                "run `trainyard plan` without --against"
            )
        limit_reading(revision.top, revision.root)
        difference = _difference(file, revision)
    return difference_reporters.FORMATTERS[output_format](difference)


def plan_all_against(output_format: str, ref: str) -> tuple[str, list[str]]:
    """Return how the pipelines of the working directory's repository differ from a git revision, if they do.

    A pipeline that is new, or is there no more, is compared with one without jobs. The second value has a line for each
    pipeline that could not be planned at the revision either, and so is left out. UserError, after all others, for
    those that could, and now cannot.
    """
    found: list[PlanDifference] = []
    left_out: list[str] = []
    broken: list[str] = []
    with revision_of(Path.cwd(), ref) as revision:
        limit_reading(revision.top, revision.root)
        for file in (revision.top / name for name in revision.yaml_files()):
            if file.is_relative_to(Path.cwd()) and (_is_pipeline(file) or _is_pipeline(revision.place_of(file))):
                try:
                    found.append(_difference(file, revision))
                except (SpecError, UserError) as error:
                    said = str(error).splitlines()[0].replace(f"{Path.cwd()}{os.sep}", "")
                    (broken if _can_be_planned(revision.place_of(file)) else left_out).append(said)
    if broken:
        raise UserError("; ".join(broken))
    changed = [each for each in found if not each.is_empty]
    return difference_reporters.several(changed, str(revision), output_format), left_out


def _can_be_planned(file: Path) -> bool:
    try:
        planned_with_settings(file, [])
    except (SpecError, UserError):
        return False
    return True


def _difference(file: Path, revision: Revision) -> PlanDifference:
    """Return how a pipeline differs from its version at a revision. UserError where that cannot be planned."""
    after, after_settings = planned_with_settings(file, [revision.top])
    place = revision.place_of(file)
    try:
        before, before_settings = planned_with_settings(place, [revision.root])
    except (SpecError, UsageError) as error:
        told = str(error).replace(f"{revision.root}{os.sep}", "").splitlines()[0]
        raise UserError(f"cannot plan {short(file)} as it is at {revision}: {told}") from None
    return PlanDifference(before, after, str(revision), tuple(changes_between(before_settings, after_settings)))


def _is_pipeline(file: Path) -> bool:
    try:
        return file.is_file() and kind_of(DocumentStore().read_mapping(file)) == "pipeline"
    except SpecError:
        return False


def planned_with_settings(file: Path, roots: Sequence[Path]) -> tuple[Plan, list[Setting]]:
    """Return a pipeline's plan without what runs measured, and its settings, with paths relative to some folders.

    A file that does not exist has no jobs.
    """
    if not file.is_file():
        return without_jobs(file), []
    store = DocumentStore()
    pipeline = load_job(file, store, strict=True, on_azure=True)
    return plan_pipeline(pipeline, Computes(store, computes_for([file]))), settings_of(pipeline, store, roots)
