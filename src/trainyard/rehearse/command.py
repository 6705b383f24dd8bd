"""A component's command, filled in as Azure ML does: nothing is quoted, and optional parts without a value are dropped.

A value that contains the quote around it therefore ends the quoted text and breaks the command, or has a part of the
value executed, here as there; a strict run refuses such a value. Values outside quotes are the component's
responsibility.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trainyard.rehearse.errors import error_at
from trainyard.spec.expressions import Binding, Literal, OptionalPart, Segment, parse_expressions
from trainyard.spec.literals import ParameterValue
from trainyard.spec.model import Component


def fill_command(
    component: Component,
    inputs: Mapping[str, ParameterValue | Path],
    outputs: Mapping[str, Path],
    *,
    strict: bool = False,
) -> str:
    """Return the shell line of a job: `${{inputs.x}}` as a literal's `str()` or a path, `${{outputs.y}}` as a path.

    `${{search_space.x}}` is an input as well: what a sweep draws for it. `$[[ … ]]` is dropped when an optional input
    in it has no value. Raise `SpecError` for a binding to an unknown port, an input without a value outside `$[[ ]]`,
    and if `strict` for a value that would break out of the quotes around it.
    """
    return fill_text(component.command.data, component, inputs, outputs, strict=strict)


def fill_text(
    text: str,
    component: Component,
    inputs: Mapping[str, ParameterValue | Path],
    outputs: Mapping[str, Path],
    *,
    strict: bool = False,
) -> str:
    """Return another text of a component, filled in like its command."""
    return _Filler(component, inputs, outputs, strict).fill(parse_expressions(text))


# What ends a quoted text of a POSIX shell, or has a meaning in it.
_UNSAFE_WITHIN = {"'": "'", '"': '"$`\\'}


class _Filler:
    def __init__(
        self,
        component: Component,
        inputs: Mapping[str, ParameterValue | Path],
        outputs: Mapping[str, Path],
        strict: bool,
    ) -> None:
        self.component = component
        self.inputs = inputs
        self.outputs = outputs
        self.strict = strict
        self.quote: str | None = None

    def fill(self, segments: tuple[Segment, ...]) -> str:
        return "".join(self._segment(segment) for segment in segments)

    def _segment(self, segment: Segment) -> str:
        if isinstance(segment, Literal):
            self.quote = _quote_after(segment.text, self.quote)
            return segment.text
        if isinstance(segment, OptionalPart):
            bindings = [inner for inner in segment.segments if isinstance(inner, Binding)]
            return self.fill(segment.segments) if all(self._is_given(binding) for binding in bindings) else ""
        return self._binding(segment)

    def _is_given(self, binding: Binding) -> bool:
        name = ".".join(binding.path[1:])
        is_absent = binding.path[0] == "inputs" and name in self.component.inputs and name not in self.inputs
        return not is_absent

    def _unbroken(self, text: str, binding: Binding, value: ParameterValue | Path | None) -> str:
        """Return the text if it does not break the quotes around it; `value` is an input's, None for an output."""
        unsafe = _UNSAFE_WITHIN.get(self.quote or "", "")
        found = next((character for character in text if character in unsafe), None)
        if found is None or not self.strict:
            return text
        if value is None:
            fix = "put the run in another folder with --run-dir DIR"
        elif isinstance(value, Path):
            fix = "give a path without it: rename the folder, or put the run elsewhere if another job writes the path"
        else:
            fix = "give a value without it"
        raise error_at(
            self.component.command.span,
            f"{binding.path[0][:-1]} {'.'.join(binding.path[1:])!r} of {self.component.name} contains {found}, which "
            f"would break the {self.quote} around it in the command: {text}",
            fix,
        )

    def _binding(self, binding: Binding) -> str:
        kind, name = binding.path[0], ".".join(binding.path[1:])
        if kind in ("inputs", "search_space") and name in self.inputs:
            value = self.inputs[name]
            return self._unbroken(str(value), binding, value)
        if kind == "outputs" and name in self.outputs:
            return self._unbroken(str(self.outputs[name]), binding, None)
        if kind == "inputs" and name in self.component.inputs:
            raise error_at(
                self.component.command.span, f"{binding.text}: optional input {name!r} has no value; put it in $[[ … ]]"
            )
        raise error_at(
            self.component.command.span,
            f"{binding.text} in the command is not an input or output of {self.component.name}",
        )


def _quote_after(text: str, quote: str | None) -> str | None:
    """Return the quote that is open after this part of a shell line, if `quote` is open before it."""
    is_escaped = False
    for character in text:
        if is_escaped:
            is_escaped = False
        elif character == "\\" and quote != "'":
            is_escaped = True
        elif character == quote:
            quote = None
        elif quote is None and character in _UNSAFE_WITHIN:
            quote = character
    return quote
