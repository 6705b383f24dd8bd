"""The linter's rules, a module per subject that is found by its name, with those that the readers of `spec` report."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib import import_module

from trainyard.spec.rule import Rule

# What readers report, a part of them beside what they are about.
_OF_SPEC = ("expressions", "literals", "parsed", "ports", "rules", "step_settings", "training_settings")


def _declared() -> Iterator[Rule]:
    modules = [
        *(f"trainyard.spec.{name}" for name in _OF_SPEC),
        # `pkgutil` would do, and takes longer to import than the list to make.
        *sorted(
            f"{__name__}.{name[:-3]}" for name in os.listdir(__path__[0]) if name.endswith(".py") and name[0] != "_"
        ),
    ]
    for module in modules:
        yield from (each for each in vars(import_module(module)).values() if isinstance(each, Rule))


RULES: Mapping[str, Rule] = {rule.id: rule for rule in sorted(_declared(), key=lambda rule: rule.id)}
