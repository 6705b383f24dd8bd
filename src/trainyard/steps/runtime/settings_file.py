"""The settings file and the overrides of a step, as they are written: no key or value is judged here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.settings.files import describe_os_error
from trainyard.settings.written_settings import value_of_plain_scalar

if TYPE_CHECKING:
    import yaml

OVERRIDES_ORIGIN = "overrides"


class SettingsError(ValueError):
    """What is wrong with a settings file or with overrides, in one line that begins with where."""


@dataclass(frozen=True)
class YamlSetting:
    """A setting as it is written: its value, not judged yet, and where."""

    data: object
    """What YAML 1.2 makes of it."""
    text: str
    """A scalar as it was typed, without quotes."""
    origin: str
    """Where it is written: `settings/ddp.yaml:7`, or `overrides`."""


def read_settings_file(file: Path) -> dict[str, YamlSetting]:
    """Return the values of a settings file by their keys. SettingsError if it is not a mapping, or cannot be read."""
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except OSError as failure:
        raise SettingsError(f"--settings: {describe_os_error(failure)}") from None
    except UnicodeDecodeError as failure:
        raise SettingsError(f"--settings: {file} is not UTF-8: {failure.reason}") from None
    return _read_mapping(text, file)


def read_overrides(text: str) -> dict[str, YamlSetting]:
    """Return the values of overrides by their keys; an empty string has none. SettingsError unless it is a mapping."""
    if "'" in text:
        raise SettingsError("overrides: an apostrophe would end the command's quotes; quote with double quotes instead")
    return _read_mapping(text, None)


def short_name(file: Path) -> str:
    """Return a name for a settings file that a person knows: an absolute path is that of a mount."""
    return "/".join(file.parts[-2:]) if file.is_absolute() else str(file)


def _read_mapping(text: str, file: Path | None) -> dict[str, YamlSetting]:
    try:
        import yaml
    except ModuleNotFoundError:
        raise SettingsError("reading settings needs the package pyyaml: pip install pyyaml") from None
    try:
        node = yaml.compose(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader))
    except yaml.MarkedYAMLError as failure:
        problem = " ".join(filter(None, (failure.context, failure.problem)))
        mark = failure.problem_mark or failure.context_mark
        raise SettingsError(f"{_origin(file, mark)}: invalid YAML: {problem}") from None
    except yaml.YAMLError as failure:
        raise SettingsError(f"{_origin(file, None)}: invalid YAML: {failure}") from None
    if node is None:
        return {}
    if not isinstance(node, yaml.MappingNode):
        raise SettingsError(f"{_origin(file, node.start_mark)}: expected a mapping such as {{epochs: 3}}")
    return {
        name: YamlSetting(_data(value, file), _text(value), _origin(file, key.start_mark))
        for name, (key, value) in _members(node, file).items()
    }


def _members(node: yaml.MappingNode, file: Path | None) -> Mapping[str, tuple[yaml.Node, yaml.Node]]:
    """Return the nodes of a mapping's keys and values by name. None may occur twice."""
    members: dict[str, tuple[yaml.Node, yaml.Node]] = {}
    for key, value in node.value:
        where = _origin(file, key.start_mark)
        name = _text(key)
        if not name:
            raise SettingsError(f"{where}: expected a name as the key")
        if name in members:
            first = members[name][0].start_mark.line + 1
            raise SettingsError(f"{where}: {name} is given twice" + (f", also in line {first}" if file else ""))
        members[name] = key, value
    return members


def _data(node: yaml.Node, file: Path | None) -> object:
    """Return what YAML 1.2 makes of a node: PyYAML, which reads 1.1, takes 3e-4 for a string and `no` for false."""
    import yaml

    if isinstance(node, yaml.MappingNode):
        return {name: _data(value, file) for name, (_, value) in _members(node, file).items()}
    if isinstance(node, yaml.SequenceNode):
        return [_data(item, file) for item in node.value]
    is_quoted = bool(getattr(node, "style", None))
    return node.value if is_quoted else value_of_plain_scalar(node.value)


def _text(node: yaml.Node) -> str:
    return node.value if isinstance(node.value, str) else ""


def _origin(file: Path | None, mark: yaml.Mark | None) -> str:
    if file is None:
        return OVERRIDES_ORIGIN
    return short_name(file) if mark is None else f"{short_name(file)}:{mark.line + 1}"
