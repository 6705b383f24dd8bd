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
from trainyard.commands.git_revision import Revision, revision_of
from trainyard.commands.working_folder import project, runs_folder
from trainyard.errors import UsageError, UserError
from trainyard.estimate.estimator import estimate
from trainyard.estimate.training import machines_of_sku
from trainyard.lint.settings import computes_for
from trainyard.plan import difference_reporters, reporters
from trainyard.plan.difference import PlanDifference
from trainyard.plan.measured import METRICS_FILE, Measured, read_measured
from trainyard.plan.pipeline_settings import Setting, changes_between, settings_of
from trainyard.plan.planner import JobPlan, Plan, without_jobs
from trainyard.plan.planner import plan as plan_pipeline
from trainyard.plan.reporters import OnProfile
from trainyard.spec.computes import Computes
from trainyard.spec.diagnostic import SpecError
from trainyard.spec.findings import DocumentStore
from trainyard.spec.kinds import kind_of
from trainyard.spec.loading import load_pipeline
from trainyard.terminal import short

_METRICS_PORT = "metrics"


def plan_against(file: Path, output_format: str, ref: str) -> str:
    """Return what to print of how a pipeline differs from its version at a git revision."""
    with revision_of(file.resolve().parent, ref) as revision:
        if not revision.place_of(file).is_file():
            raise UsageError(
                f"{short(file)} does not exist at {revision}; a pipeline that is new has nothing to compare with: "
                "run `trainyard plan` without --against"
            )
        difference = _difference(file, revision)
    return difference_reporters.FORMATTERS[output_format](difference)


def plan_all_against(output_format: str, ref: str) -> str:
    """Return how the pipelines of the working directory's repository differ from a git revision, if they do.

    A pipeline that is new, or is there no more, is compared with one without jobs. UserError, after all others, for
    pipelines that cannot be planned.
    """
    found, broken = [], []
    with revision_of(Path.cwd(), ref) as revision:
        for file in (revision.top / name for name in revision.yaml_files()):
            if file.is_relative_to(Path.cwd()) and (_is_pipeline(file) or _is_pipeline(revision.place_of(file))):
                try:
                    found.append(_difference(file, revision))
                except (SpecError, UserError) as error:
                    broken.append(str(error).splitlines()[0].replace(f"{Path.cwd()}{os.sep}", ""))
    if broken:
        raise UserError("; ".join(broken))
    return difference_reporters.several([each for each in found if not each.is_empty], str(revision), output_format)


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
    pipeline = load_pipeline(file, store, on_azure=True)
    return plan_pipeline(pipeline, Computes(store, computes_for([file]))), settings_of(pipeline, store, roots)


def plan_as(file: Path, output_format: str, from_run: Path | None) -> str:
    """Return what to print of a pipeline. `from_run` is a metrics.jsonl of the same training on the same machines."""
    store = DocumentStore()
    pipeline = load_pipeline(file, store, on_azure=True)
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
