"""JSON files as steps write and read them: readable, ending with a newline, and refused clearly when broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.file_errors import errors_name


def write_json(file: Path, document: Any) -> None:
    """Write a document, indented. Not atomic: a truncated JSON object is no JSON, so a half-written file is noticed."""
    with errors_name(file):
        file.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json_object(file: Path, expected_format: str) -> dict[str, Any]:
    """Read a JSON object whose `format` must be the expected one; StepError names the file and what is wrong."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as failure:
        raise StepError(f"{file} is not valid JSON: {failure}") from None
    found = document.get("format") if isinstance(document, dict) else None
    if found != expected_format:
        raise StepError(f"{file} has the format {found!r}; this version of Trainyard reads {expected_format!r}")
    assert isinstance(document, dict)
    return document
