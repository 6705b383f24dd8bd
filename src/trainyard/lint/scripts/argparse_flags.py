"""Flags of argparse, with sub-commands."""

from __future__ import annotations

import ast
from pathlib import Path

from trainyard.lint.scripts.flags import NUMBERS, UNDECIDABLE, Flag, Found, ScriptFlags, help_flags
from trainyard.lint.scripts.syntax import Syntax, constant, dotted, keyword, texts, walk

# These add flags to a parser that are not visible in the script.
_FOREIGN_PARSERS = frozenset({"TrlParser", "LightningCLI", "ArgParser", "Fire"})
_PARSER_MAKERS = frozenset(
    {"ArgumentParser", "add_subparsers", "add_parser", "add_argument_group", "add_mutually_exclusive_group"}
)
_ACTIONS_WITHOUT_VALUE = frozenset({"store_true", "store_false", "store_const", "count", "help", "version"})


def from_argparse(syntax: Syntax, file: Path, root: Path) -> Found:
    """Return the flags of a script with one `argparse.ArgumentParser`; None if it has none."""
    calls, imported = syntax.calls, syntax.imported
    if any(dotted(call.func, imported).rpartition(".")[2] in _FOREIGN_PARSERS for call in calls):
        return UNDECIDABLE
    makers = [call for call in calls if dotted(call.func, imported) == "argparse.ArgumentParser"]
    if len(makers) != 1:
        return UNDECIDABLE if makers else None
    (maker,) = makers
    prefix_chars, files = keyword(maker, "prefix_chars"), keyword(maker, "fromfile_prefix_chars")
    if maker.args[1:] or prefix_chars is not None or files is not None or keyword(maker, "parents") is not None:
        return UNDECIDABLE
    if _parser_leaves_the_file(syntax):
        return UNDECIDABLE
    owners = _parser_of_each_name(syntax)
    if owners is None:
        return UNDECIDABLE
    flags = {"": help_flags(maker, file), **{name: help_flags(None, file) for name in owners.values() if name}}
    takes_others = takes_words = needs_command = False
    loops = (*syntax.of(ast.For), *syntax.of(ast.While), *syntax.of(ast.comprehension))
    in_loops = {id(node) for loop in loops for node in walk(loop)}
    for call in calls:
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if method == "add_subparsers":
            needs_command = constant(keyword(call, "required")) is True
        takes_others = takes_others or method in ("parse_known_args", "parse_known_intermixed_args")
        if method != "add_argument":
            continue
        flag = _argparse_flag(call, syntax, file)
        assert isinstance(call.func, ast.Attribute)
        # Without sub-commands, all flags belong to the only parser.
        owner = owners.get(dotted(call.func.value, {}), "" if set(owners.values()) <= {""} else None)
        if flag is None or owner is None or id(call) in in_loops:
            return UNDECIDABLE
        flags[owner].update(dict.fromkeys(flag.names, flag))
        takes_words = takes_words or not flag.names
    abbreviates = constant(keyword(maker, "allow_abbrev")) is not False
    commands = {
        name: ScriptFlags(known, takes_others, abbreviates=True, takes_words=takes_words)
        for name, known in flags.items()
        if name
    }
    return ScriptFlags(flags[""], takes_others, abbreviates, takes_words or bool(commands), commands, needs_command)


def _parser_of_each_name(syntax: Syntax) -> dict[str, str] | None:
    """Return the sub-command of each variable that holds a parser or group, empty for the script itself.

    None if the sub-commands are created in a way that cannot be read.
    """
    methods = [call.func.attr for call in syntax.calls if isinstance(call.func, ast.Attribute)]
    if "add_subparsers" not in methods:
        return {}
    owners: dict[str, str] = {}
    read = 0
    for name, assigned in syntax.assigned.items():
        values = [value for value in assigned if isinstance(value, ast.Call)]
        kinds = [_maker_name(value) for value in values]
        if not any(kind in _PARSER_MAKERS for kind in kinds):
            continue
        if len(values) != 1 or kinds[0] == "add_subparsers":
            if len(values) != 1:
                return None
            continue
        value, kind = values[0], kinds[0]
        if kind == "ArgumentParser":
            owners[name] = ""
        elif kind == "add_parser":
            verb = constant(value.args[0]) if value.args else None
            if not isinstance(verb, str) or any(keyword(value, key) for key in ("parents", "aliases", "prefix_chars")):
                return None
            owners[name] = verb
            read += 1
        elif isinstance(value.func, ast.Attribute):
            owner = owners.get(dotted(value.func.value, {}))
            if owner is None:
                return None
            owners[name] = owner
    # A sub-command whose parser is not assigned to a variable has no flags, or unknown ones.
    is_nested = methods.count("add_subparsers") != 1 or methods.count("add_parser") != read
    return None if is_nested or not read or len(set(owners.values())) != read + 1 else owners


def _argparse_flag(call: ast.Call, syntax: Syntax, file: Path) -> Flag | None:
    """Return the flag of one `add_argument`, without names for a positional; None if it cannot be read."""
    names = [constant(argument) for argument in call.args]
    if not all(isinstance(name, str) for name in names) or any(keyword.arg is None for keyword in call.keywords):
        return None
    flags = tuple(str(name) for name in names if str(name).startswith("-"))
    if dotted(keyword(call, "action") or ast.Constant(0), {}).endswith("BooleanOptionalAction"):
        flags += tuple(f"--no-{name[2:]}" for name in flags if name.startswith("--"))
    required = constant(keyword(call, "required")) is True
    kind = keyword(call, "type")
    # Any other function may convert the value to one of the choices.
    is_plain = kind is None or (isinstance(kind, ast.Name) and kind.id in ("str", "int"))
    choices = texts(keyword(call, "choices"), syntax) if is_plain else None
    action = constant(keyword(call, "action"))
    takes_value: bool | None = None
    if action in _ACTIONS_WITHOUT_VALUE:
        takes_value = False
    elif flags and keyword(call, "nargs") is None and keyword(call, "action") is None:
        takes_value = True
    number = NUMBERS.get(kind.id) if isinstance(kind, ast.Name) and takes_value else None
    is_truth = isinstance(kind, ast.Name) and kind.id == "bool" and takes_value is True
    value = constant(keyword(call, "default"))
    default = value if isinstance(value, str) else None
    return Flag(flags, call.lineno, file, required, choices, takes_value, number, default, is_truth)


def _parser_leaves_the_file(syntax: Syntax) -> bool:
    """Return whether the parser, or a group of it, is passed to a function from another module."""
    parsers = {
        name
        for name, values in syntax.assigned.items()
        if any(isinstance(value, ast.Call) and _maker_name(value) in _PARSER_MAKERS for value in values)
    }
    own = {function.name for function in syntax.functions} | {each.name for each in syntax.of(ast.AsyncFunctionDef)}
    for call in syntax.calls:
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        if any(isinstance(value, ast.Name) and value.id in parsers for value in given) and not (
            isinstance(call.func, ast.Name) and call.func.id in own
        ):
            return True
    return False


def _maker_name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else str(getattr(call.func, "id", ""))
