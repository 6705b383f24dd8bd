"""The command line: verbs only. Each verb imports what it needs when it runs, so that `--help` stays quick."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

import trainyard
from trainyard.terminal import (
    colour_choice,
    count,
    describe_os_error,
    fail,
    print_diagnostics,
    program,
    seconds,
    short,
    table,
    take_any_character,
    when,
)

if TYPE_CHECKING:
    from trainyard.author.project import Project
    from trainyard.spec.model import Pipeline

_FORMATS_OF_LINT = ("text", "json", "sarif", "github")
_FORMATS_OF_PLAN = ("text", "json", "markdown")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one verb and exit: 0 good, 1 findings or a failed run, 2 used wrongly. No user's mistake is a traceback."""
    from trainyard.errors import UserError
    from trainyard.spec.diagnostic import SpecError

    words = list(arguments) if arguments is not None else None
    take_any_character()
    try:
        trainyard_command.main(args=words, prog_name="trainyard", color=colour_choice())
    except SpecError as error:
        print_diagnostics(error.diagnostics)
        sys.exit(1)
    except UserError as error:
        fail(str(error), error.exit_code)
    except OSError as error:
        fail(describe_os_error(error), exit_code=1)
    sys.exit(0)


class _Group(click.Group):
    """Lists verbs in the order of a day's work rather than by the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(trainyard.__version__, "-V", "--version", message="trainyard %(version)s")
def trainyard_command() -> None:
    """Distributed training on Azure Machine Learning: declare it, check it, rehearse it, and only then pay for it.

    \b
    Examples:
      trainyard run pipelines/ddp.yaml --profile local    the whole pipeline, on this machine
      trainyard render nd96                               all YAML for 8 x A100 nodes
      trainyard lint                                      every mistake, on its line
      az ml job create -f pipelines/ddp.yaml              the same files, on Azure ML
    """


def _file_argument(function: Any) -> Any:
    """FILE as an argument, or as `-f FILE` the way `az ml` takes it."""
    function = click.option("-f", "--file", "file_option", metavar="FILE", help="The same as FILE, as in `az ml`.")(
        function
    )
    return click.argument("file", required=False, metavar="FILE")(function)


def _chosen_file(file: str | None, file_option: str | None) -> Path:
    if file and file_option:
        raise click.UsageError(f"FILE is given twice: {file} and -f {file_option}.")
    chosen = file or file_option
    if not chosen:
        raise click.UsageError("Missing FILE, such as pipelines/ddp.yaml.")
    path = Path(chosen)
    if not path.is_file():
        raise click.UsageError(_no_such_file(path))
    return path


def _no_such_file(path: Path) -> str:
    from trainyard.foundation.suggestions import close_match

    if path.is_dir():
        return f"{path} is a folder; a pipeline's file is wanted, such as {path / 'ddp.yaml'}."
    neighbours = [str(other) for other in path.parent.glob("*.yaml")] if path.parent.is_dir() else []
    return f"{path}: no such file. {close_match(str(path), neighbours)}".rstrip()


# render ---------------------------------------------------------------------------------------------------------------


@trainyard_command.command(short_help="Templates and a profile to YAML.")
@click.argument("profile", required=False)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change one value of the profile.")
@click.option("--check", is_flag=True, help="Write nothing; exit 1 and show the diff where files have drifted.")
@click.option("--diff", is_flag=True, help="Write nothing; show what this profile would change on disk.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Write into another folder.")
def render(profile: str | None, settings: tuple[str, ...], check: bool, diff: bool, out: Path | None) -> None:
    """Render every template for PROFILE; without one, for the profile the files on disk were rendered for.

    \b
    Examples:
      trainyard render nd96                       components, pipelines, environments, compute for 8 x A100
      trainyard render nd96 --set nodes=4 --diff  what four nodes would change, without writing
      trainyard render --check                    in CI: have the rendered files drifted from their templates?
    """
    from trainyard.author import drift as drifts
    from trainyard.author.rendering import render as render_profile
    from trainyard.author.settings import read_settings
    from trainyard.author.writing import write

    if check and diff:
        raise click.UsageError("--check and --diff exclude each other: --check takes the profile from the files.")
    project = _project()
    if check:
        found = drifts.find_drift(project, profile, read_settings(settings), out)
        for drift in found:
            click.echo(f"{short(drift.path)}: {drift.reason}", err=True)
            click.echo(drift.diff, nl=False)
        if found:
            fail(
                f"{count(len(found), 'rendered file')} drifted: edit templates/ or profiles/, then `trainyard render`.",
                1,
            )
        click.echo("rendered files match their templates and profile", err=True)
        return
    rendering = render_profile(project, profile, read_settings(settings), out)
    if diff:
        click.echo(drifts.difference(project, rendering), nl=False)
        return
    report = write(project, rendering)
    for line in report.lines():
        click.echo(line, err=True)


# lint -----------------------------------------------------------------------------------------------------------------


@trainyard_command.command(short_help="Every mistake in the YAML, on its line.")
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("-f", "--file", "more_paths", multiple=True, metavar="FILE", help="The same as PATH, as in `az ml`.")
@click.option("--format", "output_format", type=click.Choice(_FORMATS_OF_LINT), default="text", show_default=True)
@click.option("--fix", is_flag=True, help="Write what is surely meant: mistyped names, unquoted texts.")
@click.option("--baseline", type=click.Path(dir_okay=False, path_type=Path), help="Known findings, to be passed over.")
@click.option("--write-baseline", is_flag=True, help="Write what is found now as known, into the baseline.")
def lint(
    paths: tuple[str, ...],
    more_paths: tuple[str, ...],
    output_format: str,
    fix: bool,
    baseline: Path | None,
    write_baseline: bool,
) -> None:
    """Check Azure ML YAML: every mistake with file, line, column and what to do. Exit 1 when there is an error.

    \b
    Examples:
      trainyard lint                          the project's components, pipelines, environments, compute, profiles
      trainyard lint pipelines/ddp.yaml       one pipeline with its components
      trainyard lint --fix                    mend mistyped names and unquoted texts in place
      trainyard lint --format sarif my/folder for code scanning; github and json for others
    """
    from trainyard.commands.lint import LintOptions
    from trainyard.commands.lint import lint as check

    options = LintOptions(output_format, fix, baseline, write_baseline)
    if not check([Path(path) for path in (*paths, *more_paths)], options):
        sys.exit(1)


@trainyard_command.command(short_help="A rule of lint in full, with an example.")
@click.argument("subject", metavar="[RULE | FILE]", required=False)
def explain(subject: str | None) -> None:
    """What a rule means, what Azure ML does, and how it is mended; without one, the list of all rules.

    RULE is an id or a name. With a FILE: the rules that find something in it.

    \b
    Examples:
      trainyard explain                      all rules, a line each
      trainyard explain AML206
      trainyard explain unknown-command-port
      trainyard explain pipelines/ddp.yaml
    """
    from trainyard.commands.explain import explanation_of

    click.echo(explanation_of(subject))


# plan, graph ----------------------------------------------------------------------------------------------------------


@trainyard_command.command(short_help="Machines, batch sizes and price of a pipeline.")
@_file_argument
@click.option("--format", "output_format", type=click.Choice(_FORMATS_OF_PLAN), default="text", show_default=True)
def plan(file: str | None, file_option: str | None, output_format: str) -> None:
    """What machines a pipeline takes, how its batches multiply out, and what an hour of it costs.

    \b
    Examples:
      trainyard plan pipelines/ddp.yaml
      trainyard plan -f pipelines/ddp.yaml --format markdown >> "$GITHUB_STEP_SUMMARY"
    """
    from trainyard.plan import reporters
    from trainyard.plan.compute_files import sku_by_compute
    from trainyard.plan.planner import plan as plan_pipeline

    pipeline = _load(_chosen_file(file, file_option))
    planned = plan_pipeline(pipeline, sku_by_compute(pipeline.file.parent.parent / "compute"))
    written = {"text": reporters.as_text, "json": reporters.as_json, "markdown": reporters.as_markdown}
    click.echo(written[output_format](planned))


@trainyard_command.command(short_help="Draw a pipeline.")
@_file_argument
@click.option("--format", "output_format", type=click.Choice(("text", "mermaid")), default="text", show_default=True)
def graph(file: str | None, file_option: str | None, output_format: str) -> None:
    """Draw a pipeline: its jobs and what flows between them.

    \b
    Example:
      trainyard graph pipelines/ddp.yaml --format mermaid
    """
    from trainyard.plan import drawing

    pipeline = _load(_chosen_file(file, file_option))
    click.echo(drawing.as_mermaid(pipeline) if output_format == "mermaid" else drawing.as_text(pipeline))


# run, runs ------------------------------------------------------------------------------------------------------------


@trainyard_command.command(short_help="Run a pipeline on this machine.")
@_file_argument
@click.option("--profile", metavar="NAME", help="Render this profile aside and run that; FILE itself stays as it is.")
@click.option("--set", "settings", multiple=True, metavar="inputs.X=V", help="Or jobs.J.inputs.X=V: set an input.")
@click.option("--max-processes", type=click.IntRange(min=1), metavar="N", help="At most N processes per job.")
@click.option("--only", metavar="JOB", help="Run one job, on the outputs that earlier runs left.")
@click.option("--from", "from_job", metavar="JOB", help="Run this job and what depends on it.")
@click.option("--no-cache", is_flag=True, help="Run unchanged steps again.")
@click.option("--run-dir", type=click.Path(file_okay=False, path_type=Path), help="Where this run's files go.")
@click.option("--name", help="The run's name; one is made up otherwise.")
@click.option("--quiet", is_flag=True, help="Say only how it ended.")
def run(
    file: str | None,
    file_option: str | None,
    profile: str | None,
    settings: tuple[str, ...],
    max_processes: int | None,
    only: str | None,
    from_job: str | None,
    no_cache: bool,
    run_dir: Path | None,
    name: str | None,
    quiet: bool,
) -> None:
    """Run a pipeline on this machine, with the processes and variables that Azure ML would give it.

    \b
    Examples:
      trainyard run pipelines/ddp.yaml --profile local
      trainyard run pipelines/ddp.yaml --max-processes 2 --set inputs.epochs=3
      trainyard run pipelines/ddp.yaml --from evaluate --set jobs.evaluate.inputs.minimum_accuracy=0.98
    """
    from trainyard.commands.lint import errors_that_stop_a_run
    from trainyard.local.display import Display
    from trainyard.local.runner import RunOptions, run_pipeline
    from trainyard.spec.diagnostic import SpecError

    chosen = _chosen_file(file, file_option)
    path = _render_aside(chosen, profile) if profile else chosen
    options = RunOptions(
        runs_folder=_runs_folder(),
        name=name,
        run_folder=run_dir,
        overrides=_overrides(settings),
        max_processes=max_processes,
        only=only,
        from_job=from_job,
        use_cache=not no_cache,
    )
    if errors := errors_that_stop_a_run(path):
        raise SpecError(errors)
    record = run_pipeline(_load(path), options, Display(quiet=quiet))
    _conclude(record.folder, chosen)


@trainyard_command.group(cls=_Group, short_help="Past runs: list, show, logs, resume, clean.")
def runs() -> None:
    """The runs on this machine: list, show, logs, resume, clean.

    \b
    Examples:
      trainyard runs list
      trainyard runs logs --job train_ddp
      trainyard runs clean --keep 5
    """


@runs.command("list")
@click.option("--format", "output_format", type=click.Choice(("text", "json")), default="text", show_default=True)
def runs_list(output_format: str) -> None:
    """All runs, the newest first."""
    from trainyard.local.records import as_document, list_runs

    found = list_runs(_runs_folder())
    if output_format == "json":
        click.echo(json.dumps([as_document(record) for record in found], indent=2))
    elif not found:
        click.echo(f"no runs in {short(_runs_folder())} yet: `{program()} run FILE` makes one", err=True)
    else:
        rows = [(record.name, record.status, when(record.started), seconds(record.duration_s)) for record in found]
        click.echo(table(("run", "status", "started", "took"), rows))


@runs.command("show")
@click.argument("name", required=False)
@click.option("--format", "output_format", type=click.Choice(("text", "json")), default="text", show_default=True)
def runs_show(name: str | None, output_format: str) -> None:
    """One run (the newest without NAME): its jobs, and where everything lies."""
    from trainyard.local.records import as_document
    from trainyard.local.run_store import find_run

    record = find_run(_runs_folder(), name)
    if output_format == "json":
        click.echo(json.dumps(as_document(record), indent=2))
        return
    rows = [
        (job, state.status, seconds(state.duration_s), f"reused from {state.reused_from}" if state.reused_from else "")
        for job, state in record.jobs.items()
    ]
    click.echo(f"{record.name}: {record.status}, started {when(record.started)}, took {seconds(record.duration_s)}")
    click.echo(table(("job", "status", "took", ""), rows))
    _print_results(record.folder)


@runs.command("logs")
@click.argument("name", required=False)
@click.option("--job", metavar="JOB", help="Only this job's logs.")
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="Only this rank's log.")
def runs_logs(name: str | None, job: str | None, rank: int | None) -> None:
    """Print the logs of a run (the newest without NAME)."""
    from trainyard.local.run_store import find_run, log_files

    record = find_run(_runs_folder(), name)
    for path in log_files(record, job, rank):
        click.echo(click.style(f"==> {short(path)}", bold=True), err=True)
        with path.open(errors="replace") as log:
            for line in log:
                click.echo(line, nl=False)


@runs.command("resume")
@click.argument("name", required=False)
@click.option("--quiet", is_flag=True, help="Say only how it ended.")
def runs_resume(name: str | None, quiet: bool) -> None:
    """Continue a failed or canceled run (the newest without NAME): what completed is kept, checkpoints are found."""
    from trainyard.local.display import Display
    from trainyard.local.run_store import find_run
    from trainyard.local.runner import RunOptions, resume_run

    record = find_run(_runs_folder(), name)
    file = Path(record.pipeline_file)
    resumed = resume_run(record, _load(file), RunOptions(runs_folder=_runs_folder()), Display(quiet=quiet))
    _conclude(resumed.folder, file)


@runs.command("clean")
@click.option("--keep", type=click.IntRange(min=0), default=10, show_default=True, help="How many of the newest stay.")
@click.option("--older-than", type=click.FloatRange(min=0), metavar="DAYS", help="Of the others, only older ones.")
def runs_clean(keep: int, older_than: float | None) -> None:
    """Delete the files of older runs. A run that is still going is never touched."""
    from trainyard.local.run_store import clean, runs_to_clean

    removable = runs_to_clean(_runs_folder(), keep=keep, older_than_days=older_than)
    freed_bytes = clean(_runs_folder(), removable)
    click.echo(f"removed {count(len(removable), 'run')}, {freed_bytes / 2**20:.0f} MiB", err=True)


# skus, schemas, doctor ------------------------------------------------------------------------------------------------


@trainyard_command.command(short_help="Azure's machines for training.")
@click.argument("name", required=False)
@click.option("--format", "output_format", type=click.Choice(("text", "json")), default="text", show_default=True)
def skus(name: str | None, output_format: str) -> None:
    """The machines of Azure that trainings run on; with NAME, one in full, with sources.

    \b
    Examples:
      trainyard skus
      trainyard skus Standard_ND96asr_v4
    """
    from trainyard.catalogue import tables
    from trainyard.catalogue.skus import all_skus, find_sku

    if output_format == "json":
        click.echo(tables.as_json([find_sku(name)] if name else all_skus()))
    elif name:
        click.echo(tables.one_in_full(find_sku(name)))
    else:
        click.echo(tables.overview(all_skus()))


@trainyard_command.command(short_help="The JSON Schemas of every file kind.")
@click.argument("name", required=False)
def schemas(name: str | None) -> None:
    """The JSON Schemas of every file kind; with NAME, print that schema.

    \b
    Examples:
      trainyard schemas
      trainyard schemas pipeline > pipeline.schema.json
    """
    from trainyard.errors import unknown_name
    from trainyard.resources import schema_file, schema_names

    known = schema_names()
    if name is None:
        for known_name in known:
            click.echo(f"{known_name:<24}{short(schema_file(known_name))}")
    elif name in known:
        click.echo(schema_file(name).read_text(encoding="utf-8"), nl=False)
    else:
        raise unknown_name("schema", name, known)


@trainyard_command.command(short_help="Is this machine ready?")
def doctor() -> None:
    """Is this machine ready? Python, packages, disk, what a local run and a submission need. Exit 1 if not."""
    from trainyard.doctor import examine

    checks = examine(Path.cwd())
    for check in checks:
        mark = {"ok": click.style("ok     ", fg="green"), "missing": click.style("missing", fg="red")}.get(
            check.state, click.style("note   ", fg="yellow")
        )
        click.echo(f"{mark} {check.what}: {check.found}" + (f"\n        {check.mend}" if check.mend else ""))
    if any(check.state == "missing" for check in checks):
        sys.exit(1)


# shared by the verbs --------------------------------------------------------------------------------------------------


def _project() -> Project:
    from trainyard.author.project import find_project

    return find_project(Path.cwd())


def _runs_folder() -> Path:
    """Where runs lie: in the project that the working directory belongs to, else in the working directory."""
    return _root() / ".trainyard" / "runs"


def _root() -> Path:
    from trainyard.author.project import NoProject

    try:
        return _project().root
    except NoProject:
        return Path.cwd()


def _load(file: Path) -> Pipeline:
    from trainyard.spec.loading import load_pipeline

    return load_pipeline(file)


def _render_aside(file: Path, profile: str) -> Path:
    """Render a profile into `.trainyard/rendered/` and give the file there that stands for FILE."""
    from trainyard.author.header import was_edited
    from trainyard.author.rendered_files import read_rendered
    from trainyard.author.rendering import render as render_profile
    from trainyard.author.writing import write

    project = _project()
    out = project.root / ".trainyard" / "rendered" / profile
    rendering = render_profile(project, profile, {}, out)
    write(project, rendering)
    try:
        relative = file.resolve().relative_to(project.root)
    except ValueError:
        raise click.UsageError(
            f"--profile renders the files of {project.root}, and {file} is not one of them."
        ) from None
    if not (out / relative).is_file():
        raise click.UsageError(f"--profile: {file} is not rendered from a template; run it without --profile.")
    on_disk = read_rendered(file)
    if on_disk is not None and was_edited(on_disk.text, on_disk.header):
        note = f"note: {file} was edited by hand; --profile renders anew and does not see that."
        click.echo(f"{note} Without --profile it runs as it is.", err=True)
    return short(out / relative)


def _conclude(run_folder: Path, pipeline_file: Path) -> None:
    """Write the report, say how the run ended and what to do next, and exit as it ended."""
    from trainyard.local.records import read_record
    from trainyard.report.run_report import write_report

    write_report(run_folder)
    record = read_record(run_folder)
    click.echo("")
    click.echo(click.style(f"{record.name}: {record.status} in {seconds(record.duration_s)}", bold=True))
    _print_results(run_folder)
    if record.status == "completed":
        _print_next(
            (f"plan {pipeline_file}", "what it takes on the cluster, and what an hour costs"),
            ("render nd96 --diff", "the same pipeline for machines with 8 x A100"),
        )
        return
    # A run elsewhere (--run-dir) is found by its folder only.
    run = record.name if run_folder.parent.resolve() == _runs_folder().resolve() else str(short(run_folder))
    _print_next(
        (f"runs logs {run}", "everything its processes printed"),
        (f"runs resume {run}", "what completed is kept, and trainings go on from their checkpoints"),
    )
    sys.exit(1)


def _print_next(*suggestions: tuple[str, str]) -> None:
    """Commands to try, each with what it is for."""
    for label, (words, purpose) in zip(("next", *[""] * len(suggestions)), suggestions, strict=False):
        click.echo(f"  {label:<18}{program()} {words}  # {purpose}")


def _print_results(run_folder: Path) -> None:
    from trainyard.report.run_summary import summarise

    for label, text in summarise(run_folder):
        click.echo(f"  {label:<18}{text}")


def _overrides(texts: tuple[str, ...]) -> dict[str, str]:
    overrides: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise click.UsageError(f"--set {text}: KEY=VALUE is wanted.")
        overrides[key] = value
    return overrides
