"""From a step's dataclass to its fields: the one description behind flags, component ports and the docs table.

A step's settings are a frozen dataclass whose fields are declared with `parameter`, `input_folder`, `input_file`
and `output_folder`, each documented by the string beneath it. `task_fields` reads that description; `steps.flags`
makes an argument parser of it, the author's side makes `inputs:`, `outputs:` and `command:` of it. Only the
standard library is imported here, so that rendering a component never imports torch.
"""

from __future__ import annotations

import ast
import dataclasses
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trainyard.settings.regex import regex

Kind = Literal["parameter", "input", "output"]

_SENTENCE_END = regex(r"(?<=\.)\s+(?=[A-Z0-9`])")
_CLAUSE_ENDS = (": ", "; ", " (", ", ")
_SUMMARY_LENGTH = 91

OnResume = Literal["identity", "numbers", "attempt", "nothing"]
"""What a changed setting means to a training that is resumed. identity: it is another training, and refused; numbers:
what is computed changes, by more than rounding, and is logged; attempt: where and how this attempt runs; nothing."""

_AZURE_TYPE_OF = {str: "string", int: "integer", float: "number", bool: "boolean"}


def flag_of(name: str) -> str:
    """Return a setting's command-line flag: `learning_rate` becomes `--learning-rate`."""
    return "--" + name.replace("_", "-")


@dataclass(frozen=True)
class StepField:
    """One setting of a step, in Azure ML's terms.

    `type` is Azure ML's: string, integer, number, boolean for parameters; uri_folder, uri_file, custom_model,
    mlflow_model for ports. `required` means that there is no default and it must be given; `optional` that it may be
    absent altogether (None in the step), which Azure ML writes as `optional: true` and `$[[ … ]]` in the command.
    """

    name: str
    kind: Kind
    type: str
    description: str
    default: str | int | float | bool | None = None
    required: bool = False
    optional: bool = False
    minimum: int | float | None = None
    maximum: int | float | None = None
    choices: tuple[str, ...] | None = None
    port: bool = False
    """Whether people bind or sweep this setting, so that a component with a settings file has it as a port too."""
    is_mapping: bool = False
    """Whether the value is a mapping: JSON on a command line, a mapping in a settings file."""
    on_resume: OnResume = "identity"
    mode: str | None = None
    declared_at: tuple[Path, int] | None = dataclasses.field(default=None, compare=False)
    """File and line, where the description was read from source."""

    @property
    def flag(self) -> str:
        """The command-line flag: `learning_rate` becomes `--learning-rate`."""
        return flag_of(self.name)

    @property
    def summary(self) -> str:
        """The first sentence of the description; its first clause where the sentence is too long for one line."""
        sentence = _SENTENCE_END.split(self.description)[0]
        if len(sentence) <= _SUMMARY_LENGTH:
            return sentence
        for end in _CLAUSE_ENDS:
            clause, found, _ = sentence.partition(end)
            if found and len(clause) < _SUMMARY_LENGTH:
                return f"{clause}."
        import textwrap  # linting a pipeline does without it

        return textwrap.shorten(sentence, _SUMMARY_LENGTH, placeholder=" …")


def parameter(
    default: Any = dataclasses.MISSING,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] | None = None,
    port: bool = False,
    is_mapping: bool = False,
    on_resume: OnResume | None = None,
) -> Any:
    """Declare a literal setting. Without a default it is required; with None it is optional.

    `port` and `is_mapping` are as in `StepField`.
    `on_resume` says what another value means to a training that is resumed. Not given, it is refused ("identity"), as
    is right for whatever decides the model's shape.
    """
    metadata = {"kind": "parameter", "minimum": minimum, "maximum": maximum, "choices": choices}
    how_used = {"port": port, "is_mapping": is_mapping, "on_resume": on_resume}
    return dataclasses.field(default=default, metadata={**metadata, **how_used})


def input_folder(*, optional: bool = False, type: str = "uri_folder") -> Any:
    """Declare a folder that the step reads."""
    default = None if optional else dataclasses.MISSING
    return dataclasses.field(default=default, metadata={"kind": "input", "type": type, "on_resume": "attempt"})


def input_file(*, optional: bool = False) -> Any:
    """Declare a single file that the step reads."""
    return input_folder(optional=optional, type="uri_file")


def output_folder(*, mode: str = "rw_mount", type: str = "uri_folder") -> Any:
    """Declare a folder that the step writes; `rw_mount` makes its files durable as they are written."""
    metadata = {"kind": "output", "mode": mode, "type": type, "on_resume": "attempt"}
    return dataclasses.field(metadata=metadata)


def same_field(of: type, name: str) -> Any:
    """Declare a setting that another step has too: its default, bounds and documentation."""
    (field,) = (each for each in dataclasses.fields(of) if each.name == name)
    return dataclasses.field(default=field.default, metadata=field.metadata)


def describe_field(
    field: dataclasses.Field[Any], hint: Any, description: str, declared_at: tuple[Path, int] | None = None
) -> StepField:
    """Describe one field, given its type, the documentation beneath it, and where it is declared.

    Raises `AssertionError` for a type that Azure ML has no word for: a mistake of whoever writes a step.
    """
    assert description, f"{field.name} has no documentation beneath it"
    optional = False
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        members = [member for member in typing.get_args(hint) if member is not type(None)]
        assert len(members) == 1, f"{field.name}: a field is of one type, or of one type or None"
        hint, optional = members[0], True
    declared = {name: value for name, value in field.metadata.items() if name in StepField.__dataclass_fields__}
    if declared["kind"] == "parameter":
        declared["type"] = _AZURE_TYPE_OF[hint]
    else:
        assert hint is Path, f"{field.name}: a folder or file is a Path"
    declared["on_resume"] = declared["on_resume"] or "identity"
    default = None if field.default is dataclasses.MISSING else field.default
    return StepField(
        name=field.name,
        description=description,
        default=default,
        required=default is None and not optional,
        optional=optional,
        declared_at=declared_at,
        **declared,
    )


def documented_fields(class_definition: ast.ClassDef) -> dict[str, str]:
    """The string that stands beneath each field of a class's own, folded into one line."""
    return {
        statement.target.id: " ".join(following.value.value.split())
        for statement, following in zip(class_definition.body, class_definition.body[1:], strict=False)
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and isinstance(following, ast.Expr)
        and isinstance(following.value, ast.Constant)
        and isinstance(following.value.value, str)
    }
