"""What a job of Trainyard's own steps would refuse, found before it starts."""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from trainyard.settings.batch_arithmetic import UnevenBatch, divide_batch
from trainyard.settings.regex import regex
from trainyard.settings.suggestions import close_match, only_close
from trainyard.settings.task_fields import built_in_step_fields
from trainyard.settings.written_settings import MIXED_DATASETS, SETTINGS, keys_of_file, read_weights, why_unknown
from trainyard.spec.diagnostic import Diagnostic, Related, Span
from trainyard.spec.documents import Document, Value
from trainyard.spec.findings import DocumentStore
from trainyard.spec.literals import whole_number
from trainyard.spec.model import Component, Sweep
from trainyard.spec.resolution import JobUse, resolve_component
from trainyard.spec.resolved import Known, Wrong
from trainyard.spec.rule import Rule
from trainyard.spec.set_arguments import COMMAND_LINE
from trainyard.spec.step_settings import (
    INVALID_OVERRIDES,
    REFUSED_SETTING,
    SETTINGS_NOT_FOUND,
    UNKNOWN_SETTING,
    StepSettings,
    WrittenSettings,
)

BATCH_DOES_NOT_DIVIDE = Rule("AML319", "batch-does-not-divide", "error", is_let_pass=True).explained(
    summary="A global batch size is not a multiple of micro-batch size × processes.",
    why="micro_batch_size × accumulation steps × processes = global_batch_size. The training step refuses sizes that "
    "do not multiply out, once the machines are running and paid for.",
)
SETTINGS_NOT_JSON = Rule("AML320", "settings-not-json", "error", is_let_pass=True).explained(
    summary="A model's settings are not a JSON object.",
    why="The training step reads `model_overrides` as JSON, and refuses anything else.",
)
UNKNOWN_MODEL_TYPE = Rule("AML323", "unknown-model-type", "error", is_let_pass=True).explained(
    summary="A model type that transformers does not have for the task.",
    why="The training step makes the model of this type, and refuses one that its transformers does not know, once the "
    "machines are running and paid for. The types are compared with those of the version that the message names; "
    "where your environment has a newer one with more of them, add a comment that ignores this rule.",
)
UNKNOWN_MODEL_SETTING = Rule("AML324", "unknown-model-setting", "error", is_let_pass=True).explained(
    summary="A setting in `model_overrides` that the model type does not have.",
    why="transformers takes any name, so a mistyped one would change nothing; the training step refuses it, once the "
    "machines are running and paid for.",
)
FORMAT_WITHOUT_SOURCE = Rule("AML325", "format-without-source", "error", is_let_pass=True).explained(
    summary="Images of a format without the folder that holds them, or a folder for the built-in digits.",
    why="prepare_images reads its `source`, a folder of this `format`; only the digits come with scikit-learn. It "
    "refuses a format without a source, and a source that it would not read.",
)
DATA_WEIGHTS = Rule("AML326", "data-weights", "error", is_let_pass=True).explained(
    summary="Weights of mixed datasets that are not one positive number for each of them.",
    why="`data_weights` has a weight for each of `data`, `data_2`, `data_3` and `data_4` the job has. The training "
    "step refuses others, once the data are prepared and the machines are running and paid for.",
)

_OWN_TRAINING = regex(r"\btrainyard[./]steps[./]train_")
_OWN_IMAGES = regex(r"\btrainyard[./]steps[./]prepare_images\b")
_MODEL_TYPES = Path(__file__).with_name("model_types.json")
_BUILT_IN_FORMAT = "digits"


REFUSED_BY_STEPS = frozenset(
    {
        each.id
        for each in (
            *(BATCH_DOES_NOT_DIVIDE, SETTINGS_NOT_JSON, FORMAT_WITHOUT_SOURCE, DATA_WEIGHTS),
            *(UNKNOWN_SETTING, REFUSED_SETTING, INVALID_OVERRIDES, SETTINGS_NOT_FOUND),
        )
    }
)
"""The rules of what a step refuses whatever is installed beside it; which models there are, transformers decides."""


def refused_settings(
    use: JobUse, *, is_complete: bool = True, processes: Sequence[int] | None = None
) -> Iterator[Diagnostic]:
    """Yield what the step of a command job would refuse; nothing for other people's steps, and for unknown values.

    A component by itself is not complete: those who use it give it what has a default now. `processes` are the factors
    of those that share each batch where they are not the job's own, as on a smaller machine.
    """
    command = str(use.component.command.data)
    if _OWN_TRAINING.search(command):
        values = _refused_values(use.step_settings) if use.step_settings is not None else ()
        is_by_default = all(_is_default(use, name) for name in ("micro_batch_size", "global_batch_size"))
        uneven = _uneven_batch(use, processes) if is_complete or not is_by_default else ()
        for problem in (*values, *uneven, *_refused_model(use), *_refused_weights(use)):
            yield _with_user(problem, use)
    elif _OWN_IMAGES.search(command):
        yield from _format_without_source(use)


def _with_user(problem: Diagnostic, use: JobUse) -> Diagnostic:
    """A problem in a settings file, with the job that uses the file."""
    if problem.span.file in (use.job.key_span.file, use.component.file, COMMAND_LINE):
        return problem
    user = Related(use.job.key_span, f"the job '{use.name}' uses this file")
    return problem._replace(related=(*problem.related, user))


def _refused_values(settings: StepSettings) -> Iterator[Diagnostic]:
    """Yield what is wrong with a step's settings file, its overrides and its flags, each by itself."""
    for layer in (settings.file, settings.overrides):
        if isinstance(layer, Wrong):
            yield layer.diagnostic
        elif isinstance(layer, WrittenSettings):
            yield from _refused_keys(layer, settings)
    if problem := settings.fields_of_task[1]:
        task = settings.values["task"]
        assert isinstance(task, Known)
        yield REFUSED_SETTING.at(task.written.span, f"task: {problem}")
    for name, value in settings.values.items():
        if isinstance(value, Wrong) and settings.origin(name) != "command":
            yield value.diagnostic


def use_of_file(document: Document, step: str, store: DocumentStore) -> JobUse | None:
    """Return a job that gives a step this settings file and nothing else; None if no step of this name reads one."""
    if SETTINGS not in {field.name for field in built_in_step_fields(step) or ()}:
        return None
    place = document.root.span
    command = f"python -m trainyard.steps.{step} --settings {shlex.quote(document.file.name)}"
    component = Component(step, document.file, place, Value(command, place, command), {}, {})
    return resolve_component(component, document.root, store)


def refused_in_file(use: JobUse) -> Iterator[Diagnostic]:
    """Yield what a step would refuse of a settings file by itself, whatever pipelines give the step beside it."""
    settings = use.step_settings
    if settings is None:
        return
    yield from _refused_values(settings)
    if settings.layer_of("model_type") is not None:
        yield from _refused_model(use)


def _refused_keys(layer: WrittenSettings, settings: StepSettings) -> Iterator[Diagnostic]:
    """Yield the keys of a settings file, or of overrides, that the step does not have."""
    known = keys_of_file(settings.fields.values())
    own = tuple(settings.own.values())
    for name, entry in layer.entries.items():
        if name in known:
            continue
        is_close = only_close(name, known) if name not in settings.fields else None
        if settings.fields_of_task[0] is None and name not in settings.fields and is_close is None:
            continue  # perhaps a setting of the task, which cannot be read
        why = why_unknown(name, settings.step, own, known, settings.task)
        message, _, advice = why.partition("; ")
        hint = f"{advice[:1].upper()}{advice[1:]}" if advice else ""
        yield UNKNOWN_SETTING.at(layer.span(entry.key), message, hint, replacement=is_close)


def _uneven_batch(use: JobUse, processes: Sequence[int] | None) -> Iterator[Diagnostic]:
    """Yield global batches that do not divide: the one given, or each that a sweep chooses from."""
    micro = _known(use, "micro_batch_size")
    sharing = [count.value if isinstance(count, Known) else None for count in use.sharing_each_batch]
    counts = [micro.value if micro is not None else None, *(sharing if processes is None else processes)]
    numbers = [number for number in map(whole_number, counts) if number is not None and number > 0]
    if micro is None or len(numbers) != len(counts):
        return
    micro_size, *world = numbers
    factors = " × ".join(map(str, world))
    for wanted in _global_batches(use):
        size = whole_number(wanted.data)
        if size is None or size <= 0:
            continue
        try:
            divide_batch(size, micro_size, math.prod(world))
        except UnevenBatch as error:
            nearest = " or ".join(map(str, error.nearest_global_batch_sizes))
            if error.nearest_micro_batch_size is not None:
                nearest += f"; or micro_batch_size {error.nearest_micro_batch_size}"
            message = f"global_batch_size {size} is not a multiple of {micro_size} micro × {factors} processes"
            related = [Related(_place(use, "micro_batch_size", micro), f"micro_batch_size is {micro_size} here")]
            yield BATCH_DOES_NOT_DIVIDE.at(wanted.span, message, f"The nearest that fit: {nearest}.", related)


def _global_batches(use: JobUse) -> Iterator[Value]:
    given = _known(use, "global_batch_size")
    if given is not None:
        yield Value(given.value, _place(use, "global_batch_size", given))
    task = use.component.task
    space = task.search_space.get("global_batch_size") if isinstance(task, Sweep) else None
    if space is not None and isinstance(space.data, dict) and isinstance(space.data.get("values"), list):
        yield from (Value(size, space.span) for size in space.data["values"])


def _place(use: JobUse, name: str, value: Known) -> Span:
    """Where a value is written; the job for a default, which is written in Trainyard."""
    return use.job.key_span if _is_default(use, name) else value.written.span


def _is_default(use: JobUse, name: str) -> bool:
    settings = use.step_settings
    return settings is not None and name in settings.fields and settings.origin(name) == "default"


def _refused_model(use: JobUse) -> Iterator[Diagnostic]:
    """Yield settings that are not JSON, and what the model type lacks: for a task whose types are known."""
    overrides = _known(use, "model_overrides")
    settings: dict[str, Any] = {}
    if overrides is not None and isinstance(overrides.value, str) and overrides.value.strip():
        try:
            data = json.loads(overrides.value)
        except ValueError as error:
            data, message = None, f"model_overrides is not JSON: {error}"
        else:
            message = "model_overrides is JSON, but not an object"
        if not isinstance(data, dict):
            hint = "Write an object such as '{\"depths\": [2, 2]}'."
            yield SETTINGS_NOT_JSON.at(overrides.written.span, message, hint)
            return
        settings = data
    task, model_type, base_model = (_known(use, name) for name in ("task", "model_type", "base_model"))
    if task is None or model_type is None or (base_model is not None and base_model.value is not None):
        return
    table, name = _model_types(), str(model_type.value)
    types = table["tasks"].get(str(task.value))
    if types is None or "/" in name or os.path.exists(name):
        return
    if name not in types:
        what = str(task.value).replace("_", " ")
        message = f"unknown model_type '{name}' for {what} in transformers {table['transformers']}"
        yield UNKNOWN_MODEL_TYPE.at(_place(use, "model_type", model_type), message, close_match(name, types))
        return
    if overrides is None or name not in table["settings"]:
        return
    known = [*table["every_type"], *table["settings"][name]]
    for key in settings:
        if key not in known:
            message = f"model_overrides: {name} has no setting '{key}' in transformers {table['transformers']}"
            yield UNKNOWN_MODEL_SETTING.at(_key_place(use, key, overrides), message, close_match(key, known))


def _key_place(use: JobUse, key: str, overrides: Known) -> Span:
    """Where a key of `model_overrides` is: the key itself in a settings file, the whole text elsewhere."""
    settings = use.step_settings
    layer = settings.layer_of("model_overrides") if settings is not None else None
    entry = layer.entries["model_overrides"].value.entries.get(key) if layer is not None else None
    return layer.span(entry.key) if layer is not None and entry is not None else overrides.written.span


def _refused_weights(use: JobUse) -> Iterator[Diagnostic]:
    """Yield weights that are not one for each of the datasets that are mixed."""
    weights = _known(use, "data_weights")
    datasets = [use.setting(name) for name in MIXED_DATASETS]
    given = [dataset for dataset in datasets if isinstance(dataset, Known) and dataset.value is not None]
    # What only the users of a pipeline component know may be given or not.
    if weights is None or weights.value is None or not all(isinstance(dataset, Known) for dataset in datasets):
        return
    try:
        read_weights(str(weights.value), len(given))
    except ValueError as error:
        hint = "Write a weight for each of data, data_2 and so on, or leave data_weights out: each sample comes once."
        yield DATA_WEIGHTS.at(weights.written.span, f"data_weights {error}", hint)


def _format_without_source(use: JobUse) -> Iterator[Diagnostic]:
    named, source = _known(use, "format"), _known(use, "source")
    if named is None or source is None or not isinstance(named.value, str):
        return
    if named.value != _BUILT_IN_FORMAT and source.value is None:
        message = f"format '{named.value}' needs a source: the folder that holds the images"
        hint = f"Give the job '{use.name}' an input `source`, or the profile's pipeline a `source`."
        yield FORMAT_WITHOUT_SOURCE.at(named.written.span, message, hint)
    elif named.value == _BUILT_IN_FORMAT and source.value is not None:
        message = f"format '{_BUILT_IN_FORMAT}' reads no source, and one is given"
        related = [Related(source.written.span, "the source is given here")]
        yield FORMAT_WITHOUT_SOURCE.at(named.written.span, message, "Say what the source holds, as in folder.", related)


def _known(use: JobUse, name: str) -> Known | None:
    found = use.setting(name)
    return found if isinstance(found, Known) else None


@cache
def _model_types() -> dict[str, Any]:
    return dict(json.loads(_MODEL_TYPES.read_text(encoding="utf-8")))
