"""Whether a literal suits a parameter: its type, min, max and enum, as the step that gets it will see it.

Azure ML's client checks only whether it can read a default (azure-ai-ml 1.35.2): it sends `str(value)`, and the step
reads that text. So a literal is an integer when its text reads as one, whether or not YAML has quotes around it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from trainyard.resources import word_tables
from trainyard.settings.regex import regex
from trainyard.settings.suggestions import close_match
from trainyard.spec.documents import Value, describe, shorten
from trainyard.spec.model import Port
from trainyard.spec.rule import Rule

MISSING_INPUT = Rule("AML301", "missing-input", "error", is_let_pass=True).explained(
    summary="A required input is not set.",
    why="Each job must set every input that has no default and is not optional.",
)
UNKNOWN_INPUT = Rule("AML302", "unknown-input", "error", is_let_pass=True).explained(
    summary="The job sets an input that its component does not have.",
    why="The client silently drops it, and the component's default is used.",
)
UNKNOWN_OUTPUT = Rule("AML303", "unknown-output", "error", is_let_pass=True).explained(
    summary="The job binds an output that its component does not have.",
    why="The client silently drops it, and nothing is ever written there.",
)
WRONG_LITERAL = Rule("AML304", "wrong-literal", "error", is_let_pass=True).explained(
    summary="A literal does not match the type of its input.",
    why="The client sends `str()` of whatever it finds, and the script fails on the cluster.",
)
LITERAL_OUT_OF_RANGE = Rule("AML305", "literal-out-of-range", "error", is_let_pass=True).explained(
    summary="A literal is below its input's min or above its max.",
    why="Azure ML's client does not check min and max.",
)
LITERAL_NOT_A_CHOICE = Rule("AML306", "literal-not-a-choice", "error", is_let_pass=True).explained(
    summary="A literal is not in its input's enum.",
    why="Azure ML's client does not check enum.",
)

ParameterValue = str | int | float | bool

_BOOLEAN_WORDS = {"true": True, "false": False}
_BINDING_WITHOUT_SIGN = regex(r"\{\{\s*(?:parent|inputs)\.[\w.-]+\s*\}\}", re.ASCII)


class LiteralError(ValueError):
    """A literal that does not suit its parameter: the rule it breaks, what is wrong, and how to fix it."""

    def __init__(self, rule: Rule, message: str, hint: str = "", *, is_refused_default: bool = False) -> None:
        super().__init__(message)
        self.rule = rule
        self.rule_of_default = rule._replace(is_let_pass=not is_refused_default)
        """As a default: one that Azure ML's client cannot read stops a run."""
        self.hint = hint


def typed_literal(value: Value, port: Port) -> ParameterValue:
    """Return a literal as a value of the parameter's type. Raises LiteralError if it does not suit."""
    data = value.data
    if not isinstance(data, (str, int, float, bool)):
        message = f"'{port.name}' is of type {port.type}, and is given {describe(data)}"
        raise LiteralError(WRONG_LITERAL, message)
    typed = _READERS[port.type](data)
    if typed is None:
        message = f"'{port.name}' is of type {port.type}: {describe(data)} is {_MISREAD[port.type]}"
        is_numeric = _number(str(data)) is not None or (port.type == "number" and isinstance(data, bool))
        refused = port.type == "boolean" or not is_numeric
        raise LiteralError(WRONG_LITERAL, message, _type_hint(value, port), is_refused_default=refused)
    if not isinstance(typed, (str, bool)):
        _check_range(value, typed, port)
    if port.choices is not None:
        _check_choice(value, typed, port)
    return typed


def whole_number(data: object) -> int | None:
    """Return the whole number that a literal or its text is; None for anything else, such as 2.0 and true."""
    if isinstance(data, int):
        return None if isinstance(data, bool) else data
    try:
        return int(data) if isinstance(data, str) else None
    except ValueError:
        return None


def yaml_trap(value: Value, port: Port) -> str:
    """Return what YAML made of a string parameter's text (`no` is False, 1.10 is 1.1) in words; empty when nothing."""
    if port.type != "string" or isinstance(value.data, str):
        return ""
    if isinstance(value.data, bool):
        is_misread = value.text.lower() not in _BOOLEAN_WORDS
    else:
        is_misread = str(value.data) != value.text
    if not is_misread:
        return ""
    return f"'{port.name}' is a string, but YAML reads {value.text} as {describe(value.data)}: '{value.data}' is sent"


def _number(data: object) -> int | float | None:
    whole = whole_number(data)
    if whole is not None or isinstance(data, bool) or not isinstance(data, (str, float)):
        return whole
    try:
        return float(data)
    except ValueError:
        return None


_READERS: dict[str, Callable[[object], ParameterValue | None]] = {
    "string": str,
    "integer": whole_number,
    "number": _number,
    "boolean": lambda data: data if isinstance(data, bool) else _BOOLEAN_WORDS.get(str(data).lower()),
}
_MISREAD: dict[str, str] = word_tables("spec")["misread"]["words"]


def _type_hint(value: Value, port: Port) -> str:
    if port.type == "boolean":
        return "Write true or false."
    if _BINDING_WITHOUT_SIGN.fullmatch(value.text):
        return f"Write ${value.text}"
    if port.type == "integer":
        try:
            number = float(value.text)
        except ValueError:
            return ""
        if number.is_integer():
            return f"Write {int(number)}."
        return "Round it, or declare the input as 'number'."
    return "Remove the thousands' separator." if value.text.replace(",", "").isdecimal() else ""


def _check_range(value: Value, number: int | float, port: Port) -> None:
    least, most = (_number(limit.data) if limit is not None else None for limit in (port.minimum, port.maximum))
    if least is not None and most is not None and least > most:
        return  # no value lies between them: the limits themselves are reported
    if least is not None and number < least:
        raise LiteralError(LITERAL_OUT_OF_RANGE, f"'{port.name}' is {value.text}, below the min of {least}")
    if most is not None and number > most:
        raise LiteralError(LITERAL_OUT_OF_RANGE, f"'{port.name}' is {value.text}, above the max of {most}")


def _check_choice(value: Value, typed: ParameterValue, port: Port) -> None:
    assert port.choices is not None
    read = _READERS[port.type]
    if any(value.text == choice.text or typed == read(choice.data) for choice in port.choices):
        return
    known = [choice.text for choice in port.choices]
    message = f"'{port.name}' is '{shorten(value.text)}'; expected one of {', '.join(known)}"
    raise LiteralError(LITERAL_NOT_A_CHOICE, message, close_match(value.text, known))
