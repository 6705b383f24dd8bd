"""Whether a literal suits a parameter: type, min, max, enum, as the step that gets it will see it.

Azure ML's client checks none of this, and sends `str(value)`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from trainyard.foundation.suggestions import close_match
from trainyard.spec.diagnostic import Related
from trainyard.spec.documents import describe, shorten
from trainyard.spec.findings import Findings
from trainyard.spec.model import Port, Value
from trainyard.spec.rules.documents import YAML_TRAP
from trainyard.spec.rules.values import LITERAL_NOT_A_CHOICE, LITERAL_OUT_OF_RANGE, WRONG_LITERAL

_BOOLEAN_WORDS = frozenset({"true", "false"})
_BINDING_WITHOUT_SIGN = re.compile(r"\{\{\s*(?:parent|inputs)\.[\w.-]+\s*\}\}", re.ASCII)


def check_literal(
    value: Value, port: Port, findings: Findings, *, declared_elsewhere: bool = True, bound_at: Iterable[Related] = ()
) -> None:
    """Note what is wrong with giving a literal to a parameter; bindings and data ports are not looked at.

    `bound_at` says how the literal comes to the parameter, when it stands elsewhere than what it is given to.
    """
    if not port.is_parameter or value.data is None or _is_bound(value):
        return
    declared = [Related(port.key_span, f"'{port.name}' is declared here")] if declared_elsewhere else []
    related = (*bound_at, *declared)
    if isinstance(value.data, (dict, list)):
        message = f"'{port.name}' is of type {port.type}, and is given {describe(value.data)}"
        findings.add(value.span, WRONG_LITERAL, message, related=related)
        return
    if port.type == "string":
        _warn_of_yaml_traps(value, port, findings)
    number = _as_number(value, port)
    if port.type in ("integer", "number") and number is None:
        wanted = "a whole number" if port.type == "integer" else "a number"
        message = f"'{port.name}' is of type {port.type}: {describe(value.data)} is not {wanted}"
        findings.add(value.span, WRONG_LITERAL, message, hint=_number_hint(value, port), related=related)
        return
    if port.type == "boolean" and not isinstance(value.data, bool) and value.text.lower() not in _BOOLEAN_WORDS:
        message = f"'{port.name}' is of type boolean: {describe(value.data)} is neither true nor false"
        findings.add(value.span, WRONG_LITERAL, message, hint="Write true or false.", related=related)
        return
    if number is not None:
        _check_range(value, number, port, findings, related)
    if port.choices is not None:
        _check_choice(value, port, findings, related)


def _is_bound(value: Value) -> bool:
    """Whether a value is filled in later: a text with a binding, or a mapping whose path is one."""
    text = value.data.get("path") if isinstance(value.data, dict) else value.text
    return isinstance(text, str) and "${{" in text


def _as_number(value: Value, port: Port) -> int | float | None:
    if port.type not in ("integer", "number") or isinstance(value.data, bool):
        return None
    if isinstance(value.data, int) or (isinstance(value.data, float) and port.type == "number"):
        return value.data
    if not isinstance(value.data, str):
        return None
    try:
        return int(value.data) if port.type == "integer" else float(value.data)
    except ValueError:
        return None


def _number_hint(value: Value, port: Port) -> str:
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


def _warn_of_yaml_traps(value: Value, port: Port, findings: Findings) -> None:
    """`no` becomes False, and `1.10` becomes 1.1, before a string parameter gets them."""
    sent = str(value.data)
    if isinstance(value.data, bool):
        misread = value.text.lower() not in _BOOLEAN_WORDS
    else:
        misread = isinstance(value.data, (int, float)) and sent != value.text
    if misread:
        message = f"'{port.name}' is a string, but YAML reads {value.text} as {describe(value.data)}: '{sent}' is sent"
        quoted = f'"{value.text}"'
        findings.add(value.span, YAML_TRAP, message, hint=f"Quote it: {quoted}.", replacement=quoted)


def _check_range(
    value: Value, number: int | float, port: Port, findings: Findings, related: tuple[Related, ...]
) -> None:
    least, most = _bound(port.minimum), _bound(port.maximum)
    if least is not None and most is not None and least > most:
        return  # no value is between them: which is said of the limits
    if least is not None and number < least:
        message = f"'{port.name}' is {value.text}, below the min of {least}"
    elif most is not None and number > most:
        message = f"'{port.name}' is {value.text}, above the max of {most}"
    else:
        return
    findings.add(value.span, LITERAL_OUT_OF_RANGE, message, related=related)


def _bound(limit: Value | None) -> int | float | None:
    if limit is None:
        return None
    try:
        return limit.data if isinstance(limit.data, (int, float)) else float(limit.text)
    except ValueError:
        return None


def _check_choice(value: Value, port: Port, findings: Findings, related: tuple[Related, ...]) -> None:
    assert port.choices is not None
    known = [choice.text for choice in port.choices]
    if value.text in known or str(value.data) in known:
        return
    message = f"'{port.name}' is '{shorten(value.text)}', which is none of {', '.join(known)}"
    hint = close_match(value.text, known)
    findings.add(value.span, LITERAL_NOT_A_CHOICE, message, hint=hint, related=related)
