"""Environments as files of a repository have them, and what their conda files ask for."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from trainyard.lint.checks import LintedFile
from trainyard.spec.diagnostic import SpecError
from trainyard.spec.documents import Node
from trainyard.spec.findings import DocumentStore

_CONDA = re.compile(r"\s*(?:([\w./-]+)::)?([A-Za-z0-9_][\w.-]*)")
_PIP = re.compile(r"\s*([A-Za-z0-9][\w.-]*)\s*(\[[^\]]*\])?\s*(?:[=<>!~;@]|$)")
# Options of pip that name no packages.
_PIP_OPTION = re.compile(
    r"\s*(?:--(?:extra-)?index-url|-i|--find-links|-f|--pre|--trusted-host|--no-\S+|--prefer-\S+)\b"
)


class CondaPackage(NamedTuple):
    """An entry of a conda file. `name` is None if what it brings is unknown: requirements, an address."""

    name: str | None
    node: Node
    with_pip: bool
    channel: str = ""


def conda_of(environment: Node | None, file: Path, store: DocumentStore) -> Node | None:
    """The keys of an environment's conda file, in place or from the file that it names; None if it has none."""
    conda = environment.get("conda_file") if environment is not None and environment.is_mapping else None
    if conda is None or conda.is_mapping:
        return conda
    if conda.is_text:
        with contextlib.suppress(SpecError):  # reported where it is named
            return store.peek(Path(os.path.normpath(file.parent / conda.text))).root
    return None


def packages_of(conda: Node) -> Iterator[CondaPackage]:
    """The packages of a conda file, with those of its `pip:`."""
    dependencies = conda.get("dependencies")
    for item in dependencies.items if dependencies is not None else ():
        if item.is_text:
            match = _CONDA.match(item.text)
            yield CondaPackage(match[2] if match else None, item, False, (match[1] or "") if match else "")
        elif item.is_mapping and (pip := item.get("pip")) is not None:
            for each in pip.items:
                if each.is_text and not _PIP_OPTION.match(each.text):
                    match = _PIP.match(each.text)
                    # What an extra brings is not known.
                    yield CondaPackage(match[1] if match and not match[2] else None, each, True)


def environments_in(file: LintedFile) -> Iterator[Node]:
    """The keys of each environment that a file defines in place."""
    root = file.document.root
    if file.kind == "environment":
        yield root
    jobs = (entry.value for entry in root.entries_of("jobs").values() if entry.value.is_mapping)
    for holder in (root, *jobs):
        for inner in (holder, holder.get("task"), holder.get("trial"), holder.get("component")):
            environment = inner.get("environment") if inner is not None and inner.is_mapping else None
            if environment is not None and environment.is_mapping:
                yield environment
