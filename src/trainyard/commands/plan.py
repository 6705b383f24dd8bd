"""`trainyard plan`: a pipeline's plan, with what earlier runs measured, beside the machines of every profile."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trainyard.author.layers import read_layers
from trainyard.author.project import NoProject
from trainyard.catalogue.gpus import gpu_of
from trainyard.catalogue.skus import find_sku
from trainyard.commands.working_folder import project, runs_folder
from trainyard.errors import UsageError, UserError
from trainyard.estimate.estimator import estimate
from trainyard.estimate.training import machines_of_sku
from trainyard.lint.settings import computes_for
from trainyard.plan import reporters
from trainyard.plan.difference import PlanDifference
from trainyard.plan.measured import METRICS_FILE, Measured, read_measured
from trainyard.plan.pipeline_settings import Setting, changes_between, settings_of
from trainyard.plan.planner import JobPlan, Plan
from trainyard.plan.planner import plan as plan_pipeline
from trainyard.plan.reporters import OnProfile
from trainyard.spec.computes import Computes
from trainyard.spec.diagnostic import SpecError
from trainyard.spec.findings import DocumentStore
from trainyard.spec.loading import load_pipeline
from trainyard.terminal import short

_METRICS_PORT = "metrics"


def plan_against(file: Path, output_format: str, ref: str) -> str:
    """Return what to print of how a pipeline differs from its version at a git revision."""
    from trainyard.commands.git_revision import file_at
    from trainyard.plan import difference_reporters

    with file_at(ref, file) as revision:
        after, after_settings = planned_with_settings(file, [revision.top])
        try:
            before, before_settings = planned_with_settings(revision.file, [revision.root])
        except (SpecError, UsageError) as error:
            told = str(error).replace(f"{revision.root}{os.sep}", "").splitlines()[0]
            raise UserError(f"cannot plan {short(file)} as it is at {ref} ({revision.commit}): {told}") from None
    against = ref if ref.startswith(revision.commit) else f"{ref} ({revision.commit})"
    changes = changes_between(before_settings, after_settings)
    difference = PlanDifference(before, after, against, tuple(changes))
    formatters = {
        "text": difference_reporters.as_text,
        "markdown": difference_reporters.as_markdown,
        "json": difference_reporters.as_json,
        "html": difference_reporters.as_html,
    }
    return formatters[output_format](difference)


def planned_with_settings(file: Path, roots: Sequence[Path]) -> tuple[Plan, list[Setting]]:
    """Return a pipeline's plan without what runs measured, and its settings, with paths relative to some folders."""
    store = DocumentStore()
    pipeline = load_pipeline(file, store)
    return plan_pipeline(pipeline, Computes(store, computes_for([file]))), settings_of(pipeline, store, roots)


def plan_as(file: Path, output_format: str, from_run: Path | None) -> str:
    """Return what to print of a pipeline. `from_run` is a metrics.jsonl of the same training on the same machines."""
    store = DocumentStore()
    pipeline = load_pipeline(file, store)
    planned = _with_measured(plan_pipeline(pipeline, Computes(store, computes_for([file]))), file, from_run)
    profiles = _on_profiles(planned)
    if output_format == "html":
        from trainyard.plan import page

        return page.as_html(planned, pipeline, profiles)
    formatters = {"text": reporters.as_text, "json": reporters.as_json, "markdown": reporters.as_markdown}
    return formatters[output_format](planned, profiles)


def _with_measured(planned: Plan, file: Path, from_run: Path | None) -> Plan:
    """Return the plan with the figures of a run: those of `from_run`, else of the newest local run of this file."""
    if from_run is None:
        return replace(planned, jobs=tuple(replace(job, measured=_local_run(job, file)) for job in planned.jobs))
    metrics = from_run / METRICS_FILE if from_run.is_dir() else from_run
    if not metrics.is_file():
        raise UsageError(f"--from-run {from_run}: no such file; expected a {METRICS_FILE}")
    trainings = [job.name for job in planned.jobs if job.is_training]
    if len(trainings) != 1:
        raise UsageError(f"--from-run needs a pipeline with one training; this one has {len(trainings)}")
    measured = read_measured(metrics, str(from_run), processes=None, replaces=True)
    return replace(
        planned,
        jobs=tuple(replace(job, measured=measured) if job.name in trainings else job for job in planned.jobs),
    )


def _local_run(job: JobPlan, file: Path) -> Measured | None:
    """Return what the newest completed local run of this job measured; None without one, and for other jobs.

    It ran on this machine, so it stands beside the estimate and does not replace it; its number of steps is taken.
    """
    if not job.is_training or not runs_folder().is_dir():
        return None
    from trainyard.local.run_store import list_runs

    for record in list_runs(runs_folder()):
        done = record.jobs.get(job.name)
        output = done.outputs.get(_METRICS_PORT) if done else None
        if done is None or output is None or done.status != "completed" or not _is_of(record.pipeline_file, file):
            continue
        metrics = record.folder / output / METRICS_FILE
        if metrics.is_file():
            return read_measured(metrics, record.name, processes=done.processes, replaces=False)
    return None


def _is_of(pipeline_file: str, file: Path) -> bool:
    """Return whether a run was of this pipeline, also as rendered for another profile."""
    return Path(pipeline_file).name == file.name


def _on_profiles(planned: Plan) -> list[OnProfile]:
    """Return the plan's training on the machines of each profile with GPUs, with the same work on each GPU.

    Nodes and precision are the profile's; the model and its settings are the plan's.
    """
    training = next((job for job in planned.jobs if job.estimate is not None), None)
    if training is None or training.estimate is None:
        return []
    try:
        here = project()
    except NoProject:
        return []
    found = []
    documents = DocumentStore()
    for file in sorted(here.profiles.glob("*.yaml")):
        profile = read_layers(here, file.stem, {}, documents.read).data
        if "sku" not in profile or gpu_of(find_sku(profile["sku"])) is None:
            continue
        machines = machines_of_sku(find_sku(profile["sku"]), profile["nodes"])
        changed = replace(training.estimate.training, machines=machines, precision=profile["precision"])
        found.append(OnProfile(file.stem, training.name, estimate(changed)))
    return found
