"""Declared inputs and outputs: of components, of pipelines, and of jobs that hold their own command."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainyard.project_files import text_or_empty, yaml_files
from trainyard.settings.regex import regex
from trainyard.spec.diagnostic import Related, Span
from trainyard.spec.documents import Entry, Node
from trainyard.spec.model import PARAMETER_TYPES, PORT_TYPES, Port
from trainyard.spec.parsed import DATA_NOT_FOUND, Reading, is_address, is_there
from trainyard.spec.rule import Rule
from trainyard.spec.rules import NAME_CLASH, RESERVED_NAME

RUN_OUTPUT_NOT_FOUND = Rule("AML424", "run-output-not-found", "info").explained(
    summary="An input names the output of a local run that does not exist on this machine.",
    why="`.trainyard/runs/NAME/jobs/JOB/outputs/` is written by `trainyard run FILE --name NAME`, for a FILE with that "
    "job. Until then a run of this file ends before its first job. The hint names the pipeline beside this one that "
    "has the job.",
)

DEFAULT_PORT_TYPE = "uri_folder"
# Of a port whose type is missing or mistyped: it is declared all the same, and no literal is held against it.
UNKNOWN_TYPE = ""
# `path` is what SDK v1 called a folder; the client still takes it in components.
_LEGACY_TYPES = {"path": DEFAULT_PORT_TYPE}
# Azure ML sets each output's path as an environment variable of the output's bare name, and so refuses these in any
# case: https://learn.microsoft.com/azure/machine-learning/reference-yaml-component-command
_RESERVED_OUTPUT_NAMES = frozenset({"path", "home", "user", "pwd", "shell", "logname", "ld_library_path"})
_OUTPUT_OF_RUN = regex(r"(?P<root>.*)/\.trainyard/runs/(?P<name>[^/]+)/jobs/(?P<job>[^/]+)/outputs/")
_RENDERED_ASIDE = regex(r"/\.trainyard/rendered/([^/]+)/")
# What the client reads as a default that is not there.
_NO_DEFAULT = (None, math.inf, -math.inf)
_TYPE_BY_CLASS: dict[type, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}


def component_ports(mapping: Node | None, reading: Reading) -> dict[str, Port]:
    """The ports of a component's `inputs:` or `outputs:`."""
    ports: dict[str, Port] = {}
    for name, entry in _named(mapping, reading):
        if reading.findings.mapping(entry.value) is None:
            reading.findings.left_out = True
            ports[name] = Port(name, UNKNOWN_TYPE, entry.key.span, entry.value.span)
        else:
            ports[name] = _declared_port(name, entry, "", reading)
            _check_own_limits(ports[name], reading)
    return ports


def pipeline_inputs(mapping: Node | None, reading: Reading) -> dict[str, Port]:
    """The inputs of a pipeline job or command job: literals, or data with a path. A value becomes the default."""
    return {name: _port_with_value(name, entry, reading) for name, entry in _named(mapping, reading)}


def job_outputs(mapping: Node | None, reading: Reading) -> dict[str, Port]:
    """The outputs of a pipeline job or command job. An empty one is a folder."""
    ports: dict[str, Port] = {}
    for name, entry in _named(mapping, reading):
        node = entry.value
        if node.is_mapping:
            ports[name] = _declared_port(name, entry, DEFAULT_PORT_TYPE, reading)
        else:
            is_valid = node.data is None or (node.is_text and "${{" in node.text)
            reading.findings.left_out |= not is_valid
            ports[name] = Port(name, DEFAULT_PORT_TYPE if is_valid else UNKNOWN_TYPE, entry.key.span, node.span)
    return ports


def check_output_names(outputs: Mapping[str, Port], reading: Reading) -> None:
    """Report outputs of a command that are named like variables that every process needs."""
    for name, port in outputs.items():
        if name.lower() in _RESERVED_OUTPUT_NAMES:
            message = f"an output '{name}' would replace the variable {name.upper()} of the job's processes"
            hint = f"Rename it, for example to '{name}_output'."
            reading.findings.add(RESERVED_NAME.at(port.key_span, message, hint=hint))


def literal_type(data: Any) -> str:
    """The parameter type of an untyped literal."""
    return _TYPE_BY_CLASS.get(type(data), "string")


def _named(mapping: Node | None, reading: Reading) -> Iterator[tuple[str, Entry]]:
    """Names with their entries; names that differ only by case, or are those of others' groups, are reported."""
    by_lowered: dict[str, tuple[str, Span]] = {}
    for name, entry in reading.findings.entries(mapping).items():
        span = entry.key.span
        earlier = by_lowered.setdefault(name.lower(), (name, span))
        if earlier[0] != name:
            message = f"'{name}' and '{earlier[0]}' differ only by case, which Azure ML ignores"
            related = (Related(earlier[1], f"'{earlier[0]}' is here"),)
            reading.findings.add(NAME_CLASH.at(span, message, hint="Rename one.", related=related))
        for place, letter in enumerate(name):
            if letter == "." and name[:place] in reading.findings.entries(mapping):
                message = f"'{name}' is in the group '{name[:place]}', which Azure ML's client takes for one input"
                reading.findings.add(NAME_CLASH.at(span, message, hint="Rename one."))
        yield name, entry


def _port_with_value(name: str, entry: Entry, reading: Reading) -> Port:
    node = entry.value
    if isinstance(node.data, list):
        reading.findings.left_out = True
        return Port(name, UNKNOWN_TYPE, entry.key.span, node.span)
    if not node.is_mapping:
        default = node.value if node.data is not None else None
        return Port(name, literal_type(node.data), entry.key.span, node.span, default=default)
    given = node.get("value")
    is_data = given is None and node.get("default") is None
    fallback_type = DEFAULT_PORT_TYPE if is_data else literal_type(given.data if given is not None else None)
    port = _declared_port(name, entry, fallback_type, reading)
    _check_own_limits(port, reading)
    return port


def _declared_port(name: str, entry: Entry, fallback_type: str, reading: Reading) -> Port:
    """A port from its keys; `fallback_type` is what it is without a `type`, empty where it has to have one."""
    findings, node = reading.findings, entry.value
    port_type = findings.text(node, "type")
    if fallback_type:
        # Where a type can be left out, in jobs, the client takes it in any case.
        port_type = port_type.lower() or fallback_type
    port_type = _LEGACY_TYPES.get(port_type, port_type)
    if port_type not in (*PORT_TYPES, *PARAMETER_TYPES):
        findings.left_out = True
        port_type = UNKNOWN_TYPE
    default = node.get("value") or node.get("default")
    path = findings.string(node.get("path"))
    choices = findings.items(node.get("enum"))
    return Port(
        name=name,
        type=port_type,
        key_span=entry.key.span,
        span=node.span,
        default=default.value if default is not None and default.data not in _NO_DEFAULT else None,
        optional=findings.boolean(node, "optional", default=False),
        minimum=findings.scalar(node, "min"),
        maximum=findings.scalar(node, "max"),
        choices=tuple(item.value for item in choices) or None,
        description=findings.text(node, "description"),
        mode=findings.text(node, "mode") or None,
        path=path.value if path is not None else None,
    )


def job_ports(node: Node, reading: Reading) -> tuple[dict[str, Port], dict[str, Port]]:
    """The inputs and outputs of a standalone job; a local path that does not exist is reported."""
    inputs = pipeline_inputs(node.get("inputs"), reading)
    for entry in node.entries_of("inputs").values():
        check_input_path(entry.value, reading)
    return inputs, job_outputs(node.get("outputs"), reading)


def check_input_path(node: Node, reading: Reading, what: str = "the data of this input") -> None:
    """Report a local `path:` that does not exist. With ':' or '@' the client takes it for an address or an asset."""
    path = node.find_text("path")
    if path is None or not path.text or is_address(path.text) or set(path.text) & set(":@"):
        return
    run = _OUTPUT_OF_RUN.match(reading.path(path.text).as_posix())
    if run is None or is_there(reading.path(path.text), folder=None):
        reading.existing(path, DATA_NOT_FOUND, what)
        return
    root, name, job = Path(run["root"]), run["name"], run["job"]
    files = [file for file in yaml_files(root / "pipelines") if f"\n  {job}:\n" in text_or_empty(file)]
    pipeline = files[0].relative_to(root).as_posix() if files else "FILE"
    aside = _RENDERED_ASIDE.search(reading.file.as_posix())
    profile = f" --profile {aside[1]}" if aside is not None else ""
    message = f"this is the output of job '{job}' of the local run '{name}', which does not exist"
    hint = f"`trainyard run {pipeline}{profile} --name {name}` makes it."
    reading.findings.add(RUN_OUTPUT_NOT_FOUND.at(path.span, message, hint))


def _check_own_limits(port: Port, reading: Reading) -> None:
    if port.default is not None:
        reading.findings.check_literal(port.default, port, declared_elsewhere=False)
