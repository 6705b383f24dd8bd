"""Which modules Python packages bring, with those of the packages that they require.

`python_packages.csv` holds the common packages: their names on PyPI and in conda's channels, their modules, and what
they require, as their metadata says. What one version of a package required it is taken to require in all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from trainyard.catalogue.csv_rows import rows_of

_TABLE = Path(__file__).with_name("python_packages.csv")


class _Package(NamedTuple):
    packages: tuple[str, ...]
    modules: tuple[str, ...]
    requires: tuple[str, ...]


@cache
def _packages() -> dict[str, _Package]:
    return {package_name(name): row for row in rows_of(_Package, _TABLE) for name in row.packages}


@cache
def _providers() -> dict[str, str]:
    providers: dict[str, str] = {}
    for name, package in _packages().items():
        for module in package.modules:
            providers.setdefault(module, name)
    return providers


def package_name(name: str) -> str:
    """The name of a package as PyPI compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def known_packages() -> frozenset[str]:
    """The names of all packages of the table, as PyPI compares names."""
    return frozenset(_packages())


def known_module(path: str) -> str | None:
    """The module of the table that a dotted path is in; None for all other modules."""
    parts = path.split(".")
    names = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((name for name in names if name in _providers()), None)


def package_of(module: str) -> str:
    """A package that brings a module of the table."""
    return _providers()[module]


def modules_of(packages: Iterable[str]) -> frozenset[str] | None:
    """The modules that packages bring with all that they require; None if one of them is not in the table."""
    known = _packages()
    waiting = [package_name(name) for name in packages]
    if any(name not in known for name in waiting):
        return None
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in seen and name in known:
            seen.add(name)
            waiting.extend(map(package_name, known[name].requires))
    return frozenset(module for name in seen for module in known[name].modules)
