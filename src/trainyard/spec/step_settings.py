"""The settings of a job that runs one of Trainyard's steps: the value of each, and where it is written.

A value comes from the overrides, else from a flag of the command (a port of the component, or a constant), else from
the settings file, else from DeepSpeed's configuration, else from the default in the step's dataclass.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

from trainyard.settings.step_fields import StepField
from trainyard.settings.task_fields import TaskError, built_in_step_fields, task_fields
from trainyard.settings.written_settings import OVERRIDES, SETTINGS, value_of_plain_scalar, value_of_text, value_of_yaml
from trainyard.spec.deepspeed_settings import DeepSpeedFile, read_deepspeed_file
from trainyard.spec.diagnostic import Span, SpecError
from trainyard.spec.documents import Document, Entry, Node, Value, describe, parse_document
from trainyard.spec.expressions import ExpressionError, bindings_in
from trainyard.spec.findings import DocumentStore
from trainyard.spec.model import Component, Sweep
from trainyard.spec.parsed import is_address, is_there, similar_file
from trainyard.spec.resolved import DataPath, JobOutput, Known, Resolved, Unknown, Wrong
from trainyard.spec.rule import Rule
from trainyard.spec.set_arguments import COMMAND_LINE
from trainyard.spec.shell_lexer import Word
from trainyard.spec.shell_words import StepCall

UNKNOWN_SETTING = Rule("AML340", "unknown-setting", "error", is_let_pass=True).explained(
    summary="A settings file, or overrides, have a key that the step does not have.",
    why="The step refuses it, once the machines are running and paid for. The keys are the settings of the step and of "
    "its task; data and outputs are given in the pipeline.",
)
REFUSED_SETTING = Rule("AML341", "refused-setting", "error", is_let_pass=True).explained(
    summary="A setting has a value that the step refuses: of another type, out of range, or not a choice.",
    why="The step reads a settings file, its flags and overrides by the types, limits and choices of its settings, and "
    "refuses other values, once the machines are running and paid for.",
)
INVALID_OVERRIDES = Rule("AML343", "invalid-overrides", "error", is_let_pass=True).explained(
    summary="Overrides that are not a mapping in YAML, or that hold an apostrophe.",
    why="`overrides` are one line such as `{weight_decay: 0.1, model_overrides: {num_hidden_layers: 2}}`. The command "
    "has them between apostrophes, so strings within are quoted with double quotes.",
)
SETTINGS_NOT_FOUND = Rule("AML344", "settings-not-found", "error", is_let_pass=True).explained(
    summary="The settings file of a job does not exist.",
    why="It is uploaded with the job, so it has to be there when the job is submitted.",
)

_DEEPSPEED = "deepspeed_config"
Origin = Literal["overrides", "command", "file", "deepspeed", "default"]


class WrittenSettings(NamedTuple):
    """The keys of a settings file, or of overrides, with where each is written. `entries` are the YAML itself."""

    document: Document
    place: Span
    entries: Mapping[str, Entry] = MappingProxyType({})
    outer: tuple[Document, Node] | None = None
    """The text in another document that overrides are written as."""

    def span(self, node: Node) -> Span:
        """Where a key or a value is written."""
        if self.document.file != COMMAND_LINE:
            return node.span
        if self.outer is None:
            return self.place
        document, text = self.outer
        return document.span_within(text, *node.offsets)

    def value(self, name: str) -> Value:
        """The value of a key as the step reads it, by YAML 1.2."""
        node = self.entries[name].value
        return Value(self._data(node), self.span(node), node.text)

    def source(self, name: str) -> str:
        """The YAML of a value."""
        start, end = self.entries[name].value.offsets
        return self.document.text[start:end].strip()

    def _data(self, node: Node) -> object:
        if node.is_mapping:
            return {name: self._data(entry.value) for name, entry in node.entries.items()}
        if isinstance(node.data, list):
            return [self._data(item) for item in node.items]
        start, end = node.offsets
        is_quoted = self.document.text[start:end][:1] in tuple("'\"|>")
        return node.text if is_quoted else value_of_plain_scalar(node.text)


Layer = WrittenSettings | Unknown | Wrong | None
"""What a settings file or overrides say; None where there are none."""


class StepSettings:
    """The settings of the step that a job runs. Each file is read through `store`.

    `input_of` returns the value of an input of the job, and `resolve` what a string in its command comes to.
    """

    def __init__(
        self,
        job: str,
        component: Component,
        call: StepCall,
        store: DocumentStore,
        *,
        input_of: Callable[[str], Resolved],
        resolve: Callable[[Value], Resolved],
    ) -> None:
        own = built_in_step_fields(call.step)
        assert own is not None
        self.step = call.step
        self.own: dict[str, StepField] = {each.name: each for each in own}
        self._job = job
        self._input_of = input_of
        self._resolve = resolve
        self.call = call
        self._component = component
        self._store = store
        self._found: dict[str, tuple[Origin, Resolved]] = {}

    @property
    def has_settings_file(self) -> bool:
        """Whether the step reads a settings file and overrides."""
        return SETTINGS in self.own

    @cached_property
    def ports(self) -> frozenset[str]:
        """The inputs that flags of the command take their values from."""
        ports = (self.call.port_of(name) for name in self.call.flags)
        return frozenset(port for port in ports if port is not None)

    @property
    def task(self) -> str | None:
        """The task's name, None where the step has none, or it is not known."""
        found = self._resolved(self.own["task"]) if "task" in self.own else None
        return str(found.value) if isinstance(found, Known) else None

    @cached_property
    def file(self) -> Layer:
        """The settings file, None if the job has none."""
        given = self.given_by_command(self.own[SETTINGS]) if self.has_settings_file else None
        if not isinstance(given, Known):
            return given
        if isinstance(given.value, JobOutput):
            return Unknown(f"the job '{given.value.job}' writes the settings file", given.written.span)
        path = given.value.text if isinstance(given.value, DataPath) else str(given.value)
        if is_address(path):
            return Unknown(f"the settings file {path} is not on this machine", given.written.span)
        file = place_of(path, given.written.span)
        if not is_there(file, folder=False):
            message = f"the settings file {path} does not exist"
            return Wrong(SETTINGS_NOT_FOUND.at(given.written.span, message, similar_file(file)))
        try:
            document = self._store.peek(file)
        except SpecError as error:
            message = f"the settings file {path} cannot be read: {error.diagnostics[0].message}"
            return Unknown(message, given.written.span)
        if not document.root.is_mapping and document.data is not None:
            return Unknown(f"the settings file {path} is {describe(document.data)}", document.root.span)
        return WrittenSettings(document, given.written.span, document.root.entries)

    @cached_property
    def overrides(self) -> Layer:
        """The settings that replace all others for one run, None if there are none."""
        given = self.given_by_command(self.own[OVERRIDES]) if OVERRIDES in self.own else None
        if not isinstance(given, Known):
            return given
        text = str(given.value)
        return self._read_overrides(text, given.written.span) if text.strip() else None

    def _read_overrides(self, text: str, place: Span) -> WrittenSettings | Wrong:
        outer = None if place.file == COMMAND_LINE else self._text_at(place)
        if "'" in text:
            message = "overrides hold an apostrophe, which would end the quotes around them in the command"
            return Wrong(INVALID_OVERRIDES.at(place, message, "Quote with double quotes."))
        try:
            document = parse_document(COMMAND_LINE, text)
        except SpecError as error:
            message = f"overrides are not valid YAML: {error.diagnostics[0].message}"
            return Wrong(INVALID_OVERRIDES.at(place, message, "Write {KEY: VALUE, KEY: VALUE}."))
        if not document.root.is_mapping:
            message = f"overrides are {describe(document.data)}; expected a mapping"
            return Wrong(INVALID_OVERRIDES.at(place, message, "Write {KEY: VALUE, KEY: VALUE}."))
        if document.problems:
            return Wrong(INVALID_OVERRIDES.at(place, f"overrides: {document.problems[0].message}"))
        return WrittenSettings(document, place, document.root.entries, outer)

    def _text_at(self, place: Span) -> tuple[Document, Node] | None:
        """The scalar at a place of a file, with its document."""
        document = self._store.peek(place.file)
        node = next((node for _, node in document.scalars if node.span == place), None)
        return (document, node) if node is not None else None

    @cached_property
    def fields(self) -> dict[str, StepField]:
        """The fields of the step and of its task, by name."""
        return self.own | (self.fields_of_task[0] or {})

    @cached_property
    def fields_of_task(self) -> tuple[dict[str, StepField] | None, str]:
        """The fields of the task, None if they cannot be told, and what is wrong with its name; empty if nothing is."""
        if "task" not in self.own:
            return {}, ""
        task = self._resolved(self.own["task"])
        if not isinstance(task, Known) or not isinstance(task.value, str):
            return None, ""
        code = self._component.code
        folders = [each.parent for each in self._component.additional_includes]
        folders = folders if code is None else [code, *folders]
        try:
            return {each.name: each for each in task_fields(task.value, folders)}, ""
        except TaskError as error:
            # A module of the user's may be installed in the environment, where nobody can look.
            return None, "" if ":" in task.value else str(error)
        except OSError:
            return None, ""

    @cached_property
    def values(self) -> dict[str, Resolved]:
        """Every setting and every input of the step, by name."""
        return {
            name: self._resolved(each)
            for name, each in self.fields.items()
            if each.kind != "output" and name not in (SETTINGS, OVERRIDES)
        }

    def value(self, name: str) -> Resolved | None:
        """The value of a setting; None for a name that the step does not have."""
        known = self.own.get(name) or self.fields.get(name)
        return self._resolved(known) if known is not None else None

    def origin(self, name: str) -> Origin:
        """Where the value of a setting is from."""
        known = self.fields[name]
        self._resolved(known)
        return self._found[name][0]

    def layer_of(self, name: str) -> WrittenSettings | None:
        """The settings file or the overrides, where the value of a setting is written there."""
        layers: dict[Origin, Layer] = {"file": self.file, "overrides": self.overrides}
        layer = layers.get(self.origin(name)) if name in self.fields else None
        return layer if isinstance(layer, WrittenSettings) and name in layer.entries else None

    def _resolved(self, of: StepField) -> Resolved:
        if of.name not in self._found:
            self._found[of.name] = self._layered(of)
        return self._found[of.name][1]

    def _layered(self, of: StepField) -> tuple[Origin, Resolved]:
        if (found := _in_layer(self.overrides, of, self._key(of))) is not None:
            return "overrides", found
        if (found := self.given_by_command(of)) is not None:
            return "command", found
        if (found := _in_layer(self.file, of, self._key(of))) is not None:
            return "file", found
        if self.deepspeed is not None and (found := self.deepspeed.value(of, self._key(of))) is not None:
            return "deepspeed", found
        return "default", self._default(of)

    def given_by_command(self, of: StepField) -> Resolved | None:
        """What a flag of the command gives a setting; None if the command does not give it."""
        if of.name not in self.call.flags:
            # A string with flags in it may give the value of an input of the setting's name.
            may_have = self.call.may_have_others and of.name in self._component.inputs
            return self._input_of(of.name) if may_have else None
        word = self.call.flags[of.name]
        if word is None:
            return Known(True, self._written(of.name), self._key(of)) if of.type == "boolean" else None
        if not word.is_plain:
            return Unknown(f"{word.text} is known when the command runs", self._component.command.span)
        if (drawn := self._drawn(word)) is not None:
            return drawn
        found = self._resolve(Value(word.text, self._component.command.span, word.text))
        if not isinstance(found, Known):
            return found
        if found.value is None:
            return None
        if "${{" not in word.text:
            found = found._replace(written=self._written(of.name), key=self._key(of))
        return self._typed(of, found)

    @cached_property
    def deepspeed(self) -> DeepSpeedFile | None:
        """DeepSpeed's configuration; None for a step without, and where it cannot be read."""
        field = self.own.get(_DEEPSPEED)
        given = self.given_by_command(field) if field is not None else None
        if not isinstance(given, Known) or isinstance(given.value, JobOutput):
            return None
        if isinstance(given.value, DataPath):
            return read_deepspeed_file(place_of(given.value.text, given.written.span))
        code = self._component.code
        return read_deepspeed_file(code / str(given.value)) if code is not None else None

    def _typed(self, of: StepField, found: Known) -> Resolved:
        if of.kind != "parameter" or isinstance(found.value, (DataPath, JobOutput)):
            return found
        try:
            return found._replace(value=value_of_text(of, str(found.value)))
        except ValueError as error:
            return Wrong(REFUSED_SETTING.at(found.written.span, f"{of.name}: {error}"))

    def _drawn(self, word: Word) -> Unknown | None:
        """What a sweep draws; None for all else."""
        task = self._component.task
        if not isinstance(task, Sweep):
            return None
        try:
            names = [binding.path[-1] for binding in bindings_in(word.text)]
        except ExpressionError:
            return None
        name = next((name for name in names if name in task.search_space), None)
        return Unknown("the sweep draws it", task.search_space[name].span) if name is not None else None

    def _default(self, of: StepField) -> Known:
        file, line = of.declared_at or (self._component.file, 1)
        return Known(of.default, Value(of.default, Span(file, line, 1, line, 1), str(of.default)), self._key(of))

    def _written(self, name: str) -> Value:
        """The value of a flag that is a constant in the command."""
        word = self.call.flags[name]
        text = word.text if word is not None else "true"
        place = self._component.command.span
        outer = self._text_at(place)
        if outer is None or word is None:
            return Value(text, place, text)
        document, node = outer
        return Value(text, document.span_within(node, word.start, word.end), text)

    def _key(self, of: StepField) -> str:
        """The key that `--set` takes for a setting."""
        return f"jobs.{self._job}.inputs.{of.name}"


def _in_layer(layer: Layer, of: StepField, key: str) -> Resolved | None:
    """What a settings file or overrides say of a setting; None if they do not have it."""
    if of.kind != "parameter" or of.name == OVERRIDES:
        return None
    if isinstance(layer, Unknown):
        return layer
    if not isinstance(layer, WrittenSettings) or of.name not in layer.entries:
        return None
    written = layer.value(of.name)
    try:
        value = value_of_yaml(of, written.data, written.text)
    except ValueError as error:
        return Wrong(REFUSED_SETTING.at(written.span, f"{of.name}: {error}"))
    return Known(value, written, key)


def place_of(text: str, written: Span) -> Path:
    """Return what a local path means: relative to where it is written, or to here on the command line."""
    here = Path.cwd() if written.file == COMMAND_LINE else written.file.parent
    return Path(os.path.normpath(here / text.removeprefix("file://").removeprefix("file:")))
