"""From files and folders to diagnostics: which files are Azure ML's, and every check over each of them once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from trainyard.errors import UsageError
from trainyard.foundation.suggestions import closest
from trainyard.lint.context import LintContext
from trainyard.lint.ignores import Ignores, read_ignores, silence
from trainyard.lint.rules import COMMAND_CHECKS, DOCUMENT_CHECKS, PIPELINE_CHECKS, RULES
from trainyard.lint.rules.machines import BF16_WITHOUT_HARDWARE
from trainyard.lint.rules.types import MODE_UNSUITED
from trainyard.lint.rules.yaml_text import CHECK_FAILED
from trainyard.lint.schema_checks import check_schema
from trainyard.lint.settings import LintSettings
from trainyard.spec.computes import Computes
from trainyard.spec.diagnostic import Diagnostic, Span, SpecError
from trainyard.spec.documents import Document, require_mapping, shorten
from trainyard.spec.environments import environment_of
from trainyard.spec.findings import DocumentStore, Findings
from trainyard.spec.kinds import Kind, is_other_resource, kind_of
from trainyard.spec.other_files import read_asset, read_other_job, read_schedule, read_sweep_job
from trainyard.spec.parsed import Parsed
from trainyard.spec.pipelines import ComponentCache, read_command_job, read_pipeline
from trainyard.spec.reading import Reading
from trainyard.spec.rules.bindings import CYCLE, UNKNOWN_JOB_PORT
from trainyard.spec.rules.documents import DUPLICATE_KEY, UNKNOWN_KIND, YAML_TRAP
from trainyard.spec.rules.keys import BAD_TEXT, MISSING_KEY, NOT_A_CHOICE, OUT_OF_BOUNDS, UNKNOWN_KEY, WRONG_TYPE
from trainyard.spec.rules.references import BAD_REFERENCE
from trainyard.spec.rules.values import LITERAL_NOT_A_CHOICE

STANDARD_FOLDERS = ("components", "pipelines", "environments", "compute", "profiles")
_LONGEST = 450
_YAML_SUFFIXES = frozenset({".yaml", ".yml"})
# Kept by tools, not by people; `.github` and the like go with the names that begin with a dot.
_SKIPPED_FOLDERS = frozenset({"node_modules", "__pycache__", "venv"})


class UnreadablePath(UsageError):
    """A path to lint that is not there, or holds no YAML: the linter was used wrongly."""


@dataclass(frozen=True)
class LintResult:
    """What was found, in the order of files and lines, in which Azure ML files, and which comments silence what."""

    diagnostics: tuple[Diagnostic, ...]
    files: tuple[Path, ...]
    ignores: Mapping[Path, Ignores] = field(default_factory=dict)

    @property
    def files_checked(self) -> int:
        """How many Azure ML files were checked."""
        return len(self.files)


def lint(paths: Sequence[Path], settings: LintSettings | None = None, store: DocumentStore | None = None) -> LintResult:
    """Check files, and all Azure ML files in folders; without paths, the project's standard folders here.

    A pipeline takes the components and environments it names along; each file is checked once. `store` holds files
    that were read already, or texts that are read in place of what lies on disk. Raises UnreadablePath for a path that
    is not there, is not a YAML file or holds none.
    """
    session = _Session(settings or LintSettings(), store or DocumentStore())
    for file, is_explicit in _files(paths or _standard_folders()):
        session.check_file(file, is_explicit=is_explicit)
    session.check_closely()
    return LintResult(session.result(), tuple(session.files), session.ignores)


def _standard_folders() -> list[Path]:
    here = Path.cwd()
    existing = [here / name for name in STANDARD_FOLDERS if (here / name).is_dir()]
    # One that is empty is passed over, as nobody named it; when all are, the first says so.
    found = [folder for folder in existing if any(_yaml_files(folder))] or existing[:1]
    if not found:
        raise UnreadablePath(
            f"there is none of the folders {', '.join(STANDARD_FOLDERS)} in {here}: name the files or folders to check"
        )
    return found


def _files(paths: Iterable[Path]) -> Iterator[tuple[Path, bool]]:
    """Files to check, with whether they were named themselves; folders in order of their names."""
    for path in paths:
        absolute = Path(os.path.abspath(path))
        if absolute.is_dir():
            files = list(_yaml_files(absolute))
            if not files:
                raise UnreadablePath(f"no YAML files in {path}")
            for file in files:
                yield file, False
        elif absolute.exists():
            if not _is_yaml(absolute.name):
                raise UnreadablePath(f"{path} is no YAML file: its name ends in neither .yaml nor .yml")
            yield absolute, True
        else:
            raise UnreadablePath(_missing(path, absolute))


def _missing(path: Path, absolute: Path) -> str:
    if str(path) == "-":
        return "lint reads files and folders, not standard input: components are found from a file's place"
    siblings = os.listdir(absolute.parent) if absolute.parent.is_dir() else []
    match = closest(absolute.name, siblings)
    return f"there is no file or folder '{path}'" + (f"; did you mean '{path.parent / match}'?" if match else "")


def _is_yaml(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in _YAML_SUFFIXES


def _yaml_files(folder: Path) -> Iterator[Path]:
    """All YAML files beneath a folder. Links to folders are not followed, so that loops do no harm."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(n for n in folders if not n.startswith(".") and n not in _SKIPPED_FOLDERS)
        for name in sorted(names):
            if _is_yaml(name):
                yield Path(parent, name)


class _Session:
    """One call of lint: what is read is kept, what is found is gathered, nothing is told twice."""

    def __init__(self, settings: LintSettings, store: DocumentStore) -> None:
        self._settings = settings
        self._store = store
        self._components = ComponentCache()
        self._seen = Parsed()
        self._documents: list[tuple[Document, Kind]] = []
        self._found: dict[tuple[Path, int, int], list[Diagnostic]] = {}
        self._said_as_typo: set[tuple[Path, int, int]] = set()
        self._checked: set[Path] = set()
        self.files: list[Path] = []
        self.ignores: dict[Path, Ignores] = {}

    def result(self) -> tuple[Diagnostic, ...]:
        """All that was found and no comment answers for, by file, line and column."""
        found = [diagnostic for place in sorted(self._found) for diagnostic in self._found[place]]
        spoilt = {d.span.file for d in found if d.severity == "error" and not RULES[d.rule].suppressed_by_errors}
        doubled = {d.span.file for d in found if d.rule == DUPLICATE_KEY.id}
        counting = (
            d
            for d in found
            if not (RULES[d.rule].suppressed_by_errors and d.span.file in spoilt)
            and not (d.rule in _FOLLOW_DOUBLED and d.span.file in doubled)
        )
        heard = silence((d for d in counting if not self._settings.excludes(d.span.file)), self.ignores)
        stale = [d for ignores in self.ignores.values() for d in (*ignores.problems, *ignores.unused())]
        if stale:
            heard = sorted([*heard, *stale], key=lambda diagnostic: diagnostic.span)
        return tuple(self._settings.with_severity(heard))

    def check_file(self, file: Path, *, is_explicit: bool) -> None:
        if file in self._checked or self._settings.excludes(file):
            return
        self._checked.add(file)
        try:
            document = self._store.read(file)
        except SpecError as error:
            self.files.append(file)
            self._add(error.diagnostics)
            return
        kind = self._components.kind_of_read(file) or kind_of(document)
        if kind is None:
            if is_explicit:
                self._add_unknown_kind(document)
            return
        self.files.append(file)
        ignores = read_ignores(file, document.text, RULES)
        if ignores is not None:
            self.ignores[file] = ignores
        with self._one_file(file):
            self._check_document(document, kind)

    @contextmanager
    def _one_file(self, file: Path) -> Iterator[None]:
        """A mistake of the linter's own costs what it finds in one file, and is told; others keep their findings."""
        try:
            yield
        except Exception as error:
            message = f"the linter failed at this file, which is its own mistake: {type(error).__name__}: {error}"
            hint = "Please report it, with the file."
            self._add([CHECK_FAILED.at(Span(file), message, hint=hint)])

    def check_closely(self) -> None:
        """The checks that look beyond one file, now that all are read."""
        context = LintContext(self._seen, Computes(self._store, self._settings.computes))
        for document, kind in self._documents:
            with self._one_file(document.file):
                for check_document in DOCUMENT_CHECKS:
                    self._add(check_document(document, kind, context))
        for command in self._seen.commands:
            with self._one_file(command.reading.file):
                for check in COMMAND_CHECKS:
                    self._add(check(command, context))
        for pipeline in self._seen.pipelines:
            with self._one_file(pipeline.reading.file):
                for check_pipeline in PIPELINE_CHECKS:
                    self._add(check_pipeline(pipeline, context))

    def _check_document(self, document: Document, kind: Kind) -> None:
        self._documents.append((document, kind))
        self._add(document.problems)
        self._add(self._schema_findings(document, kind))
        known = len(self._store.files)
        findings = Findings()
        reading = Reading(document, self._store, findings, self._seen)
        if kind == "pipeline":
            read_pipeline(document.root, reading, self._components)
        elif kind in ("component", "pipeline_component"):
            self._components.read(document.file, reading)
        elif kind == "command_job":
            read_command_job(document.root, reading)
        elif kind == "environment":
            environment_of(document.root, reading)
        elif kind == "sweep_job":
            read_sweep_job(document.root, reading, self._components)
        elif kind == "other_job":
            read_other_job(document.root, reading)
        elif kind == "schedule":
            read_schedule(document.root, reading)
        elif kind == "asset":
            read_asset(document.root, reading)
        # Files that this one names come first, so that their schemas speak before the reader does.
        for file in self._store.files[known:]:
            self.check_file(file, is_explicit=False)
        self._add(d for d in findings.diagnostics if not self._said_by_schema(d))

    def _schema_findings(self, document: Document, kind: Kind) -> Iterator[Diagnostic]:
        is_partial = kind == "profile" and document.root.get("extends") is not None
        found = list(check_schema(document, kind))
        unknown = {diagnostic.span for diagnostic in found if diagnostic.rule == UNKNOWN_KEY.id}
        for diagnostic in found:
            if diagnostic.rule != MISSING_KEY.id:
                yield diagnostic
            elif diagnostic.span in unknown or any(other.span in unknown for other in diagnostic.related):
                # One mistake: the key is there under a mistyped name, which is reported where it is written.
                self._said_as_typo.add(_place(diagnostic))
            elif not is_partial:
                # What a profile does not say, the one it extends does.
                yield diagnostic

    def _said_by_schema(self, diagnostic: Diagnostic) -> bool:
        """Whether the schema has spoken of the shape of what stands at a place, and the reader does so again."""
        place = _place(diagnostic)
        if diagnostic.rule == MISSING_KEY.id and place in self._said_as_typo:
            return True
        known = self._found.get(place, [])
        return diagnostic.rule in _SHAPE_RULES and any(other.rule in _SHAPE_RULES for other in known)

    def _add_unknown_kind(self, document: Document) -> None:
        self._add(document.problems)
        try:
            require_mapping(document)
        except SpecError as error:
            self._add(error.diagnostics)
            return
        message = "this is no kind of Azure ML file that is known here; nothing in it was checked"
        hint = "A `$schema:` or `type:` says what a file is."
        if is_other_resource(document.root):
            message = "this is a deployment, an endpoint or another resource; nothing in it was checked"
            hint = "What is checked: jobs, components, environments, compute, data, models, schedules."
        self._add([UNKNOWN_KIND.at(document.root.span, message, hint, severity="info")])

    def _add(self, diagnostics: Iterable[Diagnostic]) -> None:
        for diagnostic in diagnostics:
            if RULES[diagnostic.rule].local_run_only:
                continue
            at_place = self._found.setdefault(_place(diagnostic), [])
            if any(_same_matter(diagnostic, known) for known in at_place):
                continue
            at_place.append(_on_one_line(diagnostic))


# A schema and the reader of the model both mind these; the one that speaks first at a place is enough.
_SHAPE_RULES = frozenset(
    rule.id for rule in (MISSING_KEY, WRONG_TYPE, NOT_A_CHOICE, BAD_TEXT, OUT_OF_BOUNDS, BAD_REFERENCE)
)


# What the job that a second one of its name hides is missed for.
_FOLLOW_DOUBLED = frozenset({UNKNOWN_JOB_PORT.id, CYCLE.id})


def _place(diagnostic: Diagnostic) -> tuple[Path, int, int]:
    return diagnostic.span.file, diagnostic.span.line, diagnostic.span.column


def _on_one_line(diagnostic: Diagnostic) -> Diagnostic:
    """The finding as it is, but for a name in its texts that has line breaks, or hundreds of characters."""
    message, hint = (shorten(" ".join(text.splitlines()), _LONGEST) for text in (diagnostic.message, diagnostic.hint))
    if (message, hint) == (diagnostic.message, diagnostic.hint):
        return diagnostic
    return replace(diagnostic, message=message, hint=hint)


def _same_matter(new: Diagnostic, known: Diagnostic) -> bool:
    # How YAML misreads a value is the lesser part of whatever else is wrong with it.
    if new.rule == YAML_TRAP.id or new.rule == known.rule == BAD_REFERENCE.id:
        return True
    # A precision that cannot be given at all is on no machine.
    if new.rule == BF16_WITHOUT_HARDWARE.id and known.rule == LITERAL_NOT_A_CHOICE.id:
        return True
    # A mode that is none of this side's is told with those that are.
    if new.rule == MODE_UNSUITED.id and known.rule == NOT_A_CHOICE.id:
        return True
    return (new.rule, new.message) == (known.rule, known.message)
