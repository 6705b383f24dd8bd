"""A script's syntax tree, and what can be told from parts of it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeVar

from trainyard.project_files import read_bytes
from trainyard.spec.diagnostic import Related, Span

_LARGEST_SCRIPT_BYTES = 1_000_000
# Trees are large. Checks ask for one script after the other, so that few need to be kept.
_KEPT_SCRIPTS = 64

_Kind = TypeVar("_Kind", bound=ast.AST)


class Syntax:
    """A script's syntax tree. What many checks look for in it is looked for once."""

    def __init__(self, tree: ast.Module) -> None:
        self.body = tree.body
        self._tree = tree

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node but `Load` and `Store`, in the order of `ast.walk`."""
        return walk(self._tree)

    @cached_property
    def _by_class(self) -> dict[type[ast.AST], list[Any]]:
        found: dict[type[ast.AST], list[Any]] = {}
        for node in self.nodes:
            found.setdefault(node.__class__, []).append(node)
        return found

    def of(self, kind: type[_Kind]) -> list[_Kind]:
        """Every node of one class."""
        return self._by_class.get(kind, [])

    @cached_property
    def calls(self) -> list[ast.Call]:
        """Every call."""
        return self.of(ast.Call)

    @cached_property
    def functions(self) -> list[ast.FunctionDef]:
        """Every function, methods included."""
        return self.of(ast.FunctionDef)

    @cached_property
    def bound(self) -> Mapping[str, list[ast.AST]]:
        """What binds each name, anywhere in the script: `*` is all that an import brings."""
        found: dict[str, list[ast.AST]] = {}
        for node in self.nodes:
            names: list[str] = []
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names = [node.id]
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                names = [node.name]
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                names = [alias.asname or alias.name.split(".")[0] for alias in node.names]
            for name in names:
                found.setdefault(name, []).append(node)
        return found

    @cached_property
    def assigned(self) -> Mapping[str, list[ast.expr]]:
        """The values that each variable is assigned, anywhere in the script."""
        found: dict[str, list[ast.expr]] = {}
        for node in self.of(ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).append(node.value)
        return found

    @cached_property
    def imported(self) -> Mapping[str, str]:
        """The dotted paths of everything that is imported, by local name."""
        names: dict[str, str] = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    names[alias.asname or alias.name.split(".")[0]] = (
                        alias.name if alias.asname else alias.name.split(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        return names


def parse(file: Path) -> Syntax | None:
    """Return a script's syntax; None if it cannot be read or parsed."""
    found = _read(file)
    return found if isinstance(found, Syntax) else None


def syntax_error(file: Path) -> SyntaxError | None:
    """Return what is wrong with the syntax of a script; None if nothing is, or if it cannot be read."""
    found = _read(file)
    return found if isinstance(found, SyntaxError) else None


def _read(file: Path) -> Syntax | SyntaxError | None:
    try:
        return _parse(read_bytes(file, _LARGEST_SCRIPT_BYTES))
    except (OSError, ValueError):
        return None


@lru_cache(maxsize=_KEPT_SCRIPTS)
def _parse(content: bytes) -> Syntax | SyntaxError | None:
    try:
        return Syntax(ast.parse(content))
    except SyntaxError as error:
        # What fills in `{{ … }}` makes it Python.
        return None if b"{{" in content or b"{%" in content else error.with_traceback(None)
    except (ValueError, RecursionError, MemoryError):
        return None


def walk(tree: ast.AST) -> list[ast.AST]:
    """Return a node and all within it but `Load` and `Store`, in the order of `ast.walk` at a third of its time."""
    nodes = [tree]
    for node in nodes:  # the list grows while it is gone through
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                nodes += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                nodes.append(value)
    return nodes


def dotted(node: ast.expr, imported: Mapping[str, str]) -> str:
    """Return the dotted path of an expression, such as `argparse.ArgumentParser`; empty if it has none."""
    if isinstance(node, ast.Name):
        return imported.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        base = dotted(node.value, imported)
        return f"{base}.{node.attr}" if base else ""
    return ""


def constant(node: ast.expr | None) -> object:
    """Return the value of a literal, or None."""
    return node.value if isinstance(node, ast.Constant) else None


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """Return the argument that a call gives by a name, or None."""
    return next((each.value for each in call.keywords if each.arg == name), None)


def texts(node: ast.expr | None, syntax: Syntax) -> tuple[str, ...] | None:
    """Return the members of a list, tuple or set of constants, or of a module variable with one, as strings."""
    if isinstance(node, ast.Name):
        assigned = [
            statement.value
            for statement in syntax.body
            if isinstance(statement, ast.Assign)
            and any(isinstance(target, ast.Name) and target.id == node.id for target in statement.targets)
        ]
        node = assigned[0] if len(assigned) == 1 else None
    if not isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return None
    values = [constant(item) for item in node.elts]
    return None if any(value is None for value in values) else tuple(str(value) for value in values)


def decorated(function: ast.FunctionDef, imported: Mapping[str, str], name: str) -> bool:
    """Return whether a function has a decorator, by its dotted path."""
    return any(
        dotted(decorator.func if isinstance(decorator, ast.Call) else decorator, imported) == name
        for decorator in function.decorator_list
    )


def line_of(file: Path, place: ast.AST | int, message: str) -> Related:
    """Return the line of a script, by its number or by what is there, as what explains a finding."""
    line = place if isinstance(place, int) else getattr(place, "lineno", 1)
    return Related(Span(file, line, 1, line, 2), message)
