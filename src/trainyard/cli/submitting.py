"""The verb that sends a job to Azure ML: submit."""

from __future__ import annotations

import click

from trainyard.cli.parameters import chosen_file, file_argument


@click.command(short_help="Check a job and send it to Azure ML.")
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
    from trainyard.azure.workspace import find_workspace
    from trainyard.commands import submit as submitting
    from trainyard.spec.set_arguments import split_settings

    given = split_settings(settings, "inputs.epochs=3")
    chosen = chosen_file(file, file_option)
    if dry_run:
        submitting.print_bodies(chosen, given)
    else:
        target = find_workspace(subscription, resource_group, workspace)
        submitting.submit(chosen, target, given, name=name, stream=stream)
