"""Errors in templates, reported with file, line and column."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, TemplateNotFound, TemplateSyntaxError
from jinja2.environment import TemplateModule
from jinja2.exceptions import SecurityError

from trainyard.errors import UsageError
from trainyard.project_files import read_text
from trainyard.render import rules
from trainyard.render.project import Project
from trainyard.render.templates import FILTERS, TESTS, UndefinedName, template_names
from trainyard.settings.suggestions import did_you_mean
from trainyard.settings.task_fields import TaskError
from trainyard.spec.diagnostic import Diagnostic, Span, SpecError
from trainyard.spec.rule import Rule

_QUOTED = re.compile(r"'([^']+)'")
# A tag in a template's text, for errors whose message names no character.
_FIRST_TAG = re.compile(r"\{[{%#]")


_HINT_OF_SANDBOX = "Templates run in a sandbox: they read values and call filters, nothing else."
_KNOWN = {"No filter named": FILTERS, "No test named": TESTS}


@contextmanager
def explaining_errors(project: Project, template: str, names: Iterable[str]) -> Iterator[None]:
    """Turn any error while rendering a template into a SpecError at its place in the template.

    A UsageError names the profile's setting that is wrong, and stays as it is. `names` are those that the template may
    use.
    """
    try:
        yield
    except (SpecError, UsageError):
        raise
    except (UndefinedName, TemplateError, ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise SpecError(_explained(project, template, error, names)) from None


def _explained(project: Project, template: str, error: Exception, names: Iterable[str]) -> Diagnostic:
    file, line = _place(project, template, error)
    if isinstance(error, UndefinedName):
        message, known = f"'{error.name}' is undefined", sorted({*names, *_names_set_in(file)})
        if error.owner is not None:
            message, known = f"{_called(error.owner)} has no '{error.name}'", _names_within(error.owner)
        return _at(file, line, error.name, rules.UNDEFINED_NAME, message, did_you_mean(error.name, known))
    if isinstance(error, TemplateNotFound):
        name = str(error.name)
        hint = did_you_mean(name, template_names(project))
        return _at(file, line, name, rules.UNREADABLE_TEMPLATE, f"unknown template '{name}'", hint)
    if isinstance(error, UnicodeDecodeError):
        message = f"the template is not UTF-8: {error.reason}"
        return rules.UNREADABLE_TEMPLATE.at(Span(project.templates / template), message)
    if isinstance(error, SecurityError):
        return _at(file, line, _quoted(str(error)), rules.UNSAFE_TEMPLATE, str(error), _HINT_OF_SANDBOX)
    if isinstance(error, TemplateError):
        # Jinja's own message quotes the unexpected tag, filter or test; some filters it looks up when they are used.
        message = (error.message or "not a valid template").removesuffix(" found.").rstrip(".")
        name, known = _quoted(message), _KNOWN.get(" ".join(message.split()[:3]), [])
        return _at(file, line, name, rules.TEMPLATE_SYNTAX, message, did_you_mean(name, known) if known else "")
    if isinstance(error, TaskError):
        return _at(file, line, "for_task", rules.TEMPLATE_FAILED, str(error), "")
    return _at(file, line, "", rules.TEMPLATE_FAILED, f"this cannot be computed: {error}", "")


def _quoted(message: str) -> str:
    """Return the first name that a message quotes."""
    quoted = _QUOTED.search(message)
    return quoted.group(1) if quoted else ""


def _place(project: Project, template: str, error: BaseException) -> tuple[Path, int]:
    """Return the innermost template line in an error's traceback; Jinja's tracebacks name template files."""
    if isinstance(error, TemplateSyntaxError):
        return Path(error.filename or project.templates / (error.name or template)), error.lineno
    folder = str(project.templates)
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if frame.f_code.co_filename.startswith(folder):
            return Path(frame.f_code.co_filename), line
    return project.templates / template, 1


def _at(file: Path, line: int, name: str, rule: Rule, message: str, hint: str) -> Diagnostic:
    """Return a finding at a name in a line of a template, or at the line's first tag if no name is known."""
    lines = _text_of(file).split("\n")
    # For a tag that spans lines, Jinja reports the first or the last; the name may be in another.
    for number in (*range(line, min(line + 10, len(lines) + 1)), *range(line - 1, max(line - 10, 0), -1)):
        found = re.search(rf"(?<![\w]){re.escape(name)}(?![\w])", lines[number - 1]) if name else None
        if found:
            span = Span(file, number, found.start() + 1, number, found.end() + 1)
            return rule.at(span, message, hint=hint)
    text = lines[line - 1] if line <= len(lines) else ""
    tag = _FIRST_TAG.search(text)
    column = tag.start() + 1 if tag else len(text) - len(text.lstrip()) + 1
    return rule.at(Span(file, line, column, line, max(len(text), column) + 1), message, hint=hint)


def _text_of(file: Path) -> str:
    try:
        return read_text(file, errors="replace")
    except OSError:
        return ""


def _names_set_in(file: Path) -> set[str]:
    """Return the names that a template defines itself: `set`, `for`, `macro`, `import`."""
    text = _text_of(file)
    made = re.findall(r"\{%-?\s*(?:set|for|macro)\s+(\w+)|\bas\s+(\w+)", text)
    return {name for pair in made for name in pair if name}


def _names_within(owner: Any) -> list[str]:
    if isinstance(owner, Mapping):
        return [str(key) for key in owner]
    if is_dataclass(owner):
        public = [name for name in dir(type(owner)) if not name.startswith("_")]
        return sorted({*(field.name for field in fields(owner)), *public})
    module_names = getattr(owner, "__dict__", {})
    return sorted(name for name in module_names if not name.startswith("_"))


def _called(owner: Any) -> str:
    """Return how messages refer to the thing that lacks a name."""
    if isinstance(owner, Mapping):
        return "this mapping"
    if isinstance(owner, (str, int, float)):
        return f"the value {owner!r}"
    if isinstance(owner, TemplateModule):
        return f"templates/{owner.__name__}"
    return _CALLED.get(type(owner).__name__, f"this {type(owner).__name__}")


_CALLED = {"Profile": "the profile", "StepDescription": "a step", "StepField": "a step's field", "Sku": "a VM size"}
