"""The modules that a script imports as it starts, itself and through modules of the code."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from trainyard.lint.scripts.syntax import Syntax, parse

_MOST_FILES = 30


class Import(NamedTuple):
    """One import: the dotted path of a module, or of a name in it, and where that is written."""

    path: str
    file: Path
    line: int


def imports_at_once(syntax: Syntax, file: Path) -> Iterator[Import]:
    """What a script imports whenever it runs: not within a function, an `if` or a `try`, and not relatively."""
    for node in syntax.body:
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, file, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (Import(f"{node.module}.{alias.name}", file, node.lineno) for alias in node.names)


def all_imports(file: Path, folders: Sequence[Path]) -> list[Import]:
    """The same for a script and the modules in `folders` that it imports, those of packages included."""
    found: list[Import] = []
    waiting, seen = [file], {file}
    while waiting and len(seen) <= _MOST_FILES:
        current = waiting.pop(0)
        syntax = parse(current)
        if syntax is None:
            continue
        found.extend(imports_at_once(syntax, current))
        own = (
            part
            for each in imports_at_once(syntax, current)
            for folder in (current.parent, *folders)
            for part in _files_of(folder, each.path.split("."))
        )
        relative = (
            part
            for node in syntax.body
            if isinstance(node, ast.ImportFrom) and 0 < node.level <= len(current.parents)
            for alias in node.names
            for part in _files_of(
                current.parents[node.level - 1], [*(node.module.split(".") if node.module else ()), alias.name]
            )
        )
        for other in (*own, *relative):
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return found


def module_in(folder: Path, module: str) -> Path | None:
    """The file of a module in a folder; None if there is none."""
    package = folder / module / "__init__.py"
    return next((file for file in (folder / f"{module}.py", package) if os.path.isfile(file)), None)


def _files_of(folder: Path, parts: Sequence[str]) -> Iterator[Path]:
    """The files that run when a dotted path is imported from a folder."""
    for part in parts:
        found = module_in(folder, part)
        if found is not None:
            yield found
        folder = folder / part
        if not os.path.isdir(folder):
            return
