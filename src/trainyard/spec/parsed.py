"""One file being read, and what the readers parsed, for the linter's rules, which look closer than the readers do."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from trainyard.project_files import names_in
from trainyard.settings.regex import regex
from trainyard.settings.suggestions import closest
from trainyard.spec.diagnostic import Span, SpecError
from trainyard.spec.documents import Document, Node
from trainyard.spec.findings import DocumentStore, Findings
from trainyard.spec.model import Component, PipelineComponent
from trainyard.spec.rule import Rule

COMPONENT_NOT_FOUND = Rule("AML401", "component-not-found", "error").explained(
    summary="The component's file does not exist.",
    why="A path is relative to the folder of the file that contains it.",
)
CODE_NOT_FOUND = Rule("AML402", "code-not-found", "error").explained(
    summary="The `code` folder does not exist.",
    why="`code` is a folder, relative to the file that names it; it is uploaded as it is.",
)
ENVIRONMENT_FILE_NOT_FOUND = Rule("AML403", "environment-file-not-found", "error").explained(
    summary="A file of the environment does not exist.",
    why="The paths of a conda file, a Dockerfile and a `file:` are relative to the file that names them.",
)
DATA_NOT_FOUND = Rule("AML404", "data-not-found", "warning", pedantic=True).explained(
    summary="The local data of an input does not exist.",
    why="A local path is uploaded on submission; it may be created before then.",
)
BAD_REFERENCE = Rule("AML405", "bad-reference", "error").explained(
    summary="Azure ML's client cannot resolve this reference.",
    why="An environment in a file is `file:./environment.yaml`; a registered one is `azureml:NAME:VERSION`.",
)
SCRIPT_NOT_FOUND = Rule("AML406", "script-not-found", "error", is_let_pass=True).explained(
    summary="The `code` folder does not contain the script that the command runs.",
    why="The command runs in the `code` folder; Python exits at once if the file does not exist. Only reported if "
    "nothing earlier in the command could have created it.",
)
NOT_SEEN_OFFLINE = Rule("AML901", "not-seen-offline", "error", local_run_only=True).explained(
    summary="This is stored in Azure ML, so it cannot be inspected offline.",
    why="`trainyard lint` does not report it; `trainyard run` needs a local file.",
)

_FILE_PREFIX = "file:"


@dataclass(frozen=True, eq=False)
class ParsedCommand:
    """A command with its context: a component, a job with its own command, or the trial of a sweep."""

    node: Node
    component: Component
    reading: Reading
    is_component: bool

    @cached_property
    def command(self) -> Node | None:
        """The node of the command itself; None if it is not a string."""
        return self.node.find_text("command")

    @cached_property
    def text(self) -> str:
        """The text of the command, empty if there is none."""
        return self.command.text if self.command is not None else ""

    @property
    def is_root(self) -> bool:
        """Whether this is a whole file: a component or a job of its own."""
        return self.node is self.reading.document.root

    def span(self, start: int, end: int) -> Span:
        """Where a part of the command's text is written."""
        assert self.command is not None
        return self.reading.document.span_within(self.command, start, end)


class ParsedPipeline(NamedTuple):
    """The body of a pipeline or pipeline component, and its model."""

    body: Node
    model: PipelineComponent
    reading: Reading


@dataclass(eq=False)
class Parsed:
    """Everything that one reading parsed, in reading order; the contents of each file once."""

    commands: list[ParsedCommand] = field(default_factory=list)
    pipelines: list[ParsedPipeline] = field(default_factory=list)
    settings_files: dict[Path, set[Path]] = field(default_factory=dict)
    """The settings files of jobs, each with the files of the pipelines that use it."""


class Reading(NamedTuple):
    """One file being read: its document, the store of other files, where findings and parsed parts go."""

    document: Document
    store: DocumentStore
    findings: Findings
    parsed: Parsed

    @property
    def file(self) -> Path:
        """The file being read."""
        return self.document.file

    def path(self, reference: str) -> Path:
        """The path that a reference in this file means: relative to the file, with or without `file:`."""
        return Path(os.path.normpath(self.file.parent / reference.removeprefix(_FILE_PREFIX)))

    def of_file(self, file: Path) -> Reading | None:
        """The reading of a file that this one names; None, and reported, if it cannot be read."""
        try:
            document = self.store.read_mapping(file)
        except SpecError as error:
            self.findings.diagnostics.extend(error.diagnostics)
            return None
        self.findings.diagnostics.extend(document.problems)
        return self._replace(document=document)

    def existing(self, node: Node, rule: Rule, what: str, *, folder: bool | None = None) -> Path | None:
        """The file or folder that a string names; None, and reported, if it does not exist.

        `folder` says which of the two it has to be; None takes either. What a template fills in (`{{…}}`, as in
        the specifications of Azure ML's own assets) is not readable offline.
        """
        reference = node.text
        if "{{" in reference:
            return None
        path = self.path(reference)
        if is_there(path, folder):
            return path
        kind = {True: "folder", False: "file", None: "file or folder"}[folder]
        message = f"{what}: there is no {kind} '{reference}' beside this file"
        if os.path.dirname(reference):
            message = f"{what}: there is no {kind} '{reference}', relative to this file"
        hint = self._meant_path(reference, folder) or similar_file(path, besides=self.file)
        self.findings.add(rule.at(node.span, message, hint=hint))
        return None

    def _meant_path(self, reference: str, folder: bool | None) -> str:
        """A hint for a path with Windows' separators, or from one of three folders above; empty if it is neither."""
        relative = reference.removeprefix(_FILE_PREFIX).replace("\\", "/")
        here, *above = self.file.resolve().parents[:4]
        for start in (here, *above):
            if not os.path.isabs(relative) and is_there(start / relative, folder):
                return f"Write {Path(os.path.relpath(start / relative, here)).as_posix()}"
        return ""


def is_there(path: Path, folder: bool | None) -> bool:
    """Whether a path exists: as a folder, as a file, or (None) as either."""
    try:
        return path.exists() if folder is None else path.is_dir() if folder else path.is_file()
    except (OSError, ValueError):
        return False


def similar_file(path: Path, besides: Path | None = None) -> str:
    """A hint that names the file that a missing one probably stands for, not `besides`; empty if there is none."""
    match = closest(path.name, [name for name in names_in(path.parent) if path.parent / name != besides])
    if match is not None and match != path.name:
        return f"Did you mean '{match}', in the same folder?"
    return ""


def is_remote(reference: str) -> bool:
    """Whether a reference names something in a workspace or registry, which is not readable offline."""
    return reference.startswith("azureml:")


def is_address(reference: str) -> bool:
    """Whether a data path is an address (https://, azureml:…) or holds a binding, rather than a local path."""
    return is_remote(reference) or "${{" in reference or reference.startswith(_ADDRESSES)


# A resource's own id in Azure begins with its subscription.
_ADDRESSES = ("http:", "https:", "wasb:", "wasbs:", "abfs:", "abfss:", "adl:", "hdfs:", "dbfs:", "/subscriptions/")


# `azureml:NAME:VERSION` or an address: what code in Azure ML is named by.
_REGISTERED_CODE = regex(r"azureml:(?:/.*|[^:@/\s]+[:@][^:@/\s]+)")


def is_code_of_this_machine(code: Node, reading: Reading) -> bool:
    """Whether `code` names a local folder; a reference that Azure ML's client cannot resolve is reported."""
    text = code.text
    if "${{" in text or text.startswith("git+") or _REGISTERED_CODE.fullmatch(text):
        return False
    prefix = next((prefix for prefix in ("azureml:", "file:") if text.startswith(prefix)), None)
    if prefix is None:
        return True
    message = f"'{text}' is neither a folder nor registered code"
    hint = f"A folder is '{text.removeprefix(prefix)}', registered code azureml:NAME:VERSION."
    reading.findings.add(BAD_REFERENCE.at(code.span, message, hint))
    return False


def reference_text(node: Node | None, reading: Reading) -> str:
    """The text of a reference; empty for anything but a string."""
    named = reading.findings.string(node)
    if named is not None and named.text.strip() and "\n" not in named.text.strip():
        return named.text
    reading.findings.left_out = True
    return ""
