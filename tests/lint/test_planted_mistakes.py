"""Each planted mistake is found once, on its line and column, with a hint that fixes it; clean files are silent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest

from trainyard.lint.config import LintSettings
from trainyard.lint.linter import lint
from trainyard.spec.documents import parse_document
from trainyard.spec.file_kinds import kind_of
from trainyard.spec.schema_checks import bundled_schema, check_schema, schema_of

REPOSITORY = Path(__file__).parents[2]


def test_a_clean_project_is_silent(clean_project: Path) -> None:
    result = lint([clean_project], LintSettings(pedantic=True))
    assert result.diagnostics == ()
    assert len(result.files) >= 5


PUBLIC_STYLE = Path(__file__).parent / "public_style"


@pytest.mark.parametrize("file", sorted(PUBLIC_STYLE.glob("*.yml")), ids=lambda file: file.stem)
def test_files_in_the_style_of_public_examples_have_no_error(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Conditions and loops are a private feature.
    monkeypatch.setenv("AZURE_ML_CLI_PRIVATE_FEATURES_ENABLED", "true")
    found = lint([file]).diagnostics
    assert [d for d in found if d.severity == "error"] == []


def test_a_mistake_is_found_where_it_was_made(mistake: Any, tmp_path: Path) -> None:
    project = mistake.copy_project(tmp_path)
    file, line, column = mistake.plant(project)
    found = lint([project], LintSettings(pedantic=True)).diagnostics
    hits = [d for d in found if d.rule == mistake.rule]
    assert len(hits) == mistake.count, found
    spans = [hit.span for hit in hits]
    places = {(span.file, span.line, column if mistake.at_column == "any" else span.column) for span in spans}
    assert (file, line, column) in places
    assert all(mistake.hint in hit.hint and mistake.message in hit.message for hit in hits), found
    assert not any("\n" in hit.message for hit in hits)
    assert {d.rule for d in found} - {mistake.rule} <= set(mistake.others)


def test_the_reference_validator_agrees(all_mistakes: list[Any]) -> None:
    held = 0
    for mistake in all_mistakes:
        if mistake.rule == "AML002" or not mistake.file.endswith(("yml", "yaml")):
            continue  # not YAML at all: no validator reads it
        document = parse_document(Path(mistake.file), mistake.texts()[mistake.file])
        kind = kind_of(document)
        name = schema_of(kind) if kind is not None else None
        if kind is None or name is None:
            continue
        reference = jsonschema.Draft202012Validator(bundled_schema(name)).is_valid(document.data)
        assert reference == (not list(check_schema(document, kind))), mistake.name
        held += 1
    assert held > 200


@pytest.mark.parametrize(
    "name", ["component", "pipeline", "command_job", "sweep_job", "schedule", "environment", "compute", "common"]
)
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
    assert len(result.files) >= 5
