"""What a script does with the paths it gets as arguments: it opens files, or looks into folders. Of argparse only."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from trainyard.lint.scripts.syntax import Syntax, constant, dotted, keyword, parse, walk
from trainyard.resources import word_tables

_FUNCTIONS: Mapping[Literal["file", "folder"], dict[str, int]] = word_tables("lint")["opened_paths"]["words"]
"""What a function takes its argument for, and which argument that is."""
_METHODS_OF_FOLDERS = frozenset({"iterdir", "glob", "rglob", "mkdir"})
_METHODS_OF_FILES = frozenset({"read_text", "read_bytes", "write_text", "write_bytes", "open"})
_METHODS_WITH_FILE = frozenset({"to_csv", "to_json", "to_pickle", "to_excel"})
# These open addresses too, which is what `mode: direct` gives.
_TAKES_ADDRESSES = ("pandas.", "to_")
# A script that asks what it got can take either.
_QUESTIONS = frozenset({"isdir", "isfile", "is_dir", "is_file", "endswith", "splitext", "suffix", "suffixes"})
_JOINED = frozenset({"os.path.join", "glob.glob", "glob.iglob"})


class Read(NamedTuple):
    """One use of a path. `on_disk`: an address would not do."""

    what: Literal["file", "folder"]
    call: str
    file: Path
    line: int
    on_disk: bool = True


def reads_of(file: Path) -> Mapping[str, tuple[Read, ...]]:
    """How a script reads or writes the path of each of its flags; nothing for flags where that cannot be told."""
    syntax = parse(file)
    if syntax is None:
        return {}
    destinations = dict(_destinations(syntax.calls))
    holders = argument_holders(syntax)
    # The usual name of the same in a function that gets it.
    if any(node.attr.startswith("parse_") for node in syntax.of(ast.Attribute)):
        holders.add("args")
    if not destinations or not holders:
        return {}
    uses = _Uses(syntax, frozenset(holders), file)
    return {flag: tuple(uses.of(name)) for flag, name in destinations.items()}


def _destinations(calls: Iterable[ast.Call]) -> Iterator[tuple[str, str]]:
    """Each flag of the script, and the attribute that its value becomes."""
    for node in calls:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            flags = [flag for each in node.args if isinstance(flag := constant(each), str) and flag.startswith("-")]
            name = destination(node) if keyword(node, "nargs") is None and keyword(node, "action") is None else None
            yield from ((flag, name) for flag in flags if name is not None)


def destination(call: ast.Call) -> str | None:
    """Return the attribute that argparse gives the value of an `add_argument`; None if its names are not literals."""
    given, names = constant(keyword(call, "dest")), [constant(argument) for argument in call.args]
    if isinstance(given, str) or not names or not all(isinstance(name, str) for name in names):
        return given if isinstance(given, str) else None
    long = next((name for name in map(str, names) if name.startswith("--")), str(names[0]))
    return long.lstrip("-").replace("-", "_")


def argument_holders(syntax: Syntax) -> set[str]:
    """Return the variables that hold parsed arguments and nothing else."""
    parsers = {
        function.name
        for function in syntax.functions
        for node in walk(function)
        if isinstance(node, ast.Return) and node.value is not None and _is_parsed(node.value, set())
    }
    held: set[str] = set()
    others = {argument.arg for argument in syntax.of(ast.arg)}
    for node in syntax.of(ast.Assign):
        for target in node.targets:
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            for at, name in enumerate(names):
                if isinstance(name, ast.Name):
                    (held if at == 0 and _is_parsed(node.value, parsers) else others).add(name.id)
    return held - others


def _is_parsed(value: ast.expr, parsers: set[str]) -> bool:
    """Whether an expression is what argparse has parsed, or a call of a function that returns it."""
    if not isinstance(value, ast.Call):
        return False
    if isinstance(value.func, ast.Attribute):
        return value.func.attr in ("parse_args", "parse_known_args")
    return isinstance(value.func, ast.Name) and value.func.id in parsers


class _Uses:
    """The uses of arguments in one script."""

    def __init__(self, syntax: Syntax, holders: frozenset[str], file: Path) -> None:
        self._imported, self._holders, self._file = syntax.imported, holders, file
        tried = (each for node in syntax.of(ast.Try) for each in node.body)
        self._in_try = {id(inner) for statement in tried for inner in walk(statement)}
        self._questions = [node for node in syntax.of(ast.Attribute) if node.attr in _QUESTIONS]
        self._changed = [
            target for node in syntax.of(ast.Assign) for target in node.targets if isinstance(target, ast.Attribute)
        ]
        self._calls = [(call, dotted(call.func, self._imported)) for call in syntax.calls]
        self._divisions = [node for node in syntax.of(ast.BinOp) if isinstance(node.op, ast.Div)]
        self._only_value = _only_values(syntax)

    def of(self, name: str) -> Iterator[Read]:
        """The uses of one argument, none if the script changes it or asks what it is."""
        if any(self._is(target, name) for target in self._changed):
            return
        if any(self._is(node.value, name) for node in self._questions):
            return
        if any(
            function.rpartition(".")[2] in _QUESTIONS and any(self._is(each, name) for each in call.args)
            for call, function in self._calls
        ):
            return
        for call, function in self._calls:
            if id(call) not in self._in_try:
                yield from self._read(call, function, name)
        for node in self._divisions:
            if self._is(node.left, name):
                yield Read("folder", "/", self._file, node.lineno, on_disk=False)

    def _is(self, node: ast.expr | None, name: str) -> bool:
        """Whether an expression is the path of an argument: `args.data`, `Path(args.data)`, or a name for it."""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return node.value.id in self._holders and node.attr == name
        if isinstance(node, ast.Call) and len(node.args) == 1:
            return dotted(node.func, self._imported) in ("pathlib.Path", "str") and self._is(node.args[0], name)
        if isinstance(node, ast.Name) and node.id in self._only_value:
            value = self._only_value[node.id]
            return not isinstance(value, ast.Name) and self._is(value, name)
        return False

    def _is_beneath(self, node: ast.expr, name: str) -> bool:
        """Whether an expression is a path within that of an argument."""
        if isinstance(node, ast.Call) and node.args and dotted(node.func, self._imported) in _JOINED:
            return self._is(node.args[0], name)
        if isinstance(node, ast.JoinedStr) and len(node.values) > 1 and isinstance(node.values[0], ast.FormattedValue):
            return self._is(node.values[0].value, name) and str(constant(node.values[1])).startswith("/")
        is_added = isinstance(node, ast.BinOp) and str(constant(node.right)).startswith("/")
        return isinstance(node, ast.BinOp) and (is_added or isinstance(node.op, ast.Div)) and self._is(node.left, name)

    def _read(self, call: ast.Call, function: str, name: str) -> Iterator[Read]:
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        on_disk = not function.startswith(_TAKES_ADDRESSES) and not method.startswith(_TAKES_ADDRESSES)
        shown = f"{function or method}()"
        for what, table in _FUNCTIONS.items():
            at = table.get(function)
            if at is not None and len(call.args) > at:
                if self._is(call.args[at], name):
                    yield Read(what, shown, self._file, call.lineno, on_disk)
                elif self._is_beneath(call.args[at], name):
                    yield Read("folder", shown, self._file, call.lineno, on_disk)
        if function in _JOINED and len(call.args) > 1 and self._is(call.args[0], name):
            yield Read("folder", shown, self._file, call.lineno, on_disk=False)
        if method in _METHODS_WITH_FILE and call.args and self._is(call.args[0], name):
            yield Read("file", f".{method}()", self._file, call.lineno, on_disk=False)
        if isinstance(call.func, ast.Attribute) and self._is(call.func.value, name):
            if method in _METHODS_OF_FOLDERS:
                yield Read("folder", f".{method}()", self._file, call.lineno)
            elif method in _METHODS_OF_FILES:
                yield Read("file", f".{method}()", self._file, call.lineno)


def _only_values(syntax: Syntax) -> dict[str, ast.expr]:
    """The value of each variable that is assigned once, and is neither a loop's nor a parameter."""
    targets = [*(loop.target for loop in syntax.of(ast.For)), *(each.target for each in syntax.of(ast.comprehension))]
    of_loops = {name.id for target in targets for name in walk(target) if isinstance(name, ast.Name)}
    parameters = {node.arg for node in syntax.of(ast.arg)}
    once = {name: values[0] for name, values in syntax.assigned.items() if len(values) == 1}
    return {name: value for name, value in once.items() if name not in parameters | of_loops}
