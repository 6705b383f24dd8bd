"""`trainyard plan`: a pipeline's plan, with what earlier runs measured, beside the machines of every profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import median_high

import click

from trainyard.catalogue.gpus import gpu_of
from trainyard.catalogue.skus import find_sku
from trainyard.cli.parameters import Amount, AtLeast, OneOf, PathOf, chosen_file, file_argument
from trainyard.cli.rendered_aside import rendered_aside
from trainyard.cli.sizes_in_workspace import sizes_in_workspace
from trainyard.cli.working_folder import keep_out_of_git, private_folder, project, runs_folder
from trainyard.errors import UsageError, UserError
from trainyard.lint.config import computes_for
from trainyard.plan import corrections, reporters
from trainyard.plan.estimate.config_file import find_model
from trainyard.plan.estimate.estimator import estimate
from trainyard.plan.estimate.training import machines_of_sku
from trainyard.plan.job_plans import METRICS_FILE, JobPlan, Measured, Plan
from trainyard.plan.planner import plan as plan_pipeline
from trainyard.plan.reporters import OnProfile
from trainyard.plan.training_jobs import Stated
from trainyard.project_files import limit_reading, root_of
from trainyard.render.layers import read_layers
from trainyard.render.project import NoProject
from trainyard.spec.computes import Computes
from trainyard.spec.findings import DocumentStore
from trainyard.spec.loading import load_job
from trainyard.terminal import print_notes

_FORMATTERS = {"text": reporters.as_text, "json": reporters.as_json, "markdown": reporters.as_markdown}
_METRICS_PORT = "metrics"


@click.command()
@file_argument
@click.option("--format", "output_format", type=OneOf((*_FORMATTERS, "html")), default="text", show_default=True)
@click.option("--from-run", metavar="PATH", help="A metrics.jsonl of this training on these machines, or its folder.")
@click.option("--against", metavar="REF", help="A branch, a commit or HEAD~1 of git: show only what changes since.")
@click.option("--profile", metavar="NAME", help="Plan it as rendered for this profile; FILE itself stays as it is.")
@click.option("--sku", metavar="NAME", help="The Azure size of clusters that no file here describes.")
@click.option(
    "--max-usd",
    type=AtLeast(0.0),
    help="For CI: exit with 1 if all trainings cost more on demand, or if it is not known.",
)
@click.option("--must-fit", is_flag=True, help="For CI: exit with 1 if a training does not fit, or if it is not known.")
@click.option("--base-model", metavar="NAME|PATH", help="What a base model that Azure ML keeps is: llama-3.2-1b.")
@click.option("--tokens", type=Amount(), help="Tokens of the training data, such as 300B, for its number of steps.")
@click.option("--images", type=Amount(), help="The same for images, such as 1.28M.")
@click.option("--root", type=PathOf("folder"), help="Read nothing outside of it.  [default: the repository]")
def plan(
    file: str | None,
    file_option: str | None,
    output_format: str,
    from_run: str | None,
    against: str | None,
    profile: str | None,
    sku: str | None,
    max_usd: float | None,
    must_fit: bool,
    base_model: str | None,
    tokens: float | None,
    images: float | None,
    root: Path | None,
) -> None:
    """Show what a pipeline takes: machines and batches, memory and time of its training, what it costs.

    A training's figures are estimated from published formulas (docs/plan.md). What a local run of the same pipeline
    measured is shown beside them; --from-run gives the metrics.jsonl of one on the same machines, which replaces them.
    --against compares with the same file at a git revision: batch, GPUs, memory, time and price, and every setting that
    Azure ML reads differently; not comments, order or spelling. Without FILE: every pipeline here that changed.

    \b
    Examples:
      trainyard plan pipelines/fsdp.yaml
      trainyard plan -f pipelines/fsdp.yaml --format markdown >> "$GITHUB_STEP_SUMMARY"
      trainyard plan pipelines/fsdp.yaml --format html > plan.html
      trainyard plan pipelines/fsdp.yaml --from-run metrics.jsonl
      trainyard plan pipelines/fsdp.yaml --profile nd96
      trainyard plan job.yml --sku Standard_NC24ads_A100_v4
      trainyard plan pipelines/finetune.yaml --base-model llama-3.2-1b
      trainyard plan pipelines/fsdp.yaml --against main
      trainyard plan pipelines/fsdp.yaml --must-fit --max-usd 500 --tokens 1B
      trainyard plan --against HEAD~1 --format markdown > comment.md
    """
    if against is not None:
        given = {"profile": profile, "sku": sku, "base-model": base_model, "tokens": tokens, "images": images}
        if unsuited := [f"--{flag}" for flag, value in {**given, "from-run": from_run}.items() if value is not None]:
            raise click.UsageError(f"--against and {' and '.join(unsuited)} cannot be combined; files are as they are")
        from trainyard.cli.plan_difference import plan_against, plan_all_against  # a tenth of the time of a plan

        if file is not None or file_option is not None:
            compared = plan_against(chosen_file(file, file_option), output_format, against)
        else:
            compared = plan_all_against(output_format, against)
        print_notes(f"note: not compared: {reason}" for reason in compared.left_out)
        click.echo(compared.text)
        beyond = (each.beyond(max_usd, must_fit=must_fit) for each in compared.plans)
        _fail_for([*compared.broken, *chain.from_iterable(beyond)])
        return
    chosen, store = chosen_file(file, file_option, profile), DocumentStore()
    stated = Stated(find_model(base_model) if base_model is not None else None, tokens, images)
    path = chosen if profile is None else rendered_aside(chosen, profile, {})
    limit_reading(root or root_of([path]))
    pipeline = load_job(path, store, strict=True, on_azure=True)
    size = find_sku(sku).name if sku is not None else None
    computes = Computes(store, computes_for([chosen]), sizes_in_workspace() if size is None else lambda _: size)
    planned = _with_measured(plan_pipeline(pipeline, computes, stated), chosen, Path(from_run) if from_run else None)
    profiles = _on_profiles(planned)
    if output_format == "html":
        from trainyard.report.plan_page import as_html

        click.echo(as_html(planned, pipeline, profiles))
    else:
        click.echo(_FORMATTERS[output_format](planned, profiles))
    _fail_for(planned.beyond(max_usd, must_fit=must_fit))


def _fail_for(problems: Sequence[str]) -> None:
    if problems:
        raise UserError("\n".join(problems))


def _with_measured(planned: Plan, file: Path, from_run: Path | None) -> Plan:
    """Return the plan with the figures of a run: those of `from_run`, else of the newest local run of this file.

    Those of `from_run` are kept, and correct later plans of trainings alike.
    """
    if from_run is None:
        runs = corrections.kept_runs(private_folder())
        found = {job.name: corrections.corrected(job.estimate, runs) for job in planned.jobs if job.estimate}
        jobs = (replace(job, estimate=found.get(job.name), measured=_local_run(job, file)) for job in planned.jobs)
        return replace(planned, jobs=tuple(jobs))
    metrics = from_run / METRICS_FILE if from_run.is_dir() else from_run
    if not metrics.is_file():
        raise UsageError(f"--from-run {from_run}: no such file; expected a {METRICS_FILE}")
    trainings = [job for job in planned.jobs if job.is_training]
    if len(trainings) != 1:
        raise UsageError(f"--from-run needs a pipeline with one training; this one has {len(trainings)}")
    (training,) = trainings
    measured = read_measured(metrics, str(from_run), processes=None, replaces=True)
    if training.estimate and training.estimate.time and measured.step_seconds:
        ratio = measured.step_seconds / training.estimate.time.total
        alike = corrections.keep(keep_out_of_git(), str(metrics.resolve()), training.estimate, ratio)
        click.echo(f"note: kept for this project: later plans of {alike} are corrected by it", err=True)
    jobs = (replace(job, measured=measured) if job is training else job for job in planned.jobs)
    return replace(planned, jobs=tuple(jobs))


def read_measured(file: Path, source: str, *, processes: int | None, replaces: bool) -> Measured:
    """Return what a metrics.jsonl says. UsageError for a file with lines that are not of one, and without a step."""
    from trainyard.report.job_results import read_metrics

    found, broken = read_metrics([file])
    if broken or not found.series:
        line, none = (broken or [1])[0], "" if found.series else "; there are no steps in it"
        raise UsageError(f"{file}:{line}: not a line of metrics.jsonl: expected an object with a step{none}")
    series = {name: [value for _, value in points] for name, points in found.series.items()}
    middle = {name: median_high(values) for name, values in series.items()}
    return Measured(
        source=source,
        steps=int(max(series["step"])),
        step_seconds=series.get("run_step_seconds_p50", [0.0])[-1] or middle.get("step_seconds_p50"),
        tokens_per_second=middle.get("tokens_per_second"),
        peak_memory_bytes=series.get("peak_memory_bytes", [None])[-1],
        processes=processes,
        replaces=replaces,
    )


def _local_run(job: JobPlan, file: Path) -> Measured | None:
    """Return what the newest completed local run of this job measured; None without one, and for other jobs.

    It ran on this machine, so it is shown beside the estimate and does not replace it; its number of steps is taken.
    """
    if not job.is_training or not runs_folder().is_dir():
        return None
    from trainyard.rehearse.run_store import list_runs

    for record in list_runs(runs_folder()):
        done = record.jobs.get(job.name)
        output = done.output_folders(record.folder).get(_METRICS_PORT) if done else None
        # By its name it is also the pipeline as rendered for another profile.
        is_of_file = Path(record.pipeline_file).name == file.name
        if done is None or output is None or done.status != "completed" or not is_of_file:
            continue
        metrics = output / METRICS_FILE
        if metrics.is_file():
            return read_measured(metrics, record.name, processes=done.processes, replaces=False)
    return None


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
    documents, runs = DocumentStore(), corrections.kept_runs(private_folder())
    for file in sorted(here.profiles.glob("*.yaml")):
        profile = read_layers(here, file.stem, {}, documents.read).data
        if "sku" not in profile or gpu_of(find_sku(profile["sku"])) is None:
            continue
        machines = machines_of_sku(find_sku(profile["sku"]), profile["nodes"])
        changed = replace(training.estimate.training, machines=machines, precision=profile["precision"])
        found.append(OnProfile(file.stem, training.name, corrections.corrected(estimate(changed), runs)))
    return found
