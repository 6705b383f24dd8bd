"""`trainyard run`: a pipeline is checked, and then run here."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import click

from trainyard.cli import working_folder
from trainyard.cli.parameters import AtLeast, OneOf, PathOf, chosen_file, file_argument
from trainyard.cli.rendered_aside import rendered_aside
from trainyard.lint.processors import aside, keeping_everything, processors
from trainyard.spec.diagnostic import Diagnostic, SpecError
from trainyard.spec.findings import DocumentStore
from trainyard.spec.loading import load_job
from trainyard.spec.set_arguments import COMMAND_LINE, names_input, split_settings
from trainyard.spec.set_keys import set_in_file
from trainyard.terminal import short


@click.command()
@file_argument
@click.option("--profile", metavar="NAME", help="Render this profile aside and run that; FILE itself stays as it is.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="inputs.X=V",
    help="Or jobs.J.inputs.X=V, or any key of the file: resources.instance_count=2; with --profile its keys: nodes=2.",
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
@click.option("--reuse-imports", is_flag=True, help="Reuse a step if nothing that it imports has changed.")
@click.option("--strict", is_flag=True, help="Refuse what Azure ML would accept: dropped keys, ignored inputs.")
@click.option("--python", type=PathOf("file"), help="The Python that jobs run with; this one otherwise.")
@click.option(
    "--environments",
    type=OneOf(("current", "venv", "docker")),
    default="current",
    show_default=True,
    help="venv: build what has a conda or pip file, once, and run its jobs in it. docker: run jobs in containers.",
)
@click.option("--without-gpus", is_flag=True, help="The CPU stands in for GPUs in the jobs' PyTorch, gloo for NCCL.")
@click.option(
    "--preempt", multiple=True, metavar="JOB@WHEN", help="Take the job's machines away: train@step:50, @30s, @random:5."
)
@click.option("--kill", multiple=True, metavar="JOB:rankN@WHEN", help="Kill one process: train:rank1@20s, @step:50.")
@click.option("--run-dir", "run_folder", type=PathOf("folder"), help="Where this run's files go.")
@click.option("--name", help="The run's name; generated otherwise.")
@click.option("--watch", is_flag=True, help="Serve the run's page to browsers on this machine while it runs.")
@click.option("--quiet", is_flag=True, help="Print only how it ended.")
def run(
    file: str | None,
    file_option: str | None,
    profile: str | None,
    settings: tuple[str, ...],
    no_cache: bool,
    python: Path | None,
    watch: bool,
    quiet: bool,
    run_folder: Path | None,
    **others: Any,
) -> None:
    """Run a pipeline or job on this machine, with the processes and variables that Azure ML would give it.

    \b
    Examples:
      trainyard run pipelines/ddp.yaml --profile local
      trainyard run pipelines/ddp.yaml --profile local --set nodes=2
      trainyard run pipelines/ddp.yaml --max-processes 2 --set inputs.epochs=3
      trainyard run pipelines/ddp.yaml --from evaluate --set jobs.evaluate.inputs.minimum_accuracy=0.98
      trainyard run pipelines/ddp.yaml --profile local --environments docker
      trainyard run job.yml --without-gpus
      trainyard run pipelines/ddp.yaml --profile local --watch
      trainyard run pipelines/ddp.yaml --profile local --preempt train_ddp@step:50
    """
    chosen = chosen_file(file, file_option, profile)
    given = split_settings(settings, "inputs.epochs=3")
    overrides = {key: value for key, value in given.items() if profile is None or names_input(key)}
    of_profile = {key: value for key, value in given.items() if key not in overrides}
    path = chosen if profile is None else rendered_aside(chosen, profile, of_profile, run_folder)
    # Checking takes as long as importing what runs jobs, and loading one: each in a process of its own.
    check = partial(_errors_before_a_run, path, overrides)
    checked = aside(check) if processors() > 1 else check
    store = DocumentStore()
    set_in_file(path, overrides, store)
    with keeping_everything():
        from trainyard.cli.run_here import WatchedDisplay, conclude
        from trainyard.rehearse.display import Display
        from trainyard.rehearse.run_options import RunOptions
        from trainyard.rehearse.runner import run_pipeline

        options = RunOptions(
            runs_folder=working_folder.runs_folder(run_folder),
            run_folder=run_folder,
            overrides=overrides,
            use_cache=not no_cache,
            python=(python or Path(sys.executable)).absolute(),
            **others,
        )
        with suppress(SpecError):
            load_job(path, store)  # reads the files, whose mistakes the other process finds with those of all rules
        refused, by_programs, let_pass = checked()
    refused = [*refused, *(each for each in let_pass if each.span.file == COMMAND_LINE)]  # a key that nothing reads
    if refused or (options.strict and (by_programs or let_pass)):
        raise SpecError([*refused, *by_programs, *let_pass] if options.strict else refused)
    pipeline = load_job(path, store, strict=options.strict)
    for each in let_pass:
        place = f"{short(each.span.file)}:{each.span.line}:{each.span.column}"
        click.echo(f"{place}: {each.message} [{each.rule}: Azure ML accepts it, --strict does not]", err=True)
    working_folder.keep_out_of_git(run_folder)
    working_folder.keep_runs_out_of_snapshots(pipeline, run_folder)
    with ExitStack() as opened:
        display = WatchedDisplay(opened, quiet=quiet) if watch else Display(quiet=quiet)
        try:
            record = run_pipeline(pipeline, options, display, suspects=by_programs)
        except SpecError as error:
            from trainyard.project_findings import with_template_lines

            raise SpecError(with_template_lines(error.diagnostics)) from None
    sys.exit(conclude(record.folder, pipeline, chosen, given, profile))


def _errors_before_a_run(file: Path, overrides: Mapping[str, str]) -> tuple[list[Diagnostic], ...]:
    from trainyard.project_findings import errors_before_a_run

    store = DocumentStore()
    set_in_file(file, overrides, store)
    return errors_before_a_run(file, store)
