"""`trainyard lint`: the linter with a project's settings, baseline, profiles and templates."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import click

from trainyard.errors import UsageError
from trainyard.lint import linter
from trainyard.lint.config import LintSettings, settings_for
from trainyard.lint.divided_work import processors
from trainyard.lint.linter import STANDARD_FOLDERS, LintResult
from trainyard.lint.rules import RULES
from trainyard.lint.rules.computes import NO_COMPUTE
from trainyard.project_files import limit_reading, root_of
from trainyard.render.project import NoProject, Project, find_project
from trainyard.settings.quantities import counted
from trainyard.spec.diagnostic import Diagnostic, SpecError
from trainyard.spec.documents import Document, read_document
from trainyard.spec.findings import DocumentStore
from trainyard.spec.loading import require_job, stops_a_run
from trainyard.spec.rules.keys import UNKNOWN_KEY
from trainyard.terminal import colour_choice, print_diagnostics, short

if TYPE_CHECKING:
    from trainyard.render.related_lines import SourceFinder

_PROFILES = "profiles"


@dataclass(frozen=True)
class LintOptions:
    """The flags of `trainyard lint`."""

    output_format: str = "text"
    fix: bool = False
    baseline: Path | None = None
    write_baseline: bool = False
    pedantic: bool = False
    root: Path | None = None
    """The folder that is read at most; None: the repository's, or the project's."""
    renders: bool = True
    """Whether findings in rendered files get the template's line, for which it is rendered, with limits."""


def lint(paths: Sequence[Path], options: LintOptions) -> bool:
    """Check files and folders (none: the project's), print the findings, and return whether there are no errors.

    Raise UserError if the options contradict each other, or a file cannot be read or written.
    """
    if options.fix and options.write_baseline:
        raise UsageError("--fix and --write-baseline cannot be combined: fix first, then write the baseline.")
    chosen = list(paths) or folders_to_check(Path.cwd())
    root = options.root or root_of(chosen)
    limit_reading(root)
    settings, result = _check(chosen, pedantic=options.pedantic)
    baseline = options.baseline or settings.baseline
    if options.write_baseline and baseline is None:
        raise UsageError("--write-baseline requires --baseline FILE.")
    if options.fix:
        result = _fix(chosen, settings, result, root)
    found = with_profile_findings(result.diagnostics, chosen, result.files, settings)
    if options.write_baseline:
        assert baseline is not None
        # One that the settings name is the repository's choice.
        _write_baseline(baseline, found, result.files, None if options.baseline else root)
        return True
    left = without_known(found, baseline, result.files)
    related = with_template_lines(left) if options.renders else left
    _print(related, options.output_format)
    if options.output_format == "text":
        known, fixable = len(found) - len(left), 0 if options.fix else _count_fixable(left)
        summary = summarise(related, len(result.files), known=known, fixable=fixable)
        click.echo(click.style(summary, bold=True), err=True, color=colour_choice())
    return not any(diagnostic.severity == "error" for diagnostic in related)


def errors_before_a_run(file: Path, store: DocumentStore) -> tuple[Sequence[Diagnostic], Sequence[Diagnostic]]:
    """Return the errors in a job's file that Azure ML refuses it for, and those that it accepts with the keys it drops.

    The files that are read stay in `store`. Raise SpecError for a file that is not a job.
    """
    found = _found_before(file, store)
    require_job(file, store)
    # A local run uses this machine as its compute.
    found = [each for each in found if each.rule != NO_COMPUTE.id]
    refused = [each for each in found if each.severity == "error" and stops_a_run(each)]
    return refused, [each for each in found if each not in refused]


def errors_before_a_submission(file: Path, store: DocumentStore) -> Sequence[Diagnostic]:
    """Return the errors in a job's file and in what it names. The files that are read stay in `store`."""
    return [each for each in _found_before(file, store) if each.severity == "error"]


def _found_before(file: Path, store: DocumentStore) -> Sequence[Diagnostic]:
    settings, result = _check([file], store)
    found = without_known(result.diagnostics, settings.baseline, result.files)
    return with_template_lines([each for each in found if _does_damage(each)])


def _does_damage(diagnostic: Diagnostic) -> bool:
    """Whether a finding is an error, or a warning of a key that is dropped: most of those are harmless, not all."""
    return diagnostic.severity == "error" or diagnostic.rule == UNKNOWN_KEY.id


def rules_that_find_something(file: Path) -> list[str]:
    """Return the ids of the rules with findings in a file, each once, in the order of lines."""
    _, result = _check([file])
    resolved = file.resolve()
    return list(dict.fromkeys(each.rule for each in result.diagnostics if each.span.file.resolve() == resolved))


def folders_to_check(start: Path) -> list[Path]:
    """Return the folders with Azure ML files of the project that contains a folder; outside one, the folder itself."""
    project = _project_of(start)
    if project is None:
        return [start]
    return [folder for folder in (project.root / name for name in STANDARD_FOLDERS) if folder.is_dir()]


def _check(
    paths: Sequence[Path], store: DocumentStore | None = None, *, pedantic: bool = False
) -> tuple[LintSettings, LintResult]:
    """Return the settings of the project that contains the paths, and what lint finds with them."""
    # Documents are kept to the end: searching them for cycles again and again takes 16 % longer for a pipeline, and
    # 40 % for 5,000 files.
    gc.disable()
    try:
        settings = settings_for(paths, RULES)
        settings = replace(settings, pedantic=settings.pedantic or pedantic)
        return settings, linter.lint(paths, settings, store, processes=processors())
    finally:
        gc.freeze()
        gc.enable()


def _fix(paths: Sequence[Path], settings: LintSettings, result: LintResult, root: Path) -> LintResult:
    """Fix what is safe to fix, print what was fixed, and return what remains."""
    from trainyard.lint.fixes import fix

    def relint(texts: Mapping[Path, str]) -> LintResult:
        return linter.lint(paths, settings, DocumentStore(texts))

    fixed = fix(result, relint, lambda file: not _is_rendered(file), root)
    for each in fixed.fixed:
        click.echo(f"fixed {short(each.span.file)}:{each.span.line}: {each.message} -> {each.replacement}", err=True)
    remaining = {diagnostic.span.file for diagnostic in fixed.result.diagnostics if diagnostic.replacement is not None}
    for file in sorted(filter(_is_rendered, remaining)):
        click.echo(f"not fixed: {short(file)} is rendered; change its template, which is named below", err=True)
    return fixed.result


def _is_rendered(file: Path) -> bool:
    from trainyard.render.rendered_files import read_rendered

    return read_rendered(file) is not None


def _count_fixable(diagnostics: Sequence[Diagnostic]) -> int:
    """Return how many findings `--fix` would try to fix; a rendered file has to be fixed in its template."""
    return sum(each.replacement is not None and not _is_rendered(each.span.file) for each in diagnostics)


def _write_baseline(file: Path, found: Sequence[Diagnostic], checked: Sequence[Path], root: Path | None) -> None:
    from trainyard.lint.baseline import read_baseline, write_baseline

    written = write_baseline(file, found, checked, read_baseline(file) if file.exists() else None, root)
    click.echo(f"{short(file)} now contains {counted(written, 'finding')}", err=True)


def without_known(
    diagnostics: Sequence[Diagnostic],
    baseline: Path | None,
    checked: Sequence[Path],
    read: Callable[[Path], Document] = read_document,
) -> list[Diagnostic]:
    """Return the findings that the baseline does not contain, and one for each of its stale entries."""
    if baseline is None:
        return list(diagnostics)
    from trainyard.lint.baseline import read_baseline

    return read_baseline(baseline).new_findings(diagnostics, checked, read)


def with_profile_findings(
    diagnostics: Sequence[Diagnostic],
    chosen: Sequence[Path],
    checked: Sequence[Path],
    settings: LintSettings,
    read: Callable[[Path], Document] = read_document,
) -> list[Diagnostic]:
    """Return findings, with those in profiles from their own reader, which follows `extends` and knows the machines."""
    profiles = [each for each in _profiles_among(chosen, checked) if not settings.excludes(each[1])]
    if not profiles:
        return list(diagnostics)
    from trainyard.render.profiles import load_profile

    found: dict[Diagnostic, None] = {}
    for project, file in profiles:
        try:
            load_profile(project, file.stem, read=read)
        except SpecError as error:
            found.update(dict.fromkeys(error.diagnostics))
    with_findings = {diagnostic.span.file for diagnostic in found}
    merged = [*(each for each in diagnostics if each.span.file.resolve() not in with_findings), *found]
    return sorted(merged, key=lambda diagnostic: diagnostic.span)


def _profiles_among(chosen: Sequence[Path], checked: Sequence[Path]) -> list[tuple[Project, Path]]:
    """Return the profiles in the chosen files and folders that belong to a project, with that project."""
    wanted = [path.resolve() for path in chosen]
    folders = {*wanted, *(file.parent for file in checked if file.parent.name == _PROFILES)}
    projects = {project for folder in folders if (project := _project_of(folder)) is not None}
    return [
        (project, file)
        for project in sorted(projects, key=lambda each: each.root)
        for file in sorted(project.profiles.glob("*.yaml"))
        if any(path in (file, *file.parents) for path in wanted)
    ]


@lru_cache(maxsize=4096)
def _project_of(path: Path) -> Project | None:
    try:
        return find_project(path)
    except NoProject:
        return None


def with_template_lines(
    diagnostics: Sequence[Diagnostic],
    texts: Mapping[Path, str] = MappingProxyType({}),
    finders: dict[Project, SourceFinder] | None = None,
) -> list[Diagnostic]:
    """Add the lines of templates and profiles to findings in rendered files.

    A file belongs to the project that contains it; what was rendered elsewhere, to that of the working directory.
    `texts` replace what is on disk. `finders` keep what was rendered from one call to the next.
    """
    finders = {} if finders is None else finders
    places_by_project: dict[Project, list[int]] = {}
    for place, diagnostic in enumerate(diagnostics):
        project = _project_of(diagnostic.span.file.parent) or _project_of(Path.cwd())
        if project is not None:
            places_by_project.setdefault(project, []).append(place)
    found = list(diagnostics)
    for project, places in places_by_project.items():
        from trainyard.render.related_lines import SourceFinder

        finder = finders.setdefault(project, SourceFinder(project))
        related = finder.relate([found[place] for place in places], texts)
        for place, diagnostic in zip(places, related, strict=True):
            found[place] = diagnostic
    return found


def _print(diagnostics: Sequence[Diagnostic], output_format: str) -> None:
    """Print findings on stderr for people, on stdout for programs."""
    if output_format == "text":
        print_diagnostics(diagnostics)
        click.echo("\n" if diagnostics else "", nl=False, err=True)
        return
    from trainyard.lint.machine_output import as_github, as_json, as_sarif, checkout_folder

    if output_format == "json":
        click.echo(as_json(diagnostics, relative_to=Path.cwd()))
    elif output_format == "sarif":
        click.echo(as_sarif(diagnostics, relative_to=checkout_folder(), is_fixable=lambda file: not _is_rendered(file)))
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
        line += f"; `trainyard explain {diagnostics[0].rule}` explains the first"
    return line
