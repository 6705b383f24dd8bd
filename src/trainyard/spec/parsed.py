"""What the readers of YAML parsed, with its nodes: for the linter's rules, which look closer than the readers do."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainyard.spec.bindings import Scope
    from trainyard.spec.diagnostic import Span
    from trainyard.spec.documents import Node
    from trainyard.spec.model import Component, PipelineComponent
    from trainyard.spec.reading import Reading


@dataclass(frozen=True)
class ParsedCommand:
    """A command with its context: a component, a job with its own command, or the trial of a sweep."""

    node: Node
    component: Component
    reading: Reading
    is_component: bool

    @cached_property
    def command(self) -> Node | None:
        """The node of the command itself; None if it is not a string."""
        command = self.node.get("command")
        return command if command is not None and command.is_text else None

    @cached_property
    def text(self) -> str:
        """The text of the command, empty if there is none."""
        return self.command.text if self.command is not None else ""

    @property
    def is_root(self) -> bool:
        """Whether this is a whole file: a component or a job of its own."""
        return self.node is self.reading.document.root

    def span(self, start: int, end: int) -> Span:
        """Where a part of the command's text is written."""
        assert self.command is not None
        return self.reading.document.span_within(self.command, start, end)


@dataclass(frozen=True)
class ParsedPipeline:
    """The body of a pipeline or pipeline component, with its ports and jobs as the YAML has them, and its model."""

    body: Node
    scope: Scope
    model: PipelineComponent
    reading: Reading


@dataclass
class Parsed:
    """Everything that one reading parsed, in reading order; the contents of each file once."""

    commands: list[ParsedCommand] = field(default_factory=list)
    pipelines: list[ParsedPipeline] = field(default_factory=list)
