"""The little language inside Azure ML's texts: `${{binding}}`, and `$[[ part that may be left out ]]`.

One grammar for commands, node inputs and output paths:

    text      = (literal | binding | optional)*
    binding   = "${{" name ("." name)* "}}"          spaces inside the braces are optional
    optional  = "$[[" (literal | binding)* "]]"
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from trainyard.settings.regex import regex
from trainyard.spec.rule import Rule

MALFORMED_EXPRESSION = Rule("AML201", "malformed-expression", "error").explained(
    summary="A malformed '${{' or '$[['.",
    why="Azure ML only substitutes exactly `${{name.name}}`; anything else reaches the shell as it is.",
)
UNKNOWN_SCOPE = Rule("AML202", "unknown-scope", "error").explained(
    summary="The binding starts with names that mean nothing here.",
    why="A command can use `inputs` and `outputs`; a job in a pipeline can use `parent.inputs`, `parent.outputs` and "
    "`parent.jobs.JOB.outputs`. Other forms are rejected on submission, or left as they are.",
)
UNKNOWN_PIPELINE_PORT = Rule("AML203", "unknown-pipeline-port", "error").explained(
    summary="The pipeline has no such input or output.",
    why="The client sends the name as it is; the job fails when Azure ML cannot resolve it.",
)
UNKNOWN_JOB = Rule("AML204", "unknown-job", "error").explained(
    summary="The pipeline has no such job.",
    why="The client sends the name as it is; Azure ML rejects the pipeline when it cannot resolve it.",
)
UNKNOWN_JOB_PORT = Rule("AML205", "unknown-job-port", "error").explained(
    summary="The other job has no such input or output.",
    why="The client does not look at the other job's component.",
)
UNKNOWN_COMMAND_PORT = Rule("AML206", "unknown-command-port", "error").explained(
    summary="The command uses an undeclared input or output.",
    why="The client does not check a component's command when it loads a pipeline; the job fails on the cluster.",
)
CYCLE = Rule("AML207", "cycle", "error").explained(
    summary="Jobs wait for each other.",
    why="The client serializes cycles without complaint. The message shows the whole cycle.",
)


class Literal(NamedTuple):
    """Plain text."""

    text: str


class Binding(NamedTuple):
    """`${{a.b.c}}`: `path` is ("a", "b", "c"), `text` as written, from offset `start` to `end` (exclusive)."""

    path: tuple[str, ...]
    text: str
    start: int
    end: int

    def name_in(self, scope: str) -> str | None:
        """The NAME in `${{SCOPE.NAME}}`, for a scope such as `inputs` or `parent.inputs`; None in another scope."""
        parts = tuple(scope.split("."))
        is_in_scope = self.path[: len(parts)] == parts and len(self.path) > len(parts)
        return ".".join(self.path[len(parts) :]) if is_in_scope else None

    def part_offsets(self, index: int, *, to_end: bool = False) -> tuple[int, int]:
        """Where the path's `index`-th name is in the whole text; `to_end` includes all names after it."""
        inner = self.text[3:-2]
        leading_blanks = len(inner) - len(inner.lstrip())
        start = self.start + 3 + leading_blanks + sum(len(name) + 1 for name in self.path[:index])
        return start, start + len(".".join(self.path[index:]) if to_end else self.path[index])


class OptionalPart(NamedTuple):
    """`$[[ … ]]`: left out of the command when an optional input within it is not given."""

    segments: tuple[Literal | Binding, ...]
    start: int
    end: int


Segment = Literal | Binding | OptionalPart


class ExpressionError(ValueError):
    """A string that breaks the grammar, from offset `start` to `end` (exclusive)."""

    def __init__(self, message: str, start: int, end: int) -> None:
        super().__init__(message)
        self.start = start
        self.end = end


_OPENING = regex(r"\$\{\{|\$\[\[")
_OPENING_OR_END = regex(r"\$\{\{|\$\[\[|\]\]")
_NAME = regex(r"[\w-]+", re.ASCII)


@lru_cache(maxsize=4096)
def parse_expressions(text: str) -> tuple[Segment, ...]:
    """Split a string into its segments, in order; written out again they are the text.

    Raises ExpressionError, with offsets, for what is opened and not closed, for optional parts within optional
    parts, and for bindings that are not names joined by dots.
    """
    segments: list[Segment] = []
    position = 0
    while (opening := _OPENING.search(text, position)) is not None:
        if opening.start() > position:
            segments.append(Literal(text[position : opening.start()]))
        segment = _binding(text, opening.start()) if opening[0] == "${{" else _optional_part(text, opening.start())
        segments.append(segment)
        position = segment.end
    if position < len(text):
        segments.append(Literal(text[position:]))
    return tuple(segments)


def bindings_in(text: str) -> Sequence[Binding]:
    """All bindings of a string, those in optional parts too. Raises ExpressionError as `parse_expressions` does."""
    found: list[Binding] = []
    if "${{" not in text and "$[[" not in text:
        return found
    for segment in parse_expressions(text):
        members: Iterable[Segment] = segment.segments if isinstance(segment, OptionalPart) else (segment,)
        found.extend(member for member in members if isinstance(member, Binding))
    return found


def only_binding(text: str) -> Binding | None:
    """The binding that a string consists of, spaces around it aside; None when there is more, or none, or an error."""
    if "${{" not in text:
        return None
    try:
        segments = [s for s in parse_expressions(text) if not (isinstance(s, Literal) and not s.text.strip())]
    except ExpressionError:
        return None
    only = segments[0] if len(segments) == 1 else None
    return only if isinstance(only, Binding) else None


def job_bound_to(binding: Binding) -> str:
    """The job that `${{parent.jobs.NAME.…}}` names, or an empty string."""
    path = binding.path
    return path[2] if path[:2] == ("parent", "jobs") and len(path) > 2 else ""


def bindings_of_value(data: Any) -> Iterator[Binding]:
    """All bindings in a value, however nested. Malformed ones, which loading reports, are skipped."""
    if isinstance(data, str):
        try:
            yield from bindings_in(data)
        except ExpressionError:
            return
    elif isinstance(data, dict):
        for member in data.values():
            yield from bindings_of_value(member)
    elif isinstance(data, list):
        for member in data:
            yield from bindings_of_value(member)


def name_bound(text: str, scope: str) -> str | None:
    """The NAME where a string is `${{SCOPE.NAME}}` and nothing else; None otherwise."""
    binding = only_binding(text)
    return binding.name_in(scope) if binding is not None else None


def written(segments: Iterable[Segment]) -> str:
    """The text that segments came from."""
    return "".join(
        f"$[[{written(segment.segments)}]]" if isinstance(segment, OptionalPart) else segment.text
        for segment in segments
    )


def _binding(text: str, start: int) -> Binding:
    closing = text.find("}}", start)
    if closing < 0:
        raise ExpressionError("'${{' is not closed by '}}'", start, start + 3)
    inner = text[start + 3 : closing]
    if "${{" in inner:
        raise ExpressionError("'${{' is not closed by '}}' before the next one begins", start, start + 3)
    end = closing + 2
    path = tuple(inner.strip().split("."))
    if path == ("",):
        raise ExpressionError("'${{}}' names nothing", start, end)
    if not all(_NAME.fullmatch(name) for name in path):
        message = f"'{text[start:end]}' is not names joined by dots"
        raise ExpressionError(message, start, end)
    return Binding(path, text[start:end], start, end)


def _optional_part(text: str, start: int) -> OptionalPart:
    segments: list[Literal | Binding] = []
    position = start + 3
    while (mark := _OPENING_OR_END.search(text, position)) is not None:
        if mark.start() > position:
            segments.append(Literal(text[position : mark.start()]))
        if mark[0] == "]]":
            return OptionalPart(tuple(segments), start, mark.end())
        if mark[0] == "$[[":
            between = text[start + 3 : mark.start()]
            if "]" in between or text.count("]]") < text.count("$[["):
                raise ExpressionError("'$[[' is not closed by ']]' before the next one begins", start, start + 3)
            raise ExpressionError("'$[[' within '$[[': optional parts do not nest", mark.start(), mark.end())
        binding = _binding(text, mark.start())
        segments.append(binding)
        position = binding.end
    raise ExpressionError("'$[[' is not closed by ']]'", start, start + 3)
