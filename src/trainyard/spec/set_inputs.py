"""`--set inputs.X=V` and `--set jobs.J.inputs.X=V`: values in place of those that a pipeline's YAML has.

A training's setting that is not an input becomes one of the job's overrides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from trainyard.errors import UsageError
from trainyard.settings.regex import regex
from trainyard.settings.suggestions import close_match, did_you_mean
from trainyard.settings.written_settings import OVERRIDES, keys_of_file, value_of_yaml
from trainyard.spec.diagnostic import Span, SpecError
from trainyard.spec.documents import Value, parse_document
from trainyard.spec.findings import DocumentStore
from trainyard.spec.model import Pipeline, Port, Sweep
from trainyard.spec.parsed import is_address
from trainyard.spec.resolution import JobUse, Resolution
from trainyard.spec.resolved import Wrong, settled
from trainyard.spec.set_arguments import COMMAND_LINE, several_in_one
from trainyard.spec.set_keys import keys_of_file as keys_of_job_file
from trainyard.spec.step_settings import StepSettings, WrittenSettings

# What reads as itself within a flow mapping.
_PLAIN = regex(r"[A-Za-z0-9_./+-]+")


def resolve_with(pipeline: Pipeline, arguments: Mapping[str, str], *, strict: bool = False) -> Resolution:
    """Return what the pipeline's values come to with these inputs and settings set.

    Only a strict resolution holds the literals of the YAML against the inputs they are given to; Azure ML does not.

    Raises `UsageError` as `values_set` does, and for a value that the declared type, range or choice does not allow.
    """
    store = DocumentStore()
    values = values_set(pipeline, arguments, store)
    resolution = Resolution(pipeline, values, store=store, takes_any_literal=not strict)
    for resolved in resolution.inputs.values():
        if isinstance(resolved, Wrong):
            settled(resolved)
    return resolution


def values_set(pipeline: Pipeline, arguments: Mapping[str, str], store: DocumentStore) -> dict[str, Value]:
    """Return the inputs that `--set` gives, by their keys; settings of trainings are in their jobs' overrides.

    Raises `UsageError` for a key that names no input and no setting (with the nearest that there is), for a setting
    that several jobs have, and for a value that a setting does not take.
    """
    ports = _settable(pipeline)
    values: dict[str, Value] = {}
    settings: dict[str, str] = {}
    of_file = keys_of_job_file(pipeline.file, arguments, store)
    for key, text in arguments.items():
        known = _input_key(key, ports)
        if known is None and key not in of_file:
            settings[key] = text
        elif known is not None:
            is_data = key not in ports and ports[known].is_parameter
            values[known] = Value({"path": text} if is_data else text, Span(COMMAND_LINE), text)
    # The task decides which other settings there are.
    of_task = {key: text for key, text in settings.items() if key.endswith("inputs.task")}
    others = {key: text for key, text in settings.items() if key not in of_task}
    for group in filter(None, (of_task, others)):
        values |= _overrides_with(Resolution(pipeline, values, store=store), group, ports)
    return values


def with_absolute_paths(pipeline: Pipeline, arguments: Mapping[str, str]) -> dict[str, str]:
    """Return the same arguments with local paths that hold in any working directory: what a record keeps."""
    ports = _settable(pipeline)
    return {key: _absolute(text) if _is_path(key, ports) else text for key, text in arguments.items()}


def as_client_overrides(pipeline: Pipeline, values: Mapping[str, Value]) -> dict[str, str]:
    """Return the same values as Azure ML's client takes them: by the keys of the file, data with absolute paths."""
    ports = _settable(pipeline)
    is_standalone = any(job.span == pipeline.span for job in pipeline.jobs.values())
    found: dict[str, str] = {}
    for key, value in values.items():
        # A job of its own is a pipeline here, whose only job has the same inputs.
        written = f"inputs.{key.rpartition('inputs.')[2]}" if is_standalone else key
        if isinstance(value.data, dict) or not ports[key].is_parameter:
            found[f"{written}.path"] = value.text if is_address(value.text) else _absolute(value.text)
        else:
            found[written] = value.text
    return found


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def _is_path(key: str, ports: Mapping[str, Port]) -> bool:
    """Whether `--set` gives a path to this key; `.path` also says so of an input that declares no type."""
    known = _input_key(key, ports)
    return known is not None and (not ports[known].is_parameter or key not in ports)


def _settable(pipeline: Pipeline) -> dict[str, Port]:
    """Every input that `--set` can name, by its key."""
    ports = {f"inputs.{name}": port for name, port in pipeline.inputs.items()}
    for use in Resolution(pipeline).uses.values():
        ports |= {f"jobs.{use.name}.inputs.{name}": port for name, port in (use.declared or {}).items()}
    return ports


def _input_key(key: str, ports: Mapping[str, Port]) -> str | None:
    """The key of the input that is meant, None if it names none; `inputs.data.path` names the same as `inputs.data`."""
    data = key.removesuffix(".path")
    if key not in ports and data in ports:
        port = ports[data]
        is_untyped = port.default is not None and port.default.span == port.span
        if is_untyped or not port.is_parameter:
            return data
    return key if key in ports else None


class _Setting(NamedTuple):
    """A setting of a training that `--set` gives: the key as typed, the job, and the setting's name and value."""

    key: str
    use: JobUse
    name: str
    text: str


def _overrides_with(
    resolution: Resolution, arguments: Mapping[str, str], ports: Mapping[str, Port]
) -> dict[str, Value]:
    """The overrides of jobs with settings added to those that the jobs have."""
    settings = [_setting(key, text, resolution, ports) for key, text in arguments.items()]
    values: dict[str, Value] = {}
    for use in {setting.use.name: setting.use for setting in settings}.values():
        step = use.step_settings
        assert step is not None
        added = {setting.name: _as_yaml(setting, step) for setting in settings if setting.use is use}
        text = _merged(step, added)
        values[f"jobs.{use.name}.inputs.{step.call.port_of(OVERRIDES)}"] = Value(text, Span(COMMAND_LINE), text)
    return values


def _setting(key: str, text: str, resolution: Resolution, ports: Mapping[str, Port]) -> _Setting:
    """The setting that a key names. Raises UsageError if no job has it, or several have."""
    scope, found, name = key.rpartition("inputs.")
    job = scope.removeprefix("jobs.").removesuffix(".")
    steps = {use: use.step_settings for use in resolution.jobs.values()}
    # The settings that the overrides of a job may have, of those whose command takes any.
    fields = {
        use: keys_of_file(step.fields.values())
        for use, step in steps.items()
        if step is not None and step.call.port_of(OVERRIDES) is not None
    }
    having = [use for use, known in fields.items() if name in known and job in ("", use.name)]
    if not found or not having or (scope and not scope.startswith("jobs.")):
        settings = [known for use, names in fields.items() if job in ("", use.name) for known in names]
        raise UsageError(f"--set {key}: {_why_unknown(key, ports, settings)}")
    if len(having) > 1:
        keys = " or ".join(f"jobs.{use.name}.inputs.{name}" for use in having)
        raise UsageError(f"--set {key}: several jobs have this setting; name one: {keys}")
    (use,) = having
    task = use.component.task
    if isinstance(task, Sweep) and name in task.search_space:
        raise UsageError(f"--set {key}: the sweep '{use.name}' draws it; change its search_space")
    return _Setting(key, use, name, text)


def _as_yaml(setting: _Setting, step: StepSettings) -> str:
    """A value as overrides have it. Raises UsageError if the setting does not take it."""
    field = step.fields[setting.name]
    if "'" in setting.text:
        raise UsageError(f"--set {setting.key}={setting.text}: an apostrophe would end the command's quotes around it")
    try:
        data = parse_document(COMMAND_LINE, setting.text).data if field.is_mapping else setting.text
        value_of_yaml(field, data, setting.text)
    except ValueError as error:
        message = error.diagnostics[0].message if isinstance(error, SpecError) else str(error)
        several = several_in_one(setting.text)
        raise UsageError(". ".join(filter(None, (f"--set {setting.key}={setting.text}: {message}", several)))) from None
    is_plain = isinstance(data, dict) or _PLAIN.fullmatch(setting.text) is not None
    return setting.text if is_plain else json.dumps(setting.text)


def _merged(step: StepSettings, added: Mapping[str, str]) -> str:
    """A job's overrides, as written, with settings added or replaced. Raises as `settled` for invalid overrides."""
    layer = step.overrides
    members: dict[str, str] = {}
    if isinstance(layer, WrittenSettings):
        members = {name: layer.source(name) for name in layer.entries}
    elif layer is not None:
        settled(layer)
    members |= added
    return f"{{{', '.join(f'{name}: {text}' for name, text in members.items())}}}"


def _why_unknown(key: str, ports: Mapping[str, Port], settings: Sequence[str]) -> str:
    """What is wrong with a key that names neither an input nor a setting, and the nearest that does."""
    scope, _, name = key.removesuffix(".path").rpartition("inputs.")
    job = scope.removeprefix("jobs.").removesuffix(".")
    jobs = list(dict.fromkeys(known.split(".inputs.")[0].removeprefix("jobs.") for known in ports if known[0] == "j"))
    names = [known.removeprefix(f"{scope}inputs.") for known in ports if known.startswith(f"{scope}inputs.")]
    same_name = [known for known in ports if known.endswith(f".inputs.{key.removesuffix('.path').rpartition('.')[2]}")]
    meant = f"Did you mean {same_name[0]!r}?" if len(same_name) == 1 else ""
    if "inputs." not in key or (scope and not scope.startswith("jobs.")):
        # A key without a dot is probably one of the profile's: nodes, cluster.
        elsewhere = "" if "." in key else " `trainyard render --set`, or --profile here, sets the keys of a profile."
        return f"names no input. {close_match(key, ports) or meant or did_you_mean(key, ports) + elsewhere}"
    nearest = close_match(name, [*names, *settings]) or did_you_mean(name, names)
    if not scope:
        return f"the pipeline has no input {name!r}. {meant or nearest}"
    if job not in jobs:
        return f"unknown job {job!r}. {did_you_mean(job, jobs)}"
    return f"the job {job!r} has no input {name!r}. {nearest}"
