"""Packages that only some steps need, asked for before anything else is done."""

from __future__ import annotations

import importlib
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

from trainyard.steps.runtime.errors import SetupError


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
            problem = next(iter(str(failure).splitlines()), "")
            raise SetupError(
                f"{what} cannot import {package} {number}, which does not fit the packages installed beside it "
                f"({problem}); {how_to_install}"
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
