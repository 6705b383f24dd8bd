"""What is imported by its name: packages that only some steps need, which can be changed for a while, and a user's own
code with its arguments."""

from __future__ import annotations

import importlib
import platform
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from trainyard.steps.runtime.errors import SetupError, StepError, first_line
from trainyard.steps.runtime.files import parse_json


def require_packages(what: str, how_to_install: str, *names: str) -> None:
    """Import packages. SetupError says which of them `what` needs, or which does not fit, and how it is installed."""
    for name in names:
        try:
            importlib.import_module(name)  # may import: not trainyard
        except ModuleNotFoundError as failure:
            package = (failure.name or name).partition(".")[0]
            raise SetupError(f"{what} needs the package {package}; {how_to_install}") from None
        except Exception as failure:
            # A ValueError if it was built for another numpy, a TypeError for another protobuf, an OSError without MPI.
            package = name.partition(".")[0]
            number = python_and_packages([package]).get(package, "")
            raise SetupError(
                f"{what} cannot import {package} {number}, which does not fit the packages installed beside it "
                f"({first_line(failure)}); {how_to_install}"
            ) from None


def python_and_packages(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of Python and of those packages that are installed."""
    versions = {"python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def from_extra(extra: str) -> str:
    """How the packages of an extra of Trainyard are installed."""
    return f'pip install "trainyard-azureml[{extra}]"'


@contextmanager
def replaced(owner: Any, name: str, value: object) -> Iterator[None]:
    """A context in which an object, a class or a module has another attribute by this name."""
    before = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        delattr(owner, name)
        if before is not None:  # else its class has it
            setattr(owner, name, before)


def import_named(flag: str, path: str, kind: str) -> Any:
    """Import and return `package.module:name`. SetupError names the flag if the module or the `kind` is missing."""
    module_name, colon, name = path.partition(":")
    if not (colon and all(part.isidentifier() for part in (*module_name.split("."), name))):
        raise SetupError(f"{flag} {path}: expected package.module:{kind}")
    try:
        module = importlib.import_module(module_name)  # may import: not trainyard
    except ModuleNotFoundError as failure:
        raise SetupError(f"{flag} {path}: the module {failure.name} is missing") from None
    found = getattr(module, name, None)
    if found is None:
        raise SetupError(f"{flag} {path}: {module_name} has no {kind.lower()} {name}")
    return found


def arguments_from_json(flag: str, text: str | None) -> dict[str, Any]:
    """Return named arguments that were given as a JSON object. SetupError, with the flag, for anything else."""
    if text is None:
        return {}
    try:
        found = parse_json(text, f"{flag} {text}")
    except StepError as mistake:
        raise SetupError(str(mistake)) from None
    if not isinstance(found, dict):
        raise SetupError(f'{flag} must be a JSON object such as {{"hidden_size": 64}}; found {text}')
    return found


def call_named(flag: str, path: str | None, function: Any, arguments: Mapping[str, Any]) -> Any:
    """Call what `import_named` returned. StepError names the flag of the arguments if they do not fit."""
    try:
        return function(**arguments)
    except TypeError as failure:
        raise StepError(f"{flag} {path}: {failure}; give its arguments by {flag}-arguments") from None
