"""`--set inputs.X=V` and `--set jobs.J.inputs.X=V`: values in place of those that a pipeline's YAML has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trainyard.errors import UsageError
from trainyard.settings.suggestions import close_match, did_you_mean
from trainyard.spec.diagnostic import Span
from trainyard.spec.model import Pipeline, Port, Value
from trainyard.spec.resolution import Resolution
from trainyard.spec.resolved import Wrong, settled
from trainyard.spec.set_arguments import COMMAND_LINE


def resolve_with(pipeline: Pipeline, overrides: Mapping[str, str], *, strict: bool = False) -> Resolution:
    """Return what the pipeline's values come to with these inputs set.

    Only a strict resolution holds the literals of the YAML against the inputs they are given to; Azure ML does not.

    Raises `UsageError` for a key that names no input (with the nearest that there is), and for a value that the
    declared type, range or choice does not allow.
    """
    ports = _settable(Resolution(pipeline))
    values = {_key(key, ports): _value(key, text, ports) for key, text in overrides.items()}
    resolution = Resolution(pipeline, values, takes_any_literal=not strict)
    for resolved in resolution.inputs.values():
        if isinstance(resolved, Wrong):
            settled(resolved)
    return resolution


def _value(key: str, text: str, ports: Mapping[str, Port]) -> Value:
    """What is set: data where `.path` says so of an input that was taken for a text, as `raw: azureml:raw:1` is."""
    is_data = key not in ports and ports[_key(key, ports)].is_parameter
    return Value({"path": text} if is_data else text, Span(COMMAND_LINE), text)


def with_absolute_paths(pipeline: Pipeline, overrides: Mapping[str, str]) -> dict[str, str]:
    """Return the same overrides with local paths that hold in any working directory: what a record keeps."""
    ports = _settable(Resolution(pipeline))
    return {
        key: str(Path(text).expanduser().absolute()) if _is_path(key, ports) else text
        for key, text in overrides.items()
    }


def _is_path(key: str, ports: Mapping[str, Port]) -> bool:
    """Whether `--set` gives a path to this key; `.path` also says so of an input that declares no type."""
    return not ports[_key(key, ports)].is_parameter or key not in ports


def _settable(resolution: Resolution) -> dict[str, Port]:
    """Every input that `--set` can name, by its key."""
    ports = {f"inputs.{name}": port for name, port in resolution.pipeline.inputs.items()}
    for job, use in resolution.uses.items():
        declared = (use.job.component.inputs if use.job.component is not None else None) or {}
        ports |= {f"jobs.{job}.inputs.{name}": port for name, port in declared.items()}
    return ports


def _key(key: str, ports: Mapping[str, Port]) -> str:
    """The key of the input that is meant; `inputs.data.path` names the same as `inputs.data`."""
    data = key.removesuffix(".path")
    if key not in ports and data in ports:
        port = ports[data]
        is_untyped = port.default is not None and port.default.span == port.span
        if is_untyped or not port.is_parameter:
            return data
    if key in ports:
        return key
    scope, _, name = key.rpartition("inputs.")
    names = [known.removeprefix(f"{scope}inputs.") for known in ports if known.startswith(f"{scope}inputs.")]
    jobs = list(dict.fromkeys(known.split(".inputs.")[0].removeprefix("jobs.") for known in ports if known[0] == "j"))
    job = scope.removeprefix("jobs.").removesuffix(".")
    same_name = [known for known in ports if known.endswith(f".inputs.{key.rpartition('.')[2]}")]
    meant = f"Did you mean {same_name[0]!r}?" if len(same_name) == 1 else ""
    if "inputs." not in key or (scope and not scope.startswith("jobs.")):
        # A key without a dot is probably one of the profile's: nodes, cluster.
        elsewhere = "" if "." in key else " `trainyard render --set`, or --profile here, sets the keys of a profile."
        message = f"names no input. {close_match(key, ports) or meant or did_you_mean(key, ports) + elsewhere}"
    elif not scope:
        message = f"the pipeline has no input {name!r}. {meant or did_you_mean(name, names)}"
    elif job not in jobs:
        message = f"there is no job {job!r}. {did_you_mean(job, jobs)}"
    else:
        message = f"the job {job!r} has no input {name!r}. {did_you_mean(name, names)}"
    raise UsageError(f"--set {key}: {message}")
