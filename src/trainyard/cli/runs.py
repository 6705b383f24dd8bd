"""`trainyard runs`: list, show, compare and clean up past runs, and print their logs."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import click

from trainyard.cli import working_folder
from trainyard.cli.parameters import AtLeast, OneOf, PathOf, VerbGroup
from trainyard.cli.run_here import resume
from trainyard.errors import UsageError
from trainyard.printing import plain_text
from trainyard.rehearse.run_store import bytes_held_alone, find_run, list_runs, log_files, read_record, runs_to_clean
from trainyard.rehearse.run_store import clean as remove_runs
from trainyard.report.comparison import MOST_RUNS, Comparison, Row, compare, write_comparison
from trainyard.report.job_results import Tracked, logged_by
from trainyard.report.live import LivePage, RunsPage, served
from trainyard.report.run_index import IndexedRun, check_columns, shown, sorted_by
from trainyard.report.run_report import summarise
from trainyard.settings.quantities import counted, cut, duration, memory, moment, number
from trainyard.settings.run_record import as_document
from trainyard.terminal import print_facts, program, short, table

_COLUMNS = ("run", "status", "started", "took")
_FORMATS = ("text", "json")
_SECONDS_BETWEEN_LOOKS = 0.3
_LABEL_WIDTH = 34
_LEAST_VALUE_WIDTH = 12


@click.group(cls=VerbGroup)
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
@click.option("--metric", "metrics", multiple=True, metavar="NAME", help="Also the last value of this metric.")
@click.option("--columns", metavar="A,B", help="Only these: run, pipeline, status, started, took, metrics, parameters.")
@click.option("--sort", metavar="COLUMN", help="By any of these, whether shown or not.")
@click.option("--descending", is_flag=True, help="The highest first.")
@click.option("--format", "output_format", type=OneOf(_FORMATS), default="text", show_default=True)
def runs_list(
    metrics: tuple[str, ...], columns: str | None, sort: str | None, descending: bool, output_format: str
) -> None:
    """List all runs, newest first, or sorted by a metric or parameter that jobs logged or took.

    \b
    Examples:
      trainyard runs list --metric test_accuracy --sort test_accuracy --descending
      trainyard runs list --columns run,learning_rate,validation_loss --sort validation_loss
    """
    folder = working_folder.runs_folder()
    found = list_runs(folder, _note_left_out)
    named = [*(map(str.strip, columns.split(",")) if columns else _COLUMNS), *metrics]
    indexed = [IndexedRun(record) for record in found]
    if sort is not None and found:
        indexed = sorted_by(indexed, sort, descending=descending)
    if found:
        check_columns(indexed, named)
    if output_format == "json":
        is_asked = bool(metrics or columns or sort)
        documents = [
            {**as_document(run.record), **({"metrics": run.metrics, "parameters": run.parameters} if is_asked else {})}
            for run in indexed
        ]
        click.echo(json.dumps(documents, indent=2))
    elif not found:
        click.echo(f"no runs in {short(folder)} yet; start one with `{program()} run FILE`", err=True)
    else:
        click.echo(table(tuple(named), [tuple(run.text(name) for name in named) for run in indexed]))


@runs.command("show")
@click.argument("name", required=False)
@click.option("--format", "output_format", type=OneOf(_FORMATS), default="text", show_default=True)
def runs_show(name: str | None, output_format: str) -> None:
    """Show one run (without NAME, the newest): its jobs, and where its files are."""
    record = find_run(working_folder.runs_folder(), name)
    if output_format == "json":
        run = IndexedRun(record)
        click.echo(json.dumps({**as_document(record), "metrics": run.metrics, "parameters": run.parameters}, indent=2))
        return
    took = duration(record.duration_s)
    click.echo(f"{record.name}: {record.status}, started {moment(record.started_at)}, took {took}")
    rows = [
        (job, state.status, duration(state.duration_s), f"reused from {state.reused_from}" if state.reused_from else "")
        for job, state in record.jobs.items()
    ]
    click.echo(table(("job", "status", "took", ""), rows))
    logged = [(name, *pair) for name, job in record.jobs.items() for pair in _logged(logged_by(job, record.folder))]
    if logged:
        click.echo(f"\n{table(('job', 'logged', 'value'), logged)}\n")
    print_facts(summarise(record))


def _note_left_out(why: str) -> None:
    click.echo(f"warning: left out: {why}", err=True)


def _logged(tracked: Tracked) -> Iterator[tuple[str, str]]:
    """Yield the name and the last value, text, size or place of what a job logged."""
    yield from ((name, number(points[-1][1])) for name, points in tracked.metrics.series.items())
    yield from ((name, shown(value, name)) for name, value in (tracked.parameters | tracked.tags).items())
    yield from ((each.name, f"table of {counted(each.total, 'row')}") for each in tracked.tables)
    yield from ((image.name, str(short(image.file))) for image in tracked.images)


@runs.command("logs")
@click.argument("name", required=False)
@click.option("--job", metavar="JOB", help="Only this job's logs.")
@click.option("--rank", type=AtLeast(0), metavar="N", help="Only this rank's log.")
@click.option("-f", "--follow", is_flag=True, help="Print what is added until the run ends.")
def runs_logs(name: str | None, job: str | None, rank: int | None, follow: bool) -> None:
    """Print the logs of a run (without NAME, the newest)."""
    record = find_run(working_folder.runs_folder(), name)
    printed: dict[Path, int] = {}
    last: Path | None = None
    while True:
        # The state is read before the logs, so that nothing a run writes at its end is missed.
        is_over = record.status != "running"
        for path in log_files(record, job, rank):
            last = _print_added(path, printed, last)
        if is_over or not follow:
            return
        time.sleep(_SECONDS_BETWEEN_LOOKS)
        record = find_run(working_folder.runs_folder(), str(record.folder))


@runs.command("compare")
@click.argument("names", nargs=-1, required=True, metavar="A B …")
@click.option("--out", type=PathOf("file"), metavar="FILE", help="Where the page goes.")
def runs_compare(names: tuple[str, ...], out: Path | None) -> None:
    """Compare two to six runs: settings that differ, results and times here, curves over each other on a page.

    \b
    Example:
      trainyard runs compare 20261120-213045-ddp 20261120-220112-ddp
    """
    if not 2 <= len(names) <= MOST_RUNS:
        listed = f"`{program()} runs list` names them all"
        raise UsageError(f"expected 2 to {MOST_RUNS} runs to compare, got {len(names)}; {listed}")
    folder = working_folder.runs_folder()
    comparison = compare([find_run(folder, name) for name in names])
    file = out or folder.parent / "comparisons" / f"{'_'.join(record.name for record in comparison.runs.values())}.html"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_comparison(comparison, file)
    for letter, record in comparison.runs.items():
        click.echo(f"{letter}  {record.name}: {record.status} in {duration(record.duration_s)}")
    _print_compared("settings that differ", comparison, comparison.settings)
    _print_compared("results", comparison, comparison.results)
    _print_compared("times", comparison, comparison.times)
    if not comparison.settings:
        click.echo("\nno settings differ")
    click.echo("")
    print_facts([("curves", str(short(file)))])


@runs.command("serve")
@click.argument("name", required=False)
@click.option("--port", type=AtLeast(0), default=0, metavar="N", help="The port; any that is free otherwise.")
def runs_serve(name: str | None, port: int) -> None:
    """Show all runs, or the one named, live in a browser on this machine, until Ctrl-C.

    The page of all runs searches, filters and compares them, and leads to the page of each: its report, which follows
    states, logs, curves and times. Only this machine reaches it.

    \b
    Examples:
      trainyard runs serve
      trainyard runs serve 20261120-213045-ddp --port 8800
    """
    runs_folder = working_folder.runs_folder()
    folder = find_run(runs_folder, name).folder
    one = LivePage(folder, lambda: read_record(folder))
    if not name:
        list_runs(runs_folder, _note_left_out)
    page = one if name else RunsPage(runs_folder, lambda: list_runs(runs_folder), read_record)
    with suppress(KeyboardInterrupt), served(page, port) as address:
        click.echo(address)
        click.echo("Ctrl-C ends the server", err=True)
        while True:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
    sys.exit(130)


@runs.command("resume")
@click.argument("name", required=False)
@click.option("--quiet", is_flag=True, help="Print only how it ended.")
def runs_resume(name: str | None, quiet: bool) -> None:
    """Continue a failed or canceled run (without NAME, the newest).

    Completed jobs are kept, and trainings continue from their checkpoints.
    """
    sys.exit(resume(name, quiet=quiet))


@runs.command("clean")
@click.option("--keep", type=AtLeast(0), default=10, show_default=True, help="How many of the newest stay.")
@click.option("--older-than", type=AtLeast(0.0), metavar="DAYS", help="Of the others, only older ones.")
@click.option("--yes", is_flag=True, help="Delete without asking.")
def runs_clean(keep: int, older_than: float | None, yes: bool) -> None:
    """Show the files of older runs, and delete them if you agree. A run that is still going is never touched."""
    folder = working_folder.runs_folder()
    removable = runs_to_clean(folder, keep=keep, older_than_days=older_than)
    if not removable:
        click.echo(f"nothing to delete: {counted(len(list_runs(folder)), 'run')} in {short(folder)}", err=True)
        return
    rows = [
        (record.name, record.status, moment(record.started_at), memory(bytes_held_alone(record.folder)))
        for record in removable
    ]
    click.echo(table(("run", "status", "started", "size"), rows), err=True)
    question = f"delete {'this run' if len(removable) == 1 else f'these {len(removable)} runs'}?"
    if not yes and not sys.stdin.isatty():
        click.echo("nothing deleted; --yes deletes them", err=True)
    elif yes or click.confirm(question, err=True):
        freed_bytes = remove_runs(folder, removable)
        click.echo(f"deleted {counted(len(removable), 'run')}, {memory(freed_bytes)}", err=True)


def _print_added(path: Path, printed: dict[Path, int], last: Path | None) -> Path | None:
    """Print what a log has beyond the bytes already printed, below its name; return the log printed last."""
    with path.open("rb") as log:
        log.seek(printed.get(path, 0))
        added = log.read()
    if path not in printed or (added and path != last):
        click.echo(click.style(f"==> {short(path)}", bold=True), err=True)
        last = path
    printed[path] = printed.get(path, 0) + len(added)
    text = added.decode(errors="replace")
    # A terminal would do what escape sequences say; another program gets them all.
    click.echo(plain_text(text) if sys.stdout.isatty() else text, nl=False)
    return last


def _print_compared(heading: str, comparison: Comparison, rows: Sequence[Row]) -> None:
    """Print a table as wide as the terminal at most; nothing without rows."""
    if rows:
        width = (shutil.get_terminal_size().columns - _LABEL_WIDTH) // len(comparison.runs) - 2
        width = max(_LEAST_VALUE_WIDTH, width)
        cells = [(cut(row.label, _LABEL_WIDTH), *(cut(value, width) for value in row.values)) for row in rows]
        click.echo(f"\n{table((heading, *comparison.runs), cells)}")
