"""The flags of a script, read from its source: of argparse, click, typer, `HfArgumentParser` and Trainyard's steps."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from trainyard.lint.scripts.flags import NUMBERS, UNDECIDABLE, Flag, Found, ScriptFlags, help_flags
from trainyard.lint.scripts.syntax import Syntax, constant, decorated, dotted, keyword, parse, texts, walk
from trainyard.resources import PACKAGE
from trainyard.settings.step_fields import StepField
from trainyard.settings.task_fields import TaskError, built_in_step_fields, fields_of_class, task_fields

_STEP_ENTRIES = {"run_step": False, "as_step": False, "run_task_step": True, "as_task_step": True}
"""What a step in the manner of trainyard.steps begins with, and whether it has a task."""
# These add flags to a parser that are not visible in the script.
_FOREIGN_PARSERS = frozenset({"TrlParser", "LightningCLI", "ArgParser", "Fire"})
_TRAINING_ARGUMENTS = (["transformers.TrainingArguments"], ["transformers.Seq2SeqTrainingArguments"])
_PARSER_MAKERS = frozenset(
    {"ArgumentParser", "add_subparsers", "add_parser", "add_argument_group", "add_mutually_exclusive_group"}
)
_ACTIONS_WITHOUT_VALUE = frozenset({"store_true", "store_false", "store_const", "count", "help", "version"})


def read_flags(file: Path, root: Path) -> ScriptFlags | None:
    """Return the flags of a script in a snapshot whose folder is `root`; None if they cannot be determined."""
    syntax = parse(file)
    if syntax is None:
        return None
    for reader in (_from_step, _from_hf_dataclass, _from_click, _from_typer, _from_argparse):
        found = reader(syntax, file, root)
        if found is not None:
            return found if isinstance(found, ScriptFlags) else None
    return None


def _from_step(syntax: Syntax, file: Path, root: Path) -> Found:
    """Return the flags of a step in the manner of trainyard.steps; None if the script is none."""
    for call in syntax.calls:
        entry = dotted(call.func, syntax.imported).rpartition(".")[2]
        if entry not in _STEP_ENTRIES or not call.args or not isinstance(call.args[0], ast.Name):
            continue
        built_in = built_in_step_fields(file.stem) if file.parent == PACKAGE / "steps" else None
        try:
            fields = built_in or fields_of_class(file, call.args[0].id, [root])
        except (TaskError, OSError):
            return UNDECIDABLE
        flags = {**dict.fromkeys(("-h", "--help"), Flag(("-h", "--help"), 1, file)), **_by_flag(fields)}
        task_folder = root if _STEP_ENTRIES[entry] and "--task" in flags else None
        return ScriptFlags(flags, task_folder=task_folder)
    return None


def with_task_flags(flags: ScriptFlags, task: str | None) -> ScriptFlags:
    """A step's flags with those of the task that its command names; it takes others where that cannot be told."""
    try:
        fields = task_fields(task, [flags.task_folder]) if task is not None and flags.task_folder is not None else None
    except (TaskError, OSError):
        fields = None
    if fields is None:
        return flags._replace(takes_others=True)
    return flags._replace(flags={**flags.flags, **_by_flag(fields)})


def _by_flag(fields: tuple[StepField, ...]) -> dict[str, Flag]:
    flags = {}
    for each in fields:
        assert each.declared_at is not None
        file, line = each.declared_at
        default = each.default if isinstance(each.default, str) else None
        flags[each.flag] = Flag((each.flag,), line, file, each.required, each.choices, default=default)
    return flags


def _from_hf_dataclass(syntax: Syntax, file: Path, root: Path) -> Found:
    """Return the flags of a script that gives its own dataclasses to an `HfArgumentParser`; None if it does not."""
    calls, imported = syntax.calls, syntax.imported
    makers = [call for call in calls if dotted(call.func, imported).rpartition(".")[2] == "HfArgumentParser"]
    if not makers:
        return None
    methods = {call.func.attr for call in calls if isinstance(call.func, ast.Attribute)}
    if len(makers) != 1 or len(makers[0].args) != 1 or methods & {"add_argument", "add_argument_group"}:
        return UNDECIDABLE
    (given,) = makers[0].args
    classes = {node.name: node for node in syntax.body if isinstance(node, ast.ClassDef)}
    wanted = given.elts if isinstance(given, (ast.Tuple, ast.List)) else [given]
    flags = help_flags(None, file)
    for_trainer = False
    for name in wanted:
        definition = classes.get(name.id) if isinstance(name, ast.Name) else None
        bases = definition.bases if definition is not None else [name]
        is_for_trainer = [dotted(base, imported) for base in bases] in _TRAINING_ARGUMENTS
        if bases and not is_for_trainer:
            return UNDECIDABLE  # other classes that this file does not hold
        found = _hf_fields(definition, imported, file) if definition is not None else {}
        if found is None:
            return UNDECIDABLE
        flags.update(found)
        for_trainer = for_trainer or is_for_trainer
    takes_others = any(keyword(call, "return_remaining_strings") is not None for call in calls)
    return ScriptFlags(flags, takes_others, abbreviates=True, takes_words=False, for_trainer=for_trainer)


def _hf_fields(definition: ast.ClassDef, imported: Mapping[str, str], file: Path) -> dict[str, Flag] | None:
    """Return the flags of a dataclass as transformers' hf_argparser.py creates them; None if some have other names."""
    flags: dict[str, Flag] = {}
    for statement in definition.body:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        name, call = statement.target.id, statement.value
        has_default = call is not None
        if isinstance(call, ast.Call) and dotted(call.func, imported) == "dataclasses.field":
            if constant(keyword(call, "init")) is False:
                continue
            if "aliases" in ast.dump(keyword(call, "metadata") or ast.Constant(0)):
                return None
            has_default = any(keyword(call, key) is not None for key in ("default", "default_factory"))
        is_bool = "bool" in ast.dump(statement.annotation)
        names = [f"--{name}", *([f"--{name.replace('_', '-')}"] if "_" in name else [])]
        if is_bool:
            names += [f"--no_{name}", f"--no-{name.replace('_', '-')}"]
        flag = Flag(tuple(names), statement.lineno, file, not has_default and not is_bool)
        flags.update(dict.fromkeys(names, flag))
    return flags


def _from_click(syntax: Syntax, file: Path, root: Path) -> Found:
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


def _from_typer(syntax: Syntax, file: Path, root: Path) -> Found:
    """Return the flags of a script with one typer command; None if it has none."""
    imported = syntax.imported
    run = [
        node.args[0].id
        for node in syntax.calls
        if dotted(node.func, imported) == "typer.run" and node.args and isinstance(node.args[0], ast.Name)
    ]
    apps = [
        name
        for name, values in syntax.assigned.items()
        if any(isinstance(value, ast.Call) and dotted(value.func, imported) == "typer.Typer" for value in values)
    ]
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
        required = bool(marker.args) and constant(marker.args[0]) is Ellipsis
    else:  # an option within Annotated is required when the parameter has no default
        required = marker is not None and default is None and not marker.keywords
    return Flag(names, parameter.lineno, file, required)


def _from_argparse(syntax: Syntax, file: Path, root: Path) -> Found:
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
