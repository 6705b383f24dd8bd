"""Declared inputs and outputs: of components, of pipelines, and of jobs that hold their own command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainyard.spec.diagnostic import Related, Span
from trainyard.spec.documents import Node
from trainyard.spec.model import PARAMETER_TYPES, PORT_TYPES, Port, Value
from trainyard.spec.parsed import Reading, is_address
from trainyard.spec.rules.keys import NAME_CLASH, RESERVED_NAME
from trainyard.spec.rules.references import DATA_NOT_FOUND

DEFAULT_PORT_TYPE = "uri_folder"
# Of a port whose type is missing or mistyped: it is declared all the same, and no literal is held against it.
UNKNOWN_TYPE = ""
# `path` is what SDK v1 called a folder; the client still takes it in components.
_LEGACY_TYPES = {"path": DEFAULT_PORT_TYPE}
# Azure ML sets each output's path as an environment variable of the output's bare name, and so refuses these in any
# case: https://learn.microsoft.com/azure/machine-learning/reference-yaml-component-command
_RESERVED_OUTPUT_NAMES = frozenset({"path", "home", "user", "pwd", "shell", "logname", "ld_library_path"})
_TYPE_BY_CLASS: dict[type, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}


def component_ports(mapping: Node | None, reading: Reading) -> dict[str, Port]:
    """The ports of a component's `inputs:` or `outputs:`."""
    ports: dict[str, Port] = {}
    for name, key_span, node in _named(mapping, reading):
        if not node.is_mapping:
            reading.findings.left_out = True
            ports[name] = Port(name, UNKNOWN_TYPE, key_span, node.span)
            continue
        ports[name] = _declared_port(name, key_span, node, "", reading)
        _check_own_limits(ports[name], reading)
    return ports


def pipeline_inputs(mapping: Node | None, reading: Reading) -> dict[str, Port]:
    """The inputs of a pipeline job or command job: literals, or data with a path. A value becomes the default."""
    ports: dict[str, Port] = {}
    for name, key_span, node in _named(mapping, reading):
        ports[name] = _port_with_value(name, key_span, node, reading)
    return ports


def job_outputs(mapping: Node | None, reading: Reading) -> dict[str, Port]:
    """The outputs of a pipeline job or command job. An empty one is a folder."""
    ports: dict[str, Port] = {}
    for name, key_span, node in _named(mapping, reading):
        if node.is_mapping:
            ports[name] = _declared_port(name, key_span, node, DEFAULT_PORT_TYPE, reading)
        elif node.data is None or (node.is_text and "${{" in node.text):
            ports[name] = Port(name, DEFAULT_PORT_TYPE, key_span, node.span)
        else:
            reading.findings.left_out = True
    return ports


def check_output_names(outputs: Mapping[str, Port], reading: Reading) -> None:
    """Report outputs of a command that are named like variables that every process needs."""
    for name, port in outputs.items():
        if name.lower() in _RESERVED_OUTPUT_NAMES:
            message = f"an output '{name}' would replace the variable {name.upper()} of the job's processes"
            hint = f"Rename it, for example to '{name}_output'."
            reading.findings.add(port.key_span, RESERVED_NAME, message, hint=hint)


def literal_type(data: Any) -> str:
    """The parameter type of an untyped literal."""
    return _TYPE_BY_CLASS.get(type(data), "string")


def _named(mapping: Node | None, reading: Reading) -> list[tuple[str, Span, Node]]:
    """Names, their spans and their values; names that differ only by case are reported."""
    found = reading.findings.mapping(mapping)
    if found is None:
        return []
    by_lowered: dict[str, tuple[str, Span]] = {}
    named = []
    for name, entry in found.entries.items():
        span = entry.key.span
        earlier = by_lowered.setdefault(name.lower(), (name, span))
        if earlier[0] != name:
            message = f"'{name}' and '{earlier[0]}' differ only by case, which Azure ML ignores"
            related = (Related(earlier[1], f"'{earlier[0]}' is here"),)
            reading.findings.add(span, NAME_CLASH, message, hint="Rename one.", related=related)
        named.append((name, span, entry.value))
    return named


def _port_with_value(name: str, key_span: Span, node: Node, reading: Reading) -> Port:
    if isinstance(node.data, list):
        reading.findings.left_out = True
        return Port(name, UNKNOWN_TYPE, key_span, node.span)
    if not node.is_mapping:
        default = node.value if node.data is not None else None
        return Port(name, literal_type(node.data), key_span, node.span, default=default)
    given = node.get("value")
    fallback = (
        DEFAULT_PORT_TYPE
        if given is None and node.get("default") is None
        else literal_type(given.data if given is not None else None)
    )
    port = _declared_port(name, key_span, node, fallback, reading)
    _check_own_limits(port, reading)
    return port


def _declared_port(name: str, key_span: Span, node: Node, fallback_type: str, reading: Reading) -> Port:
    """A port from its keys; `fallback_type` is what it is without a `type`, empty where it has to have one."""
    findings = reading.findings
    type_value = findings.scalar(node, "type")
    if type_value is None or type_value.data is None:
        findings.left_out = findings.left_out or not fallback_type
        port_type = fallback_type or UNKNOWN_TYPE
    else:
        # Where a type can be left out, in jobs, the client takes it in any case.
        text = type_value.text.lower() if fallback_type else type_value.text
        port_type = _LEGACY_TYPES.get(text, text)
        if port_type not in (*PORT_TYPES, *PARAMETER_TYPES):
            findings.left_out = True
            port_type = UNKNOWN_TYPE
    default_node = node.get("value") or node.get("default")
    path = findings.scalar(node, "path")
    if path is not None:
        path = _checked_path(node, path, reading)
    return Port(
        name=name,
        type=port_type,
        key_span=key_span,
        span=node.span,
        default=default_node.value if default_node is not None and default_node.data is not None else None,
        optional=findings.boolean(node, "optional", default=False),
        minimum=findings.scalar(node, "min"),
        maximum=findings.scalar(node, "max"),
        choices=_choices(node, reading),
        description=findings.text(node, "description"),
        mode=findings.text(node, "mode") or None,
        path=path,
    )


def _checked_path(node: Node, path: Value, reading: Reading) -> Value | None:
    """A data path; None if it is not a text."""
    path_node = node.get("path")
    assert path_node is not None
    if path.data is None:
        return None
    if not path_node.is_text:
        reading.findings.left_out = True
        return None
    return path


def job_ports(node: Node, reading: Reading) -> tuple[dict[str, Port], dict[str, Port]]:
    """The inputs and outputs of a standalone job; a local path that does not exist is reported."""
    written = node.get("inputs")
    inputs = pipeline_inputs(written, reading)
    for entry in written.entries.values() if written is not None else ():
        check_input_path(entry.value, reading)
    return inputs, job_outputs(node.get("outputs"), reading)


def check_input_path(node: Node, reading: Reading) -> None:
    """Report an input's local path that does not exist."""
    path = node.get("path") if node.is_mapping else None
    if path is not None and path.is_text and path.text and not is_address(path.text):
        reading.existing(path, DATA_NOT_FOUND, "the data of this input")


def _choices(node: Node, reading: Reading) -> tuple[Value, ...] | None:
    choices = node.get("enum")
    if choices is None or choices.data is None:
        return None
    if not isinstance(choices.data, list):
        reading.findings.left_out = True
        return None
    return tuple(item.value for item in choices.items)


def _check_own_limits(port: Port, reading: Reading) -> None:
    if port.default is not None:
        reading.findings.check_literal(port.default, port, declared_elsewhere=False)
