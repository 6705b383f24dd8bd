"""From files and folders to findings: which files belong to Azure ML, and every check on each of them once."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trainyard.errors import UsageError
from trainyard.lint.checks import CHECKS, LintContext, LintedFile
from trainyard.lint.config import LintSettings
from trainyard.lint.ignores import Ignores, read_ignores
from trainyard.lint.placements import placement_of_command, placements_of_pipeline
from trainyard.lint.processors import TooSlow, aside, divided, limited_cpu
from trainyard.lint.rules import RULES
from trainyard.lint.rules.hardware import BF16_WITHOUT_HARDWARE
from trainyard.lint.rules.linting import CHECK_FAILED
from trainyard.lint.rules.port_types import MODE_UNSUITED
from trainyard.lint.suggested_fixes import QUESTION, suggested
from trainyard.project_files import is_yaml, names_in, yaml_files
from trainyard.settings.suggestions import begin_file, closest
from trainyard.spec.components import environment_of
from trainyard.spec.computes import Computes
from trainyard.spec.diagnostic import Diagnostic, Span, SpecError
from trainyard.spec.documents import Document, Node, require_mapping, says_azureml, shorten, template_in
from trainyard.spec.expressions import CYCLE, UNKNOWN_JOB_PORT
from trainyard.spec.file_kinds import Kind, is_other_resource, kind_of
from trainyard.spec.findings import DocumentStore, Findings
from trainyard.spec.literals import LITERAL_NOT_A_CHOICE
from trainyard.spec.other_files import read_asset, read_deployment, read_other_job, read_schedule, read_sweep_job
from trainyard.spec.parsed import BAD_REFERENCE, Parsed, ParsedCommand, ParsedPipeline, Reading
from trainyard.spec.pipelines import ComponentCache, read_command_job, read_pipeline
from trainyard.spec.rules import (
    BAD_ASSET_NAME,
    DUPLICATE_KEY,
    KEY_NOT_TEXT,
    MISSING_KEY,
    NOT_A_CHOICE,
    TOO_LARGE,
    UNKNOWN_KEY,
    UNKNOWN_KIND,
    UNREADABLE_FILE,
    YAML_SYNTAX,
    YAML_TRAP,
)
from trainyard.spec.schema_checks import check_schema

if TYPE_CHECKING:
    from trainyard.lint.text_output import Sources

STANDARD_FOLDERS = ("components", "pipelines", "settings", "environments", "compute", "profiles")
_LONGEST_MESSAGE = 450
CPU_SECONDS = 5.0
# A copy of this process loads scripts again, which is not worth it for fewer subjects.
_FEWEST_EACH = 60
_FIXABLE_SUFFIXES = frozenset({".yaml", ".yml", ".json"})
# What is checked as a whole.
_Subject = LintedFile | ParsedCommand | ParsedPipeline
# Why a file is read: someone asked for it, another file names it, or it is in a folder to check. What is merely in a
# folder may belong to another program, and is skipped then.
Reason = Literal["asked", "named", "walked"]
# What schemas find, by the file and its kind.
_BySchemas = dict[tuple[str, Kind], list[Diagnostic]]

_READERS: Mapping[Kind, Callable[[Node, Reading, ComponentCache], object]] = {
    "pipeline": read_pipeline,
    "pipeline_component": lambda node, reading, components: components.read(reading.file, reading),
    "component": lambda node, reading, components: components.read(reading.file, reading),
    "command_job": lambda node, reading, components: read_command_job(node, reading),
    "environment": lambda node, reading, components: environment_of(node, reading),
    "sweep_job": read_sweep_job,
    "other_job": lambda node, reading, components: read_other_job(node, reading),
    "schedule": lambda node, reading, components: read_schedule(node, reading),
    "asset": lambda node, reading, components: read_asset(node, reading),
    "online_deployment": lambda node, reading, components: read_deployment(node, reading),
    "batch_deployment": lambda node, reading, components: read_deployment(node, reading),
}
# The usual consequences of a duplicate job name, which hides the first of the two jobs.
_CONSEQUENCES_OF_DUPLICATES = frozenset({UNKNOWN_JOB_PORT.id, CYCLE.id})


class UnreadablePath(UsageError):
    """A path to lint that does not exist or contains no YAML: the linter was used incorrectly."""


@dataclass(frozen=True)
class LintResult:
    """Findings in the order of files and lines, the Azure ML files that were checked, and their ignore comments."""

    diagnostics: tuple[Diagnostic, ...]
    files: tuple[Path, ...]
    ignores: Mapping[Path, Ignores] = field(default_factory=dict)
    parsed: Parsed = field(default_factory=Parsed)


def lint(
    paths: Sequence[Path],
    settings: LintSettings | None = None,
    store: DocumentStore | None = None,
    *,
    processes: int = 1,
) -> LintResult:
    """Check files, and all Azure ML files in folders; without paths, the project's standard folders here.

    The components and environments that a pipeline names are checked too; each file is checked once. `store`
    holds files that were read already, or text that replaces what is on disk; checks of many files are divided over
    `processes`. Raise UnreadablePath for a path that does not exist, is not a YAML file, or contains none.
    """
    store = store or DocumentStore()
    files = _files(paths or _standard_folders(), store)
    return lint_files(files, settings or LintSettings(), store, processes=processes)


def lint_files(
    files: Iterable[tuple[Path, bool]],
    settings: LintSettings,
    store: DocumentStore,
    outside: dict[Hashable, Any] | None = None,
    checkpoint: Callable[[], None] = lambda: None,
    processes: int = 1,
) -> LintResult:
    """Check files, given by absolute path and whether they were named explicitly, and those that they name.

    `outside` keeps what was read in scripts from one call to the next. `checkpoint` is called between files; what it
    raises ends the call. Checks of many files are divided over `processes`.
    """
    session = _Session(settings, store, checkpoint)
    session.check([*files], {} if outside is None else outside, processes)
    return LintResult(session.result(), tuple(session.files), session.ignores, session.parsed)


def read_files(files: Iterable[Path], store: DocumentStore) -> Parsed:
    """Return what is in files, and in those that they name, without checking it."""
    session = _Session(LintSettings(), store)
    for file in files:
        session.read_file(file, "walked")
    return session.parsed


def _standard_folders() -> list[Path]:
    here = Path.cwd()
    existing = [here / name for name in STANDARD_FOLDERS if (here / name).is_dir()]
    # Nobody named these folders, so an empty one is skipped; if all are empty, the first is reported.
    found = [folder for folder in existing if any(yaml_files(folder))] or existing[:1]
    if not found:
        raise UnreadablePath(
            f"none of the folders {', '.join(STANDARD_FOLDERS)} exist in {here}: name the files or folders to check"
        )
    return found


def _files(paths: Iterable[Path], store: DocumentStore) -> Iterator[tuple[Path, bool]]:
    """Yield each file to check and whether it was named explicitly; folders are walked in the order of names."""
    for path in paths:
        absolute = Path(os.path.abspath(path))
        if absolute in store.texts and is_yaml(absolute.name):
            yield absolute, True
        elif absolute.is_dir():
            files = list(yaml_files(absolute))
            if not files:
                raise UnreadablePath(f"no YAML files in {path}")
            yield from ((file, False) for file in files)
        elif not absolute.exists():
            match = closest(absolute.name, names_in(absolute.parent))
            meant = f"; did you mean '{path.parent / match}'?" if match else ""
            raise UnreadablePath(f"no such file or folder: '{path}'{meant}")
        elif not is_yaml(absolute.name):
            script = f"; `trainyard import {path}` writes what a script submits" if path.suffix == ".py" else ""
            raise UnreadablePath(f"{path} is not a YAML file: expected a name that ends in .yaml or .yml{script}")
        else:
            yield absolute, True


class _Session:
    """One call of lint: it keeps what was read, collects findings, and reports nothing twice."""

    def __init__(
        self, settings: LintSettings, store: DocumentStore, checkpoint: Callable[[], None] = lambda: None
    ) -> None:
        self._settings = settings
        self._store = store
        self._checkpoint = checkpoint
        self._components = ComponentCache()
        self._linted: list[LintedFile] = []
        self._found_by_readers: list[Diagnostic] = []
        self._found: dict[tuple[Path, int, int], list[Diagnostic]] = {}
        self._started: set[Path] = set()
        self._sources: Sources | None = None
        self.parsed = Parsed()
        self.files: list[Path] = []
        self.ignores: dict[Path, Ignores] = {}

    def result(self) -> tuple[Diagnostic, ...]:
        """Return the findings that no comment ignores, by file, line and column."""
        found = [diagnostic for place in sorted(self._found) for diagnostic in self._found[place]]
        with_errors = {d.span.file for d in found if d.severity == "error" and not RULES[d.rule].suppressed_by_errors}
        with_duplicates = {d.span.file for d in found if d.rule == DUPLICATE_KEY.id}
        remaining = [
            d
            for d in found
            if not (RULES[d.rule].suppressed_by_errors and d.span.file in with_errors)
            and not (d.rule in _CONSEQUENCES_OF_DUPLICATES and d.span.file in with_duplicates)
            and not self._settings.excludes(d.span.file)
            and not (d.span.file in self.ignores and self.ignores[d.span.file].silence(d))
        ]
        about_comments = [d for ignores in self.ignores.values() for d in (*ignores.problems, *ignores.unused())]
        if about_comments:
            remaining = sorted([*remaining, *about_comments], key=lambda diagnostic: diagnostic.span)
        return tuple(self._settings.with_severity(remaining, RULES))

    def read_file(self, file: Path, reason: Reason) -> None:
        """Read a file and those that it names, with the findings of its schema and readers."""
        if file in self._started or self._settings.excludes(file):
            return
        self._checkpoint()
        begin_file()
        try:
            with limited_cpu(CPU_SECONDS):
                document = self._store.peek(file)
        except TooSlow:
            self._begin(file)
            self._add([_too_slow(file)])
            return
        except SpecError as error:
            broken = {diagnostic.rule for diagnostic in error.diagnostics}
            if reason == "walked" and UNREADABLE_FILE.id not in broken and not says_azureml(self._store.text_of(file)):
                return  # another file may still name it
            if YAML_SYNTAX.id in broken and self._is_template(file, self._store.text_of(file)):
                return
            self._begin(file)
            self._add(error.diagnostics)
            return
        kind = self._components.kind_of_read(file) or kind_of(document)
        is_yaml = all(problem.rule != KEY_NOT_TEXT.id for problem in document.problems)
        if (kind is not None or not is_yaml) and self._is_template(file, document.text, is_yaml=is_yaml):
            return
        self._store.touch(file)
        self._started.add(file)
        if file in self.parsed.settings_files:
            kind = "settings"
        if kind is None:
            if reason == "asked":
                self._add_unknown_kind(document)
            return
        self.files.append(file)
        with self._one_file(file):
            ignores = read_ignores(file, document.text, RULES)
            if ignores is not None:
                self.ignores[file] = ignores
            self._read(document, kind)

    def _begin(self, file: Path) -> None:
        self._store.touch(file)
        self._started.add(file)
        self.files.append(file)

    @contextmanager
    def _one_file(self, file: Path) -> Iterator[None]:
        """A bug of the linter costs the findings of one file, and is reported; other files are not affected."""
        try:
            with limited_cpu(CPU_SECONDS):
                yield
        except TooSlow:
            self._add([_too_slow(file)])
        except Exception as error:
            self._add([_failed(file, error)])

    def check(self, files: Sequence[tuple[Path, bool]], outside: dict[Hashable, Any], processes: int) -> None:
        """Read files, and run the checks, which look beyond one file, when all are read."""
        by_schemas: Callable[[], _BySchemas] = dict
        is_aside, are_many = processes > 1, len(files) > _FEWEST_EACH
        # Loading schemas takes as long as the readers. Of few files, most are those that these name.
        if is_aside and are_many:
            documents = [*self._documents_of(files)]
            by_schemas = aside(lambda: self._by_schemas(documents))
        for file, is_explicit in files:
            self.read_file(file, "asked" if is_explicit else "walked")
        if is_aside and not are_many:
            by_schemas = aside(lambda: self._by_schemas(file.document for file in self._linted))
        context = LintContext(self.parsed, Computes(self._store, self._settings.computes), outside)
        _ = context.names_defined, context.assets_defined  # of the files read, before checks read others
        subjects: list[_Subject] = [*self._linted, *self.parsed.commands, *self.parsed.pipelines]

        def by_rules(subject: _Subject) -> list[Diagnostic]:
            document = subject.document if isinstance(subject, LintedFile) else subject.reading.document
            return self._checked(document, _findings_of(subject, context))

        found_by_rules = divided(subjects, by_rules, min(processes, len(subjects) // _FEWEST_EACH + 1))
        known = by_schemas()
        # Of two findings at a place the first may be enough: those of schemas, then of readers, then of rules.
        for each in self._linted:
            by_schema = known.get((str(each.document.file), each.kind))
            by_schema = self._by_schema(each.document, each.kind) if by_schema is None else by_schema
            self._add(_as_used(self._without_typos(by_schema, each), each, context))
        self._add(self._found_by_readers)
        for found in found_by_rules:
            self._add(found)

    def _documents_of(self, files: Iterable[tuple[Path, bool]]) -> Iterator[Document]:
        for file, _ in files:
            self._checkpoint()
            with suppress(SpecError, TooSlow), limited_cpu(CPU_SECONDS):  # which is reported when its turn comes
                if not self._settings.excludes(file):
                    yield self._store.peek(file)

    def _by_schemas(self, documents: Iterable[Document]) -> _BySchemas:
        kinds = ((document, kind_of(document)) for document in documents)
        return {(str(each.file), kind): self._by_schema(each, kind) for each, kind in kinds if kind is not None}

    def _by_schema(self, document: Document, kind: Kind) -> list[Diagnostic]:
        return self._checked(document, [check_schema(document, kind)])

    def _checked(self, document: Document, checks: Iterable[Iterable[Diagnostic]]) -> list[Diagnostic]:
        """What checks of a document find."""
        self._checkpoint()
        found: list[Diagnostic] = []
        begin_file()
        try:
            with limited_cpu(CPU_SECONDS):
                for findings in checks:
                    found.extend(findings)
        except TooSlow:
            found.append(_too_slow(document.file))
        except Exception as error:
            found.append(_failed(document.file, error))
        return found

    def _read(self, document: Document, kind: Kind) -> None:
        self._linted.append(LintedFile(document, kind))
        self._add(document.problems)
        known = len(self._store.files)
        findings = Findings()
        if kind in _READERS:
            _READERS[kind](document.root, Reading(document, self._store, findings, self.parsed), self._components)
        for file in self._store.files[known:]:
            self.read_file(file, "named")
        self._found_by_readers.extend(findings.diagnostics)

    def _without_typos(self, found: Sequence[Diagnostic], file: LintedFile) -> Iterator[Diagnostic]:
        """What a schema reports, but not as missing what is there under a misspelt name."""
        is_partial = file.kind == "profile" and file.document.root.get("extends") is not None
        unknown = {diagnostic.span for diagnostic in found if diagnostic.rule == UNKNOWN_KEY.id}
        for diagnostic in found:
            if diagnostic.rule != MISSING_KEY.id:
                yield diagnostic
            elif diagnostic.span in unknown or any(other.span in unknown for other in diagnostic.related):
                continue  # a single mistake: the key exists under a misspelt name, and is reported there
            elif not is_partial:
                # What a profile does not set, the one that it extends does.
                yield diagnostic

    def _is_template(self, file: Path, text: str, *, is_yaml: bool = False) -> bool:
        """Whether a file is a template, which is noted then: what it becomes is not known."""
        line = template_in(text, is_yaml=is_yaml)
        if line is None:
            return False
        self._begin(file)
        message = "a template that is not rendered; nothing in it was checked"
        place = Span(file, line, 1, line, 1)
        self._add([UNKNOWN_KIND.at(place, message, "Check what it is rendered to.", severity="info")])
        return True

    def _add_unknown_kind(self, document: Document) -> None:
        self._add(document.problems)
        try:
            require_mapping(document)
        except SpecError as error:
            self._add(error.diagnostics)
            return
        message = "unknown kind of file; nothing in it was checked"
        hint = "A `$schema:` or `type:` tells what a file is."
        if is_other_resource(document.root):
            message = "this is a connection or another resource; nothing in it was checked"
            hint = (
                "Lint checks jobs, components, environments, computes, data, models, schedules, endpoints, deployments."
            )
        self._add([UNKNOWN_KIND.at(document.root.span, message, hint, severity="info")])

    def _add(self, diagnostics: Iterable[Diagnostic]) -> None:
        for diagnostic in diagnostics:
            span = diagnostic.span
            at_place = self._found.setdefault((span.file, span.line, span.column), [])
            if not RULES[diagnostic.rule].local_run_only and not any(_is_same(diagnostic, known) for known in at_place):
                at_place.append(self._with_fix(_on_one_line(diagnostic)))

    def _with_fix(self, diagnostic: Diagnostic) -> Diagnostic:
        """The finding with what its hint suggests, if that is sure."""
        span = diagnostic.span
        is_simple = span.line == span.end_line and span.file.suffix in _FIXABLE_SUFFIXES
        if diagnostic.replacement is not None or not is_simple or not diagnostic.hint.startswith(QUESTION):
            return diagnostic
        if self._sources is None:
            from trainyard.lint.text_output import Sources

            self._sources = Sources(self._store.texts)
        line = self._sources.line(span.file, span.line) or ""
        found = suggested(diagnostic, line[span.column - 1 : span.end_column - 1])
        return diagnostic._replace(replacement=found.text) if found is not None and found.is_sure else diagnostic


def _findings_of(subject: _Subject, context: LintContext) -> Iterator[Iterator[Diagnostic]]:
    if isinstance(subject, LintedFile):
        yield from (check(subject, context) for check in CHECKS["file"])
        vars(subject.document).pop("scalars", None)  # as much as a tenth of the memory that a large folder takes
        return
    if isinstance(subject, ParsedCommand):
        yield from (check(subject, context) for check in CHECKS["command"])
        placements = iter(() if context.is_used(subject.component) else (placement_of_command(subject, context),))
    else:
        yield from (check(subject, context) for check in CHECKS["pipeline"])
        placements = placements_of_pipeline(subject, context)
    for placement in placements:
        yield from (check(placement, context) for check in CHECKS["placement"])


def _as_used(found: Iterable[Diagnostic], file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    """What a schema reports. The client refuses a component's bad name, except where a pipeline names its file."""
    name = file.root.get("name") if file.kind in ("component", "pipeline_component") else None
    for diagnostic in found:
        is_own_name = name is not None and (diagnostic.rule, diagnostic.span) == (BAD_ASSET_NAME.id, name.span)
        if is_own_name and not context.is_named_by_pipelines(file.document.file):
            yield diagnostic._replace(severity="error")
        else:
            yield diagnostic


def _failed(file: Path, error: Exception) -> Diagnostic:
    message = f"the linter failed on this file, which is a bug in Trainyard: {type(error).__name__}: {error}"
    return CHECK_FAILED.at(Span(file), message, "Please report it, with the file.")


def _too_slow(file: Path) -> Diagnostic:
    message = f"checking this file takes more than {CPU_SECONDS:g} seconds of processor time; the rest is not checked"
    return TOO_LARGE.at(Span(file), message, "Split it into several files.")


def _on_one_line(diagnostic: Diagnostic) -> Diagnostic:
    """The finding without line breaks in its texts, which may quote a name with hundreds of characters."""
    message, hint = (
        shorten(" ".join(text.splitlines()), _LONGEST_MESSAGE) for text in (diagnostic.message, diagnostic.hint)
    )
    return diagnostic._replace(message=message, hint=hint)


# A finding of the first rule adds nothing where there is one of the second.
_REDUNDANT = frozenset(
    {
        (BAD_REFERENCE.id, BAD_REFERENCE.id),
        # A precision that is not a choice is not supported by any machine.
        (BF16_WITHOUT_HARDWARE.id, LITERAL_NOT_A_CHOICE.id),
        (MODE_UNSUITED.id, NOT_A_CHOICE.id),
    }
)


def _is_same(new: Diagnostic, known: Diagnostic) -> bool:
    """Whether a finding adds nothing to another one at the same place."""
    # How YAML misreads a value matters less than whatever else is wrong with it.
    return (
        new.rule == YAML_TRAP.id
        or (new.rule, known.rule) in _REDUNDANT
        or ((new.rule, new.message) == (known.rule, known.message))
    )
