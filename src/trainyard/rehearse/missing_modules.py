"""What to do about a module that a job could not import, by what its environment says."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from trainyard.catalogue.python_packages import known_module, modules_of, package_name, package_of
from trainyard.rehearse.environment_packages import WantedPackage, wanted_packages
from trainyard.spec.diagnostic import Span
from trainyard.spec.model import Environment


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
    found = next((each for each in wanted_packages(environment) if _brings(each, module, known)), None)
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
