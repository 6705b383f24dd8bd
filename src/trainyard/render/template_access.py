"""What a template may read and call, by the type of the object: a pull request can bring a template of its own.

Whatever is not listed is refused. Above all no path is listed: it could write files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from jinja2.environment import TemplateModule
from jinja2.runtime import BlockReference, LoopContext, Macro, Undefined
from jinja2.utils import Cycler, Joiner, Namespace

from trainyard.catalogue.skus import Sku
from trainyard.plan.estimate.candidates import Proposal, Proposed
from trainyard.render.profiles import Cluster, Profile
from trainyard.render.steps import StepDescription
from trainyard.settings.step_fields import StepField
from trainyard.settings.written_settings import Candidate


class TemplateFunction:
    """A function that templates may call, and of which they can read nothing."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self._function(*args, **kwargs)


def _public(of: type) -> frozenset[str]:
    return frozenset(name for name in dir(of) if not name.startswith("_"))


def _fields(of: type) -> frozenset[str]:
    return frozenset(field.name for field in dataclasses.fields(of))


_MAPPING = frozenset({"get", "items", "keys", "values"})
_SEQUENCE = frozenset({"count", "index"})
_METHODS: Mapping[type, frozenset[str]] = {
    str: _public(str) - {"encode", "format", "format_map"},
    dict: _MAPPING,
    MappingProxyType: _MAPPING,
    list: _SEQUENCE,
    tuple: _SEQUENCE,
    Profile: frozenset({"environment_of"}),
    StepDescription: frozenset({"for_task", "for_use"}),
    LoopContext: frozenset({"cycle", "changed"}),
    Cycler: frozenset({"next", "reset"}),
}
_VALUES: Mapping[type, frozenset[str]] = {
    Profile: _fields(Profile) - {"files"} | {"world_size", "environment_variables"},
    StepDescription: _fields(StepDescription) - {"source"}
    | {"title", "ports", "inputs", "outputs", "field", "has_settings_file", "program"},
    StepField: _fields(StepField) - {"declared_at"} | {"flag", "summary"},
    Cluster: _fields(Cluster),
    Sku: _public(Sku) | _fields(Sku),
    Proposal: _fields(Proposal),
    Proposed: frozenset({"candidate", "memory_gib", "step_seconds"}),
    Candidate: _fields(Candidate),
    LoopContext: frozenset(
        {
            *("index", "index0", "revindex", "revindex0", "first", "last"),
            *("length", "depth", "depth0", "previtem", "nextitem"),
        }
    ),
    Cycler: frozenset({"current"}),
    BlockReference: frozenset({"super"}),
}
_NAMESPACES = (TemplateModule, Namespace)
"""What a template imports, or makes itself: all their names are its own."""
_CALLABLE = (TemplateFunction, Macro, BlockReference, LoopContext, Joiner, Undefined)


def is_readable(owner: object, name: str) -> bool:
    """Return whether a template may read an attribute of an object."""
    if name.startswith("_"):
        return False
    if isinstance(owner, _NAMESPACES):
        return True
    return any(name in _VALUES.get(each, ()) or name in _METHODS.get(each, ()) for each in type(owner).__mro__)


def is_callable(called: object, given_by_jinja: Iterable[object]) -> bool:
    """Return whether a template may call an object: what it made itself, a listed method, or a global of Jinja's."""
    if isinstance(called, _CALLABLE) or any(called is each for each in given_by_jinja):
        return True
    name, owner = getattr(called, "__name__", ""), getattr(called, "__self__", None)
    return any(name in _METHODS.get(each, ()) for each in type(owner).__mro__)
