"""Conda files that cannot be installed, or do not install what they seem to: pins and channels."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from trainyard.catalogue.python_packages import known_packages, package_name
from trainyard.lint.checks import LintContext, LintedFile, check, known_words
from trainyard.settings.regex import regex
from trainyard.settings.suggestions import one_slip_from, only_close
from trainyard.spec.diagnostic import Diagnostic, Related, Severity
from trainyard.spec.documents import Node, describe, shorten
from trainyard.spec.findings import DocumentStore
from trainyard.spec.rule import Rule
from trainyard.spec.rules import WRONG_TYPE

_TORCHVISION_OF_TORCH: dict[str, str] = known_words("torchvision_of_torch")
# The oldest and newest Python of each minor version of a package.
_PYTHONS: dict[str, dict[str, list[str]]] = known_words("pythons_of_packages")
_ANY = "3.99"
# `=>` is not a comparison; pip, unlike conda, pins with two signs.
_REVERSED = regex(r"\s*[A-Za-z][\w.-]*(?:\[[\w,. -]*\])?\s*(=[<>])")
_SINGLE = regex(r"\s*([A-Za-z][\w.-]*(?:\[[\w,. -]*\])?)\s*=\s*([0-9][\w.*]*)\s*$")
# `pandas 2.2`, `pandas==` and `pandas~2.0` are not requirements.
# `torch numpy`: two of them, which a line without its hyphen becomes.
_SEVERAL = regex(r"\s*[A-Za-z][\w.-]*(?:\[[\w,. -]*\])?(?:\s*[=<>~!]=?\s*[\w.*]+)?(?:\s*,\s*|\s+)[A-Za-z]")
_NO_REQUIREMENT = regex(r"\s*[A-Za-z][\w.-]*(?:\s+[0-9][\w.]*|\s*(?:==|>=|<=|~=|!=)\s*|\s*~\s*[0-9][\w.]*)\s*")
_PIP_NAMES: dict[str, str] = known_words("pip_names")
_CONDA_NAMES: dict[str, str] = known_words("conda_names")
# `-r requirements.txt`, `-e .`, `./package`: nothing that an address or a variable leads to.
_LOCAL_REQUIREMENT = regex(
    r"\s*(?:(?:-r|-c|-e|--requirement|--constraint|--editable)[ =]?\s*(?!\S*(?:://|\$|git\+))\S+|\.{1,2}/\S*)\s*"
)
_LONG_NAME = 8
_JOINED_LINES = regex(r"\s*[A-Za-z][\w.-]*(?: - \S.*)+", re.DOTALL)
_CONDA_KEYS = ("name", "channels", "dependencies", "prefix", "variables", "platforms", "category")
_PIN = regex(r"\s*([A-Za-z][\w.-]*)(?:\[[\w,. -]*\])?\s*==?=?\s*([0-9]+(?:\.[0-9]+)*)\S*\s*$")


class _Pin(NamedTuple):
    """A package with the version that it is pinned to: major and minor."""

    version: str
    node: Node
    with_pip: bool


PINS_CONFLICT = Rule("AML416", "pins-conflict", "error", is_let_pass=True).explained(
    summary="Packages cannot be installed: together, on the environment's Python, or as they are written.",
    why="The image is built at the first job, for ten minutes, before it fails. Each torch has one torchvision, and "
    "wheels for some versions of Python.",
)


@check("file")
def _pins_conflict(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    for conda in _conda_files(file, context):
        yield from _not_a_list(conda)
        yield from _misspelt_keys(conda)
        pins = dict(_pins(conda))
        packages = list(packages_of(conda))
        for package in packages:
            yield from _not_uploaded(package)
            yield from _not_a_requirement(package)
            yield from _other_name(package)
        yield from _pinned_twice(packages)
        yield from _torchvision(pins)
        python = pins.get("python")
        if python is not None and python.version in ("3.1", "3.2"):  # what remains of 3.10 as a number
            message = f"Python {python.version} is from 2011; no image has it"
            yield PINS_CONFLICT.at(python.node.span, message, f"Write python={python.version}0 or newer.")
        for name, versions in _PYTHONS.items() if python is not None else ():
            pin = pins.get(name)
            bounds = versions.get(pin.version) if pin is not None and pin.with_pip else None
            if pin is None or python is None or bounds is None:
                continue
            if not _number(bounds[0]) <= _number(python.version) <= _number(bounds[1]):
                span_of_versions = f"{bounds[0]} or newer" if bounds[1] == _ANY else f"{bounds[0]} to {bounds[1]}"
                message = f"{name} {pin.version} is for Python {span_of_versions}, not {python.version}"
                related = [Related(python.node.span, f"Python {python.version} is pinned here")]
                yield PINS_CONFLICT.at(pin.node.span, message, "Pin another version of one of them.", related)


def _not_a_list(conda: Node) -> Iterator[Diagnostic]:
    """Packages that are not a list: conda reads none of them."""
    pips = [("pip", item.find_text("pip")) for item in conda.items_of("dependencies")]
    for name, node in (("dependencies", conda.get("dependencies")), *pips):
        if node is not None and (node.is_mapping or (node.is_text and node.text)):
            message = f"'{name}' is a list, not {describe(node.data)}"
            yield WRONG_TYPE.at(node.span, message, "Write each on a line of its own, after a hyphen.")


def _misspelt_keys(conda: Node) -> Iterator[Diagnostic]:
    """Keys that conda does not know, and that are close to one that it needs; `- pips:` among the dependencies."""
    pip = conda.entries.get("pip")
    if pip is not None:
        message = "conda ignores 'pip' at this place: what pip installs is an item of the dependencies"
        yield PINS_CONFLICT.at(pip.key.span, message, "Write `- pip:` beneath dependencies.")
    for name, entry in conda.entries.items():
        meant = only_close(name, [key for key in _CONDA_KEYS if key not in conda.entries])
        if name not in _CONDA_KEYS and meant is not None:
            message = f"conda does not know the key '{shorten(name)}', and ignores what is beneath it"
            yield PINS_CONFLICT.at(entry.key.span, message, f"Write {meant}.", replacement=meant)
    for item in conda.items_of("dependencies"):
        for name, entry in item.entries.items():
            if name != "pip" and (name.lower() == "pip" or one_slip_from(name.lower(), frozenset({"pip"}))):
                message = f"conda has no installer '{shorten(name)}'"
                yield PINS_CONFLICT.at(entry.key.span, message, "Write pip.", replacement="pip")


def _not_uploaded(package: CondaPackage) -> Iterator[Diagnostic]:
    """A file or folder that pip is to read where the image is built, which gets nothing but the conda file."""
    local = _LOCAL_REQUIREMENT.fullmatch(package.node.text) if package.with_pip else None
    if local is not None:
        message = f"'{shorten(package.node.text)}' cannot be installed: only the conda file itself is sent to Azure ML"
        hint = "List the packages here, or use `build:` with a folder that has the file and a Dockerfile."
        yield PINS_CONFLICT.at(package.node.span, message, hint, severity="warning")


def _not_a_requirement(package: CondaPackage) -> Iterator[Diagnostic]:
    """A requirement that conda or pip cannot read."""
    text, with_pip = package.node.text, package.with_pip
    shown, hint = f"'{shorten(text)}'", ""
    if _JOINED_LINES.fullmatch(text) is not None:
        message = f"{shown} is one text to YAML: what is beneath a line without ':' continues it"
        hint = "Write '- pip:' above the packages that pip installs."
    elif with_pip and _SEVERAL.match(text) is not None:
        message = f"{shown} is one text: pip cannot read several packages in it"
        hint = "Write each on a line of its own, after a hyphen."
    elif with_pip and _NO_REQUIREMENT.fullmatch(text) is not None:
        message, hint = f"pip cannot read {shown}", "Write NAME==VERSION, or another comparison."
    elif (sign := _REVERSED.match(text)) is not None:
        message = f"{shown} cannot be installed: there is no comparison '{sign[1]}'"
        hint = f"Write {text.replace(sign[1], sign[1][::-1], 1)}."
    elif with_pip and (single := _SINGLE.match(text)) is not None:
        message, hint = f"{shown} cannot be installed: pip pins with '=='", f"Write {single[1]}=={single[2]}."
    if hint:
        yield PINS_CONFLICT.at(package.node.span, message, hint)


def _other_name(package: CondaPackage) -> Iterator[Diagnostic]:
    """A module's name for that of its package, and names that differ by a typo from a common package's."""
    name = package.name
    if name is None or package.channel:
        return
    right = (_PIP_NAMES if package.with_pip else _CONDA_NAMES).get(name.lower())
    where = "pip" if package.with_pip else "conda"
    if right is not None:
        message = f"{where} cannot install '{name}': the package is called {right}"
        yield PINS_CONFLICT.at(package.node.span, message, f"Write {right}.", severity="warning")
    elif package.with_pip and len(name) >= _LONG_NAME and package_name(name) not in known_packages():
        meant = one_slip_from(package_name(name), known_packages())
        if meant is not None:
            message = f"'{name}' differs by a typo from the package {meant}: there may be no such package, or another's"
            yield PINS_CONFLICT.at(package.node.span, message, f"Did you mean '{meant}'?", severity="warning")


def _pinned_twice(packages: Sequence[CondaPackage]) -> Iterator[Diagnostic]:
    """A package that is pinned to two versions by the same installer."""
    first: dict[tuple[str, bool], tuple[str, Node]] = {}
    for package in packages:
        pin = _PIN.fullmatch(package.node.text) if package.name is not None else None
        if pin is None:
            continue
        version, earlier = first.setdefault((package_name(pin[1]), package.with_pip), (pin[2], package.node))
        if version != pin[2]:
            message = f"{pin[1]} is pinned to {pin[2]} here, and to {version} before"
            related = [Related(earlier.span, "it is pinned here first")]
            yield PINS_CONFLICT.at(package.node.span, message, "Remove one of them.", related)


def _torchvision(pins: dict[str, _Pin]) -> Iterator[Diagnostic]:
    torch, vision = pins.get("torch") or pins.get("pytorch"), pins.get("torchvision")
    expected = _TORCHVISION_OF_TORCH.get(torch.version) if torch is not None else None
    if torch is None or vision is None or expected is None or vision.version == expected:
        return
    if vision.version in _TORCHVISION_OF_TORCH.values():
        message = f"torchvision {vision.version} needs a torch other than {torch.version}"
        related = [Related(torch.node.span, f"torch {torch.version} is pinned here")]
        yield PINS_CONFLICT.at(vision.node.span, message, f"Write {expected}.", related)


def _conda_files(file: LintedFile, context: LintContext) -> Iterator[Node]:
    """The conda files of a document's environments: in place, or files that it names."""
    for environment in file.environments:
        conda = conda_of(environment, file.document.file, context.computes.store)
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
_CHANNELS: frozenset[str] = frozenset(known_words("conda_channels"))
_SHORT = 4
_OTHER_CHANNELS = ("defaults", "conda-forge", "anaconda", "main")


CONDA_CHANNELS = Rule("AML417", "conda-channels", "warning").explained(
    summary="The channels of a conda file, or their order, do not provide the package that is meant.",
    why="Conda takes a package from the first channel that has it. Images are built on machines without GPUs, for "
    "which `defaults` and `conda-forge` have a pytorch without CUDA: the training runs, on the CPU. `pytorch-cuda` is "
    "in the channel `pytorch`, and needs `nvidia`.",
)


@check("file")
def _conda_channels(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    for conda in _conda_files(file, context):
        channels = {item.text: item for item in conda.items_of("channels") if item.is_text}
        packages = {package.name: package for package in packages_of(conda) if not package.with_pip}
        for name, node in channels.items():
            meant = one_slip_from(name, _CHANNELS) if len(name) > _SHORT and name not in _CHANNELS else None
            if meant is not None:
                message = f"the channel '{shorten(name)}' differs by a typo from {meant}"
                yield CONDA_CHANNELS.at(node.span, message, f"Did you mean '{meant}'?", replacement=meant)
        if "pytorch-cuda" in packages:
            yield from _missing_channels(packages["pytorch-cuda"], channels)
        torch = packages.get("pytorch")
        if torch is None or torch.channel or "cuda" in torch.node.text or "pytorch" not in channels:
            continue
        if "cudatoolkit" in packages:
            continue  # builds of other channels use it too, and conda may choose one of these
        first = next(name for name in channels if name == "pytorch" or name in _OTHER_CHANNELS)
        if first != "pytorch":
            severity: Severity = "warning"
            message = f"conda looks for pytorch in '{first}' before 'pytorch', and finds a build without CUDA"
            if "pytorch-cuda" in packages:
                severity = "info"
                message = f"conda looks for pytorch in '{first}' first, and pytorch-cuda is for that of 'pytorch'"
            related = [Related(torch.node.span, "pytorch is asked for here")]
            yield CONDA_CHANNELS.at(
                channels["pytorch"].span, message, "Put 'pytorch' first.", related, severity=severity
            )


def _missing_channels(package: CondaPackage, channels: Mapping[str, Node]) -> Iterator[Diagnostic]:
    if not channels or any(name.startswith(("http", "/", "file:")) for name in channels):
        return  # a mirror may have everything
    if "pytorch" not in channels and package.channel != "pytorch":
        message = "pytorch-cuda is in the channel 'pytorch', which is not among the channels"
        yield CONDA_CHANNELS.at(package.node.span, message, "Add 'pytorch' to the channels.")
    elif not any(name.split("/")[0] in ("nvidia", "conda-forge") for name in channels):
        message = "pytorch-cuda needs packages of the channel 'nvidia', which is not among the channels"
        yield CONDA_CHANNELS.at(package.node.span, message, "Add 'nvidia' to the channels.")


_CONDA = regex(r"\s*(?:([\w./-]+)::)?([A-Za-z0-9_][\w.-]*)")
_PIP = regex(r"\s*([A-Za-z0-9][\w.-]*)\s*(\[[^\]]*\])?\s*(?:[=<>!~;@]|$)")
# Options of pip that name no packages.
_PIP_OPTION = regex(r"\s*(?:--(?:extra-)?index-url|-i|--find-links|-f|--pre|--trusted-host|--no-\S+|--prefer-\S+)\b")


class CondaPackage(NamedTuple):
    """An entry of a conda file. `name` is None if what it brings is unknown: requirements, an address."""

    name: str | None
    node: Node
    with_pip: bool
    channel: str = ""


def conda_of(environment: Node | None, file: Path, store: DocumentStore) -> Node | None:
    """The keys of an environment's conda file, in place or from the file that it names; None if it has none."""
    conda = environment.get("conda_file") if environment is not None else None
    if conda is None or not conda.is_text:
        return conda
    document = store.find(Path(os.path.normpath(file.parent / conda.text)))
    return document.root if document is not None else None


def packages_of(conda: Node) -> Iterator[CondaPackage]:
    """The packages of a conda file, with those of its `pip:`."""
    for item in conda.items_of("dependencies"):
        if item.is_text:
            match = _CONDA.match(item.text)
            yield CondaPackage(match[2] if match else None, item, False, (match[1] or "") if match else "")
        for each in item.items_of("pip"):
            if each.is_text and not _PIP_OPTION.match(each.text):
                match = _PIP.match(each.text)
                # What an extra brings is not known.
                yield CondaPackage(match[1] if match and not match[2] else None, each, True)
