"""Flags of click and typer."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from trainyard.lint.scripts.flags import NUMBERS, UNDECIDABLE, Flag, Found, ScriptFlags
from trainyard.lint.scripts.syntax import Syntax, constant, decorated, dotted, keyword, texts


def from_click(syntax: Syntax, file: Path, root: Path) -> Found:
    """Return the flags of a script with one click command; None if it has none."""
    imported = syntax.imported
    commands = [function for function in syntax.functions if decorated(function, imported, "click.command")]
    if any(decorated(function, imported, "click.group") for function in syntax.functions) or len(commands) > 1:
        return UNDECIDABLE
    if not commands:
        return None
    flags = {"--help": Flag(("--help",), 1, file)}
    takes_others = takes_words = False
    for decorator in commands[0].decorator_list:
        call = decorator if isinstance(decorator, ast.Call) else None
        name = dotted(call.func if call is not None else decorator, imported)
        if name == "click.command" and call is not None:
            takes_others = keyword(call, "context_settings") is not None
        takes_words = takes_words or name == "click.argument"
        if name in ("click.command", "click.argument", "click.pass_context"):
            continue
        flag = _click_flag(call, syntax, file) if call is not None and name == "click.option" else None
        if flag is None:
            return UNDECIDABLE
        flags.update(dict.fromkeys(flag.names, flag))
    return ScriptFlags(flags, takes_others, takes_words=takes_words)


def _click_flag(call: ast.Call, syntax: Syntax, file: Path) -> Flag | None:
    names = [constant(argument) for argument in call.args]
    if not all(isinstance(name, str) for name in names) or any(keyword.arg is None for keyword in call.keywords):
        return None
    flags = tuple(part for name in names for part in str(name).split("/") if part.strip().startswith("-"))
    kind = keyword(call, "type")
    choices = None
    if isinstance(kind, ast.Call) and dotted(kind.func, syntax.imported) == "click.Choice" and kind.args:
        insensitive = constant(keyword(kind, "case_sensitive")) is False
        choices = None if insensitive else texts(kind.args[0], syntax)
    required = constant(keyword(call, "required")) is True and keyword(call, "envvar") is None
    is_switch = any("/" in str(name) for name in names) or constant(keyword(call, "is_flag")) is True
    number = NUMBERS.get(kind.id) if isinstance(kind, ast.Name) and keyword(call, "callback") is None else None
    names_of_flag, takes_value = tuple(flag.strip() for flag in flags), False if is_switch else None
    return Flag(names_of_flag, call.lineno, file, required, choices, takes_value, number)


def from_typer(syntax: Syntax, file: Path, root: Path) -> Found:
    """Return the flags of a script with one typer command; None if it has none."""
    imported = syntax.imported
    run = [
        node.args[0].id
        for node in syntax.calls
        if dotted(node.func, imported) == "typer.run" and node.args and isinstance(node.args[0], ast.Name)
    ]
    apps = {
        target.id
        for node in syntax.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and dotted(node.value.func, imported) == "typer.Typer"
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    commands = [
        function.name
        for function in syntax.functions
        for app in apps
        if decorated(function, {}, f"{app}.command") or decorated(function, {}, f"{app}.callback")
    ]
    if not run and not apps:
        return None
    main = [function for function in syntax.functions if function.name in (*run, *commands)]
    if len(main) != 1:
        return UNDECIDABLE
    flags = {"--help": Flag(("--help",), 1, file)}
    for parameter, default in _parameters(main[0]):
        found = _typer_flag(parameter, default, imported, file)
        if found is None:
            return UNDECIDABLE
        flags.update(dict.fromkeys(found.names, found))
    return ScriptFlags(flags)


def _parameters(function: ast.FunctionDef) -> Iterator[tuple[ast.arg, ast.expr | None]]:
    positional = [*function.args.posonlyargs, *function.args.args]
    defaults = [None] * (len(positional) - len(function.args.defaults)) + list(function.args.defaults)
    yield from zip(positional, defaults, strict=True)
    yield from zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)


def _typer_flag(parameter: ast.arg, default: ast.expr | None, imported: Mapping[str, str], file: Path) -> Flag | None:
    """Return the flag that typer creates for a parameter, without names for an argument; None if unknown."""
    annotation = parameter.annotation
    marker = default if isinstance(default, ast.Call) else None
    if isinstance(annotation, ast.Subscript) and dotted(annotation.value, imported).endswith("Annotated"):
        inner = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else []
        markers = [element for element in inner[1:] if isinstance(element, ast.Call)]
        if len(markers) != 1:
            return None
        (marker,) = markers
        annotation = inner[0]
    name = dotted(marker.func, imported) if marker is not None else ""
    if name == "typer.Argument" or (marker is None and default is None):
        return Flag((), parameter.lineno, file)
    if marker is not None and name != "typer.Option":
        return None
    written = tuple(
        part
        for argument in (marker.args if marker is not None else [])
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str) and argument.value.startswith("-")
        for part in argument.value.split("/")
    )
    flag = "--" + parameter.arg.replace("_", "-")
    names = written or ((flag, "--no-" + flag[2:]) if dotted(annotation or ast.Constant(0), {}) == "bool" else (flag,))
    if marker is not None and marker is default:
        required = _first_is_ellipsis(marker)
    else:  # an option within Annotated is required when the parameter has no default
        required = marker is not None and default is None and not marker.keywords
    return Flag(names, parameter.lineno, file, required)


def _first_is_ellipsis(call: ast.Call | None) -> bool:
    return call is not None and bool(call.args) and constant(call.args[0]) is Ellipsis
