"""What lint finds in a project: with its settings and baseline, its profiles, and the lines of its templates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from trainyard.errors import UsageError
from trainyard.lint import linter
from trainyard.lint.config import LintSettings, settings_for
from trainyard.lint.linter import STANDARD_FOLDERS, LintResult
from trainyard.lint.processors import keeping_everything, processors
from trainyard.lint.rules import RULES
from trainyard.lint.rules.computes import NO_COMPUTE
from trainyard.lint.rules.script_arguments import FLAG_VALUE, MISSING_FLAG, UNKNOWN_FLAG, WRONG_CHOICE
from trainyard.render.project import NoProject, Project, find_project
from trainyard.settings.suggestions import close_match
from trainyard.spec.diagnostic import Diagnostic, Span, SpecError
from trainyard.spec.documents import Document, read_document
from trainyard.spec.findings import DocumentStore
from trainyard.spec.loading import require_job, stops_a_run
from trainyard.spec.rules import UNKNOWN_KEY
from trainyard.spec.training_settings import REFUSED_BY_STEPS

if TYPE_CHECKING:
    from trainyard.render.related_lines import SourceFinder

_PROFILES = "profiles"
_REFUSED_BY_PROGRAMS = REFUSED_BY_STEPS | {rule.id for rule in (UNKNOWN_FLAG, MISSING_FLAG, WRONG_CHOICE, FLAG_VALUE)}


def errors_before_a_run(file: Path, store: DocumentStore) -> tuple[list[Diagnostic], ...]:
    """Return what Azure ML refuses of a job's file, what a job's own program does, and what neither does.

    The last includes the keys that Azure ML drops. The files that are read stay in `store`. Raise SpecError for a file
    that is not a job.
    """
    found = _found_before(file, store, _does_damage)
    require_job(file, store)
    # A local run uses this machine as its compute.
    found = [each for each in found if each.rule != NO_COMPUTE.id]
    refused = [each for each in found if each.severity == "error" and stops_a_run(each)]
    by_programs = [each for each in found if each.rule in _REFUSED_BY_PROGRAMS]
    return refused, by_programs, [each for each in found if each not in (*refused, *by_programs)]


def findings_before_a_submission(file: Path, store: DocumentStore) -> Sequence[Diagnostic]:
    """Return errors and warnings in a job's file and in what it names. The files that are read stay in `store`."""
    return _found_before(file, store, lambda each: each.severity != "info")


def _found_before(file: Path, store: DocumentStore, counts: Callable[[Diagnostic], bool]) -> Sequence[Diagnostic]:
    settings, result = check_paths([file], store)
    found = without_known(result.diagnostics, settings.baseline, result.files)
    return with_template_lines([each for each in found if counts(each)])


def _does_damage(diagnostic: Diagnostic) -> bool:
    """Whether a finding is an error, or a warning of a key that is dropped: most of those are harmless, not all."""
    return diagnostic.severity == "error" or diagnostic.rule == UNKNOWN_KEY.id


def rules_that_find_something(file: Path) -> list[str]:
    """Return the ids of the rules with findings in a file, each once, in the order of lines."""
    _, result = check_paths([file])
    resolved = file.resolve()
    return list(dict.fromkeys(each.rule for each in result.diagnostics if each.span.file.resolve() == resolved))


def folders_to_check(start: Path) -> list[Path]:
    """Return the folders with Azure ML files of the project that contains a folder; outside one, the folder itself."""
    project = project_of(start)
    if project is None:
        return [start]
    return [folder for folder in (project.root / name for name in STANDARD_FOLDERS) if folder.is_dir()]


def check_paths(
    paths: Sequence[Path],
    store: DocumentStore | None = None,
    *,
    pedantic: bool = False,
    select: tuple[str, ...] = (),
    ignore: tuple[str, ...] = (),
) -> tuple[LintSettings, LintResult]:
    """Return the settings of the project that contains the paths, and what lint finds with them.

    `select` and `ignore`, unless they are empty, are in place of those of the settings.
    """
    with keeping_everything():
        settings = settings_for(paths, RULES)
        settings = replace(
            settings,
            pedantic=settings.pedantic or pedantic,
            select=select or settings.select,
            ignore=ignore or settings.ignore,
        )
        return settings, linter.lint(paths, settings, store, processes=processors())


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
    projects = {project for folder in folders if (project := project_of(folder)) is not None}
    return [
        (project, file)
        for project in sorted(projects, key=lambda each: each.root)
        for file in sorted(project.profiles.glob("*.yaml"))
        if any(path in (file, *file.parents) for path in wanted)
    ]


@lru_cache(maxsize=4096)
def project_of(path: Path) -> Project | None:
    """Return the project that contains a folder; None outside one."""
    try:
        return find_project(path)
    except NoProject:
        return None


def template_findings(start: Path) -> list[Diagnostic]:
    """Return why rendered files of the project that contains a folder cannot be rendered again for their profile."""
    project = project_of(start)
    if project is None:
        return []
    from trainyard.render.limited_rendering import render_limited
    from trainyard.render.profiles import profile_names
    from trainyard.render.rendered_files import files_on_disk, header_line
    from trainyard.render.rules import UNKNOWN_PROFILE

    known, found = profile_names(project), []
    first = {file.header.profile: file.path for file in reversed(files_on_disk(project, project.root))}
    for profile in sorted(first.keys() - known):
        message = f"this is rendered for the profile '{profile}', which is gone"
        hint = f"{close_match(profile, known)} `trainyard render PROFILE` renders for another.".strip()
        span = Span(first[profile], header_line(first[profile]))
        found.append(UNKNOWN_PROFILE.at(span, message, hint, severity="warning"))
    try:
        render_limited(project)
    except SpecError as error:
        found += error.diagnostics
    except UsageError:
        return found  # nothing is rendered yet, or most of it for a profile that is gone
    return found


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
        project = project_of(diagnostic.span.file.parent) or project_of(Path.cwd())
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
