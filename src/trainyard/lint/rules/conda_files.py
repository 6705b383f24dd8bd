"""Conda files that cannot be installed, or install something else than they seem to: pins and channels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from trainyard.lint.checks import LintedFile, rule
from trainyard.lint.conda import CondaPackage, conda_of, packages_of
from trainyard.lint.context import LintContext
from trainyard.spec.diagnostic import Diagnostic, Related
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
            conda = conda_of(each, file.document.file, context.computes.store)
            if conda is not None:
                yield conda


def _pins(conda: Node) -> Iterator[tuple[str, _Pin]]:
    for package in packages_of(conda):
        match = _PIN.fullmatch(package.node.text)
        if match is not None and match[2].count("."):
            version = ".".join(match[2].split(".")[:2])
            yield match[1].lower().replace("_", "-"), _Pin(version, package.node, package.with_pip)


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


# The channels that have a pytorch of their own. Where no GPU is seen, as where Azure ML builds images, theirs is
# for the CPU.
_OTHER_CHANNELS = ("defaults", "conda-forge", "anaconda", "main")


@rule(
    "file",
    "AML417",
    "conda-channels",
    "warning",
    summary="The channels of a conda file, or their order, do not bring the package that is meant.",
    why="Conda takes a package from the first channel that has it. Images are built on machines without GPUs, for "
    "which `defaults` and `conda-forge` have a pytorch without CUDA: the training runs, on the CPU. `pytorch-cuda` is "
    "in the channel `pytorch`, and needs `nvidia`.",
    example="""\
type: command
name: train
command: python train.py
environment:
  image: mcr.microsoft.com/azureml/openmpi5.0-ubuntu24.04
  conda_file:
    channels: [‹⇒pytorch, ›conda-forge‹, ‸pytorch⇒›]
    dependencies: [python=3.10, pytorch=2.4.1]
""",
)
def conda_channels(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    for conda in _conda_files(file, context):
        listed = conda.get("channels")
        channels = {item.text: item for item in listed.items if item.is_text} if listed is not None else {}
        packages = {package.name: package for package in packages_of(conda) if not package.with_pip}
        if "pytorch-cuda" in packages:
            yield from _missing_channels(packages["pytorch-cuda"], channels)
        torch = packages.get("pytorch")
        if torch is None or torch.channel or "cuda" in torch.node.text or "pytorch" not in channels:
            continue
        first = next(name for name in channels if name == "pytorch" or name in _OTHER_CHANNELS)
        if first != "pytorch":
            message = f"conda looks for pytorch in '{first}' before 'pytorch', and finds a build without CUDA"
            related = [Related(torch.node.span, "pytorch is asked for here")]
            yield conda_channels.at(channels["pytorch"].span, message, "Put 'pytorch' first.", related)


def _missing_channels(package: CondaPackage, channels: Mapping[str, Node]) -> Iterator[Diagnostic]:
    if not channels or any(name.startswith(("http", "/", "file:")) for name in channels):
        return  # a mirror may have everything
    if "pytorch" not in channels and package.channel != "pytorch":
        message = "pytorch-cuda is in the channel 'pytorch', which is not among the channels"
        yield conda_channels.at(package.node.span, message, "Add 'pytorch' to the channels.")
    elif not any(name.split("/")[0] in ("nvidia", "conda-forge") for name in channels):
        message = "pytorch-cuda needs packages of the channel 'nvidia', which is not among the channels"
        yield conda_channels.at(package.node.span, message, "Add 'nvidia' to the channels.")
