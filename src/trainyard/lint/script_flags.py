"""The flags that a Python script takes, read from its source without running it.

Supports `argparse` with sub-commands, `click`, `typer`, `HfArgumentParser`, and the dataclasses of `trainyard.steps`.
If a script builds its parser in ways that cannot be read (loops, other modules), the result is None, and the script is
not checked.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from trainyard.foundation.task_fields import TaskError, task_fields

_LARGEST_SCRIPT_BYTES = 1_000_000
# These add flags to a parser that are not visible in the script.
_FOREIGN_PARSERS = frozenset({"TrlParser", "LightningCLI", "ArgParser", "Fire"})


@dataclass(frozen=True)
class Flag:
    """One flag: its spellings, and what is known about its value."""

    names: tuple[str, ...]
    line: int
    file: Path
    is_required: bool = False
    choices: tuple[str, ...] | None = None
    takes_value: bool | None = None
    """Whether exactly one value follows it; None if unknown."""
    number: Literal["int", "float"] | None = None
    """The kind of number that its value must be."""
    default: str | None = None
    """Its default, if that is a known string."""


@dataclass(frozen=True)
class ScriptFlags:
    """All flags of a script. `takes_others`: it leaves unknown flags alone. `abbreviates`: `--epo` is `--epochs`.

    `takes_words`: words without a flag may stand among them. `commands`: the flags of each sub-command, by its name.
    """

    flags: Mapping[str, Flag] = field(default_factory=dict)
    takes_others: bool = False
    abbreviates: bool = False
    takes_words: bool = True
    commands: Mapping[str, ScriptFlags] = field(default_factory=dict)
    needs_command: bool = False
    task_folder: Path | None = None
    """Where the modules of users' own tasks lie, for a step whose `--task` decides what other flags it takes."""

    def find(self, name: str) -> Flag | None:
        """The flag that a name means."""
        if name in self.flags or not self.abbreviates or not name.startswith("--"):
            return self.flags.get(name)
        meant = {flag.names: flag for known, flag in self.flags.items() if known.startswith(name)}
        return next(iter(meant.values())) if len(meant) == 1 else None


def read_flags(file: Path, root: Path) -> ScriptFlags | None:
    """Return the flags of a script in a snapshot whose folder is `root`; None if they cannot be determined."""
    tree = parse(file)
    if tree is None:
        return None
    imported = _imported_names(tree)
    for reader in (_from_dataclass, _from_hf_dataclass, _from_click, _from_typer, _from_argparse):
        found = reader(tree, imported, file, root)
        if found is not None:
            return found if isinstance(found, ScriptFlags) else None
    return None


def with_task_flags(flags: ScriptFlags, task: str | None) -> ScriptFlags:
    """A step's flags with those of the task that its command names; None when that cannot be told."""
    try:
        fields = task_fields(task, [flags.task_folder]) if task is not None and flags.task_folder is not None else None
    except (TaskError, OSError):
        fields = None
    if fields is None:
        return replace(flags, takes_others=True)
    added = {}
    for step_field in fields:
        assert step_field.declared_at is not None
        file, line = step_field.declared_at
        added[step_field.flag] = Flag((step_field.flag,), line, file, step_field.required, step_field.choices)
    return replace(flags, flags={**flags.flags, **added})


def parse(file: Path) -> ast.Module | None:
    """Return a script's syntax tree; None if it cannot be parsed."""
    try:
        if file.stat().st_size > _LARGEST_SCRIPT_BYTES:
            return None
        return ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


class Undecidable:
    """The result for a script that uses a library in a way that cannot be read."""


_UNDECIDABLE = Undecidable()
_Found = ScriptFlags | Undecidable | None


def _imported_names(tree: ast.Module) -> dict[str, str]:
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


def _dotted(node: ast.expr, imported: Mapping[str, str]) -> str:
    """Return the dotted path of an expression, such as `argparse.ArgumentParser`; empty if it has none."""
    if isinstance(node, ast.Name):
        return imported.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value, imported)
        return f"{base}.{node.attr}" if base else ""
    return ""


def _constant(node: ast.expr | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def _texts(node: ast.expr | None, tree: ast.Module) -> tuple[str, ...] | None:
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
    values = [_constant(item) for item in node.elts]
    return None if any(value is None for value in values) else tuple(str(value) for value in values)


# argparse -------------------------------------------------------------------------------------------------------------


def _from_argparse(tree: ast.Module, imported: Mapping[str, str], file: Path, root: Path) -> _Found:
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    if any(_dotted(call.func, imported).rpartition(".")[2] in _FOREIGN_PARSERS for call in calls):
        return _UNDECIDABLE
    makers = [call for call in calls if _dotted(call.func, imported) == "argparse.ArgumentParser"]
    if len(makers) != 1:
        return _UNDECIDABLE if makers else None
    (maker,) = makers
    prefix_chars, files = _keyword(maker, "prefix_chars"), _keyword(maker, "fromfile_prefix_chars")
    if maker.args[1:] or prefix_chars is not None or files is not None or _keyword(maker, "parents") is not None:
        return _UNDECIDABLE
    if _parser_leaves_the_file(tree, calls):
        return _UNDECIDABLE
    owners = _parser_of_each_name(tree)
    if owners is None:
        return _UNDECIDABLE
    flags = {"": _help_flags(maker, file), **{name: _help_flags(None, file) for name in owners.values() if name}}
    takes_others = takes_words = needs_command = False
    in_loops = {id(call) for loop in ast.walk(tree) if isinstance(loop, (ast.For, ast.While, ast.comprehension))
                for call in ast.walk(loop)}  # fmt: skip
    for call in calls:
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if method == "add_subparsers":
            needs_command = _constant(_keyword(call, "required")) is True
        takes_others = takes_others or method in ("parse_known_args", "parse_known_intermixed_args")
        if method != "add_argument":
            continue
        flag = _argparse_flag(call, tree, file)
        assert isinstance(call.func, ast.Attribute)
        # Without sub-commands, all flags belong to the only parser.
        owner = owners.get(_dotted(call.func.value, {}), "" if set(owners.values()) <= {""} else None)
        if flag is None or owner is None or id(call) in in_loops:
            return _UNDECIDABLE
        flags[owner].update(dict.fromkeys(flag.names, flag))
        takes_words = takes_words or not flag.names
    abbreviates = _constant(_keyword(maker, "allow_abbrev")) is not False
    commands = {
        name: ScriptFlags(known, takes_others, abbreviates=True, takes_words=takes_words)
        for name, known in flags.items()
        if name
    }
    return ScriptFlags(flags[""], takes_others, abbreviates, takes_words or bool(commands), commands, needs_command)


def _help_flags(maker: ast.Call | None, file: Path) -> dict[str, Flag]:
    if maker is not None and _constant(_keyword(maker, "add_help")) is False:
        return {}
    return dict.fromkeys(("-h", "--help"), Flag(("-h", "--help"), 1, file, takes_value=False))


def _parser_of_each_name(tree: ast.Module) -> dict[str, str] | None:
    """Return the sub-command of each variable that holds a parser or group, empty for the script itself.

    None if the sub-commands are created in a way that cannot be read.
    """
    made: dict[str, list[ast.Call]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    made.setdefault(target.id, []).append(node.value)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    methods = [call.func.attr for call in calls if isinstance(call.func, ast.Attribute)]
    if "add_subparsers" not in methods:
        return {}
    owners: dict[str, str] = {}
    read = 0
    for name, values in made.items():
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
            verb = _constant(value.args[0]) if value.args else None
            if not isinstance(verb, str) or any(_keyword(value, key) for key in ("parents", "aliases", "prefix_chars")):
                return None
            owners[name] = verb
            read += 1
        elif isinstance(value.func, ast.Attribute):
            owner = owners.get(_dotted(value.func.value, {}))
            if owner is None:
                return None
            owners[name] = owner
    # A sub-command whose parser is not assigned to a variable has no flags, or unknown ones.
    is_nested = methods.count("add_subparsers") != 1 or methods.count("add_parser") != read
    return None if is_nested or not read or len(set(owners.values())) != read + 1 else owners


def _argparse_flag(call: ast.Call, tree: ast.Module, file: Path) -> Flag | None:
    """Return the flag of one `add_argument`, without names for a positional; None if it cannot be read."""
    names = [_constant(argument) for argument in call.args]
    if not all(isinstance(name, str) for name in names) or any(keyword.arg is None for keyword in call.keywords):
        return None
    flags = tuple(str(name) for name in names if str(name).startswith("-"))
    if _dotted(_keyword(call, "action") or ast.Constant(0), {}).endswith("BooleanOptionalAction"):
        flags += tuple(f"--no-{name[2:]}" for name in flags if name.startswith("--"))
    required = _constant(_keyword(call, "required")) is True
    kind = _keyword(call, "type")
    # Any other function may convert the value to one of the choices.
    is_plain = kind is None or (isinstance(kind, ast.Name) and kind.id in ("str", "int"))
    choices = _texts(_keyword(call, "choices"), tree) if is_plain else None
    action = _constant(_keyword(call, "action"))
    takes_value: bool | None = None
    if action in _ACTIONS_WITHOUT_VALUE:
        takes_value = False
    elif flags and _keyword(call, "nargs") is None and _keyword(call, "action") is None:
        takes_value = True
    number = _NUMBERS.get(kind.id) if isinstance(kind, ast.Name) and takes_value else None
    return Flag(flags, call.lineno, file, required, choices, takes_value, number)


def _parser_leaves_the_file(tree: ast.Module, calls: list[ast.Call]) -> bool:
    """Return whether the parser, or a group of it, is passed to a function from another module."""
    parsers = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        for target in node.targets
        if isinstance(target, ast.Name) and _makes_parser(node.value)
    }
    own = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    for call in calls:
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        if any(isinstance(value, ast.Name) and value.id in parsers for value in given) and not (
            isinstance(call.func, ast.Name) and call.func.id in own
        ):
            return True
    return False


def _makes_parser(call: ast.Call) -> bool:
    return _maker_name(call) in _PARSER_MAKERS


def _maker_name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else str(getattr(call.func, "id", ""))


_PARSER_MAKERS = frozenset(
    {"ArgumentParser", "add_subparsers", "add_parser", "add_argument_group", "add_mutually_exclusive_group"}
)
_NUMBERS: Mapping[str, Literal["int", "float"]] = {"int": "int", "float": "float"}
_ACTIONS_WITHOUT_VALUE = frozenset({"store_true", "store_false", "store_const", "count", "help", "version"})


# click ----------------------------------------------------------------------------------------------------------------


def _from_click(tree: ast.Module, imported: Mapping[str, str], file: Path, root: Path) -> _Found:
    commands = [function for function in _functions(tree) if _decorated(function, imported, "click.command")]
    if any(_decorated(function, imported, "click.group") for function in _functions(tree)) or len(commands) > 1:
        return _UNDECIDABLE
    if not commands:
        return None
    flags = {"--help": Flag(("--help",), 1, file)}
    takes_others = takes_words = False
    for decorator in commands[0].decorator_list:
        call = decorator if isinstance(decorator, ast.Call) else None
        name = _dotted(call.func if call is not None else decorator, imported)
        if name == "click.command" and call is not None:
            takes_others = _keyword(call, "context_settings") is not None
        takes_words = takes_words or name == "click.argument"
        if name in ("click.command", "click.argument", "click.pass_context"):
            continue
        flag = _click_flag(call, tree, imported, file) if call is not None and name == "click.option" else None
        if flag is None:
            return _UNDECIDABLE
        flags.update(dict.fromkeys(flag.names, flag))
    return ScriptFlags(flags, takes_others, takes_words=takes_words)


def _click_flag(call: ast.Call, tree: ast.Module, imported: Mapping[str, str], file: Path) -> Flag | None:
    names = [_constant(argument) for argument in call.args]
    if not all(isinstance(name, str) for name in names) or any(keyword.arg is None for keyword in call.keywords):
        return None
    flags = tuple(part for name in names for part in str(name).split("/") if part.strip().startswith("-"))
    kind = _keyword(call, "type")
    choices = None
    if isinstance(kind, ast.Call) and _dotted(kind.func, imported) == "click.Choice" and kind.args:
        insensitive = _constant(_keyword(kind, "case_sensitive")) is False
        choices = None if insensitive else _texts(kind.args[0], tree)
    required = _constant(_keyword(call, "required")) is True and _keyword(call, "envvar") is None
    is_switch = any("/" in str(name) for name in names) or _constant(_keyword(call, "is_flag")) is True
    number = _NUMBERS.get(kind.id) if isinstance(kind, ast.Name) and _keyword(call, "callback") is None else None
    names_of_flag, takes_value = tuple(flag.strip() for flag in flags), False if is_switch else None
    return Flag(names_of_flag, call.lineno, file, required, choices, takes_value, number)


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _decorated(function: ast.FunctionDef, imported: Mapping[str, str], name: str) -> bool:
    return any(
        _dotted(decorator.func if isinstance(decorator, ast.Call) else decorator, imported) == name
        for decorator in function.decorator_list
    )


# typer ----------------------------------------------------------------------------------------------------------------


def _from_typer(tree: ast.Module, imported: Mapping[str, str], file: Path, root: Path) -> _Found:
    run = [
        node.args[0].id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and _dotted(node.func, imported) == "typer.run"
        and node.args
        and isinstance(node.args[0], ast.Name)
    ]
    apps = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and _dotted(node.value.func, imported) == "typer.Typer"
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    commands = [
        function.name
        for function in _functions(tree)
        for app in apps
        if _decorated(function, {}, f"{app}.command") or _decorated(function, {}, f"{app}.callback")
    ]
    if not run and not apps:
        return None
    main = [function for function in _functions(tree) if function.name in (*run, *commands)]
    if len(main) != 1:
        return _UNDECIDABLE
    flags = {"--help": Flag(("--help",), 1, file)}
    for parameter, default in _parameters(main[0]):
        found = _typer_flag(parameter, default, imported, file)
        if found is None:
            return _UNDECIDABLE
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
    if isinstance(annotation, ast.Subscript) and _dotted(annotation.value, imported).endswith("Annotated"):
        inner = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else []
        markers = [element for element in inner[1:] if isinstance(element, ast.Call)]
        if len(markers) != 1:
            return None
        (marker,) = markers
        annotation = inner[0]
    name = _dotted(marker.func, imported) if marker is not None else ""
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
    names = written or ((flag, "--no-" + flag[2:]) if _dotted(annotation or ast.Constant(0), {}) == "bool" else (flag,))
    if marker is not None and marker is default:
        required = _first_is_ellipsis(marker)
    else:  # an option within Annotated is required when the parameter has no default
        required = marker is not None and default is None and not marker.keywords
    return Flag(names, parameter.lineno, file, required)


def _first_is_ellipsis(call: ast.Call | None) -> bool:
    return call is not None and bool(call.args) and _constant(call.args[0]) is Ellipsis


# transformers.HfArgumentParser ----------------------------------------------------------------------------------------


def _from_hf_dataclass(tree: ast.Module, imported: Mapping[str, str], file: Path, root: Path) -> _Found:
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    makers = [call for call in calls if _dotted(call.func, imported).rpartition(".")[2] == "HfArgumentParser"]
    if not makers:
        return None
    methods = {call.func.attr for call in calls if isinstance(call.func, ast.Attribute)}
    if len(makers) != 1 or len(makers[0].args) != 1 or methods & {"add_argument", "add_argument_group"}:
        return _UNDECIDABLE
    (given,) = makers[0].args
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    wanted = given.elts if isinstance(given, (ast.Tuple, ast.List)) else [given]
    flags = _help_flags(None, file)
    for name in wanted:
        definition = classes.get(name.id) if isinstance(name, ast.Name) else None
        found = _hf_fields(definition, imported, file) if definition is not None else None
        if found is None:
            return _UNDECIDABLE  # TrainingArguments and other classes that this file does not hold
        flags.update(found)
    takes_others = any(_keyword(call, "return_remaining_strings") is not None for call in calls)
    return ScriptFlags(flags, takes_others, abbreviates=True, takes_words=False)


def _hf_fields(definition: ast.ClassDef, imported: Mapping[str, str], file: Path) -> dict[str, Flag] | None:
    """Return the flags of a dataclass as transformers' hf_argparser.py creates them; None if it has bases."""
    if definition.bases:
        return None
    flags: dict[str, Flag] = {}
    for statement in definition.body:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        name, call = statement.target.id, statement.value
        has_default = call is not None
        if isinstance(call, ast.Call) and _dotted(call.func, imported) == "dataclasses.field":
            if _constant(_keyword(call, "init")) is False:
                continue
            if "aliases" in ast.dump(_keyword(call, "metadata") or ast.Constant(0)):
                return None
            has_default = any(_keyword(call, key) is not None for key in ("default", "default_factory"))
        is_bool = "bool" in ast.dump(statement.annotation)
        names = [f"--{name}", *([f"--{name.replace('_', '-')}"] if "_" in name else [])]
        if is_bool:
            names += [f"--no_{name}", f"--no-{name.replace('_', '-')}"]
        flag = Flag(tuple(names), statement.lineno, file, not has_default and not is_bool)
        flags.update(dict.fromkeys(names, flag))
    return flags


# dataclasses in the manner of trainyard.steps -------------------------------------------------------------------------

_STEP_ENTRIES = frozenset({"run_step", "run_task_step"})
_STEP_FIELDS = frozenset({"parameter", "input_folder", "input_file", "output_folder"})


def _from_dataclass(tree: ast.Module, imported: Mapping[str, str], file: Path, root: Path) -> _Found:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and (entry := _dotted(node.func, imported).rpartition(".")[2]) in _STEP_ENTRIES
            and node.args
            and isinstance(node.args[0], ast.Name)
        ):
            own_module = ".".join(file.relative_to(root).with_suffix("").parts) if file.is_relative_to(root) else ""
            fields = _class_fields(imported.get(node.args[0].id, f"{own_module}.{node.args[0].id}"), root, depth=0)
            help_flag = Flag(("-h", "--help"), 1, file)
            if not fields:
                return _UNDECIDABLE
            task_folder = root if entry == "run_task_step" else None
            return ScriptFlags({**dict.fromkeys(help_flag.names, help_flag), **fields}, task_folder=task_folder)
    return None


def _class_fields(path: str, root: Path, depth: int) -> dict[str, Flag]:
    """Return the fields of a class by flag, those of its bases first; none if it is not in the snapshot."""
    module, _, name = path.rpartition(".")
    file = root / (module.replace(".", "/") + ".py")
    tree = parse(file) if module and depth < 9 else None
    if tree is None:
        return {}
    imported = _imported_names(tree)
    definition = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name), None)
    if definition is None:
        return {}
    flags: dict[str, Flag] = {}
    for base in definition.bases:
        dotted = _dotted(base, imported)
        flags.update(_class_fields(dotted if "." in dotted else f"{module}.{dotted}", root, depth + 1))
    for statement in definition.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            flag = _step_flag(statement.target.id, statement, tree, file)
            if flag is not None:
                flags[flag.names[0]] = flag
    return flags


def _step_flag(name: str, statement: ast.AnnAssign, tree: ast.Module, file: Path) -> Flag | None:
    call = statement.value
    if not isinstance(call, ast.Call) or _dotted(call.func, {}).rpartition(".")[2] not in _STEP_FIELDS:
        return None
    has_default = bool(call.args) or _keyword(call, "default") is not None
    required = not has_default and _constant(_keyword(call, "optional")) is not True
    default = _constant(call.args[0]) if call.args else None
    return Flag(
        ("--" + name.replace("_", "-"),),
        statement.lineno,
        file,
        required,
        _texts(_keyword(call, "choices"), tree),
        default=default if isinstance(default, str) else None,
    )
