"""`trainyard submit`: lint, plan, refuse what cannot work, ask the workspace what it has, upload, follow the logs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

import click

from trainyard.azure.submission import Submission, bodies_of
from trainyard.azure.workspace import azure_ml, find_workspace
from trainyard.azure.workspace_checks import UnknownWorkspace
from trainyard.cli.parameters import chosen_file, file_argument
from trainyard.cli.sizes_in_workspace import Where, sizes_in_workspace
from trainyard.cli.working_folder import keep_runs_out_of_snapshots, list_snapshots
from trainyard.errors import UsageError, UserError
from trainyard.lint.config import computes_for
from trainyard.plan import reporters
from trainyard.plan.job_plans import Plan
from trainyard.plan.planner import plan
from trainyard.printing import plain_text
from trainyard.project_findings import findings_before_a_submission
from trainyard.rehearse.local_data import local_path
from trainyard.spec.computes import Computes
from trainyard.spec.diagnostic import Diagnostic, Span, SpecError
from trainyard.spec.findings import DocumentStore
from trainyard.spec.loading import load_job, require_job
from trainyard.spec.model import Job, Pipeline, code_of
from trainyard.spec.resolution import JobUse, Resolution
from trainyard.spec.resolved import DataPath, Known
from trainyard.spec.secrets import SECRET_RULE, redacted_data
from trainyard.spec.set_arguments import COMMAND_LINE, split_settings
from trainyard.spec.set_inputs import as_client_overrides, values_set
from trainyard.spec.set_keys import keys_of_file, set_in_file
from trainyard.spec.uploads import SECRETS, doubtful_uploads, ignore_file
from trainyard.terminal import print_diagnostics, print_facts, print_next, short


@click.command()
@file_argument
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="inputs.X=V",
    help="Or any other key of the file; for this submission only.",
)
@click.option("--dry-run", is_flag=True, help="Check the same, and print what would be sent, as JSON.")
@click.option("--force", is_flag=True, help="Submit what does not fit, uploads secrets, or is not there.")
@click.option("--stream", is_flag=True, help="Follow the logs until the job has ended; exit 1 if it fails.")
@click.option("--name", help="The job's name, which the workspace must not have yet; generated otherwise.")
@click.option("--subscription", metavar="ID", help="Else AZURE_SUBSCRIPTION_ID, else that of `az account set`.")
@click.option("-g", "--resource-group", metavar="NAME", help="Else AZURE_DEFAULTS_GROUP, else that of `az configure`.")
@click.option(
    "-w", "--workspace", "--workspace-name", metavar="NAME", help="Else AZURE_DEFAULTS_WORKSPACE, else `az configure`."
)
def submit(
    file: str | None,
    file_option: str | None,
    settings: tuple[str, ...],
    dry_run: bool,
    force: bool,
    stream: bool,
    name: str | None,
    subscription: str | None,
    resource_group: str | None,
    workspace: str | None,
) -> None:
    """Check FILE, show its plan, ask the workspace for what it needs, and submit it with Azure ML's own client.

    A job that by the plan does not fit, secrets in YAML or code, clusters that cannot run it, too little quota, and
    environments, data, models and components that are not there are refused without --force. Errors of lint always are.
    --dry-run refuses the same, of the workspace as far as there is a login.

    You are signed in as for `az`: with `az login`, or with the environment variables of a service principal.

    \b
    Examples:
      trainyard submit pipelines/ddp.yaml
      trainyard submit pipelines/ddp.yaml --dry-run > body.json
      trainyard submit pipelines/ddp.yaml --set inputs.epochs=3
      trainyard submit -f pipelines/ddp.yaml -g my-group -w my-workspace --stream
    """
    given = split_settings(settings, "inputs.epochs=3")
    chosen = chosen_file(file, file_option)
    where = subscription, resource_group, workspace
    if dry_run:
        checked = _check(chosen, given, where)
        _refuse([*checked.problems, *_workspace_problems_if_reachable(chosen, where, checked)], force=force)
        click.echo(json.dumps(redacted_data(bodies_of(chosen, checked.values)), indent=2))
        return
    azure_ml()
    target = find_workspace(*where)
    checked = _check(chosen, given, where)
    if checked.pipeline is not None:
        keep_runs_out_of_snapshots(checked.pipeline)
    submission = Submission(chosen, target, name, checked.values)
    _refuse([*checked.problems, *submission.problems(checked.resolution, checked.sizes)], force=force)
    click.echo(f"uploading to {target}", err=True)
    submitted = submission.send()
    click.echo(click.style(f"{submitted.name}: submitted to {target}", bold=True))
    print_facts([("studio", submitted.studio_url)])
    job = f"--name {submitted.name} {target.az_arguments}"
    print_next((f"az ml job stream {job}", "follow the logs"), (f"az ml job cancel {job}", "end it"))
    if stream:
        submission.stream()


@dataclass(frozen=True)
class _Checked:
    """A job file without errors, and why it should not be submitted as it is.

    `pipeline` is None for kinds of jobs that have no plan, and `resolution` has its values. `values` replace those of
    the file, by key; `sizes` are the VM sizes that the plan takes clusters to have.
    """

    problems: Sequence[Diagnostic]
    pipeline: Pipeline | None = None
    resolution: Resolution | None = None
    values: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, str] = field(default_factory=dict)


def _check(file: Path, given: Mapping[str, str], where: Where) -> _Checked:
    """Lint a job file, and plan it if it is a pipeline or a command job; print warnings, plan and snapshots on stderr.

    Raise SpecError for errors that lint finds, UsageError for keys that name nothing, UserError without the client.
    """
    store = DocumentStore()
    kind = require_job(file, store, on_azure=True)
    azure_ml()
    set_in_file(file, given, store)
    found = findings_before_a_submission(file, store)
    if errors := [each for each in found if each.severity == "error" or each.span.file == COMMAND_LINE]:
        raise SpecError(errors)
    secrets = [each for each in found if each.rule == SECRET_RULE]
    print_diagnostics([each for each in found if each not in secrets])
    if kind not in ("pipeline", "command_job"):
        of_file = keys_of_file(file, given, store)
        if others := [key for key in given if key not in of_file]:
            raise UsageError(f"--set {others[0]}: submit sets the inputs of pipelines and command jobs only")
        return _Checked(secrets, values=of_file)
    pipeline = load_job(file, store, on_azure=True)
    values = values_set(pipeline, given, store)
    computes = Computes(store, computes_for([file]), sizes_in_workspace(where))
    planned = plan(pipeline, computes, values_set=values)
    click.echo(reporters.as_text(planned), err=True)
    list_snapshots(pipeline)
    resolution = Resolution(pipeline, values, store=store)
    problems = [*secrets, *_not_fitting(resolution, planned), *_secret_files(resolution)]
    sizes = {job.compute: job.sku.name for job in planned.jobs if job.compute and job.sku is not None}
    given_to_client = {**keys_of_file(file, given, store), **as_client_overrides(pipeline, values)}
    return _Checked(problems, pipeline, resolution, given_to_client, sizes)


def _workspace_problems_if_reachable(file: Path, where: Where, checked: _Checked) -> list[Diagnostic]:
    """Return what the workspace lacks; without a workspace, a login or a network, say that it was not asked."""
    try:
        submission = Submission(file, find_workspace(*where), values=checked.values)
        return submission.problems(checked.resolution, checked.sizes)
    except UnknownWorkspace:
        raise
    except UserError as error:
        reason = str(error).partition("\n")[0]
        click.echo(f"note: the workspace was not asked for clusters, quota and assets: {reason}", err=True)
        return []


def _not_fitting(resolution: Resolution, planned: Plan) -> Iterator[Diagnostic]:
    """Yield each job that needs more memory than its machines have, at its name."""
    for job in planned.jobs:
        if job.estimate is not None and not job.estimate.fits:
            hint = "`trainyard plan` shows settings that fit."
            span = resolution.jobs[job.name].job.key_span
            yield Diagnostic(span, "plan", f"{job.name} {job.estimate.memory_finding}", hint=hint)


def _secret_files(resolution: Resolution) -> Iterator[Diagnostic]:
    """Yield each file of a secret's shape that would be uploaded, at the first place that names it or its folder."""
    first_uses: dict[Path, tuple[Job, Span]] = {}
    for use in resolution.leaves.values():
        for path, span in _uploaded(use, resolution.store):
            first_uses.setdefault(path.resolve(), (use.job, span))
    for path, (job, span) in first_uses.items():
        rules, folder = ignore_file(path), path if path.is_dir() else path.parent
        hint = f"Leave it out in `{rules.name if rules is not None else '.amlignore'}` in that folder."
        for place in (upload.place for upload in doubtful_uploads(path) if upload.reason == SECRETS):
            message = plain_text(f"job '{job.name}' would upload {short(folder / place)} ({SECRETS})")
            yield Diagnostic(span, "upload", message, hint=hint if folder == path else "This names the file itself.")


def _uploaded(use: JobUse, store: DocumentStore) -> Iterator[tuple[Path, Span]]:
    """Yield what is uploaded with a job, and where it is named: in the job or in its component's file."""
    if (component := code_of(use.job.component)) is not None:
        node = use.job.node if use.job.has_own_command else store.peek(component.file).root
        named = [node.get("code"), node.get("environment"), *node.items_of("additional_includes")]
        context = component.environment.build_path if component.environment is not None else None
        for path, written in zip_longest((component.code, context, *component.additional_includes), named):
            if path is not None:
                yield path, use.job.key_span if written is None else written.span
    for given in use.inputs.values():
        if isinstance(given, Known) and isinstance(given.value, DataPath):
            yield local_path(given.value, given).path, given.written.span


def _refuse(problems: Sequence[Diagnostic], *, force: bool) -> None:
    """Print notes, and why a job should not be submitted; raise UserError then, unless that was asked for."""
    print_diagnostics([each for each in problems if each.severity == "info"])
    reasons = [each for each in problems if each.severity != "info"]
    print_diagnostics([each._replace(severity="warning" if force else "error") for each in reasons])
    if reasons and not force:
        raise UserError("nothing was submitted; --force submits it as it is")
