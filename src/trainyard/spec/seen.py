"""What the readers of YAML came by, as they saw it: for whoever looks closer than they do (the rules of the linter)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainyard.spec.bindings import Scope
    from trainyard.spec.documents import Node
    from trainyard.spec.model import Component, Job
    from trainyard.spec.reading import Reading


@dataclass(frozen=True)
class SeenCommand:
    """A command with what surrounds it: a component, a job with its own command, or the trial of a sweep."""

    node: Node
    component: Component
    reading: Reading
    is_component: bool


@dataclass(frozen=True)
class SeenPipeline:
    """The body of a pipeline or pipeline component, with its ports and its jobs."""

    body: Node
    scope: Scope
    jobs: Mapping[str, Job]
    """Those that are commands whose component can be seen."""
    reading: Reading


@dataclass
class Seen:
    """Everything of one reading, in the order it was met; each file's contents once."""

    commands: list[SeenCommand] = field(default_factory=list)
    pipelines: list[SeenPipeline] = field(default_factory=list)
