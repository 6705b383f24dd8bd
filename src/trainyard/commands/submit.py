"""`trainyard submit`: lint, show the plan, ask the workspace what it has, upload, submit, and follow the logs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import click

from trainyard.azure.submission import Submission, bodies_of
from trainyard.azure.workspace import Workspace
from trainyard.commands.lint import errors_before_a_submission
from trainyard.commands.snapshots import keep_runs_out_of_snapshots, list_doubtful_uploads
from trainyard.errors import UsageError
from trainyard.lint.config import computes_for
from trainyard.plan import reporters
from trainyard.plan.planner import plan
from trainyard.spec.computes import Computes
from trainyard.spec.diagnostic import SpecError
from trainyard.spec.findings import DocumentStore
from trainyard.spec.loading import load_job, require_job
from trainyard.spec.model import Pipeline
from trainyard.spec.secrets import redacted_data
from trainyard.spec.set_inputs import as_client_overrides, values_set
from trainyard.terminal import print_facts, print_next


def print_bodies(file: Path, given: Mapping[str, str]) -> None:
    """Print as JSON what a submission with these values of `--set` would send.

    Raise SpecError for errors that lint finds, and UsageError for keys that name nothing.
    """
    checked = _checked(file, given)
    click.echo(json.dumps(redacted_data(bodies_of(file, checked.values)), indent=2))


def submit(file: Path, workspace: Workspace, given: Mapping[str, str], *, name: str | None, stream: bool) -> None:
    """Submit a job file, print where to find the job, and follow its logs if asked.

    Raise SpecError and UserError for everything that prevents it: nothing is submitted then.
    """
    checked = _checked(file, given)
    if checked.pipeline is not None:
        keep_runs_out_of_snapshots(checked.pipeline)
    submission = Submission(file, workspace, name, checked.values)
    submission.check(checked.pipeline)
    click.echo(f"uploading to {workspace}", err=True)
    submitted = submission.send()
    click.echo(click.style(f"{submitted.name}: submitted to {workspace}", bold=True))
    print_facts([("studio", submitted.studio_url)])
    job = f"--name {submitted.name} {workspace.az_arguments}"
    print_next((f"az ml job stream {job}", "follow the logs"), (f"az ml job cancel {job}", "end it"))
    if stream:
        submission.stream()


class _Checked(NamedTuple):
    """A job file without errors: what it is as a pipeline, if it can be, and what replaces its values, by key."""

    pipeline: Pipeline | None
    values: Mapping[str, str]


def _checked(file: Path, given: Mapping[str, str]) -> _Checked:
    """Check a job's file, and print the plan of a pipeline or command job on stderr; other jobs have no plan.

    Raise SpecError for errors that lint finds.
    """
    store = DocumentStore()
    kind = require_job(file, store, on_azure=True)
    if errors := errors_before_a_submission(file, store):
        raise SpecError(errors)
    if kind not in ("pipeline", "command_job"):
        if given:
            raise UsageError("--set: submit sets the inputs of pipelines and command jobs only")
        return _Checked(None, {})
    pipeline = load_job(file, store, on_azure=True)
    values = values_set(pipeline, given, store)
    planned = plan(pipeline, Computes(store, computes_for([file])), values_set=values)
    click.echo(reporters.as_text(planned), err=True)
    list_doubtful_uploads(pipeline)
    return _Checked(pipeline, as_client_overrides(pipeline, values))
