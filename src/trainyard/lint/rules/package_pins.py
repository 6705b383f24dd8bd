"""Pinned packages of an environment that cannot be installed together, or not on its Python."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from trainyard.lint.checks import LintedFile, rule
from trainyard.lint.context import LintContext
from trainyard.spec.diagnostic import Diagnostic, Related, SpecError
from trainyard.spec.documents import Node

# torch: its torchvision, and the oldest and newest Python that its wheels are for.
# https://github.com/pytorch/vision#installation and https://github.com/pytorch/pytorch/blob/main/RELEASE.md
_TORCH: dict[str, tuple[str, str, str]] = {
    "1.12": ("0.13", "3.7", "3.10"),
    "1.13": ("0.14", "3.7", "3.11"),
    "2.0": ("0.15", "3.8", "3.11"),
    "2.1": ("0.16", "3.8", "3.11"),
    "2.2": ("0.17", "3.8", "3.12"),
    "2.3": ("0.18", "3.8", "3.12"),
    "2.4": ("0.19", "3.8", "3.12"),
    "2.5": ("0.20", "3.9", "3.13"),
    "2.6": ("0.21", "3.9", "3.13"),
    "2.7": ("0.22", "3.9", "3.13"),
    "2.8": ("0.23", "3.9", "3.13"),
}
_ANY = "3.99"
# The oldest and newest Python of others, by minor version: their pages on PyPI.
_PYTHONS: dict[str, dict[str, tuple[str, str]]] = {
    "torch": {version: (oldest, newest) for version, (_, oldest, newest) in _TORCH.items()},
    "tensorflow": {
        "2.8": ("3.7", "3.10"),
        "2.10": ("3.7", "3.10"),
        "2.11": ("3.7", "3.10"),
        "2.12": ("3.8", "3.11"),
        "2.13": ("3.8", "3.11"),
        "2.15": ("3.9", "3.11"),
        "2.16": ("3.9", "3.12"),
        "2.17": ("3.9", "3.12"),
        "2.18": ("3.9", "3.12"),
    },
    # These have source packages: what is newer than their wheels is built, and only the oldest Python is certain.
    "numpy": {"1.22": ("3.8", _ANY), "1.24": ("3.8", _ANY), "1.26": ("3.9", _ANY), "2.1": ("3.10", _ANY)},
    "pandas": {"1.5": ("3.8", _ANY), "2.0": ("3.8", _ANY), "2.1": ("3.9", _ANY), "2.2": ("3.9", _ANY)},
    "scikit-learn": {"1.2": ("3.8", _ANY), "1.4": ("3.9", _ANY), "1.5": ("3.9", _ANY), "1.7": ("3.10", _ANY)},
}
_PIN = re.compile(r"\s*([A-Za-z][\w.-]*)(?:\[[\w,. -]*\])?\s*==?=?\s*([0-9]+(?:\.[0-9]+)*)\S*\s*$")


class _Pin(NamedTuple):
    """A package with the version that it is pinned to: major and minor."""

    version: str
    node: Node
    with_pip: bool


@rule(
    "file",
    "AML416",
    "pins-conflict",
    "error",
    summary="Pinned packages cannot be installed together, or not on the environment's Python.",
    why="The image is built at the first job, for ten minutes, before it fails. Each torch has one torchvision, and "
    "wheels for some versions of Python.",
    example="""\
type: command
name: train
command: python train.py
environment:
  image: mcr.microsoft.com/azureml/openmpi5.0-ubuntu24.04
  conda_file:
    channels: [conda-forge]
    dependencies:
      - python=3.11
      - pip
      - pip:
          - torch==2.4.1
          - ‸torchvision==‹0.18.1⇒0.19.1›
""",
)
def pins_conflict(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    for conda in _conda_files(file, context):
        pins = dict(_pins(conda))
        yield from _torchvision(pins)
        python = pins.get("python")
        for name, versions in _PYTHONS.items() if python is not None else ():
            pin = pins.get(name)
            bounds = versions.get(pin.version) if pin is not None and pin.with_pip else None
            if pin is None or python is None or bounds is None:
                continue
            if not _number(bounds[0]) <= _number(python.version) <= _number(bounds[1]):
                span_of_versions = f"{bounds[0]} or newer" if bounds[1] == _ANY else f"{bounds[0]} to {bounds[1]}"
                message = f"{name} {pin.version} is for Python {span_of_versions}, not {python.version}"
                related = [Related(python.node.span, f"Python {python.version} is pinned here")]
                yield pins_conflict.at(pin.node.span, message, "Pin another version of one of them.", related)


def _torchvision(pins: dict[str, _Pin]) -> Iterator[Diagnostic]:
    torch, vision = pins.get("torch") or pins.get("pytorch"), pins.get("torchvision")
    expected = _TORCH.get(torch.version) if torch is not None else None
    known = {version for version, _, _ in _TORCH.values()}
    if torch is None or vision is None or expected is None or vision.version == expected[0]:
        return
    if vision.version in known:
        message = f"torchvision {vision.version} needs another torch than {torch.version}"
        related = [Related(torch.node.span, f"torch {torch.version} is pinned here")]
        yield pins_conflict.at(vision.node.span, message, f"Write {expected[0]}.", related)


def _conda_files(file: LintedFile, context: LintContext) -> Iterator[Node]:
    """The conda files of a document's environments: in place, or files that it names."""
    root = file.document.root
    jobs = (entry.value for entry in root.entries_of("jobs").values() if entry.value.is_mapping)
    for holder in (root, *jobs, root.get("task"), root.get("trial")):
        environment = holder.get("environment") if holder is not None and holder.is_mapping else None
        for each in (environment, root if file.kind == "environment" and holder is root else None):
            conda = each.get("conda_file") if each is not None and each.is_mapping else None
            if conda is not None and conda.is_mapping:
                yield conda
            elif conda is not None and conda.is_text:
                named = Path(os.path.normpath(file.document.file.parent / conda.text))
                with contextlib.suppress(SpecError):  # reported where it is named
                    yield context.computes.store.peek(named).root


def _pins(conda: Node) -> Iterator[tuple[str, _Pin]]:
    dependencies = conda.get("dependencies")
    for item in dependencies.items if dependencies is not None else ():
        if item.is_text:
            yield from _pin(item, with_pip=False)
        elif item.is_mapping and (pip := item.get("pip")) is not None:
            for each in pip.items:
                if each.is_text:
                    yield from _pin(each, with_pip=True)


def _pin(node: Node, *, with_pip: bool) -> Iterator[tuple[str, _Pin]]:
    match = _PIN.fullmatch(node.text)
    if match is not None and match[2].count("."):
        version = ".".join(match[2].split(".")[:2])
        yield match[1].lower().replace("_", "-"), _Pin(version, node, with_pip)


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
