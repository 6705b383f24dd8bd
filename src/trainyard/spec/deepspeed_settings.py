"""The settings that DeepSpeed's configuration gives a step, with where each is written."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from trainyard.project_files import read_text
from trainyard.settings.deepspeed_configuration import (
    RENDERED_HEADER,
    ConfiguredSetting,
    configured_settings,
    in_json,
    refusals,
    value_of_configured,
)
from trainyard.settings.regex import regex
from trainyard.settings.step_fields import StepField
from trainyard.spec.diagnostic import Span
from trainyard.spec.documents import Document, Value, parse_document
from trainyard.spec.resolved import Known, Resolved, Unknown

_COMMENT = regex(r'("(?:[^"\\\n]|\\.)*")|(?://|#)[^\n]*|/\*.*?\*/', re.DOTALL)
_LAST_COMMA = regex(r'("(?:[^"\\\n]|\\.)*")|,(?=\s*[}\]])')


class DeepSpeedFile(NamedTuple):
    """A configuration file, and the settings that it gives; none where the step refuses it."""

    document: Document
    data: Mapping[str, Any]
    settings: Mapping[str, ConfiguredSetting]

    def span(self, path: str) -> Span:
        """Where a value such as `bf16.enabled` is written; of one that is left out, the section that it belongs to."""
        keys = path.split(".")
        while keys and self.document.root.find(*keys) is None:
            keys.pop()
        return self.document.node_at(keys).span

    def value(self, of: StepField, key: str) -> Resolved | None:
        """What the file says of a setting; None if it says nothing, or nothing that the step would take."""
        configured = self.settings.get(of.name)
        if configured is None:
            return None
        span = self.span(configured.path)
        if configured.value is None:
            return Unknown(f"{configured.path} and the number of processes give it", span)
        try:
            value = value_of_configured(of, configured)
        except ValueError:
            return None
        return Known(value, Value(value, span, in_json(configured.value)), key)


def read_json(file: Path, *, with_comments: bool = False) -> tuple[Any, Document]:
    """Read a JSON file, with where each value is. Raises OSError, RecursionError, or ValueError for anything else.

    `with_comments`: it may have comments and last commas, as a file that DeepSpeed itself reads, which it does with
    hjson. What else hjson takes, such as keys without quotes, is a ValueError too.
    """
    text = read_text(file, encoding="utf-8-sig")
    for pattern in (_COMMENT, _LAST_COMMA) if with_comments else ():
        text = pattern.sub(lambda found: found[1] or re.sub(r"[^\n]", " ", found[0]), text)
    # JSON is YAML, except for tabs between its tokens.
    return json.loads(text), parse_document(file, text.replace("\t", " "))


def read_deepspeed_file(file: Path) -> DeepSpeedFile | None:
    """Read a configuration; None if there is none, or it is not a JSON object."""
    try:
        data, document = read_json(file)
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    data.pop(RENDERED_HEADER, None)
    is_refused = any(refusals(data, precision=None, compiled=False))
    return DeepSpeedFile(document, data, {} if is_refused else configured_settings(data, world_size=None))
