"""`trainyard run` and `trainyard runs resume`: run a checked pipeline here, then report how it ended."""

from __future__ import annotations

from pathlib import Path

import click

from trainyard.author.header import was_edited
from trainyard.author.rendered_files import read_rendered
from trainyard.author.rendering import render
from trainyard.author.writing import write
from trainyard.commands import working_folder
from trainyard.commands.lint import errors_that_stop_a_run
from trainyard.errors import UsageError
from trainyard.foundation.quantities import duration
from trainyard.local.display import Display
from trainyard.local.records import read_record
from trainyard.local.run_store import find_run
from trainyard.local.runner import RunOptions, resume_run, run_pipeline
from trainyard.report.run_report import write_report
from trainyard.report.run_summary import summarise
from trainyard.spec.diagnostic import SpecError
from trainyard.spec.findings import DocumentStore
from trainyard.spec.loading import load_pipeline
from trainyard.terminal import print_facts, program, short


def run_file(file: Path, options: RunOptions, *, profile: str | None, quiet: bool) -> bool:
    """Run a pipeline, rendered for `profile` if one is given, and write its report; return whether it completed.

    Raise SpecError when lint finds an error in it; nothing has started then.
    """
    path = _render_aside(file, profile) if profile else file
    store = DocumentStore()
    if errors := errors_that_stop_a_run(path, store):
        raise SpecError(errors)
    record = run_pipeline(load_pipeline(path, store), options, Display(quiet=quiet))
    return _conclude(record.folder, file)


def resume(name: str | None, *, quiet: bool) -> bool:
    """Continue a run (without a name, the newest) that failed or was canceled; return whether it completed."""
    runs_folder = working_folder.runs_folder()
    record = find_run(runs_folder, name)
    file = Path(record.pipeline_file)
    resumed = resume_run(record, load_pipeline(file), RunOptions(runs_folder=runs_folder), Display(quiet=quiet))
    return _conclude(resumed.folder, file)


def _render_aside(file: Path, profile: str) -> Path:
    """Render a profile into `.trainyard/rendered/` and return the file there that corresponds to `file`."""
    project = working_folder.project()
    out = project.root / ".trainyard" / "rendered" / profile
    rendering = render(project, profile, {}, out)
    write(project, rendering)
    try:
        relative = file.resolve().relative_to(project.root)
    except ValueError:
        raise UsageError(f"--profile renders the files of {project.root}; {file} is outside it.") from None
    if not (out / relative).is_file():
        raise UsageError(f"--profile: {file} is not rendered from a template; run it without --profile.")
    on_disk = read_rendered(file)
    if on_disk is not None and was_edited(on_disk.text, on_disk.header):
        note = f"note: {file} was edited by hand; --profile renders it again without those edits."
        click.echo(f"{note} Without --profile it runs as it is.", err=True)
    return short(out / relative)


def _conclude(run_folder: Path, pipeline_file: Path) -> bool:
    """Write the report, print how the run ended and what to do next, and return whether it completed."""
    write_report(run_folder)
    record = read_record(run_folder)
    click.echo("")
    click.echo(click.style(f"{record.name}: {record.status} in {duration(record.duration_s)}", bold=True))
    print_facts(summarise(record))
    if record.status == "completed":
        _print_next(
            (f"plan {pipeline_file}", "what it takes on the cluster, and what an hour costs"),
            ("render nd96 --diff", "the same pipeline for machines with 8 x A100"),
        )
        return True
    # A run in another place (--run-dir) is found by its folder only.
    in_runs_folder = run_folder.parent.resolve() == working_folder.runs_folder().resolve()
    run = record.name if in_runs_folder else str(short(run_folder))
    _print_next(
        (f"runs logs {run}", "everything its processes printed"),
        (f"runs resume {run}", "keeps what completed; trainings continue from their checkpoints"),
    )
    return False


def _print_next(*suggestions: tuple[str, str]) -> None:
    """Print commands to try next, each with its purpose."""
    lines = [f"{program()} {words}  # {purpose}" for words, purpose in suggestions]
    print_facts(zip(("next", *[""] * len(lines)), lines, strict=False))
