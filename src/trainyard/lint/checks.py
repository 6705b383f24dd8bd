"""A check: what it looks at, and what it may ask besides the YAML (scripts in snapshots, machines behind computes)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from trainyard.lint.scripts.data_reads import Read, reads_of
from trainyard.lint.scripts.flag_readers import read_flags, with_task_flags
from trainyard.lint.scripts.flags import ScriptFlags
from trainyard.lint.scripts.syntax import Syntax, parse
from trainyard.project_files import read_bytes, read_text, repository_of, yaml_files
from trainyard.resources import word_tables
from trainyard.settings.regex import regex
from trainyard.spec.computes import Computes
from trainyard.spec.diagnostic import Diagnostic, Related, Span
from trainyard.spec.documents import Document, Node, Value
from trainyard.spec.file_kinds import Kind
from trainyard.spec.model import Component, Job, Pipeline, PipelineComponent, Sweep, code_of
from trainyard.spec.parsed import Parsed, ParsedCommand, ParsedPipeline
from trainyard.spec.resolution import Resolution
from trainyard.spec.rule import Rule
from trainyard.spec.shell_words import CalledScript, called_scripts
from trainyard.spec.uploads import Upload, doubtful_uploads, ignore_rule

if TYPE_CHECKING:
    from trainyard.catalogue.skus import Sku

# What a check looks at: a LintedFile, a ParsedCommand, a ParsedPipeline, or a Placement (one use of a command).
Subject = Literal["file", "command", "pipeline", "placement"]
Check = Callable[[Any, "LintContext"], Iterator[Diagnostic]]
_Function = TypeVar("_Function", bound=Check)
_Made = TypeVar("_Made")
_NAMES_COMPONENT = re.compile(rb"\b(?:component|trial)\s*:\s*[\"']?(?:file:)?([^\s:\"',{}]+\.ya?ml)\b")
DATA_OR_MODEL = "data or model"
_KEYS_OF_COMPONENTS = frozenset({"command", "jobs", "task", "entry"})
_READS_VARIABLES = regex("environ|getenv|AZUREML_|AZURE_ML_")

CHECKS: dict[Subject, list[Check]] = {"file": [], "command": [], "pipeline": [], "placement": []}


def check(subject: Subject) -> Callable[[_Function], _Function]:
    """Register a check of files, of commands, of pipelines, or of the places where commands run."""

    def register(function: _Function) -> _Function:
        CHECKS[subject].append(function)
        return function

    return register


def known_words(table: str) -> Any:
    """Return a list or table of the words that Azure ML or another program knows, from `known_words.json`."""
    return word_tables("lint")[table]["words"]


@dataclass(frozen=True, eq=False)
class LintedFile:
    """A whole file, with what it is."""

    document: Document
    kind: Kind

    @property
    def root(self) -> Node:
        """Its top level."""
        return self.document.root

    @cached_property
    def jobs(self) -> list[Node]:
        """The keys of what may be a job or a component: the file itself, and each job in it."""
        return jobs_in(self.root)

    @cached_property
    def environments(self) -> list[Node]:
        """The keys of each environment that the file defines in place."""
        holders = [job.find(*keys) for job in self.jobs for keys in ((), ("task",), ("trial",), ("component",))]
        found = [holder.get("environment") for holder in holders if holder is not None]
        in_place = [each for each in found if each is not None and each.is_mapping]
        return [self.root, *in_place] if self.kind == "environment" else in_place

    def jobs_of(self, kind: str) -> Iterator[Node]:
        """The jobs and components of a type."""
        return (job for job in self.jobs if job.word("type") == kind)


def jobs_in(holder: Node) -> list[Node]:
    """Return what may be a job or a component: the keys of a file, and those of each job in it."""
    inner = (entry.value for entry in holder.entries_of("jobs").values() if entry.value.is_mapping)
    return [holder, *(job for each in inner for job in jobs_in(each))]


def number_of(node: Node | Value | None) -> float | None:
    """Return the number that a value is, or that its text reads as; None for anything else."""
    if node is None or isinstance(node.data, (bool, dict, list)) or node.data is None:
        return None
    try:
        return float(node.text)
    except ValueError:
        return None


def exceeds(part: Node | None, whole: Node | None) -> bool:
    """Return whether one number is larger than another; False unless both are numbers."""
    first, second = number_of(part), number_of(whole)
    return first is not None and second is not None and first > second


def contradicting_limits(job: Node, rule: Rule) -> Iterator[Diagnostic]:
    """Yield limits of a job of which the first is larger than the second; both are told of in words."""
    for smaller, larger, what, whole in known_words("limits"):
        part, most = job.find("limits", smaller), job.find("limits", larger)
        if part is not None and most is not None and exceeds(part, most):
            message = f"{part.text} {what}, but only {most.text} {whole}"
            related = [Related(most.span, f"'{larger}' is set here")]
            yield rule.at(part.span, message, f"Write {most.text} or less.", related)


@dataclass(eq=False)
class LintContext:
    """One call of the linter: everything that was read, the known clusters, and a cache."""

    parsed: Parsed
    computes: Computes
    outside: dict[Hashable, Any] = field(default_factory=dict)
    """What was read in scripts and code folders. It may be shared by calls, for as long as these do not change."""
    _cache: dict[Hashable, Any] = field(default_factory=dict)
    _latest_resolution: tuple[PipelineComponent, Resolution] | None = None
    _latest_scripts: tuple[ParsedCommand, list[tuple[CalledScript, Path, Syntax]]] | None = None

    def cached(self, key: Hashable, make: Callable[[], _Made]) -> _Made:
        """Return what `make` returned for a key the first time."""
        return _kept(self._cache, key, make)

    def calls_of(self, command: ParsedCommand) -> list[CalledScript]:
        """The Python scripts that a command calls."""
        return self.cached(("calls", id(command)), lambda: list(called_scripts(command)))

    def scripts_of(self, command: ParsedCommand) -> Iterator[tuple[CalledScript, Path, Syntax]]:
        """The same, of those that can be read and parsed, with the file and what is in it."""
        if self._latest_scripts is None or self._latest_scripts[0] is not command:
            calls = ((called, called.file) for called in self.calls_of(command) if called.file is not None)
            parsed = [(called, file, syntax) for called, file in calls if (syntax := parse(file)) is not None]
            self._latest_scripts = command, parsed
        yield from self._latest_scripts[1]

    def flags_of(self, script: Path, root: Path) -> ScriptFlags | None:
        """The flags of a script in a snapshot; None if they cannot be determined."""
        return _kept(self.outside, ("flags", script, root), lambda: read_flags(script, root))

    def flags_with_task(self, script: Path, root: Path, flags: ScriptFlags, task: str | None) -> ScriptFlags:
        """The flags of a step with those of a task; an empty name stands for no task, None for an unknown one."""
        key = ("flags with task", script, root, task)
        return _kept(self.outside, key, lambda: with_task_flags(flags, task)) if task != "" else flags

    def reads_of(self, script: Path) -> Mapping[str, tuple[Read, ...]]:
        """How a script reads the path of each of its flags."""
        return _kept(self.outside, ("reads", script), lambda: reads_of(script))

    def reads_variables(self, script: Path) -> bool:
        """Whether a script may read environment variables."""
        return _kept(self.outside, ("variables", script), lambda: mentions(script, _READS_VARIABLES))

    def doubtful_uploads(self, code: Path) -> list[Upload]:
        """What should hardly be uploaded with the code of a component."""
        return _kept(self.outside, ("uploads", code), lambda: doubtful_uploads(code))

    def is_left_out(self, root: Path, file: Path) -> bool:
        """Whether the ignore file of a snapshot excludes a file."""
        try:
            is_ignored = _kept(self.outside, ("ignored", root), lambda: ignore_rule(root)[0])
            return is_ignored(file.relative_to(root).as_posix())
        except (OSError, ValueError, re.error):
            return False  # a pattern that Git does not understand either

    def command_of(self, component: Component) -> ParsedCommand | None:
        """The command that a component was read from; None if it has none."""
        command = self._command_by_component.get(id(component))
        return command if command is not None and command.command is not None else None

    def commands_of(self, pipeline: ParsedPipeline) -> Iterator[tuple[Job, ParsedCommand]]:
        """The jobs of a pipeline that run a component, each with the component's command."""
        for job in pipeline.model.jobs.values():
            command = self.command_of(job.component) if isinstance(job.component, Component) else None
            if command is not None and not job.has_own_command:
                yield job, command

    @cached_property
    def _command_by_component(self) -> dict[int, ParsedCommand]:
        return {id(command.component): command for command in self.parsed.commands}

    def is_used(self, component: Component | PipelineComponent) -> bool:
        """Whether a pipeline that was read uses a component, and so determines its values and machines."""
        return id(component) in self._used_components or component.span in self._trials

    def is_named_by_pipelines(self, file: Path) -> bool:
        """Whether a pipeline, read or not, names a component's file: the client does not register it then."""
        if file in self._files_of_used_components:
            return True
        root = repository_of(file.parent) or file.parent
        return file in self.cached(("named components", root), lambda: _components_named_in(root))

    @cached_property
    def _files_of_used_components(self) -> frozenset[Path]:
        jobs = (job for pipeline in self.parsed.pipelines for job in pipeline.model.jobs.values())
        named = [job.component for job in jobs]
        read = (each if isinstance(each, PipelineComponent) else code_of(each) for each in named)
        return frozenset(component.file for component in read if component is not None)

    @cached_property
    def _trials(self) -> frozenset[Span]:
        """Where the components are that sweeps try, each with values and machines of the sweep's."""
        jobs = (job for parsed in self.parsed.pipelines for job in parsed.model.jobs.values())
        tasks = (code.task for job in jobs if (code := code_of(job.component)) is not None)
        return frozenset(task.trial.span for task in tasks if isinstance(task, Sweep))

    @cached_property
    def _used_components(self) -> frozenset[int]:
        by_jobs = {id(parsed.model.jobs): parsed.model for parsed in self.parsed.pipelines if not _is_job(parsed)}
        roots = (by_jobs.get(id(parsed.model.jobs)) for parsed in self.parsed.pipelines if _is_job(parsed))
        jobs = (job for parsed in self.parsed.pipelines for job in parsed.model.jobs.values())
        return frozenset(map(id, (*roots, *(job.component for job in jobs))))

    @cached_property
    def names_defined(self) -> frozenset[str]:
        """The names of environments and other assets that files of this repository define, as far as they were read."""
        return frozenset(name.text for root in self.computes.store.roots() if (name := root.get("name")) is not None)

    @cached_property
    def assets_defined(self) -> Mapping[str, dict[str, list[Node]]]:
        """The assets that files of this repository define, by kind and name, as far as they were read."""
        found: dict[str, dict[str, list[Node]]] = {"environment": {}, "component": {}, DATA_OR_MODEL: {}}
        files: set[Path] = set()
        for root in self.computes.store.roots():
            name, kind = root.find_text("name"), _kind(root)
            if name is not None and kind and root.span.file not in files:
                files.add(root.span.file)
                found[kind].setdefault(name.text, []).append(root)
        return found

    def jobs_using(self, component: Component) -> Sequence[tuple[PipelineComponent, Job]]:
        """The jobs that run a component, each with its pipeline."""
        return self._jobs_by_component.get(id(component), ())

    @cached_property
    def _jobs_by_component(self) -> dict[int, list[tuple[PipelineComponent, Job]]]:
        found: dict[int, list[tuple[PipelineComponent, Job]]] = {}
        for parsed in self.parsed.pipelines:
            for job in parsed.model.jobs.values():
                found.setdefault(id(job.component), []).append((parsed.model, job))
        return found

    def resolution_of(self, pipeline: PipelineComponent) -> Resolution:
        """The resolved values of a pipeline. Only the latest is kept: its checks follow each other."""
        if self._latest_resolution is None or self._latest_resolution[0] is not pipeline:
            self._latest_resolution = pipeline, Resolution(pipeline, store=self.computes.store)
        return self._latest_resolution[1]

    @cached_property
    def pipeline_components(self) -> dict[Path, ParsedPipeline]:
        """The pipeline components by their files, as far as they were read."""
        return {
            pipeline.reading.file: pipeline
            for pipeline in self.parsed.pipelines
            if pipeline.body is pipeline.reading.document.root
        }


def _kind(root: Node) -> str:
    if root.entries.keys() & {"image", "build", "conda_file"}:
        return "environment"
    if root.get("version") is not None and root.entries.keys() & _KEYS_OF_COMPONENTS:
        return "component"
    return DATA_OR_MODEL if root.get("path") is not None and root.get("type") is not None else ""


def _kept(cache: dict[Hashable, Any], key: Hashable, make: Callable[[], _Made]) -> _Made:
    if key not in cache:
        cache[key] = make()
    made: _Made = cache[key]
    return made


def _components_named_in(root: Path) -> frozenset[Path]:
    """The files that YAML below a folder names as components, as far as its text tells."""
    found: set[Path] = set()
    for file in yaml_files(root):
        with suppress(OSError):
            names = _NAMES_COMPONENT.findall(read_bytes(file))
            found.update(Path(os.path.normpath(file.parent / name.decode(errors="replace"))) for name in names)
    return frozenset(found)


def mentions(script: Path, pattern: re.Pattern[str]) -> bool:
    """Return whether a script contains a pattern; True for one that cannot be read, and may."""
    try:
        return pattern.search(read_text(script, errors="replace")) is not None
    except OSError:
        return True


def _is_job(parsed: ParsedPipeline) -> bool:
    return isinstance(parsed.model, Pipeline)


@lru_cache(maxsize=1024)
def sku_named(size: str) -> Sku | None:
    """A VM size of the catalogue, or None."""
    from trainyard.catalogue.skus import UnknownSku, find_sku

    try:
        return find_sku(size)
    except UnknownSku:
        return None
