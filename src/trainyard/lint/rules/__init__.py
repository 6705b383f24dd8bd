"""The linter's rules, a module per subject, with those that the readers of `spec` report. Modules are found by name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib import import_module

import trainyard.spec.rules
from trainyard.spec.rule import Rule


def _declared() -> Iterator[Rule]:
    for package in (trainyard.spec.rules.__name__, __name__):
        for name in _modules_in(import_module(package).__path__[0]):
            yield from (each for each in vars(import_module(f"{package}.{name}")).values() if isinstance(each, Rule))


def _modules_in(folder: str) -> list[str]:
    # `pkgutil` would do, and takes longer to import than the list to make.
    return sorted(name.removesuffix(".py") for name in os.listdir(folder) if name.endswith(".py") and name[0] != "_")


RULES: Mapping[str, Rule] = {rule.id: rule for rule in sorted(_declared(), key=lambda rule: rule.id)}
