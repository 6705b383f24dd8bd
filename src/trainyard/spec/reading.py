"""The context of reading one YAML file, and how its references to other files are resolved."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from trainyard.foundation.suggestions import closest
from trainyard.spec.documents import Document, Node
from trainyard.spec.findings import DocumentStore, Findings
from trainyard.spec.parsed import Parsed
from trainyard.spec.rule import Rule
from trainyard.spec.rules.keys import WRONG_TYPE

_FILE_PREFIX = "file:"


@dataclass(frozen=True)
class Reading:
    """One file being read: its document, the store of other files, where findings and parsed parts go."""

    document: Document
    store: DocumentStore
    findings: Findings
    parsed: Parsed = field(default_factory=Parsed)

    @property
    def file(self) -> Path:
        """The file being read."""
        return self.document.file

    def path(self, reference: str) -> Path:
        """The path that a reference in this file means: relative to the file, with or without `file:`."""
        return Path(os.path.normpath(self.file.parent / reference.removeprefix(_FILE_PREFIX)))

    def of(self, document: Document) -> Reading:
        """The same for a file that this one names."""
        return Reading(document, self.store, self.findings, self.parsed)

    def existing(self, node: Node, rule: Rule, what: str, *, folder: bool | None = None) -> Path | None:
        """The file or folder that a text names; None, and reported, if it does not exist.

        `folder` says which of the two it has to be; None takes either. What a template fills in (`{{…}}`, as in
        the specifications of Azure ML's own assets) is not readable offline.
        """
        reference = node.text
        if "{{" in reference:
            return None
        path = self.path(reference)
        try:
            found = path.exists() if folder is None else path.is_dir() if folder else path.is_file()
        except (OSError, ValueError):
            found = False
        if found:
            return path
        kind = {True: "folder", False: "file", None: "file or folder"}[folder]
        message = f"{what}: there is no {kind} '{reference}' beside this file"
        if os.path.dirname(reference):
            message = f"{what}: there is no {kind} '{reference}', relative to this file"
        self.findings.add(node.span, rule, message, hint=_similar_file(path))
        return None


def is_remote(reference: str) -> bool:
    """Whether a reference names something in a workspace or registry, which is not readable offline."""
    return reference.startswith("azureml:")


def is_address(reference: str) -> bool:
    """Whether a data path is an address (https://, azureml:…) or holds a binding, rather than a local path."""
    return is_remote(reference) or "${{" in reference or reference.startswith(_ADDRESSES)


# A resource's own id in Azure begins with its subscription.
_ADDRESSES = ("http:", "https:", "wasb:", "wasbs:", "/subscriptions/")


def _similar_file(path: Path) -> str:
    folder = path.parent
    try:
        names = sorted(entry.name for entry in os.scandir(folder)) if os.path.isdir(folder) else []
    except (OSError, ValueError):
        names = []
    match = closest(path.name, names)
    if match is not None and match != path.name:
        return f"Did you mean '{match}', in the same folder?"
    return ""


def reference_text(node: Node | None, what: str, reading: Reading) -> str:
    """The text of a reference; empty, and reported, for anything but a text."""
    if node is None or node.data is None:
        return ""
    if not node.is_text or not node.text.strip() or "\n" in node.text.strip():
        message = f"{what} is the name of a file or an 'azureml:' reference"
        reading.findings.add(node.span, WRONG_TYPE, message)
        return ""
    return node.text
