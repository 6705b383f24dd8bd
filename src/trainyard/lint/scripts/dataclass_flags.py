"""Flags from dataclasses: `HfArgumentParser`, and the steps of trainyard with the tasks of users."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from trainyard.lint.scripts.flags import UNDECIDABLE, Flag, Found, ScriptFlags, help_flags
from trainyard.lint.scripts.syntax import Syntax, constant, dotted, keyword, parse, texts
from trainyard.resources import PACKAGE

_STEP_ENTRIES = frozenset({"run_step", "run_task_step"})
_STEP_FIELDS = frozenset({"parameter", "input_folder", "input_file", "output_folder"})


def from_hf_dataclass(syntax: Syntax, file: Path, root: Path) -> Found:
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
    for name in wanted:
        definition = classes.get(name.id) if isinstance(name, ast.Name) else None
        found = _hf_fields(definition, imported, file) if definition is not None else None
        if found is None:
            return UNDECIDABLE  # TrainingArguments and other classes that this file does not hold
        flags.update(found)
    takes_others = any(keyword(call, "return_remaining_strings") is not None for call in calls)
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


def from_dataclass(syntax: Syntax, file: Path, root: Path) -> Found:
    """Return the flags of a step in the manner of trainyard.steps; None if the script is none."""
    imported = syntax.imported
    for node in syntax.calls:
        if (
            (entry := dotted(node.func, imported).rpartition(".")[2]) in _STEP_ENTRIES
            and node.args
            and isinstance(node.args[0], ast.Name)
        ):
            own_module = ".".join(file.relative_to(root).with_suffix("").parts) if file.is_relative_to(root) else ""
            fields = _class_fields(imported.get(node.args[0].id, f"{own_module}.{node.args[0].id}"), root, depth=0)
            help_flag = Flag(("-h", "--help"), 1, file)
            if not fields:
                return UNDECIDABLE
            task_folder = root if entry == "run_task_step" and "--task" in fields else None
            return ScriptFlags({**dict.fromkeys(help_flag.names, help_flag), **fields}, task_folder=task_folder)
    return None


def _class_fields(path: str, root: Path, depth: int) -> dict[str, Flag]:
    """Return the fields of a class by flag, those of its bases first; none if it is not in the snapshot."""
    module, _, name = path.rpartition(".")
    file = _file_of(module, root)
    syntax = parse(file) if module and depth < 9 else None
    if syntax is None:
        return {}
    imported = syntax.imported
    definition = next((node for node in syntax.body if isinstance(node, ast.ClassDef) and node.name == name), None)
    if definition is None:
        return {}
    flags: dict[str, Flag] = {}
    for base in definition.bases:
        path_of_base = dotted(base, imported)
        path_of_base = path_of_base if "." in path_of_base else f"{module}.{path_of_base}"
        flags.update(_class_fields(path_of_base, root, depth + 1))
    for statement in definition.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            shared = _shared_field(statement.value, imported)
            if shared is not None:
                owner, flag_name = shared
                owner = owner if "." in owner else f"{module}.{owner}"
                flag = _class_fields(owner, root, depth + 1).get(flag_name)
            else:
                flag = _step_flag(statement.target.id, statement, syntax, file)
            if flag is not None:
                flags[flag.names[0]] = flag
    return flags


def _file_of(module: str, root: Path) -> Path:
    """Return the file of a module: Trainyard's own where the snapshot has its code in an archive."""
    place = module.replace(".", "/") + ".py"
    is_archived = module.startswith(f"{PACKAGE.name}.") and not (root / place).is_file()
    return (PACKAGE.parent if is_archived else root) / place


def _shared_field(value: ast.expr | None, imported: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the class and the flag of a field that `same_field(Class, "name")` declares again."""
    if not isinstance(value, ast.Call) or dotted(value.func, {}).rpartition(".")[2] != "same_field":
        return None
    name = constant(value.args[1]) if len(value.args) == 2 else None
    if not isinstance(name, str):
        return None  # another function of this name
    return dotted(value.args[0], imported), "--" + name.replace("_", "-")


def _step_flag(name: str, statement: ast.AnnAssign, syntax: Syntax, file: Path) -> Flag | None:
    call = statement.value
    if not isinstance(call, ast.Call) or dotted(call.func, {}).rpartition(".")[2] not in _STEP_FIELDS:
        return None
    has_default = bool(call.args) or keyword(call, "default") is not None
    required = not has_default and constant(keyword(call, "optional")) is not True
    default = constant(call.args[0]) if call.args else None
    return Flag(
        ("--" + name.replace("_", "-"),),
        statement.lineno,
        file,
        required,
        texts(keyword(call, "choices"), syntax),
        default=default if isinstance(default, str) else None,
    )


def with_task_flags(flags: ScriptFlags, task: str | None) -> ScriptFlags:
    """A step's flags with those of the task that its command names; None when that cannot be told."""
    from trainyard.settings.task_fields import TaskError, task_fields

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
