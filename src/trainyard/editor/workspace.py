"""The files that an editor shows: open buffers before the disk, and what lint finds in all of them.

Two passes give the findings. The quick one follows each keystroke: it checks the files that have changed, and the
pipelines that use them. The full one follows when typing pauses: it checks every file, exactly as `trainyard lint`
does, so what remains on the screen is what the command prints. Both parse only what has changed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainyard.errors import UserError
from trainyard.lint.config import LintSettings, settings_for
from trainyard.lint.linter import LintResult, lint_files, read_files
from trainyard.lint.rules import RULES
from trainyard.project_files import read_text, yaml_files
from trainyard.project_findings import folders_to_check, with_profile_findings, with_template_lines, without_known
from trainyard.render.project import Project
from trainyard.render.related_lines import SourceFinder
from trainyard.spec.diagnostic import Diagnostic, SpecError
from trainyard.spec.documents import Document
from trainyard.spec.file_kinds import kind_of
from trainyard.spec.findings import DocumentStore
from trainyard.spec.parsed import Parsed

# A quick pass checks so many users of a changed file; the full pass, all of them.
_MOST_USERS = 8
# A file that was written while it was read may have changed after it; it is read again the next time.
_SETTLED_NS = 100_000_000

_Stamp = str | tuple[int, int]
Found = dict[Path, list[Diagnostic]]


@dataclass(frozen=True)
class Checked:
    """What one pass has found, by file, and the buffers that it has seen, with the editor's version of each."""

    found: Found
    texts: Mapping[Path, str]
    versions: Mapping[Path, int]
    is_full: bool


class Interrupted(BaseException):
    """A pass was ended because there is something newer to check."""


@dataclass
class EditorWorkspace:
    """The folders that an editor has open, and the buffers that replace files on disk.

    Passes may run in a different thread from the one that changes `buffers`: each begins with a copy of them.
    """

    folders: tuple[Path, ...] = ()
    buffers: dict[Path, str] = field(default_factory=dict)
    versions: dict[Path, int] = field(default_factory=dict)
    """The editor's version numbers of `buffers`."""
    problems: list[str] = field(default_factory=list)
    """What keeps lint from working as it is set up, such as a mistake in its settings."""
    _read: dict[Path, tuple[_Stamp, Document | SpecError]] = field(default_factory=dict)
    _outside: dict[Hashable, Any] = field(default_factory=dict)
    _finders: dict[Project, SourceFinder] = field(default_factory=dict)
    _users: dict[Path, frozenset[Path]] = field(default_factory=dict)
    _computes: list[Path] = field(default_factory=list)

    def forget_other_files(self) -> None:
        """Read scripts, templates and all else that is not YAML of Azure ML again, because some of it has changed."""
        self._outside = {}
        self._finders = {}

    def check_quickly(self, changed: Iterable[Path]) -> Checked:
        """Return the findings in changed files, and in some of the files that use them."""
        # In this order, a buffer that changes in between has too low a version, and is checked again.
        versions, texts = dict(self.versions), dict(self.buffers)
        wanted = [file for file in changed if file in texts or os.path.isfile(file)]
        users = sorted(self.users_of(wanted), key=lambda file: (file not in texts, file))[:_MOST_USERS]
        wanted = list(dict.fromkeys([*wanted, *users]))
        found: Found = {file: [] for file in wanted}
        for root, files in self._by_root(wanted).items():
            store = self._store(texts, files)
            settings = self._settings(root)
            # A cluster's file beside or above one that uses it counts only if it was read.
            above = {folder for file in files for folder in file.parents}
            computes = [file for file in self._computes if file.parent in above]
            result = lint_files(((file, False) for file in (*computes, *files)), settings, store, self._outside)
            for diagnostic in self._reported(result, files, settings, store):
                if diagnostic.span.file in found:
                    found[diagnostic.span.file].append(diagnostic)
            self._note_users(result.parsed)
        return Checked(found, texts, versions, is_full=False)

    def check_all(self, checkpoint: Callable[[], None]) -> Checked:
        """Return the findings in all files. What `checkpoint` raises ends this early; it is called often."""
        started_ns = time.time_ns()
        versions, texts = dict(self.versions), dict(self.buffers)
        self.problems = []
        known = self._still_valid(texts)
        found: Found = {}
        users: list[Parsed] = []
        computes: list[Path] = []
        for root, files in self._all_by_root(texts).items():
            store = DocumentStore(texts, known)
            settings = self._settings(root)
            result = lint_files(((file, False) for file in files), settings, store, self._outside, checkpoint)
            reported = self._reported(result, folders_to_check(root), settings, store, checkpoint)
            for diagnostic in with_template_lines(reported, texts, self._finders):
                found.setdefault(diagnostic.span.file, []).append(diagnostic)
            users.append(result.parsed)
            documents = ((file, known.get(file)) for file in result.files)
            computes += [file for file, each in documents if isinstance(each, Document) and kind_of(each) == "compute"]
            checkpoint()
        self._users = {}
        for parsed in users:
            self._note_users(parsed)
        self._computes = computes
        self._keep(known, texts, started_ns)
        return Checked(found, texts, versions, is_full=True)

    def read(self, files: Iterable[Path], texts: Mapping[Path, str] | None = None) -> tuple[Parsed, DocumentStore]:
        """Return what is in files and in those that they name, with the store that has their documents.

        `texts` replace buffers.
        """
        own = {**self.buffers, **(texts or {})}
        store = self._store(own, own)
        return read_files(files, store), store

    def read_all(self) -> tuple[Parsed, DocumentStore]:
        """Return the same for all files."""
        texts = dict(self.buffers)
        files = dict.fromkeys(file for files in self._all_by_root(texts).values() for file in files)
        store = DocumentStore(texts, self._still_valid(texts))
        return read_files(files, store), store

    def text_of(self, file: Path) -> str:
        """Return the present text of a file; empty if it cannot be read."""
        known = self._read.get(file)
        if file in self.buffers:
            return self.buffers[file]
        if known is not None and isinstance(known[1], Document):
            return known[1].text
        try:
            return read_text(file, encoding="utf-8-sig", errors="replace")
        except OSError:
            return ""

    def root_of(self, file: Path) -> Path:
        """Return the folder of the editor that contains a file; for others, the folder the file is in."""
        return next((folder for folder in self.folders if file.is_relative_to(folder)), file.parent)

    def settings(self, file: Path) -> LintSettings:
        """Return the lint settings that apply to a file."""
        return self._settings(self.root_of(file))

    def _reported(
        self,
        result: LintResult,
        chosen: Sequence[Path],
        settings: LintSettings,
        store: DocumentStore,
        checkpoint: Callable[[], None] = lambda: None,
    ) -> list[Diagnostic]:
        """Return what `trainyard lint` reports: with findings of profiles, without those of the baseline."""

        def read(file: Path) -> Document:
            checkpoint()
            return store.peek(file)

        found: Sequence[Diagnostic] = result.diagnostics
        try:
            found = with_profile_findings(found, chosen, result.files, settings, read)
            return without_known(found, settings.baseline, result.files, read)
        except UserError as error:
            self._note_problem(str(error))
            return list(found)

    def _settings(self, root: Path) -> LintSettings:
        try:
            return settings_for([root], RULES)
        except UserError as error:
            self._note_problem(str(error))
            return LintSettings()

    def _note_problem(self, message: str) -> None:
        if message not in self.problems:
            self.problems.append(message)

    def _all_by_root(self, texts: Mapping[Path, str]) -> dict[Path, list[Path]]:
        """Return all files to check: those that `trainyard lint` checks in each folder, and the open ones."""
        by_root = {
            root: [file for folder in folders_to_check(root) if folder.is_dir() for file in yaml_files(folder)]
            for root in self.folders
        }
        listed = {file for files in by_root.values() for file in files}
        for root, files in self._by_root(file for file in texts if file not in listed).items():
            by_root.setdefault(root, []).extend(files)
        return by_root

    def _by_root(self, files: Iterable[Path]) -> dict[Path, list[Path]]:
        by_root: dict[Path, list[Path]] = {}
        for file in files:
            by_root.setdefault(self.root_of(file), []).append(file)
        return by_root

    def users_of(self, files: Iterable[Path]) -> set[Path]:
        """Return the files that use components or settings files, directly or through others, as far as seen."""
        found: set[Path] = set()
        left = list(files)
        while left:
            for user in self._users.get(left.pop(), ()):
                if user not in found:
                    found.add(user)
                    left.append(user)
        return found

    def _note_users(self, parsed: Parsed) -> None:
        for pipeline in parsed.pipelines:
            for job in pipeline.model.jobs.values():
                named = getattr(job.component, "file", None)
                if named is not None and named != pipeline.reading.file:
                    # Sets are replaced, never changed: another thread may be looking through one.
                    self._users[named] = self._users.get(named, frozenset()) | {pipeline.reading.file}
        for settings, users in parsed.settings_files.items():
            self._users[settings] = self._users.get(settings, frozenset()) | users

    def _store(self, texts: Mapping[Path, str], changed: Iterable[Path]) -> DocumentStore:
        """Return a store with the documents of earlier passes, but for those that have changed since."""
        read = self._read
        known = {file: document for file, (_, document) in read.items()}
        closed = (file for file, (stamp, _) in read.items() if isinstance(stamp, str) and file not in texts)
        for file in {*texts, *changed, *closed}:
            if file in known and read[file][0] != _stamp(file, texts):
                del known[file]
        return DocumentStore(texts, known)

    def _still_valid(self, texts: Mapping[Path, str]) -> dict[Path, Document | SpecError]:
        return {file: document for file, (stamp, document) in self._read.items() if stamp == _stamp(file, texts)}

    def _keep(self, known: Mapping[Path, Document | SpecError], texts: Mapping[Path, str], started_ns: int) -> None:
        stamps = {file: _stamp(file, texts) for file in known}
        self._read = {
            file: (stamp, known[file])
            for file, stamp in stamps.items()
            if isinstance(stamp, str) or (stamp is not None and stamp[0] < started_ns - _SETTLED_NS)
        }


def _stamp(file: Path, texts: Mapping[Path, str]) -> _Stamp | None:
    """Return what tells one state of a file from another: its text in the editor, or its time and size on disk."""
    if file in texts:
        return texts[file]
    try:
        status = os.stat(file)
    except (OSError, ValueError):
        return None
    return status.st_mtime_ns, status.st_size
