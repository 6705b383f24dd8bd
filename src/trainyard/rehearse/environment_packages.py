"""The packages that an environment's conda and pip files ask for, and how those of the Python here differ from them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from trainyard.catalogue.python_packages import known_module, modules_of, package_name, package_of
from trainyard.rehearse.errors import cannot_write
from trainyard.rehearse.local_jobs import LocalJob
from trainyard.rehearse.reuse import local_packages, python_version
from trainyard.spec.diagnostic import Span
from trainyard.spec.model import Environment

_CONDA = re.compile(r"(?:[\w./-]+::)?(?P<name>[\w.-]+)\s*(?P<version>[=<>!~].*?|\d\S*)?(?:=\w+)?\s*$")
_REQUIREMENTS = re.compile(r"[\w.-]*requirements[\w.-]*\.(?:txt|in)", re.IGNORECASE)
_INCLUDE = re.compile(r"(?:-r|--requirement)[\s=]+(\S+)")
# What has another name on PyPI.
_PIP_NAMES = {"pytorch": "torch", "pytorch-cpu": "torch", "pytorch-gpu": "torch", "tensorflow-gpu": "tensorflow"}
# Builds under another name.
_BUILDS = {"tensorflow-cpu": "tensorflow", "onnxruntime-gpu": "onnxruntime"}
_BELONGS_TO_PYTHON = frozenset({"pip", "setuptools", "wheel"})


@dataclass(frozen=True)
class _CondaSource:
    """Conda's keys, and where they are: in `file`, from the line `start` (counted from 1)."""

    data: Any
    file: Path
    lines: list[str]
    start: int = 1

    @property
    def dependencies(self) -> list[Any]:
        """What is under `dependencies`."""
        found = self.data.get("dependencies") if isinstance(self.data, dict) else None
        return found if isinstance(found, list) else []

    @property
    def pip_entries(self) -> list[str]:
        """What is under `pip` there."""
        lists = (entry.get("pip") for entry in self.dependencies if isinstance(entry, dict))
        return [str(entry) for listed in lists if isinstance(listed, list) for entry in listed]

    def line_of(self, entry: Any) -> int:
        """Return the line of an entry."""
        numbered = enumerate(self.lines[self.start - 1 :], start=self.start)
        return next((number for number, line in numbered if str(entry) in line), self.start)


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
    """Return what conda's keys and the files of the build context ask for; empty if the environment has neither.

    Lines that name no package (options, addresses, local folders) are left out, as are those for other platforms.
    """
    found: list[WantedPackage] = []
    for source in _conda_sources(environment):
        found += _of_conda(source)
    for file in _requirements_files(environment):
        found += _of_requirements(file, frozenset())
    return list({package.name: package for package in found}.values())


def differences(
    wanted: Iterable[WantedPackage], python: Path, installed: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """Return the packages that a Python does not have, and those that it has in another version, each described.

    `installed` are the versions of its packages by name.
    """
    installed = {**{name: installed[build] for build, name in _BUILDS.items() if build in installed}, **installed}
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


def _conda_sources(environment: Environment) -> Iterator[_CondaSource]:
    """What conda reads: the keys written in place, the conda file, and such files of the build context."""
    if environment.conda is not None:
        span = environment.conda.span
        yield _CondaSource(environment.conda.data, span.file, _text_of(span.file).splitlines(), span.line)
    beside = [file for file in _beside(environment) if file.suffix in (".yml", ".yaml")]
    for file in (environment.conda_file, *beside):
        if file is not None and file.is_file():
            text = _text_of(file)
            try:
                yield _CondaSource(yaml.safe_load(text), file, text.splitlines())
            except (yaml.YAMLError, ValueError, RecursionError):
                continue  # lint reports it


def _requirements_files(environment: Environment) -> list[Path]:
    return [file for file in _beside(environment) if _REQUIREMENTS.fullmatch(file.name)]


def _beside(environment: Environment) -> list[Path]:
    """The files of the build context."""
    folder = environment.build_path
    return sorted(folder.iterdir()) if folder is not None and folder.is_dir() else []


def _text_of(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace")


def _of_conda(source: _CondaSource) -> Iterator[WantedPackage]:
    for entry in source.dependencies:
        if isinstance(entry, str):
            yield from _of_conda_entry(entry, source)
    for entry in source.pip_entries:
        yield from _of_pip_line(entry, source.file, source.line_of(entry), frozenset())


def _of_conda_entry(entry: str, source: _CondaSource) -> Iterator[WantedPackage]:
    found = _CONDA.fullmatch(entry.strip())
    if found is None or found["name"].lower() in _BELONGS_TO_PYTHON:
        return
    name = _PIP_NAMES.get(found["name"].lower(), found["name"])
    versions = _conda_versions(found["version"] or "")
    yield WantedPackage(canonicalize_name(name), versions, source.file, source.line_of(entry), by_conda=True)


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
    for number, line in enumerate(_text_of(file).splitlines(), start=1):
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


def pip_lines(environment: Environment) -> list[str]:
    """Return the lines of a requirements file that installs an environment: conda's packages by their names on PyPI."""
    lines: list[str] = []
    for source in _conda_sources(environment):
        by_conda = [package for package in _of_conda(source) if package.by_conda and package.name != "python"]
        lines += [f"{package.name}{package.versions}" for package in by_conda]
        for entry in source.pip_entries:
            include = _INCLUDE.match(entry)
            lines.append(f"-r {source.file.parent / include[1]}" if include is not None else entry)
    return lines + [f"-r {file}" for file in _requirements_files(environment)]


LIST_FILE = "environments.txt"
_MOST_NAMES = 3


def environment_notes(jobs: Iterable[LocalJob], python: Path, run_folder: Path) -> list[str]:
    """Return a warning for each environment whose packages differ from those of `python`; write all of them to a file.

    Raise `RunError` when that cannot be written.
    """
    users: dict[tuple[Path, int], tuple[Environment, list[str]]] = {}
    for job in jobs:
        environment = job.component.environment
        source = environment.package_source if environment is not None else None
        if environment is not None and source is not None:
            users.setdefault(source, (environment, []))[1].append(job.name)
    notes, lines = [], []
    for (place, _), (environment, names) in users.items():
        missing, others = differences(wanted_packages(environment), python, installed_versions(python))
        if not missing and not others:
            continue
        parts = [f"missing: {_few(missing)}"] if missing else []
        parts += [f"other versions: {_few(others)}"] if others else []
        who = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        notes.append(f"{who}: this Python differs from {place.name}: {'; '.join(parts)}")
        lines += [f"{place}, for {', '.join(names)}, compared with {python}"]
        lines += [f"  missing: {package}" for package in missing]
        lines += [f"  other version: {package}" for package in others]
    if lines:
        file = run_folder / LIST_FILE
        try:
            file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        except OSError as error:
            raise cannot_write(file, error) from error
        notes[-1] += f" (all in {LIST_FILE} of the run's folder)"
    return notes


def _few(described: list[str]) -> str:
    """The first few without their places, and how many more there are."""
    shown = [package.rpartition(" (")[0] for package in described[:_MOST_NAMES]]
    more = len(described) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def where_to_add(module: str, environment: Environment | None) -> str:
    """Return what to do about a missing module, with the line of the environment's file that asks for its package.

    Which packages bring a module is known of the common ones; others are taken to have the module's name.
    """
    known = known_module(module)
    package = package_of(known) if known is not None else module.partition(".")[0]
    named = "" if package_name(package) == package_name(module) else f" (package {package})"
    install = f"install it{named} for the Python that runs this"
    if environment is None:
        return install
    found = next((package for package in wanted_packages(environment) if _brings(package, module, known)), None)
    if found is not None:
        return f"{found.file}:{found.line} asks for {found.name}: {install}"
    places = _places_of(environment)
    for place in places:
        line = _line_with(place, module)
        if line is not None:
            return f"{place.file}:{line} lists it: {install}"
    if places:
        return f"{places[0].file} does not list it: add it there{named}, and {install}"
    return f"{install}, and check that the environment {environment.reference or environment.image} has it"


def _brings(wanted: WantedPackage, module: str, known: str | None) -> bool:
    if wanted.name == package_name(module):
        return True
    return known is not None and known in (modules_of([wanted.name]) or ())


def _places_of(environment: Environment) -> list[Span]:
    """Where packages may be named: whole files, a Dockerfile and scripts among them, or conda's keys in place."""
    folder = environment.build_path
    beside = sorted(file for file in folder.iterdir() if file.is_file()) if folder and folder.is_dir() else []
    in_place = [environment.conda.span] if environment.conda is not None else []
    conda_file = [environment.conda_file] if environment.conda_file is not None else []
    return [*map(_whole, conda_file), *in_place, *map(_whole, beside)]


def _whole(file: Path) -> Span:
    return Span(file, end_line=sys.maxsize)


def _line_with(place: Span, module: str) -> int | None:
    """The line of a place that has the module's name, with - or _."""
    if not place.file.is_file():
        return None
    name = re.compile(rf"(?<![\w.-]){re.escape(module).replace('_', '[-_]')}(?![\w-])", re.IGNORECASE)
    lines = place.file.read_text(encoding="utf-8", errors="replace").splitlines()[: place.end_line]
    if len(lines) == place.end_line:
        lines[-1] = lines[-1][: place.end_column - 1]
    numbered = enumerate(lines[place.line - 1 :], start=place.line)
    return next((number for number, line in numbered if name.search(line)), None)
