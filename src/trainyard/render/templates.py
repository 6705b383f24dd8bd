"""The project's Jinja templates: a sandbox where undefined names are errors, and errors with file, line and column.

A template may be a stranger's, so it reads plain data and calls what it is given. Above all it gets no path: one could
write files.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from types import CodeType, MappingProxyType
from typing import Any

from jinja2 import StrictUndefined, TemplateError, TemplateNotFound, TemplateSyntaxError, nodes
from jinja2.bccache import Bucket, BytecodeCache
from jinja2.environment import TemplateModule
from jinja2.exceptions import SecurityError, UndefinedError
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.loaders import FunctionLoader
from jinja2.runtime import BlockReference, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS as JINJA_TESTS
from jinja2.utils import Cycler, Namespace, missing

from trainyard.catalogue.skus import Sku
from trainyard.errors import UsageError
from trainyard.plan.estimate.search import Proposal, Proposed
from trainyard.project_files import read_text, text_or_empty
from trainyard.render import rules
from trainyard.render.profiles import Cluster, Profile
from trainyard.render.project import Project
from trainyard.render.steps import StepDescription
from trainyard.render.values import as_written, wrap, yaml_list, yaml_scalar, yaml_sentence
from trainyard.settings.files import is_file_within
from trainyard.settings.step_fields import StepField
from trainyard.settings.suggestions import did_you_mean
from trainyard.settings.task_fields import TaskError
from trainyard.settings.written_settings import Candidate
from trainyard.spec.diagnostic import Diagnostic, Span, SpecError
from trainyard.spec.rule import Rule

SUFFIX = ".j2"

_READABLE = (
    *(str, dict, MappingProxyType, list, tuple),
    *(Profile, Cluster, StepDescription, StepField, Sku, Proposal, Proposed, Candidate),
    *(LoopContext, Cycler, BlockReference, TemplateModule, Namespace),
)
"""The types whose attributes a template may read, but for those that Jinja's sandbox refuses, and the hidden ones."""
_HIDDEN: dict[type, tuple[str, ...]] = {
    str: ("encode", "origin"),
    Profile: ("files",),
    StepDescription: ("source",),
    StepField: ("declared_at",),
}
"""What holds a path, or makes bytes."""


class UndefinedName(Exception):
    """A template used an undefined name. `owner` is the object whose attribute was looked up, or None."""

    def __init__(self, name: str, owner: object | None) -> None:
        super().__init__(name)
        self.name = name
        self.owner = owner


class _Undefined(StrictUndefined):
    """An undefined value: its use raises UndefinedName, which keeps the name and where it was looked up."""

    __slots__ = ()

    def __init__(self, hint: Any = None, obj: Any = missing, name: Any = None, exc: Any = UndefinedError) -> None:
        owner, said = None if obj is missing else obj, "" if name is None else str(name)
        fails: Any = exc if issubclass(exc, SecurityError) else lambda _: UndefinedName(said, owner)
        super().__init__(hint, obj, name, fails)


def _source_of(folder: Path, template: str) -> tuple[str, str, None] | None:
    path = folder / template
    with suppress(OSError):
        if is_file_within(path, folder):
            return read_text(path), str(path), None
    return None


class CompiledTemplates(BytecodeCache):
    """The code of each template's latest text: in editors a further rendering takes a quarter of the time."""

    def __init__(self) -> None:
        self._latest: dict[str, tuple[str, CodeType]] = {}

    def get_cache_key(self, name: str, filename: str | None = None) -> str:
        """Return a template's name and file."""
        return f"{name}\0{filename}"

    def load_bytecode(self, bucket: Bucket) -> None:
        """Give the code of the same text, if that is the latest of this name."""
        name, _, file = bucket.key.partition("\0")
        checksum, code = self._latest.get(name, ("", None))
        if code is not None and checksum == bucket.checksum:
            # Another project may have the same text in a file of its own, which messages name.
            bucket.code = code.replace(co_filename=file)

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep the code in place of an earlier text's."""
        assert bucket.code is not None
        self._latest[bucket.key.partition("\0")[0]] = (bucket.checksum, bucket.code)


_COMPILED = CompiledTemplates()


class TemplateSet(ImmutableSandboxedEnvironment):
    """All templates of a project. `compiled` is kept for each set of options that a template compiles with."""

    def __init__(self, project: Project, compiled: CompiledTemplates = _COMPILED, **options: Any) -> None:
        super().__init__(
            loader=FunctionLoader(partial(_source_of, project.templates)),
            undefined=_Undefined,
            keep_trailing_newline=True,
            trim_blocks=True,
            lstrip_blocks=True,
            autoescape=False,
            bytecode_cache=compiled,
            **options,
        )
        self.filters |= _OWN_FILTERS
        del self.globals["lipsum"]

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return whether a template may read an attribute, by the type of the object that has it."""
        is_hidden = any(isinstance(obj, kind) and attr in names for kind, names in _HIDDEN.items())
        return isinstance(obj, _READABLE) and not is_hidden and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Any:
        """Return the sandbox's own str.format, without what it wraps; None for any other value."""
        wrapped = super().wrap_str_format(value)
        return None if wrapped is None else partial(wrapped)


def check_blocks(project: Project, templates: TemplateSet, name: str) -> None:
    """Raise SpecError for what a template that extends another would say in vain, since Jinja drops it.

    That is text outside its blocks, and a block that the other does not have.
    """
    file, tree = project.templates / name, _parsed(project, templates, name)
    parents = list(tree.find_all(nodes.Extends))
    if not parents:
        return
    known = {block for parent in parents for block in _blocks_of(project, templates, parent)}
    listed = f"Blocks to put it in: {', '.join(sorted(known))}."
    begin = next(place for place, node in enumerate(tree.body) if node in parents or node.find(nodes.Extends))
    for line in sorted(_lines_outside_blocks(tree.body[begin:]))[:1]:
        message = "this is outside of every block, and would be dropped: the template extends another"
        raise SpecError(_at(file, line, "", rules.OUTSIDE_BLOCKS, message, listed))
    for block in (node for node in tree.body if isinstance(node, nodes.Block) and node.name not in known):
        message = f"the template that this one extends has no block '{block.name}', so it would be dropped"
        raise SpecError(_at(file, block.lineno, block.name, rules.OUTSIDE_BLOCKS, message, listed))


def _parsed(project: Project, templates: TemplateSet, name: str) -> nodes.Template:
    file = project.templates / name
    return templates.parse(text_or_empty(file), name, str(file))


def _blocks_of(project: Project, templates: TemplateSet, extends: nodes.Extends) -> set[str]:
    """Return the blocks of the template that one extends, and of those that this extends; none if computed."""
    if not isinstance(extends.template, nodes.Const):
        return set()
    tree = _parsed(project, templates, extends.template.value)
    above = [_blocks_of(project, templates, each) for each in tree.find_all(nodes.Extends)]
    return {block.name for block in tree.find_all(nodes.Block)}.union(*above)


def _lines_outside_blocks(body: Iterable[nodes.Node]) -> Iterator[int]:
    """Yield the lines of what nodes would print, but for blocks and definitions."""
    for node in body:
        if isinstance(node, nodes.TemplateData) and node.data.strip():
            yield node.lineno + node.data[: -len(node.data.lstrip())].count("\n")
        elif isinstance(node, nodes.Output):
            yield from (each.lineno for each in node.nodes if not isinstance(each, nodes.TemplateData))
        if not isinstance(node, (nodes.Block, nodes.Macro, nodes.AssignBlock)):
            yield from _lines_outside_blocks(node.iter_child_nodes())


_OWN_FILTERS: dict[str, Callable[..., Any]] = {
    "yaml": lambda value: as_written(yaml_scalar(value), value),
    "yaml_list": yaml_list,
    "yaml_sentence": yaml_sentence,
    "wrap": wrap,
}
FILTERS = sorted({*JINJA_FILTERS, *_OWN_FILTERS})
TESTS = sorted(JINJA_TESTS)


def template_names(project: Project) -> list[str]:
    """Return the names of all templates, including those that only others use (`_….j2`), sorted."""
    return sorted(
        path.relative_to(project.templates).as_posix()
        for path in project.templates.rglob(f"*{SUFFIX}")
        if path.is_file()
    )


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
    lines = text_or_empty(file).split("\n")
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


def _names_set_in(file: Path) -> set[str]:
    """Return the names that a template defines itself: `set`, `for`, `macro`, `import`."""
    text = text_or_empty(file)
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
