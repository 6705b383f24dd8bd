"""`trainyard lint`: what is wrong in the YAML, printed for people or programs, fixed, or kept in a baseline."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import click

from trainyard.cli.parameters import OneOf, PathOf
from trainyard.errors import UsageError
from trainyard.lint import linter
from trainyard.lint.config import FAIL_ON, SEVERITIES, LintSettings, beginnings_of_ids
from trainyard.lint.linter import LintResult
from trainyard.lint.processors import aside, processors
from trainyard.lint.rules import RULES
from trainyard.project_files import limit_reading, repository_of, root_of, yaml_files
from trainyard.project_findings import (
    check_paths,
    folders_to_check,
    template_findings,
    with_profile_findings,
    with_template_lines,
    without_known,
)
from trainyard.settings.quantities import counted
from trainyard.spec.diagnostic import Diagnostic
from trainyard.spec.findings import DocumentStore
from trainyard.spec.rules import UNREADABLE_FILE, WRONG_ENCODING, YAML_SYNTAX
from trainyard.terminal import colour_choice, print_diagnostics, short

_FORMATS = ("text", "json", "sarif", "github")


@click.command()
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("-f", "--file", "more_paths", multiple=True, metavar="FILE", help="PATH, given as `az ml` takes it.")
@click.option("--format", "output_format", type=OneOf(_FORMATS), default="text", show_default=True)
@click.option("--fix", is_flag=True, help="Fix what is safe to fix: mistyped names, unquoted texts.")
@click.option("--pedantic", is_flag=True, help="Also report what careful teams disagree on.")
@click.option("--fail-on", type=OneOf(FAIL_ON), help="Exit with 1 from this severity on.  [default: error]")
@click.option(
    "--select", multiple=True, metavar="RULES", help="Report only these: AML304, or AML2 for all that begin with it."
)
@click.option("--ignore", multiple=True, metavar="RULES", help="Do not report these.")
@click.option("--baseline", type=PathOf("file"), help="Known findings, not reported again.")
@click.option("--no-baseline", is_flag=True, help="Report known findings too.")
@click.option("--write-baseline", is_flag=True, help="Write the current findings to the baseline.")
@click.option("--stdin-filename", type=PathOf("file"), help="The file that standard input (`-`) stands for.")
@click.option("--profile", metavar="NAME", help="Check PATH as rendered for this profile; PATH itself stays as it is.")
@click.option("--root", type=PathOf("folder"), help="Read nothing outside of it.  [default: the repository]")
@click.option("--no-templates", is_flag=True, help="Render nothing: findings do not name the template's line.")
@click.option("--yes", is_flag=True, help="Read a folder of any size outside a repository without asking.")
def lint(
    paths: tuple[str, ...],
    more_paths: tuple[str, ...],
    output_format: str,
    fix: bool,
    pedantic: bool,
    fail_on: str | None,
    select: Sequence[str],
    ignore: Sequence[str],
    baseline: Path | None,
    no_baseline: bool,
    write_baseline: bool,
    stdin_filename: Path | None,
    profile: str | None,
    root: Path | None,
    no_templates: bool,
    yes: bool,
) -> None:
    """Check Azure ML YAML: every mistake with file, line, column and what to do. Exit 1 when there is an error.

    \b
    Examples:
      trainyard lint                          the project's components, pipelines, environments, compute, profiles
      trainyard lint pipelines/ddp.yaml       one pipeline with its components
      trainyard lint pipelines/ddp.yaml --profile nd96
      trainyard lint --fix                    fix mistyped names and unquoted strings in place
      trainyard lint --format sarif my/folder for code scanning; github and json for others
      trainyard lint - --stdin-filename pipelines/ddp.yaml < changed.yaml
    """
    given = [Path(path) for path in (*paths, *more_paths)]
    if profile is not None:
        if not given or fix or _STDIN in given:
            raise UsageError("--profile renders files aside and checks them: give PATH, without --fix and -")
        from trainyard.cli.rendered_aside import rendered_aside

        given = [rendered_aside(path, profile, {}) for path in given]
    if fix and write_baseline:
        raise UsageError("--fix and --write-baseline cannot be combined: fix first, then write the baseline.")
    if no_baseline and (baseline or write_baseline):
        raise UsageError("--no-baseline cannot be combined with --baseline and --write-baseline")
    texts: dict[Path, str] = {}
    if stdin_filename is not None or _STDIN in given:
        if stdin_filename is None or given != [_STDIN] or fix:
            raise UsageError(_USE_OF_STDIN)
        given = [stdin_filename]
        try:
            texts = {Path(os.path.abspath(stdin_filename)): sys.stdin.buffer.read().decode("utf-8-sig")}
        except UnicodeDecodeError:
            raise UsageError("standard input is not UTF-8 text") from None
    chosen = given or folders_to_check(Path.cwd())
    if not (given or yes):
        _ask_before_reading_much(Path.cwd())
    root = root or root_of(chosen)
    limit_reading(root)
    rendered: Callable[[], list[Diagnostic]] = partial(template_findings, Path.cwd())
    # Fixes may change the profile, so templates are rendered after them.
    if not (given or no_templates or fix or write_baseline) and processors() > 1:
        rendered = aside(rendered)
    store = DocumentStore(texts)
    chosen_rules = (beginnings_of_ids(select, RULES), beginnings_of_ids(ignore, RULES))
    settings, result = check_paths(chosen, store, pedantic=pedantic, select=chosen_rules[0], ignore=chosen_rules[1])
    settings = replace(settings, fail_on=fail_on or settings.fail_on)
    known_in = None if no_baseline else baseline or settings.baseline
    if fix:
        result = _fix(chosen, settings, result, root)
    found = with_profile_findings(result.diagnostics, chosen, result.files, settings, store.peek)
    if write_baseline:
        if known_in is None:
            raise UsageError("--write-baseline requires --baseline FILE.")
        # One that the settings name is the repository's choice.
        keep_in_baseline(known_in, found, result.files, None if baseline else root)
        return
    left = [each for each in without_known(found, known_in, result.files, store.peek) if settings.reports(each.rule)]
    related = left if no_templates else with_template_lines(left, texts)
    if not (given or no_templates):
        related += [each for each in rendered() if each not in left and settings.reports(each.rule)]
    _print(related, output_format, texts)
    if output_format == "text":
        # A rendered file has to be fixed in its template.
        fixable = [each for each in left if each.replacement is not None and not (fix or _is_rendered(each.span.file))]
        summary = summarise(related, len(result.files), known=len(found) - len(left), fixable=len(fixable))
        click.echo(click.style(summary, bold=True), err=True, color=colour_choice())
    if any(map(settings.fails, related)):
        sys.exit(1)


def _ask_before_reading_much(folder: Path) -> None:
    """Ask whether a folder with very many files is meant that nobody named, such as /tmp or a home directory.

    Raise UsageError where nobody can answer, and click.Abort for a no.
    """
    if repository_of(folder) is not None or not any(islice(yaml_files(folder), _MOST_UNASKED, None)):
        return
    what = f"{folder} is not in a repository and has more than {_MOST_UNASKED:,} YAML files"
    if not sys.stdin.isatty():
        raise UsageError(f"{what}; name the files or folders to check, or read them all with --yes")
    click.confirm(f"{what}; read them all?", abort=True, err=True)


_MOST_UNASKED = 5000
_UNREADABLE = frozenset({UNREADABLE_FILE.id, YAML_SYNTAX.id, WRONG_ENCODING.id})
_STDIN = Path("-")
_USE_OF_STDIN = (
    "write `trainyard lint - --stdin-filename FILE`, without --fix and other files: where FILE lies determines what it "
    "names"
)


def _fix(paths: Sequence[Path], settings: LintSettings, result: LintResult, root: Path) -> LintResult:
    """Fix what is safe to fix, print what was fixed, and return what remains."""
    from trainyard.lint.fixes import fix

    def relint(texts: Mapping[Path, str]) -> LintResult:
        return linter.lint(paths, settings, DocumentStore(texts))

    fixed = fix(result, relint, lambda file: not _is_rendered(file), root)
    for each in fixed.fixed:
        click.echo(f"fixed {short(each.span.file)}:{each.span.line}: {each.message} -> {each.replacement}", err=True)
    if fixed.fixed:
        hidden = f"; {counted(len(fixed.uncovered), 'finding')} that they hid: see below" if fixed.uncovered else ""
        click.echo(f"{counted(len(fixed.fixed), 'finding')} fixed{hidden}", err=True)
    remaining = {diagnostic.span.file for diagnostic in fixed.result.diagnostics if diagnostic.replacement is not None}
    for file in sorted(filter(_is_rendered, remaining)):
        click.echo(f"not fixed: {short(file)} is rendered; change its template, which is named below", err=True)
    return fixed.result


def _is_rendered(file: Path) -> bool:
    from trainyard.render.rendered_files import read_rendered

    return read_rendered(file) is not None


def keep_in_baseline(
    file: Path, found: Sequence[Diagnostic], checked: Sequence[Path], root: Path | None = None
) -> None:
    """Write findings to a baseline, within `root` if that is given; report how many it has, and which errors are new.

    Raise UsageError, and write nothing, if that would add a file that cannot be read.
    """
    from trainyard.lint.baseline import read_baseline, write_baseline

    previous = read_baseline(file) if file.exists() else None
    new = previous.new_findings(found, checked) if previous is not None else []
    errors = [each for each in new if each.severity == "error"]
    print_diagnostics(errors)
    if any(each.rule in _UNREADABLE for each in errors):
        raise UsageError(f"{short(file)} is unchanged: fix what cannot be read first, then write the baseline")
    written = write_baseline(file, found, checked, previous, root)
    added = f", with {counted(len(errors), 'new error')}" if errors else ""
    click.echo(f"{short(file)} now contains {counted(written, 'finding')}{added}", err=True)


def _print(diagnostics: Sequence[Diagnostic], output_format: str, texts: Mapping[Path, str]) -> None:
    """Print findings on stderr for people, on stdout for programs."""
    if output_format == "text":
        print_diagnostics(diagnostics, texts)
        click.echo("\n" if diagnostics else "", nl=False, err=True)
        return
    from trainyard.lint.machine_output import as_github, as_json, as_sarif, checkout_folder

    if output_format == "json":
        click.echo(as_json(diagnostics, relative_to=Path.cwd()))
    elif output_format == "sarif":
        root, is_fixable = checkout_folder(), lambda file: not _is_rendered(file)
        click.echo(as_sarif(diagnostics, relative_to=root, is_fixable=is_fixable, texts=texts))
    elif diagnostics:
        click.echo(as_github(diagnostics, relative_to=checkout_folder()))


def summarise(diagnostics: Sequence[Diagnostic], files_checked: int, *, known: int = 0, fixable: int = 0) -> str:
    """Return one line: how many findings in how many files, how many are known or fixable, and how to learn more."""
    counts = Counter(diagnostic.severity for diagnostic in diagnostics)
    words = f"{counted(counts['error'], 'error')}, {counted(counts['warning'], 'warning')}"
    if counts["info"]:
        words += f", {counted(counts['info'], 'note')}"
    line = f"{words if diagnostics else 'no findings'} in {counted(files_checked, 'file')}"
    if not diagnostics and not files_checked:
        line = "no Azure ML files found: nothing was checked"
    if known > 0:
        line += f"; {known} more in the baseline"
    if fixable:
        line += f"; --fix can fix {fixable} of them"
    if diagnostics:
        worst = min(diagnostics, key=lambda each: SEVERITIES.index(each.severity))
        which = "" if worst is diagnostics[0] else f" {worst.severity}"
        line += f"; `trainyard explain {worst.rule}` explains the first{which}"
    return line
