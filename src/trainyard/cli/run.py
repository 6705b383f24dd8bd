"""`trainyard run` and `trainyard runs resume`: run a checked pipeline here, then report how it ended."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from trainyard.cli import working_folder
from trainyard.cli.parameters import AtLeast, OneOf, PathOf, chosen_file, file_argument
from trainyard.cli.rendered_aside import rendered_aside
from trainyard.project_findings import errors_before_a_run, with_template_lines
from trainyard.rehearse.cancellation import exit_code_after
from trainyard.rehearse.display import Display
from trainyard.rehearse.run_options import RunOptions
from trainyard.rehearse.run_store import find_run, read_record
from trainyard.rehearse.runner import resume_run, run_pipeline
from trainyard.report.run_report import summarise, write_report
from trainyard.settings.files import describe_os_error
from trainyard.settings.quantities import duration
from trainyard.settings.run_record import RunRecord
from trainyard.spec.diagnostic import Span, SpecError
from trainyard.spec.findings import DocumentStore
from trainyard.spec.loading import load_job
from trainyard.spec.model import OtherComponent, Pipeline
from trainyard.spec.resolved import Known
from trainyard.spec.set_arguments import COMMAND_LINE, names_input, split_settings
from trainyard.spec.set_inputs import resolve_with
from trainyard.spec.set_keys import set_in_file
from trainyard.terminal import print_facts, print_next, program, short


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
@click.option("--reuse-imports", is_flag=True, help="Reuse a step of whose code nothing has changed that it imports.")
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
    options = RunOptions(
        runs_folder=working_folder.runs_folder(run_folder),
        run_folder=run_folder,
        overrides=given if profile is None else {key: value for key, value in given.items() if names_input(key)},
        use_cache=not no_cache,
        python=(python or Path(sys.executable)).absolute(),
        **others,
    )
    of_profile = {key: value for key, value in given.items() if key not in options.overrides}
    path = chosen if profile is None else rendered_aside(chosen, profile, of_profile, run_folder)
    store = DocumentStore()
    set_in_file(path, options.overrides, store)
    refused, by_programs, let_pass = errors_before_a_run(path, store)
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
        display = _WatchedDisplay(opened, quiet=quiet) if watch else Display(quiet=quiet)
        try:
            record = run_pipeline(pipeline, options, display, suspects=by_programs)
        except SpecError as error:
            raise SpecError(with_template_lines(error.diagnostics)) from None
    sys.exit(_conclude(record.folder, pipeline, chosen, given, profile))


class _WatchedDisplay(Display):
    """A display that also serves the run's page, from the run's start until what is `opened` is closed."""

    def __init__(self, opened: ExitStack, *, quiet: bool) -> None:
        super().__init__(quiet=quiet)
        self._opened = opened

    def run_started(self, record: RunRecord) -> None:
        """Show that a run begins, and where to watch it."""
        from trainyard.report.live import LivePage, served  # a server takes 40 ms to import

        super().run_started(record)
        folder = record.folder
        address = self._opened.enter_context(served(LivePage(folder, lambda: read_record(folder))))
        self.note(f"watch it at {address}")


def resume(name: str | None, *, quiet: bool) -> int:
    """Continue a run (without a name, the newest) that failed or was canceled; return the exit code, as `run` does."""
    record = find_run(working_folder.runs_folder(), name)
    file = Path(record.pipeline_file)
    store = DocumentStore()
    set_in_file(file, record.overrides, store)
    pipeline = load_job(file, store, strict=record.strict)
    options = RunOptions(runs_folder=working_folder.runs_folder(record.folder))
    resumed = resume_run(record, pipeline, options, Display(quiet=quiet))
    return _conclude(resumed.folder, pipeline, short(file), record.overrides)


def _conclude(
    run_folder: Path, pipeline: Pipeline, file: Path, given: Mapping[str, str], profile: str | None = None
) -> int:
    """Write the report, print how the run ended and what to do next, and return the exit code.

    `given` is what `--set` gave, for a command that runs the same again.
    """
    try:
        write_report(run_folder)
    except OSError as error:  # a full disk: how the run ended is worth more than its page
        click.echo(f"warning: no report: {describe_os_error(error)}", err=True)
    record = read_record(run_folder)
    click.echo("")
    click.echo(click.style(f"{record.name}: {record.status} in {duration(record.duration_s)}", bold=True))
    print_facts(summarise(record))
    named = shlex.quote(str(file))
    if record.status == "completed":
        suggestions = []
        if not file.is_file():
            suggestions.append((f"{program()} render", f"writes {file} for the cluster"))
        # `plan` takes a pipeline of command jobs; a standalone job fills its file.
        elif not any(
            j.span == pipeline.span or isinstance(j.component, OtherComponent) for j in pipeline.jobs.values()
        ):
            suggestions.append((f"{program()} plan {named}", "what it takes on the cluster, and what an hour costs"))
        if (working_folder.private_folder().parent / "profiles" / "nd96.yaml").is_file():
            suggestions.append((f"{program()} render nd96 --diff", "the same pipeline for machines with 8 x A100"))
        print_next(*suggestions)
        return 0
    # A run in another place (--run-dir) is found by its folder only.
    in_runs_folder = run_folder.parent.resolve() == working_folder.runs_folder().resolve()
    run = shlex.quote(record.name if in_runs_folder else str(short(run_folder)))
    settings = _settings_in_errors(record, pipeline, is_rendered_aside=profile is not None)
    print_facts(("setting", str(setting)) for setting in settings)
    logs = (f"{program()} runs logs {run}", "everything its processes printed")
    if settings:
        # The same settings would fail again, so there is nothing to resume.
        missing = [setting for setting in settings if setting.value is None]
        changes = {**given, **dict.fromkeys((setting.key for setting in missing or settings), "VALUE")}
        words = ["--profile", profile] if profile else []
        words += [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
        print_next(logs, (f"{program()} run {shlex.join([str(file), *words])}", "again, with another value"))
    else:
        resuming = f"{program()} runs resume {run}"
        print_next(logs, (resuming, "keeps what completed; trainings continue from their checkpoints"))
    return exit_code_after(record.reason) if record.status == "canceled" else 1


@dataclass(frozen=True)
class _Setting:
    """A flag that a step's error names, its `--set` key and value, and the place that this is written, if it is."""

    flag: str
    key: str
    value: str | None
    span: Span | None

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.flag} is {self.key}, which is not given"
        if self.span is None:
            return f"{self.flag} is {self.key}, {self.value} by default"
        place = "--set" if self.span.file == COMMAND_LINE else f"{short(self.span.file)}:{self.span.line}"
        return f"{self.flag} is {self.key}, set by {place}"


def _settings_in_errors(record: RunRecord, pipeline: Pipeline, *, is_rendered_aside: bool) -> list[_Setting]:
    """Return the settings that the errors of failed jobs name by their flags.

    Of a file that was rendered aside, where nobody edits it, their places are the lines that it was rendered from.
    """
    resolution = resolve_with(pipeline, record.overrides)
    found: dict[str, _Setting] = {}
    for name, job in record.jobs.items():
        errors = "\n".join(job.error_lines or ()) if job.status == "failed" else ""
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9_-]*", errors):
            resolved = resolution.jobs[name].setting(flag.strip("-").replace("-", "_"))
            if isinstance(resolved, Known) and resolved.key:
                text = resolved.written.text if resolved.value is not None else None
                found[resolved.key] = _Setting(flag, resolved.key, text, resolved.written.span)
    if not is_rendered_aside:
        return list(found.values())
    from trainyard.render.related_lines import SourceFinder

    finder = SourceFinder(working_folder.project())
    return [
        replace(each, span=finder.written_at(each.span)) if each.span and each.span.file != COMMAND_LINE else each
        for each in found.values()
    ]
