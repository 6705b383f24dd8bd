"""Each planted mistake is found once, on its line and column, with a hint that mends it; clean files are silent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest

from trainyard.lint.linter import lint
from trainyard.lint.schema_checks import bundled_schema, check_schema
from trainyard.spec.diagnostic import SpecError
from trainyard.spec.documents import read_document
from trainyard.spec.kinds import kind_of

REPOSITORY = Path(__file__).parents[2]


def test_the_clean_project_is_silent(project: Path) -> None:
    result = lint([project])
    assert result.diagnostics == ()
    assert result.files_checked == 5


def test_a_mistake_is_found_where_it_was_made(mistake: Any, project: Path) -> None:
    file, line, column = mistake.plant(project)
    found = lint([project]).diagnostics
    (hit,) = [d for d in found if d.rule == mistake.rule]
    span = hit.related[0].span if mistake.at_related else hit.span
    assert (span.file, span.line, span.column) == (file, line, column)
    assert mistake.hint in hit.hint
    assert mistake.message in hit.message
    assert "\n" not in hit.message
    assert {d.rule for d in found} - {mistake.rule} <= set(mistake.others)


def test_the_reference_validator_agrees(mistake: Any, project: Path) -> None:
    file, _, _ = mistake.plant(project)
    try:
        document = read_document(file)
    except SpecError:
        # What is no YAML, no validator sees.
        assert mistake.rule == "AML002"
        return
    kind = kind_of(document)
    assert kind is not None
    schema = bundled_schema({"pipeline_component": "component"}.get(kind, kind))
    reference = jsonschema.Draft202012Validator(schema).is_valid(document.data)
    assert reference == (not list(check_schema(document, kind)))


@pytest.mark.parametrize("name", ["component", "pipeline", "command_job", "environment", "compute", "common"])
def test_a_schema_is_valid_and_speaks_to_editors(name: str) -> None:
    schema = bundled_schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["title"]
    assert schema["description"]


def test_the_repository_is_clean() -> None:
    folders = [REPOSITORY / name for name in ("components", "pipelines", "environments", "compute", "profiles")]
    existing = [folder for folder in folders if folder.is_dir()]
    assert existing, "the repository has its rendered files"
    result = lint(existing)
    assert result.diagnostics == ()
    assert result.files_checked >= 5
