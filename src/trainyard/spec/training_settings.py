"""What a job of Trainyard's own steps would refuse, found before it starts."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from trainyard.settings.batch_arithmetic import UnevenBatch, divide_batch
from trainyard.settings.data_weights import MIXED_DATASETS, read_weights
from trainyard.settings.suggestions import close_match
from trainyard.spec.diagnostic import Diagnostic, Related
from trainyard.spec.literals import whole_number
from trainyard.spec.model import Sweep, Value
from trainyard.spec.resolution import JobUse, Known
from trainyard.spec.rules.training import (
    BATCH_DOES_NOT_DIVIDE,
    DATA_WEIGHTS,
    FORMAT_WITHOUT_SOURCE,
    SETTINGS_NOT_JSON,
    UNKNOWN_MODEL_SETTING,
    UNKNOWN_MODEL_TYPE,
)

_OWN_TRAINING = re.compile(r"\btrainyard[./]steps[./]train_")
_OWN_IMAGES = re.compile(r"\btrainyard[./]steps[./]prepare_images\b")
_MODEL_TYPES = Path(__file__).with_name("model_types.json")
_BUILT_IN_FORMAT = "digits"


def refused_settings(use: JobUse) -> Iterator[Diagnostic]:
    """Yield what the step of a command job would refuse; nothing for other people's steps, and for unknown values."""
    command = str(use.component.command.data)
    if _OWN_TRAINING.search(command):
        yield from _uneven_batch(use)
        yield from _refused_model(use)
        yield from _refused_weights(use)
    elif _OWN_IMAGES.search(command):
        yield from _format_without_source(use)


def _uneven_batch(use: JobUse) -> Iterator[Diagnostic]:
    """Yield global batches that do not divide: the one given, or each that a sweep chooses from."""
    micro, sharing = _known(use, "micro_batch_size"), use.sharing_each_batch
    known = [each.value for each in (micro, *sharing) if isinstance(each, Known)]
    numbers = [number for number in map(whole_number, known) if number is not None and number > 0]
    if micro is None or len(numbers) != 1 + len(sharing):
        return
    micro_size, *world = numbers
    processes = " × ".join(map(str, world))
    for wanted in _global_batches(use):
        size = whole_number(wanted.data)
        if size is None or size <= 0:
            continue
        try:
            divide_batch(size, micro_size, math.prod(world))
        except UnevenBatch as error:
            nearest = " or ".join(map(str, error.nearest_global_batch_sizes))
            message = f"global_batch_size {size} is not a multiple of {micro_size} micro × {processes} processes"
            related = [Related(micro.written.span, f"micro_batch_size is {micro_size} here")]
            yield BATCH_DOES_NOT_DIVIDE.at(wanted.span, message, f"The nearest that fit: {nearest}.", related)


def _global_batches(use: JobUse) -> Iterator[Value]:
    given = _known(use, "global_batch_size")
    if given is not None:
        yield Value(given.value, given.written.span)
    task = use.component.task
    space = task.search_space.get("global_batch_size") if isinstance(task, Sweep) else None
    if space is not None and isinstance(space.data, dict) and isinstance(space.data.get("values"), list):
        yield from (Value(size, space.span) for size in space.data["values"])


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
        yield UNKNOWN_MODEL_TYPE.at(model_type.written.span, message, close_match(name, types))
        return
    if overrides is None or name not in table["settings"]:
        return
    known = [*table["every_type"], *table["settings"][name]]
    for key in settings:
        if key not in known:
            message = f"model_overrides: {name} has no setting '{key}' in transformers {table['transformers']}"
            yield UNKNOWN_MODEL_SETTING.at(overrides.written.span, message, close_match(key, known))


def _refused_weights(use: JobUse) -> Iterator[Diagnostic]:
    """Yield weights that are not one for each of the datasets that are mixed."""
    weights = _known(use, "data_weights")
    datasets = [_known(use, name) for name in MIXED_DATASETS if name in use.component.inputs]
    known = [each for each in datasets if each is not None]
    # What only the users of a pipeline component know may be given or not.
    if weights is None or weights.value is None or len(known) < len(datasets):
        return
    try:
        read_weights(str(weights.value), sum(each.value is not None for each in known))
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
    found = use.input(name) if name in use.component.inputs else None
    return found if isinstance(found, Known) else None


@cache
def _model_types() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(_MODEL_TYPES.read_text(encoding="utf-8"))
    return table
