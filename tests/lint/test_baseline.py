"""A baseline: known findings stay silent wherever they move, new ones do not, and fixed ones are reported as stale."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainyard.lint.baseline import UnusableBaseline, read_baseline, write_baseline
from trainyard.lint.linter import lint
from trainyard.spec.diagnostic import Diagnostic


@pytest.fixture
def spoilt(project: Path) -> Path:
    """The project with two mistakes."""
    train = project / "components" / "train.yaml"
    train.write_text(train.read_text().replace("is_deterministic", "is_determinstic").replace("shm_size", "shm-size"))
    return project


def write(project: Path, *paths: Path) -> int:
    file = project / "lint-baseline.json"
    result = lint(paths or [project])
    previous = read_baseline(file) if file.exists() else None
    return write_baseline(file, result.diagnostics, result.files, previous)


def sift(project: Path, *paths: Path) -> list[Diagnostic]:
    result = lint(paths or [project])
    return read_baseline(project / "lint-baseline.json").new_findings(result.diagnostics, result.files)


def test_known_findings_are_silent(spoilt: Path) -> None:
    assert write(spoilt) == 2
    assert sift(spoilt) == []
    assert sift(spoilt, spoilt / "pipelines" / "digits.yaml") == []


def test_a_baseline_has_a_line_per_finding_for_reviews(spoilt: Path) -> None:
    write(spoilt)
    text = (spoilt / "lint-baseline.json").read_text()
    found = [json.loads(line.strip().rstrip(",")) for line in text.splitlines() if '"file"' in line]
    assert found == [
        {"file": "components/train.yaml", "rule": "AML101", "keys": "is_determinstic", "text": "is_determinstic"},
        {"file": "components/train.yaml", "rule": "AML101", "keys": "resources.shm-size", "text": "shm-size"},
    ]
    assert json.loads(text)["findings"] == found


def test_moved_lines_change_nothing(spoilt: Path) -> None:
    write(spoilt)
    train = spoilt / "components" / "train.yaml"
    train.write_text("# More\n\n" + train.read_text().replace("inputs:\n", "# and more\ninputs:\n"))
    assert sift(spoilt) == []


def test_new_findings_are_reported(spoilt: Path) -> None:
    write(spoilt)
    train = spoilt / "components" / "train.yaml"
    train.write_text(train.read_text().replace("display_name", "displayname"))
    (new,) = sift(spoilt)
    assert (new.rule, new.severity) == ("AML101", "error")
    assert "displayname" in new.message


def test_a_second_mistake_of_the_same_kind_is_new(spoilt: Path) -> None:
    pipeline = spoilt / "pipelines" / "digits.yaml"
    prepare = spoilt / "components" / "prepare.yaml"
    text = prepare.read_text()
    prepare.write_text(text.replace("${{inputs.seed}}", "${{inputs.sed}}"))
    write(spoilt)
    prepare.write_text(text.replace("${{inputs.seed}}", "${{inputs.sed}} ${{inputs.sed}}"))
    assert [each.rule for each in sift(spoilt, pipeline)] == ["AML206"]


def test_a_fixed_finding_is_reported_as_stale(spoilt: Path) -> None:
    write(spoilt)
    train = spoilt / "components" / "train.yaml"
    train.write_text(train.read_text().replace("shm-size", "shm_size"))
    (stale,) = sift(spoilt)
    assert (stale.rule, stale.severity) == ("AML803", "warning")
    assert (stale.span.file.name, stale.span.line) == ("lint-baseline.json", 5)
    assert stale.message == "AML101 no longer occurs in components/train.yaml at 'resources.shm-size'"
    assert write(spoilt) == 1
    assert sift(spoilt) == []


def test_beside_a_new_error_no_entry_is_called_stale(spoilt: Path) -> None:
    write(spoilt)
    train = spoilt / "components" / "train.yaml"
    train.write_text(train.read_text().replace("shm-size", "shm_size"))
    pipeline = spoilt / "pipelines" / "digits.yaml"
    pipeline.write_text(pipeline.read_text().replace("jobs:", "job:"))
    assert {each.rule for each in sift(spoilt)} == {"AML101"}


def test_entries_of_files_that_were_not_checked_stay(spoilt: Path) -> None:
    write(spoilt)
    prepare = spoilt / "components" / "prepare.yaml"
    assert sift(spoilt, prepare) == []
    assert write(spoilt, prepare) == 2
    (spoilt / "components" / "train.yaml").unlink()
    assert [each.rule for each in sift(spoilt, prepare)] == ["AML803", "AML803"]
    assert write(spoilt, prepare) == 0


def test_invalid_yaml_can_be_in_a_baseline(project: Path) -> None:
    (project / "components" / "broken.yaml").write_text("type: command\na: [")
    (project / "components" / "binary.yaml").write_bytes(b"type: command\n\0")
    assert write(project) == 2
    assert sift(project) == []


def test_unused_ignores_are_never_in_a_baseline(project: Path) -> None:
    train = project / "components" / "train.yaml"
    train.write_text(train.read_text() + "# trainyard: ignore[AML101]\n")
    assert write(project) == 0
    assert [each.rule for each in sift(project)] == ["AML801"]


def test_a_reformatted_baseline_still_works(spoilt: Path) -> None:
    write(spoilt)
    file = spoilt / "lint-baseline.json"
    file.write_text(json.dumps(json.loads(file.read_text())))
    assert sift(spoilt) == []
    (spoilt / "components" / "train.yaml").unlink()
    (spoilt / "pipelines" / "digits.yaml").unlink()
    assert {each.span.line for each in sift(spoilt)} == {1}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "no such file or directory. `trainyard lint --write-baseline` creates it."),
        ("{", "not valid JSON"),
        ("[]", r"unknown format \[\]"),
        ('{"format": "trainyard.lint-baseline/9"}', r"unknown format 'trainyard.lint-baseline/9'; expected"),
        ('{"format": "trainyard.lint-baseline/1"}', "'findings' must be a list"),
        (
            '{"format": "trainyard.lint-baseline/1", "findings": [{"file": "a"}]}',
            "finding 1 must be an object",
        ),
    ],
)
def test_an_invalid_baseline_is_rejected(tmp_path: Path, text: str | None, words: str) -> None:
    file = tmp_path / "b.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UnusableBaseline, match=words):
        read_baseline(file)


def test_a_relative_baseline_works_too(spoilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(spoilt)
    result, file = lint([spoilt]), Path("known.json")
    assert write_baseline(file, result.diagnostics, result.files, None) == 2
    assert write_baseline(file, result.diagnostics, result.files, read_baseline(file)) == 2
    stale = read_baseline(file).new_findings([], result.files)
    assert [(each.rule, each.span.line, each.span.column) for each in stale] == [("AML803", 4, 5), ("AML803", 5, 5)]


def test_files_are_known_from_the_baseline_however_deep_it_lies(spoilt: Path) -> None:
    file = spoilt / "a" / "b" / "c" / "known.json"
    file.parent.mkdir(parents=True)
    result = lint([spoilt])
    write_baseline(file, result.diagnostics, result.files, None)
    assert {identity.file for identity, _ in read_baseline(file).known} == {"../../../components/train.yaml"}
