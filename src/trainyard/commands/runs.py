"""`trainyard runs`: list, show, clean up past runs, and print their logs."""

from __future__ import annotations

import json

import click

from trainyard.commands import working_folder
from trainyard.foundation.quantities import counted, duration, moment
from trainyard.foundation.run_record import as_document
from trainyard.local.run_store import clean as remove_runs
from trainyard.local.run_store import find_run, list_runs, log_files, runs_to_clean
from trainyard.report.run_summary import summarise
from trainyard.terminal import print_facts, program, short, table


def print_runs(*, as_json: bool) -> None:
    """Print all runs, newest first."""
    folder = working_folder.runs_folder()
    found = list_runs(folder)
    if as_json:
        click.echo(json.dumps([as_document(record) for record in found], indent=2))
    elif not found:
        click.echo(f"no runs in {short(folder)} yet; start one with `{program()} run FILE`", err=True)
    else:
        rows = [
            (record.name, record.status, moment(record.started_at), duration(record.duration_s)) for record in found
        ]
        click.echo(table(("run", "status", "started", "took"), rows))


def print_run(name: str | None, *, as_json: bool) -> None:
    """Print one run (without a name, the newest): its jobs, its results and where its files are."""
    record = find_run(working_folder.runs_folder(), name)
    if as_json:
        click.echo(json.dumps(as_document(record), indent=2))
        return
    rows = [
        (job, state.status, duration(state.duration_s), f"reused from {state.reused_from}" if state.reused_from else "")
        for job, state in record.jobs.items()
    ]
    click.echo(
        f"{record.name}: {record.status}, started {moment(record.started_at)}, took {duration(record.duration_s)}"
    )
    click.echo(table(("job", "status", "took", ""), rows))
    print_facts(summarise(record))


def print_logs(name: str | None, job: str | None, rank: int | None) -> None:
    """Print the logs of a run (without a name, the newest): of one job or rank, or of all."""
    record = find_run(working_folder.runs_folder(), name)
    for path in log_files(record, job, rank):
        click.echo(click.style(f"==> {short(path)}", bold=True), err=True)
        with path.open(errors="replace") as log:
            for line in log:
                click.echo(line, nl=False)


def clean(keep: int, older_than_days: float | None) -> None:
    """Delete the files of all but the `keep` newest runs, and of these only older ones if an age is given."""
    folder = working_folder.runs_folder()
    removable = runs_to_clean(folder, keep=keep, older_than_days=older_than_days)
    freed_bytes = remove_runs(folder, removable)
    click.echo(f"removed {counted(len(removable), 'run')}, {freed_bytes / 2**20:.0f} MiB", err=True)
