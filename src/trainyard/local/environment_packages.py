"""The packages that an environment's conda and pip files ask for, and how those of the Python here differ from them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from trainyard.local.cache import local_packages, python_version
from trainyard.spec.model import Environment

_CONDA = re.compile(r"(?:[\w./-]+::)?(?P<name>[\w.-]+)\s*(?P<version>[=<>!~].*?|\d\S*)?(?:=\w+)?\s*$")
_REQUIREMENTS = re.compile(r"[\w.-]*requirements[\w.-]*\.(?:txt|in)", re.IGNORECASE)
_INCLUDE = re.compile(r"(?:-r|--requirement)[\s=]+(\S+)")
# What has another name on PyPI.
_PIP_NAMES = {"pytorch": "torch", "pytorch-cpu": "torch", "pytorch-gpu": "torch", "tensorflow-gpu": "tensorflow"}
_BELONGS_TO_PYTHON = frozenset({"pip", "setuptools", "wheel"})


@dataclass(frozen=True)
class WantedPackage:
    """A package that an environment's file asks for, and where; `python` is the interpreter itself."""

    name: str
    versions: SpecifierSet
    file: Path
    line: int
    by_conda: bool = False

    @property
    def place(self) -> str:
        """The file's name and the line."""
        return f"{self.file.name}:{self.line}"


def wanted_packages(environment: Environment) -> list[WantedPackage]:
    """Return what the conda file and the files of the build context ask for; empty if the environment names none.

    Lines that name no package (options, addresses, local folders) are left out, as are those for other platforms.
    """
    found: list[WantedPackage] = []
    if environment.conda_file is not None and environment.conda_file.is_file():
        found += _of_conda(environment.conda_file)
    folder = environment.build_path
    for file in sorted(folder.iterdir()) if folder is not None and folder.is_dir() else ():
        if _REQUIREMENTS.fullmatch(file.name):
            found += _of_requirements(file, frozenset())
        elif file.suffix in (".yml", ".yaml"):
            found += _of_conda(file)
    return list({package.name: package for package in found}.values())


def differences(wanted: Iterable[WantedPackage], python: Path) -> tuple[list[str], list[str]]:
    """Return the packages that a Python does not have, and those that it has in another version, each described."""
    installed = installed_versions(python)
    missing, others = [], []
    for package in wanted:
        version = python_version(python) if package.name == "python" else installed.get(package.name)
        if version is None:
            missing.append(f"{package.name} ({package.place})")
        elif not _matches(version, package.versions):
            others.append(f"{package.name} {version} instead of {package.versions} ({package.place})")
    return missing, others


def installed_versions(python: Path = Path(sys.executable)) -> dict[str, str]:
    """Return the versions of a Python's packages by their normalized names."""
    stems = (name.rsplit(".", 1)[0].split("-") for name in local_packages(python))
    return {canonicalize_name(parts[0]): parts[1] for parts in stems if len(parts) > 1}


def _matches(version: str, versions: SpecifierSet) -> bool:
    try:
        return versions.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return True


def _of_conda(file: Path) -> Iterator[WantedPackage]:
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    for entry in _dependencies(file):
        if isinstance(entry, str):
            yield from _of_conda_entry(entry, file, lines)
    for each in _pip_entries(file):
        yield from _of_pip_line(each, file, _line_of(each, lines), frozenset())


def _dependencies(file: Path) -> list[Any]:
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8", errors="replace"))
    except yaml.YAMLError:
        return []  # lint reports it
    dependencies = document.get("dependencies") if isinstance(document, dict) else None
    return dependencies if isinstance(dependencies, list) else []


def _pip_entries(file: Path) -> list[str]:
    return [str(each) for entry in _dependencies(file) if isinstance(entry, dict) for each in entry.get("pip") or ()]


def _of_conda_entry(entry: str, file: Path, lines: list[str]) -> Iterator[WantedPackage]:
    found = _CONDA.fullmatch(entry.strip())
    if found is None or found["name"].lower() in _BELONGS_TO_PYTHON:
        return
    name = _PIP_NAMES.get(found["name"].lower(), found["name"])
    yield WantedPackage(
        canonicalize_name(name), _conda_versions(found["version"] or ""), file, _line_of(entry, lines), by_conda=True
    )


def _conda_versions(text: str) -> SpecifierSet:
    """Conda's `=1.2` means 1.2 and all that begin with it; `1.2` alone and `==1.2` are that version."""
    text = text.strip()
    if re.fullmatch(r"=\s*[\w.]+", text):
        text = f"=={text.lstrip('= ').rstrip('.')}.*"
    elif text[:1].isdigit():
        text = f"=={text}"
    try:
        return SpecifierSet(text)
    except InvalidSpecifier:
        return SpecifierSet()


def _of_requirements(file: Path, above: frozenset[Path]) -> Iterator[WantedPackage]:
    text = file.read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), start=1):
        yield from _of_pip_line(line, file, number, above | {file.resolve()})


def _of_pip_line(text: str, file: Path, line: int, above: frozenset[Path]) -> Iterator[WantedPackage]:
    text = re.sub(r"(^|\s)#.*", "", text).strip().rstrip("\\").strip()
    include = _INCLUDE.match(text)
    if include is not None:
        included = file.parent / include[1]
        if included.is_file() and included.resolve() not in above:
            yield from _of_requirements(included, above)
        return
    try:
        requirement = Requirement(re.sub(r"\s--hash=\S+", "", text))
    except InvalidRequirement:
        return
    if requirement.marker is None or requirement.marker.evaluate():
        yield WantedPackage(canonicalize_name(requirement.name), requirement.specifier, file, line)


def _line_of(entry: Any, lines: list[str]) -> int:
    return next((number for number, line in enumerate(lines, start=1) if str(entry) in line), 1)


def pip_lines(environment: Environment) -> list[str]:
    """Return the lines of a requirements file that installs an environment: conda's packages by their names on PyPI."""
    lines: list[str] = []
    folder = environment.build_path
    beside = sorted(folder.iterdir()) if folder is not None and folder.is_dir() else []
    conda_files = [file for file in (environment.conda_file, *beside) if file is not None]
    for file in (file for file in conda_files if file.suffix in (".yml", ".yaml") and file.is_file()):
        lines += [f"{each.name}{each.versions}" for each in _of_conda(file) if each.by_conda and each.name != "python"]
        for entry in _pip_entries(file):
            include = _INCLUDE.match(entry)
            lines.append(f"-r {file.parent / include[1]}" if include is not None else entry)
    return lines + [f"-r {file}" for file in beside if _REQUIREMENTS.fullmatch(file.name)]
