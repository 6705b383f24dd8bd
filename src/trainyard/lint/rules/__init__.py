"""The linter's rules, a module per subject, with those that the readers of `spec` report. Modules are found by name."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from importlib import import_module

import trainyard.spec.rules
from trainyard.spec.rule import Rule


def _declared() -> Iterator[Rule]:
    for package in (trainyard.spec.rules.__name__, __name__):
        for module in pkgutil.iter_modules(import_module(package).__path__):
            yield from (
                each for each in vars(import_module(f"{package}.{module.name}")).values() if isinstance(each, Rule)
            )


RULES: Mapping[str, Rule] = {rule.id: rule for rule in sorted(_declared(), key=lambda rule: rule.id)}
