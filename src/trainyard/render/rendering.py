"""Profiles × templates → the text of every file, in memory: nothing here writes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from jinja2 import Environment

from trainyard.project_files import read_text
from trainyard.render import rules
from trainyard.render.profiles import Profile, load_profile
from trainyard.render.project import Project
from trainyard.render.rendered_files import JSON_BEGINNING, JSON_SUFFIX, Header, header_line, rendered_for
from trainyard.render.source_maps import SourceMap, map_sources
from trainyard.render.steps import step_descriptions
from trainyard.render.templates import (
    SUFFIX,
    TemplateSet,
    check_blocks,
    explaining_errors,
    template_names,
)
from trainyard.render.tuning import trial_settings, tuning_proposal
from trainyard.render.values import as_written
from trainyard.spec.diagnostic import Diagnostic, Related, Span, SpecError
from trainyard.spec.documents import parse_document
from trainyard.spec.parsed import is_remote


@dataclass(frozen=True)
class RenderedFile:
    """One rendered file: where it belongs (absolute), its text with the header, and the template it comes from."""

    path: Path
    text: str
    template: str
    _map: Callable[[], SourceMap] = field(repr=False, compare=False)

    @cached_property
    def source_map(self) -> SourceMap:
        """The template's line and the profile's lines behind each line; computed on first use."""
        return self._map()


@dataclass(frozen=True)
class Rendering:
    """Everything that one profile renders; all paths are below `root`."""

    project: Project
    profile: Profile
    root: Path
    files: Mapping[Path, RenderedFile]


def render(
    project: Project,
    profile_name: str | None = None,
    settings: Mapping[str, object] | None = None,
    out: Path | None = None,
    *,
    only: Collection[str] | None = None,
    begins: Callable[[str], object] = lambda template: None,
) -> Rendering:
    """Render every template for a profile; `settings` (dotted keys) take precedence over its own.

    `only` are the templates that are rendered, if not all; `begins` is told each before it is rendered.

    Without a profile's name it is the one that the files on disk were rendered for, with their settings. The files
    belong below `out`, or in the project itself; their references to code and data are valid from either.
    Raise SpecError for mistakes in profile and templates, UsageError for an unknown profile or invalid settings.
    """
    root = (out or project.root).resolve()
    name, all_settings = rendered_for(project, root, profile_name, settings)
    profile = load_profile(project, name, all_settings)
    templates = TemplateSet(project)
    files: dict[Path, RenderedFile] = {}
    released = released_templates(project)
    for template in template_names(project):
        is_for_others = template.rpartition("/")[2].startswith("_")
        if is_for_others or template in released or (only is not None and template not in only):
            continue
        begins(template)
        with explaining_errors(project, template, ()):
            check_blocks(project, templates, template)
        content = _render_one(templates, project, profile, root, template)
        # A template that is empty for a profile renders no file: a cluster's, if there is no cluster.
        if content.strip():
            rendered = _with_header(project, profile, root, template, content, released)
            files[rendered.path] = rendered
    for rendered in files.values():
        _check_form(rendered, project)
    return Rendering(project, profile, root, files)


def released_templates(project: Project) -> frozenset[str]:
    """Return the templates whose files people took over, so that they are not rendered."""
    return frozenset(read_text(project.released).splitlines()) if project.released.is_file() else frozenset()


def _render_one(templates: Environment, project: Project, profile: Profile, root: Path, template: str) -> str:
    context = context_of(project, profile, root, template)
    with explaining_errors(project, template, context):
        return templates.get_template(template).render(context)


def _with_header(
    project: Project, profile: Profile, root: Path, template: str, content: str, released: Iterable[str]
) -> RenderedFile:
    path = root / template.removesuffix(SUFFIX)
    text = _naming_released(project, root, path.parent, content, released)
    header = Header(template, profile.name, profile.settings)

    def make_map() -> SourceMap:
        lines = map_sources(project, content, lambda marking: _render_one(marking, project, profile, root, template))
        above = header_line(path)
        return SourceMap(lines[above - 1 :], above + 1)

    return RenderedFile(path, header.joined_with(path, text), template, make_map)


def _naming_released(project: Project, root: Path, folder: Path, content: str, released: Iterable[str]) -> str:
    """Name released files, which are not rendered, where they are in the project: for a rendering elsewhere."""
    if root == project.root.resolve():
        return content
    for file in (template.removesuffix(SUFFIX) for template in released):
        here, there = (Path(os.path.relpath(base / file, folder)).as_posix() for base in (root, project.root))
        content = re.sub(rf"(?<![\w./-]){re.escape(here)}(?![\w./-])", there, content)
    return content


def context_of(project: Project, profile: Profile, root: Path, template: str) -> dict[str, Any]:
    """Return the names that templates may use: `profile`, `steps`, and functions for paths from the rendered file."""
    folder = (root / template).parent

    def path_to(path: str) -> str:
        return Path(os.path.relpath(project.root / path, folder)).as_posix()

    def environment_for(step: str) -> str:
        """Return a component's environment: a reference, or the file of one that is rendered too."""
        named = profile.environment_of(step)
        if is_remote(named):
            return named
        file = Path(os.path.relpath(root / "environments" / f"{named}.yaml", folder)).as_posix()
        return as_written(f"file:{file}", named)

    def data_path(path: str) -> str:
        """Return an address in Azure ML unchanged, a folder of the project relative to the rendered file."""
        is_address = is_remote(path) or "://" in path
        return path if is_address else as_written(path_to(path), path)

    return {
        "profile": profile,
        "steps": step_descriptions(project),
        "path_to": path_to,
        "environment_for": environment_for,
        "data_path": data_path,
        "trial_settings": partial(trial_settings, project),
        "tuning_proposal": partial(tuning_proposal, profile),
    }


def _check_form(rendered: RenderedFile, project: Project) -> None:
    """Raise SpecError, at the template's line, for rendered YAML or JSON that is not valid."""
    language = _LANGUAGES.get(rendered.path.suffix)
    problems: Iterable[Diagnostic] = ()
    try:
        if language == "YAML":
            problems = parse_document(rendered.path, rendered.text).problems
        elif language == "JSON":
            json.loads(rendered.text)
    except SpecError as error:
        problems = error.diagnostics
    except json.JSONDecodeError as error:
        # The header goes below the first brace, so a list or an object without a key is invalid here too.
        span = Span(rendered.path, error.lineno, error.colno, error.lineno, error.colno)
        message = f"{error.msg[0].lower()}{error.msg[1:]} (its first line is {JSON_BEGINNING.strip()} alone)"
        problems = [rules.RENDERED_MALFORMED.at(span, message)]
    if found := [_at_template(problem, rendered, project, str(language)) for problem in problems]:
        raise SpecError(found)


_LANGUAGES = {".yaml": "YAML", ".yml": "YAML", JSON_SUFFIX: "JSON"}


def _at_template(problem: Diagnostic, rendered: RenderedFile, project: Project, language: str) -> Diagnostic:
    template = project.templates / rendered.template
    source = rendered.source_map.source_of(problem.span.line)
    lines = rendered.text.split("\n")
    line = lines[problem.span.line - 1] if problem.span.line <= len(lines) else ""
    return Diagnostic(
        span=source.template if source is not None and source.template is not None else Span(template),
        rule=rules.RENDERED_MALFORMED.id,
        message=f"the rendered text is not valid {language}: {problem.message}",
        hint=f"Rendered line {problem.span.line}: {line.rstrip()}",
        related=tuple(Related(span, "the profile's value") for span in (source.profile if source is not None else ())),
    )
