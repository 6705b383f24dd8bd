"""Every setting of a pipeline as Azure ML takes it: bindings followed, comments, order and spelling left out.

Two pipelines whose settings are equal mean the same, however differently they are written.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainyard.project_files import is_within_root, read_bytes
from trainyard.settings.deepspeed_configuration import leaves_of
from trainyard.settings.quantities import as_text
from trainyard.settings.written_settings import OVERRIDES, SETTINGS
from trainyard.spec.diagnostic import Span, SpecError
from trainyard.spec.documents import Document
from trainyard.spec.findings import DocumentStore
from trainyard.spec.model import Environment, Pipeline, code_of
from trainyard.spec.resolution import JobUse, Resolution
from trainyard.spec.resolved import DataPath, JobOutput, Known, PipelineOutput, Resolved, Unknown
from trainyard.spec.step_settings import place_of

# Read as names and descriptions, which change nothing that runs, or resolved for each job.
_NAMES = frozenset({"$schema", "type", "name", "version", "display_name", "description", "tags"})
_RESOLVED_OF_PIPELINE = frozenset({"inputs", "outputs", "jobs"})
# Of a job whose component is kept in Azure ML, the rest is read as it is written.
_RESOLVED_OF_KEPT_JOB = frozenset(
    {"inputs", "outputs", "component", "trial", "command", "code", "compute", "environment_variables"}
)
_RESOLVED_OF_JOB = _RESOLVED_OF_KEPT_JOB | {"environment", "distribution", "resources"}
_LARGEST_DATA_BYTES = 256 * 1024
_HEADER_KEY = "_rendered"


@dataclass(frozen=True)
class Setting:
    """One value: the job that takes it (empty: the pipeline), its dotted key there, its text, where it is written.

    `source` is the pipeline's input that the value is bound to, by its key; empty for values of the job's own.
    """

    job: str
    key: str
    text: str
    place: Span
    source: str = ""


@dataclass(frozen=True)
class Change:
    """A setting that differs; None is one that is not there. `jobs` are those that take it, all for the pipeline."""

    key: str
    jobs: tuple[str, ...]
    before: str | None
    after: str | None
    place: Span | None


def settings_of(pipeline: Pipeline, store: DocumentStore, roots: Sequence[Path]) -> list[Setting]:
    """Return every setting of a pipeline. Paths below one of `roots` are relative to it: copies compare as equal."""
    resolution = Resolution(pipeline, store=store)
    found: list[Setting] = []
    overrides = {_given_overrides(use) for use in resolution.jobs.values()}
    for name, value in resolution.inputs.items():
        if f"inputs.{name}" not in overrides:  # each job's settings have what is in them
            found += _values("", f"inputs.{name}", value, roots)
    others = _keys_of(store.peek(pipeline.file), _NAMES | _RESOLVED_OF_PIPELINE)
    found += [each for each in others if each.key != "settings.default_compute"]  # each job has its compute
    for name, port in pipeline.outputs.items():
        path = port.path.data if port.path is not None else None
        for key, each in (("mode", port.mode), ("path", path)):
            if each is not None:
                found.append(Setting("", f"outputs.{name}.{key}", as_text(each), port.key_span))
    for use in resolution.leaves.values():
        found += _of_job(use, store, roots)
    return found


def keys_of(file: Path) -> list[Setting]:
    """Return every key of a YAML file that stands for itself, such as a cluster's. SpecError for what is not YAML."""
    return _keys_of(DocumentStore().read_mapping(file), {"$schema"})


def _keys_of(document: Document, without: Container[str]) -> list[Setting]:
    data = {key: each for key, each in document.data.items() if key not in without}
    return [Setting("", key, text, document.key_span([key.split(".")[0]])) for key, text in _leaves(data)]


def changes_between(before: Iterable[Setting], after: Iterable[Setting]) -> list[Change]:
    """Return what differs between jobs that both have: the pipeline's inputs first, then each job's own settings.

    An input of the pipeline stands for those of the jobs that are bound to it; what changes alike in several jobs is
    one change.
    """
    old = {(each.job, each.key): each for each in before}
    new = {(each.job, each.key): each for each in after}
    jobs = {job for job, _ in old} & {job for job, _ in new}
    found: dict[tuple[str, str | None, str | None, bool], Change] = {}
    for job, key in sorted(dict.fromkeys([*new, *old]), key=lambda place: place[0] != ""):
        was, now = old.get((job, key)), new.get((job, key))
        texts = (was.text if was else None, now.text if now else None)
        if job not in jobs or texts[0] == texts[1]:
            continue
        source = next((each.source for each in (now, was) if each and each.source), "")
        bound_to = (source, *texts, True)
        place = (key, *texts, job == "")
        if source and bound_to in found:
            place = bound_to
        known = found.get(place, Change(key, (), *texts, now.place if now else None))
        found[place] = replace(known, jobs=(*known.jobs, job) if job else known.jobs)
    return list(found.values())


def _of_job(use: JobUse, store: DocumentStore, roots: Sequence[Path]) -> Iterator[Setting]:
    job, component = use.name, code_of(use.job.component)
    if component is not None:
        yield Setting(job, "component", component.name, component.span)
    elif use.job.reference:
        yield Setting(job, "component", use.job.reference, use.job.key_span)
    yield from _inputs_of_job(use, roots)
    for name, value in use.outputs.items():
        yield from _values(job, f"outputs.{name}", value, roots)
    yield from _values(job, "compute", use.compute, roots)
    if component is not None:
        yield Setting(job, "command", " ".join(str(component.command.data).split()), component.command.span)
        if component.code is not None:
            yield Setting(job, "code", _path(component.code, roots), component.span)
        yield from _environment(job, component.environment, roots)
    for name, value in use.environment_variables.items():
        yield from _values(job, f"environment_variables.{name}", value, roots)
    distribution, resources = use.job.effective_distribution, use.job.effective_resources
    values: dict[str, Resolved | None] = {}
    if distribution is not None:
        yield Setting(job, "distribution.type", distribution.type, distribution.span)
        values["distribution.process_count_per_instance"] = use.processes_per_node
        if distribution.type == "tensorflow":
            values["distribution.worker_count"] = use.worker_count
            values["distribution.parameter_server_count"] = use.parameter_server_count
    values["resources.instance_count"] = use.instance_count
    values["resources.instance_type"] = use.instance_type
    if resources is not None and resources.shm_size is not None:
        values["resources.shm_size"] = use.resolve(resources.shm_size)
    for key, resolved in values.items():
        yield from _values(job, key, resolved, roots)
    yield from _other_keys(use, store)


def _inputs_of_job(use: JobUse, roots: Sequence[Path]) -> Iterator[Setting]:
    """Yield a job's inputs; of a step with a settings file its settings, wherever each is written."""
    settings = use.step_settings
    if settings is None or not settings.has_settings_file:
        for name, value in use.inputs.items():
            yield from _values(use.name, f"inputs.{name}", value, roots)
        return
    for name, value in use.inputs.items():
        if name not in settings.ports:
            yield from _values(use.name, f"inputs.{name}", value, roots)
    for name, value in settings.values.items():
        is_default = settings.origin(name) == "default"
        for setting in _values(use.name, f"inputs.{name}", value, roots):
            yield replace(setting, place=use.job.key_span) if is_default else setting
    port = settings.call.port_of(SETTINGS)
    file = use.input(port) if port is not None else None
    if isinstance(file, Known) and isinstance(file.value, DataPath):
        path = place_of(file.value.text, file.written.span)
        yield Setting(use.name, f"inputs.{port}", _path(path, roots), file.written.span)


def _given_overrides(use: JobUse) -> str:
    """The key of the pipeline's input that a job's overrides are bound to; empty if they are bound to none."""
    port = use.step_settings.call.port_of(OVERRIDES) if use.step_settings is not None else None
    value = use.input(port) if port is not None else None
    return value.key if isinstance(value, Known) else ""


def _other_keys(use: JobUse, store: DocumentStore) -> Iterator[Setting]:
    """Yield what the job, else its component's file, says under keys that the model does not have."""
    in_pipeline = store.peek(use.job.key_span.file)
    node = in_pipeline.root.find("jobs", use.job.name)
    said = [(node.data if node is not None and node.is_mapping else {}, use.job.key_span)]
    component = code_of(use.job.component)
    if component is not None and component.file != use.job.key_span.file:
        said.append((store.peek(component.file).data, component.span))
    resolved = _RESOLVED_OF_JOB if component is not None else _RESOLVED_OF_KEPT_JOB
    known: set[str] = set()
    for data, span in said:
        others = {key: each for key, each in data.items() if key not in _NAMES | resolved | known}
        known |= data.keys()
        yield from (Setting(use.name, key, text, span) for key, text in _leaves(others))


def _values(job: str, key: str, resolved: Resolved | None, roots: Sequence[Path]) -> Iterator[Setting]:
    """Yield a value; JSON in a string, and a file of settings, by the keys within."""
    if resolved is None:
        return
    if isinstance(resolved, Unknown):
        yield Setting(job, key, "not known before it runs", resolved.span)
    if not isinstance(resolved, Known) or resolved.value is None:
        return
    value, place = resolved.value, resolved.written.span
    source = resolved.key if job and resolved.key.startswith("inputs.") else ""
    if isinstance(value, JobOutput):
        yield Setting(job, key, f"output {value.port} of {value.job}", place)
        return
    if isinstance(value, PipelineOutput):
        yield Setting(job, key, f"output {value.name} of the pipeline", place)
        return
    if isinstance(value, DataPath):
        file = place.file.parent / value.text
        texts = {"": _path(file, roots) if file.exists() else value.text}
        texts |= {f".{inner}": text for inner, text in _leaves(_content(file))}
    else:
        data = _json_object(value) if isinstance(value, str) else None
        texts = {f".{inner}": text for inner, text in _leaves(data)} if data is not None else {"": as_text(value)}
    for ending, text in texts.items():
        yield Setting(job, key + ending, text, place, source + ending if source else "")


def _environment(job: str, environment: Environment | None, roots: Sequence[Path]) -> Iterator[Setting]:
    if environment is None:
        return
    texts = {"": environment.reference, ".image": environment.image}
    if environment.conda_file is not None:
        texts[".conda_file"] = _path(environment.conda_file, roots)
        texts |= {f".conda_file.{key}": text for key, text in _leaves(_content(environment.conda_file))}
    if environment.build_path is not None:
        texts[".build"] = _path(environment.build_path, roots)
        for file in sorted(environment.build_path.rglob("*")) if is_within_root(environment.build_path) else ():
            if file.is_file() and is_within_root(file):
                texts[f".build.{file.relative_to(environment.build_path).as_posix()}"] = _fingerprint(file)
    for key, text in texts.items():
        if text:
            yield Setting(job, f"environment{key}", text, environment.span)


def _fingerprint(file: Path) -> str:
    """Return a short digest of a file's lines, without those of comments."""
    lines = [line for line in read_bytes(file).splitlines() if not line.lstrip().startswith(b"#")]
    digest = hashlib.sha256(b"\n".join(lines)).hexdigest()
    return f"content {digest[:8]}"


def _content(file: Path) -> dict[str, Any] | None:
    """Return what a file of settings holds; None for data, and for what cannot be read."""
    if file.suffix not in (".json", ".yaml", ".yml") or not file.is_file():
        return None
    if file.stat().st_size > _LARGEST_DATA_BYTES:
        return None
    try:
        content = DocumentStore().read(file).data
    except SpecError:
        return None
    return {k: v for k, v in content.items() if k != _HEADER_KEY} if isinstance(content, dict) else None


def _json_object(text: str) -> dict[str, Any] | None:
    if not text.lstrip().startswith("{"):
        return None
    try:
        data: dict[str, Any] = json.loads(text)
    except ValueError:
        return None
    return data


def _leaves(data: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    """Return the values of nested mappings as text, by their dotted keys; a list is one value."""
    return ((key, as_text(each)) for key, each in leaves_of(data or {}) if each is not None)


def _path(path: Path, roots: Sequence[Path]) -> str:
    absolute = Path(os.path.abspath(path))
    root = next((root for root in roots if absolute.is_relative_to(root)), None)
    return absolute.relative_to(root).as_posix() if root is not None else str(absolute)
