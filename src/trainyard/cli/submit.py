"""`trainyard submit`: lint, show the plan, ask the workspace what it has, upload, submit, and follow the logs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import click

from trainyard.azure.submission import Submission, bodies_of
from trainyard.azure.workspace import find_workspace
from trainyard.cli.parameters import chosen_file, file_argument
from trainyard.cli.working_folder import keep_runs_out_of_snapshots, list_doubtful_uploads
from trainyard.errors import UsageError
from trainyard.lint.config import computes_for
from trainyard.plan import reporters
from trainyard.plan.planner import plan
from trainyard.project_findings import errors_before_a_submission
from trainyard.spec.computes import Computes
from trainyard.spec.diagnostic import SpecError
from trainyard.spec.findings import DocumentStore
from trainyard.spec.loading import load_job, require_job
from trainyard.spec.model import Pipeline
from trainyard.spec.secrets import redacted_data
from trainyard.spec.set_arguments import split_settings
from trainyard.spec.set_inputs import as_client_overrides, values_set
from trainyard.terminal import print_facts, print_next


@click.command()
@file_argument
@click.option(
    "--set", "settings", multiple=True, metavar="inputs.X=V", help="Or jobs.J.inputs.X=V; for this submission only."
)
@click.option("--dry-run", is_flag=True, help="Print what would be sent, as JSON, without a network.")
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
    stream: bool,
    name: str | None,
    subscription: str | None,
    resource_group: str | None,
    workspace: str | None,
) -> None:
    """Check FILE, show its plan, ask the workspace for its clusters, and submit it with Azure ML's own client.

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
    if dry_run:
        _, values = _checked(chosen, given)
        click.echo(json.dumps(redacted_data(bodies_of(chosen, values)), indent=2))
        return
    target = find_workspace(subscription, resource_group, workspace)
    pipeline, values = _checked(chosen, given)
    if pipeline is not None:
        keep_runs_out_of_snapshots(pipeline)
    submission = Submission(chosen, target, name, values)
    submission.check(pipeline)
    click.echo(f"uploading to {target}", err=True)
    submitted = submission.send()
    click.echo(click.style(f"{submitted.name}: submitted to {target}", bold=True))
    print_facts([("studio", submitted.studio_url)])
    job = f"--name {submitted.name} {target.az_arguments}"
    print_next((f"az ml job stream {job}", "follow the logs"), (f"az ml job cancel {job}", "end it"))
    if stream:
        submission.stream()


def _checked(file: Path, given: Mapping[str, str]) -> tuple[Pipeline | None, Mapping[str, str]]:
    """Return a job file without errors as a pipeline, if it can be one, and what replaces its values, by key.

    The plan of a pipeline or command job is printed on stderr; other jobs have no plan. Raise SpecError for errors that
    lint finds, and UsageError for keys that name nothing.
    """
    store = DocumentStore()
    kind = require_job(file, store, on_azure=True)
    if errors := errors_before_a_submission(file, store):
        raise SpecError(errors)
    if kind not in ("pipeline", "command_job"):
        if given:
            raise UsageError("--set: submit sets the inputs of pipelines and command jobs only")
        return None, {}
    pipeline = load_job(file, store, on_azure=True)
    values = values_set(pipeline, given, store)
    planned = plan(pipeline, Computes(store, computes_for([file])), values_set=values)
    click.echo(reporters.as_text(planned), err=True)
    list_doubtful_uploads(pipeline)
    return pipeline, as_client_overrides(pipeline, values)
