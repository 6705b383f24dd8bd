"""A script's syntax tree, and what can be told from parts of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

_LARGEST_SCRIPT_BYTES = 1_000_000


def parse(file: Path) -> ast.Module | None:
    """Return a script's syntax tree; None if it cannot be parsed."""
    try:
        if file.stat().st_size > _LARGEST_SCRIPT_BYTES:
            return None
        return ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def imported_names(tree: ast.Module) -> dict[str, str]:
    """Return the dotted paths of everything that is imported, by local name."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


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


def texts(node: ast.expr | None, tree: ast.Module) -> tuple[str, ...] | None:
    """Return the members of a list, tuple or set of constants, or of a module variable with one, as strings."""
    if isinstance(node, ast.Name):
        assigned = [
            statement.value
            for statement in tree.body
            if isinstance(statement, ast.Assign)
            and any(isinstance(target, ast.Name) and target.id == node.id for target in statement.targets)
        ]
        node = assigned[0] if len(assigned) == 1 else None
    if not isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return None
    values = [constant(item) for item in node.elts]
    return None if any(value is None for value in values) else tuple(str(value) for value in values)


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """Return all functions of a script, methods included."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def decorated(function: ast.FunctionDef, imported: Mapping[str, str], name: str) -> bool:
    """Return whether a function has a decorator, by its dotted path."""
    return any(
        dotted(decorator.func if isinstance(decorator, ast.Call) else decorator, imported) == name
        for decorator in function.decorator_list
    )
