"""Packages that only some steps need, asked for before anything else is done."""

from __future__ import annotations

import importlib

from trainyard.steps.runtime.errors import SetupError


def require_packages(what: str, how_to_install: str, *names: str) -> None:
    """Import packages. SetupError says which of them `what` needs, and how it is installed."""
    for name in names:
        try:
            importlib.import_module(name)  # may import: not trainyard
        except ImportError as failure:
            package = (failure.name or name).partition(".")[0]
            raise SetupError(f"{what} needs the package {package}; {how_to_install}") from None


def from_extra(extra: str) -> str:
    """How the packages of an extra of Trainyard are installed."""
    return f'pip install "trainyard[{extra}]"'
