"""A run of a loaded pipeline on this machine: its display, and how it ended, for `run` and `runs resume`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import click

from trainyard.cli import working_folder
from trainyard.project_files import text_or_empty
from trainyard.rehearse.cancellation import exit_code_after
from trainyard.rehearse.display import Display
from trainyard.rehearse.run_options import RunOptions
from trainyard.rehearse.run_store import find_run, read_record
from trainyard.rehearse.runner import resume_run
from trainyard.report.run_report import summarise, write_report
from trainyard.settings.files import describe_os_error
from trainyard.settings.quantities import duration
from trainyard.settings.run_record import RunRecord
from trainyard.spec.diagnostic import Span
from trainyard.spec.findings import DocumentStore
from trainyard.spec.loading import load_job
from trainyard.spec.model import OtherComponent, Pipeline
from trainyard.spec.resolved import Known
from trainyard.spec.set_arguments import COMMAND_LINE
from trainyard.spec.set_inputs import resolve_with
from trainyard.spec.set_keys import set_in_file
from trainyard.terminal import print_facts, print_next, program, short


class WatchedDisplay(Display):
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
    rendered = working_folder.private_folder().resolve() / "rendered"
    if not file.resolve().is_relative_to(rendered):
        return conclude(resumed.folder, pipeline, short(file), record.overrides)
    profile, *place = file.resolve().relative_to(rendered).parts
    chosen = short(working_folder.private_folder().parent.joinpath(*place))
    return conclude(resumed.folder, pipeline, chosen, record.overrides, profile)


def conclude(
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
        is_rendered = not file.is_file() or text_or_empty(file).startswith("# Rendered from ")
        if is_rendered and (working_folder.private_folder().parent / "profiles" / "nd96.yaml").is_file():
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
