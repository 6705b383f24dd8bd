"""Verbs that run a pipeline on this machine and look at past runs: run, runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import click

from trainyard.cli.parameters import AtLeast, OneOf, PathOf, VerbGroup, chosen_file, file_argument

_RECORD_FORMATS = ("text", "json")


@click.command(short_help="Run a pipeline on this machine.")
@file_argument
@click.option("--profile", metavar="NAME", help="Render this profile aside and run that; FILE itself stays as it is.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="inputs.X=V",
    help="Or jobs.J.inputs.X=V; with --profile also its keys: nodes=2.",
)
@click.option(
    "--max-processes",
    type=AtLeast(1),
    metavar="N",
    help="At most N processes per job; otherwise one for each processor or GPU of this machine, and at least 4.",
)
@click.option("--only", metavar="JOB", help="Run one job, on the outputs of earlier runs.")
@click.option("--from", "from_job", metavar="JOB", help="Run this job and what depends on it.")
@click.option("--no-cache", is_flag=True, help="Run unchanged steps again.")
@click.option("--strict", is_flag=True, help="Refuse what Azure ML would accept: dropped keys, ignored inputs.")
@click.option("--python", type=PathOf("file"), help="The Python that jobs run with; this one otherwise.")
@click.option(
    "--environments",
    type=OneOf(("current", "venv", "docker")),
    default="current",
    show_default=True,
    help="venv: build what has a conda or pip file, once, and run its jobs in it. docker: run jobs in containers.",
)
@click.option(
    "--preempt", multiple=True, metavar="JOB@WHEN", help="Take the job's machines away: train@step:50, @30s, @random:5."
)
@click.option("--kill", multiple=True, metavar="JOB:rankN@WHEN", help="Kill one process: train:rank1@20s, @step:50.")
@click.option("--run-dir", type=PathOf("folder"), help="Where this run's files go.")
@click.option("--name", help="The run's name; generated otherwise.")
@click.option("--watch", is_flag=True, help="Serve the run's page to browsers on this machine while it runs.")
@click.option("--quiet", is_flag=True, help="Print only how it ended.")
def run(
    file: str | None,
    file_option: str | None,
    profile: str | None,
    settings: tuple[str, ...],
    max_processes: int | None,
    only: str | None,
    from_job: str | None,
    no_cache: bool,
    strict: bool,
    python: Path | None,
    environments: Literal["current", "venv", "docker"],
    preempt: tuple[str, ...],
    kill: tuple[str, ...],
    run_dir: Path | None,
    name: str | None,
    watch: bool,
    quiet: bool,
) -> None:
    """Run a pipeline or job on this machine, with the processes and variables that Azure ML would give it.

    \b
    Examples:
      trainyard run pipelines/ddp.yaml --profile local
      trainyard run pipelines/ddp.yaml --profile local --set nodes=2
      trainyard run pipelines/ddp.yaml --max-processes 2 --set inputs.epochs=3
      trainyard run pipelines/ddp.yaml --from evaluate --set jobs.evaluate.inputs.minimum_accuracy=0.98
      trainyard run pipelines/ddp.yaml --profile local --environments docker
      trainyard run pipelines/ddp.yaml --profile local --watch
      trainyard run pipelines/ddp.yaml --profile local --preempt train_ddp@step:50
    """
    from trainyard.commands import working_folder
    from trainyard.commands.run import run_file
    from trainyard.rehearse.runner import RunOptions
    from trainyard.spec.set_arguments import split_settings

    options = RunOptions(
        runs_folder=working_folder.runs_folder(),
        name=name,
        run_folder=run_dir,
        overrides=split_settings(settings, "inputs.epochs=3"),
        max_processes=max_processes,
        only=only,
        from_job=from_job,
        use_cache=not no_cache,
        strict=strict,
        python=(python or Path(sys.executable)).absolute(),
        environments=environments,
        preempt=preempt,
        kill=kill,
    )
    sys.exit(run_file(chosen_file(file, file_option, profile), options, profile=profile, quiet=quiet, watch=watch))


@click.group(cls=VerbGroup, short_help="Runs: list, show, compare, logs, serve, resume, clean.")
def runs() -> None:
    """List, show, compare, serve, resume and clean up the runs on this machine, and print their logs.

    \b
    Examples:
      trainyard runs list
      trainyard runs logs --job train_ddp --follow
      trainyard runs compare 20261120-213045-ddp 20261120-220112-ddp
      trainyard runs clean --keep 5
    """


@runs.command("list")
@click.option("--format", "output_format", type=OneOf(_RECORD_FORMATS), default="text", show_default=True)
def runs_list(output_format: str) -> None:
    """List all runs, newest first."""
    from trainyard.commands.runs import print_runs

    print_runs(as_json=output_format == "json")


@runs.command("show")
@click.argument("name", required=False)
@click.option("--format", "output_format", type=OneOf(_RECORD_FORMATS), default="text", show_default=True)
def runs_show(name: str | None, output_format: str) -> None:
    """Show one run (without NAME, the newest): its jobs, and where its files are."""
    from trainyard.commands.runs import print_run

    print_run(name, as_json=output_format == "json")


@runs.command("logs")
@click.argument("name", required=False)
@click.option("--job", metavar="JOB", help="Only this job's logs.")
@click.option("--rank", type=AtLeast(0), metavar="N", help="Only this rank's log.")
@click.option("-f", "--follow", is_flag=True, help="Print what is added until the run ends.")
def runs_logs(name: str | None, job: str | None, rank: int | None, follow: bool) -> None:
    """Print the logs of a run (without NAME, the newest)."""
    from trainyard.commands.runs import print_logs

    print_logs(name, job, rank, follow=follow)


@runs.command("compare")
@click.argument("names", nargs=-1, required=True, metavar="A B [C]")
@click.option("--out", type=PathOf("file"), metavar="FILE", help="Where the page goes.")
def runs_compare(names: tuple[str, ...], out: Path | None) -> None:
    """Compare two or three runs: settings that differ, results and times here, curves over each other on a page.

    \b
    Example:
      trainyard runs compare 20261120-213045-ddp 20261120-220112-ddp
    """
    from trainyard.commands.runs import compare_runs

    compare_runs(names, out)


@runs.command("serve")
@click.argument("name", required=False)
@click.option("--port", type=AtLeast(0), default=0, metavar="N", help="The port; any that is free otherwise.")
def runs_serve(name: str | None, port: int) -> None:
    """Show a run (without NAME, the newest) live in a browser on this machine, until Ctrl-C.

    The page is the run's report, and follows states, logs, curves and times. Only this machine reaches it.

    \b
    Examples:
      trainyard runs serve
      trainyard runs serve 20261120-213045-ddp --port 8800
    """
    from trainyard.commands.runs import serve_run

    serve_run(name, port)


@runs.command("resume")
@click.argument("name", required=False)
@click.option("--quiet", is_flag=True, help="Print only how it ended.")
def runs_resume(name: str | None, quiet: bool) -> None:
    """Continue a failed or canceled run (without NAME, the newest).

    Completed jobs are kept, and trainings continue from their checkpoints.
    """
    from trainyard.commands.run import resume

    sys.exit(resume(name, quiet=quiet))


@runs.command("clean")
@click.option("--keep", type=AtLeast(0), default=10, show_default=True, help="How many of the newest stay.")
@click.option("--older-than", type=AtLeast(0.0), metavar="DAYS", help="Of the others, only older ones.")
@click.option("--yes", is_flag=True, help="Delete without asking.")
def runs_clean(keep: int, older_than: float | None, yes: bool) -> None:
    """Show the files of older runs, and delete them if you agree. A run that is still going is never touched."""
    from trainyard.commands.runs import clean

    clean(keep, older_than, yes=yes)
