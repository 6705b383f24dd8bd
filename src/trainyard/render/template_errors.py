"""Errors in templates, reported with file, line and column."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateNotFound, TemplateSyntaxError
from jinja2.environment import TemplateModule
from jinja2.exceptions import SecurityError, TemplateRuntimeError

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


@contextmanager
def explaining_errors(project: Project, template: str, names: Iterable[str]) -> Iterator[None]:
    """Turn any error while rendering a template into a SpecError at its place in the template.

    A UsageError names the profile's setting that is wrong, and stays as it is.

    `names` are those that the template may use.
    """
    try:
        yield
    except (SpecError, UsageError):
        raise
    except UndefinedName as error:
        raise SpecError(_undefined(project, template, error, names)) from None
    except TemplateSyntaxError as error:
        raise SpecError(_syntax(project, template, error)) from None
    except TemplateNotFound as error:
        file, line = _place(project, template, error)
        name = str(error.name)
        hint = did_you_mean(name, template_names(project))
        message = f"unknown template '{name}'"
        raise SpecError(_at(file, line, name, rules.UNREADABLE_TEMPLATE, message, hint)) from None
    except UnicodeDecodeError as error:
        message = f"the template is not UTF-8: {error.reason}"
        raise SpecError(rules.UNREADABLE_TEMPLATE.at(Span(project.templates / template), message)) from None
    except SecurityError as error:
        file, line = _place(project, template, error)
        quoted = _QUOTED.search(str(error))
        hint = "Templates run in a sandbox: they read values and call filters, nothing else."
        name = quoted.group(1) if quoted else ""
        raise SpecError(_at(file, line, name, rules.UNSAFE_TEMPLATE, str(error), hint)) from None
    except TemplateRuntimeError as error:
        # Jinja looks some filters up only when they are used.
        file, line = _place(project, template, error)
        raise SpecError(_named_wrongly(file, line, error.message or "this cannot be rendered")) from None
    except TaskError as error:
        file, line = _place(project, template, error)
        raise SpecError(_at(file, line, "for_task", rules.TEMPLATE_FAILED, str(error), "")) from None
    except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
        file, line = _place(project, template, error)
        message = f"this cannot be computed: {error}"
        raise SpecError(_at(file, line, "", rules.TEMPLATE_FAILED, message, "")) from None


def _undefined(project: Project, template: str, error: UndefinedName, names: Iterable[str]) -> Diagnostic:
    file, line = _place(project, template, error)
    if error.owner is None:
        known = sorted({*names, *_names_set_in(file)})
        message = f"'{error.name}' is undefined"
    else:
        known = _names_within(error.owner)
        message = f"{_called(error.owner)} has no '{error.name}'"
    return _at(file, line, error.name, rules.UNDEFINED_NAME, message, did_you_mean(error.name, known))


def _syntax(project: Project, template: str, error: TemplateSyntaxError) -> Diagnostic:
    file = Path(error.filename) if error.filename else project.templates / (error.name or template)
    return _named_wrongly(file, error.lineno, error.message or "not a valid template")


def _named_wrongly(file: Path, line: int, message: str) -> Diagnostic:
    """Return a finding of Jinja's own, whose message quotes the unexpected tag, filter or test."""
    message = message.removesuffix(" found.").rstrip(".")
    quoted = _QUOTED.search(message)
    name = quoted.group(1) if quoted else ""
    known = {"No filter named": FILTERS, "No test named": TESTS}.get(" ".join(message.split()[:3]), ())
    hint = did_you_mean(name, known) if known else ""
    return _at(file, line, name, rules.TEMPLATE_SYNTAX, message, hint)


def _place(project: Project, template: str, error: BaseException) -> tuple[Path, int]:
    """Return the innermost template line in an error's traceback; Jinja's tracebacks name template files."""
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
