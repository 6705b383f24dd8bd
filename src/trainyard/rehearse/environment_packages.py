"""The packages that an environment's conda and pip files ask for, and how those of the Python here differ from them."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from trainyard.catalogue.python_packages import known_module, modules_of, package_name, package_of
from trainyard.rehearse.errors import writing
from trainyard.rehearse.local_jobs import LocalJob
from trainyard.rehearse.local_python import local_packages, python_version, text_of
from trainyard.settings.quantities import first_names
from trainyard.spec.diagnostic import SpecError
from trainyard.spec.documents import Node, read_document
from trainyard.spec.model import Environment
from trainyard.spec.shell_words import step_call

_CONDA = re.compile(r"(?:[\w./-]+::)?(?P<name>[\w.-]+)\s*(?P<version>[=<>!~].*?|\d\S*)?(?:=\w+)?\s*$")
_REQUIREMENTS = re.compile(r"[\w.-]*requirements[\w.-]*\.(?:txt|in)", re.IGNORECASE)
_INCLUDE = re.compile(r"(?:-r|--requirement)[\s=]+(\S+)")
# What has another name on PyPI.
_PIP_NAMES = {"pytorch": "torch", "pytorch-cpu": "torch", "pytorch-gpu": "torch", "tensorflow-gpu": "tensorflow"}
# Builds under another name.
_BUILDS = {"tensorflow-cpu": "tensorflow", "onnxruntime-gpu": "onnxruntime"}
_BELONGS_TO_PYTHON = frozenset({"pip", "setuptools", "wheel"})


class _Entry(NamedTuple):
    """An entry of conda's dependencies, or a line for pip, as written; and where."""

    text: str
    file: Path
    line: int
    by_conda: bool = False


class WantedPackage(NamedTuple):
    """A package that an environment's file asks for, and where; `python` is the interpreter itself."""

    name: str
    versions: SpecifierSet
    file: Path
    line: int

    @property
    def place(self) -> str:
        """The file's name and the line."""
        return f"{self.file.name}:{self.line}"


def wanted_packages(environment: Environment) -> list[WantedPackage]:
    """Return what conda's keys and the files of the build context ask for; empty if the environment has neither.

    Lines that name no package (options, addresses, local folders) are left out, as are those for other platforms.
    """
    found: dict[str, WantedPackage] = {}
    required = [line for file in _requirements_files(environment) for line in _lines_of(file)]
    for entry in (*_entries_of_conda(environment), *required):
        packages = _of_conda(entry) if entry.by_conda else _of_pip(entry)
        found.update((package.name, package) for package in packages)
    return list(found.values())


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


def _entries_of_conda(environment: Environment) -> Iterator[_Entry]:
    """What conda's keys ask for: those written in place, the conda file, and such files of the build context."""
    if environment.conda is not None:
        yield from _entries_in(environment.conda)
    beside = [file for file in _beside(environment) if file.suffix in (".yml", ".yaml")]
    for file in (environment.conda_file, *beside):
        if file is not None and file.is_file():
            with contextlib.suppress(SpecError):  # lint reports it
                yield from _entries_in(read_document(file).root)


def _entries_in(conda: Node) -> Iterator[_Entry]:
    """The entries under `dependencies`, and those of pip there."""
    for item in conda.items_of("dependencies"):
        for entry in [item] if item.is_text else item.items_of("pip"):
            yield _Entry(entry.text, entry.span.file, entry.span.line, by_conda=item.is_text)


def _lines_of(file: Path) -> Iterator[_Entry]:
    for number, line in enumerate(text_of(file).splitlines(), start=1):
        yield _Entry(line, file, number)


def _requirements_files(environment: Environment) -> list[Path]:
    return [file for file in _beside(environment) if _REQUIREMENTS.fullmatch(file.name)]


def _beside(environment: Environment) -> list[Path]:
    """The files of the build context."""
    folder = environment.build_path
    return sorted(file for file in folder.iterdir() if file.is_file()) if folder and folder.is_dir() else []


def _of_conda(entry: _Entry) -> Iterator[WantedPackage]:
    found = _CONDA.fullmatch(entry.text.strip())
    if found is not None and found["name"].lower() not in _BELONGS_TO_PYTHON:
        name = _PIP_NAMES.get(found["name"].lower(), found["name"])
        versions = _conda_versions(found["version"] or "")
        yield WantedPackage(canonicalize_name(name), versions, entry.file, entry.line)


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


def _of_pip(entry: _Entry, above: frozenset[Path] = frozenset()) -> Iterator[WantedPackage]:
    """What a line asks for, and the lines of the files that it includes, except those `above` it."""
    text = re.sub(r"(^|\s)#.*", "", entry.text).strip().rstrip("\\").strip()
    include = _INCLUDE.match(text)
    if include is not None:
        above |= {entry.file.resolve()}
        included = entry.file.parent / include[1]
        if included.is_file() and included.resolve() not in above:
            for line in _lines_of(included):
                yield from _of_pip(line, above)
        return
    with contextlib.suppress(InvalidRequirement):
        requirement = Requirement(re.sub(r"\s--hash=\S+", "", text))
        if requirement.marker is None or requirement.marker.evaluate():
            yield WantedPackage(canonicalize_name(requirement.name), requirement.specifier, entry.file, entry.line)


def pip_lines(environment: Environment) -> list[str]:
    """Return the lines of a requirements file that installs an environment: conda's packages by their names on PyPI."""
    lines: list[str] = []
    for entry in _entries_of_conda(environment):
        include = _INCLUDE.match(entry.text)
        if entry.by_conda:
            lines += [f"{package.name}{package.versions}" for package in _of_conda(entry) if package.name != "python"]
        else:
            lines.append(f"-r {entry.file.parent / include[1]}" if include is not None else entry.text)
    return lines + [f"-r {file}" for file in _requirements_files(environment)]


LIST_FILE = "environments.txt"
_MOST_NAMES = 3


def environment_notes(jobs: Iterable[LocalJob], python: Path, run_folder: Path) -> list[str]:
    """Return a warning for each environment whose packages differ from those of `python`; write all of them to a file.

    Environments of this project's own steps are in the file alone: what those steps need is checked by itself.
    Raise `RunError` when the file cannot be written.
    """
    users: dict[tuple[Path, int], tuple[Environment, list[str]]] = {}
    own_steps: set[str] = set()
    for job in jobs:
        environment = job.component.environment
        source = environment.package_source if environment is not None else None
        if step_call(str(job.component.command.data)) is not None:
            own_steps.add(job.name)
        if environment is not None and source is not None:
            users.setdefault(source, (environment, []))[1].append(job.name)
    notes, lines = [], []
    for (place, _), (environment, names) in users.items():
        missing, others = differences(wanted_packages(environment), python, installed_versions(python))
        if not missing and not others:
            continue
        if not own_steps.issuperset(names):
            parts = [f"missing: {_few(missing)}"] if missing else []
            parts += [f"other versions: {_few(others)}"] if others else []
            notes.append(f"{first_names(names, 1)}: this Python differs from {place.name}: {'; '.join(parts)}")
        lines += [f"{place}, for {', '.join(names)}, compared with {python}"]
        lines += [f"  missing: {package}" for package in missing]
        lines += [f"  other version: {package}" for package in others]
    if lines:
        file = run_folder / LIST_FILE
        with writing(file):
            file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if notes:
        notes[-1] += f" (all in {LIST_FILE} of the run's folder)"
    return notes


def _few(described: list[str]) -> str:
    """The first few without their places, and how many more there are."""
    return first_names((package.rpartition(" (")[0] for package in described), _MOST_NAMES)


def where_to_add(module: str, environment: Environment | None, python: Path) -> str:
    """Return what to do about a missing module, with the line of the environment's file that asks for its package.

    Which packages bring a module is known of the common ones; others are taken to have the module's name. A package
    that `python` has without the module is named with its version: it is another one that is needed.
    """
    known = known_module(module)
    package = package_of(known) if known is not None else module.partition(".")[0]
    installed = installed_versions(python).get(package_name(package)) if "." in module else None
    if installed is not None:
        return f"{package} {installed} is installed, which has no {module}: install the version that has it"
    named = "" if package_name(package) == package_name(module) else f" (package {package})"
    install = f"install it{named} for the Python that runs this"
    if environment is None:
        return install
    for wanted in wanted_packages(environment):
        if wanted.name == package_name(module) or known in (modules_of([wanted.name]) or ()):
            return f"{wanted.file}:{wanted.line} asks for {wanted.name}: {install}"
    name = re.compile(rf"(?<![\w.-]){re.escape(module).replace('_', '[-_]')}(?![\w-])", re.IGNORECASE)
    for file in _beside(environment):  # a Dockerfile and scripts among them
        for line in _lines_of(file):
            if name.search(line.text):
                return f"{file}:{line.line} lists it: {install}"
    if environment.package_source is not None:
        return f"{environment.package_source[0]} does not list it: add it there{named}, and {install}"
    return f"{install}, and check that the environment {environment.reference or environment.image} has it"
