"""Settings of the linter in pyproject.toml and .trainyard.toml: what they change, and how mistakes in them are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard.lint.config import LintSettings, WrongSettings, settings_for
from trainyard.lint.linter import lint
from trainyard.lint.rules import RULES


def settings_of(folder: Path, text: str, name: str = "pyproject.toml") -> LintSettings:
    (folder / name).write_text(text, encoding="utf-8")
    return settings_for([folder], RULES)


def test_without_a_file_nothing_is_changed(tmp_path: Path) -> None:
    assert settings_for([tmp_path], RULES) == LintSettings()
    assert settings_of(tmp_path, "[project]\nname = 'x'\n") == LintSettings()
    assert settings_of(tmp_path, "[tool.trainyard]\n") == LintSettings()
    assert not LintSettings().excludes(tmp_path)


def test_all_that_can_be_said(tmp_path: Path) -> None:
    text = """
[tool.trainyard.lint]
exclude = ["examples/", "*.gen.yaml"]
baseline = "known/lint.json"
severity = {AML101 = "warning", AML206 = "off"}
[tool.trainyard.lint.computes]
gpu-cluster = "Standard_ND96asr_v4"
"""
    settings = settings_of(tmp_path, text)
    assert settings.file == tmp_path / "pyproject.toml"
    assert settings.severity == {"AML101": "warning", "AML206": "off"}
    assert settings.computes == {"gpu-cluster": "Standard_ND96asr_v4"}
    assert settings.baseline == tmp_path / "known" / "lint.json"
    assert settings.excludes(tmp_path / "examples" / "a.yaml")
    assert settings.excludes(tmp_path / "deep" / "a.gen.yaml")
    assert not settings.excludes(tmp_path / "a.yaml")
    assert not settings.excludes(Path("/elsewhere/examples/a.yaml"))


def test_a_file_of_our_own_says_the_same_and_comes_first(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.trainyard.lint.severity]\nAML101 = 'off'\n")
    for table in ("lint", "tool.trainyard.lint"):
        settings = settings_of(tmp_path, f"[{table}.severity]\nAML101 = 'info'\n", ".trainyard.toml")
        assert settings.severity == {"AML101": "info"}


def test_the_nearest_upwards_is_taken(tmp_path: Path) -> None:
    settings_of(tmp_path, "[tool.trainyard.lint.severity]\nAML101 = 'info'\n")
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "a" / "pyproject.toml").write_text("[tool.other]\n")
    assert settings_for([inner / "x.yaml", inner / "y.yaml"], RULES).severity == {"AML101": "info"}
    (tmp_path / "a" / "pyproject.toml").write_text("[tool.trainyard.lint.severity]\nAML101 = 'off'\n")
    assert settings_for([inner], RULES).severity == {"AML101": "off"}
    # What paths have in common decides.
    assert settings_for([inner, tmp_path / "c"], RULES).severity == {"AML101": "info"}


def test_without_paths_the_working_directory_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings_of(tmp_path, "[tool.trainyard.lint]\nbaseline = 'b'\n")
    monkeypatch.chdir(tmp_path)
    assert settings_for([], RULES).baseline == tmp_path / "b"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[tool.trainyard.lint]\nexcludes = []\n", ["unknown key 'excludes'", "Did you mean 'exclude'?"]),
        ("[tool.trainyard.lint]\nstrict = true\n", ["unknown key 'strict'", "Known keys: severity, exclude"]),
        (
            "[tool.trainyard.lint.severity]\nAML10 = 'off'\n",
            ["unknown rule 'AML10'", "mean AML010 or AML101 or"],
        ),
        (
            "[tool.trainyard.lint.severity]\nAML101 = 'of'\n",
            ["must be error,", "not 'of'", "Did you mean 'off'?"],
        ),
        ("[tool.trainyard.lint.severity]\nAML101 = false\n", ["severity: 'AML101' must be a string, not False"]),
        ("[tool.trainyard.lint]\nseverity = 'off'\n", ["'severity' must be a table of names and values, not 'off'"]),
        ("[tool.trainyard.lint]\nexclude = 'a'\n", ["'exclude' must be a list of patterns, not 'a'", "Write `exclude"]),
        ("[tool.trainyard.lint]\nexclude = [3]\n", ["'exclude' must be a list of patterns"]),
        ("[tool.trainyard.lint]\nbaseline = 3\n", ["'baseline' must be the name of a file, not 3"]),
        ("[tool.trainyard.lint]\ncomputes = [3]\n", ["'computes' must be a table"]),
        ("[tool.trainyard]\nlint = 3\n", ["'tool.trainyard.lint' must be a table, not 3"]),
        ("[tool.trainyard]\nlint = [\n", ["not valid TOML"]),
    ],
)
def test_an_error_names_file_key_and_fix(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(WrongSettings) as wrong:
        settings_of(tmp_path, text)
    for word in (str(tmp_path / "pyproject.toml"), *words):
        assert word in str(wrong.value)
    assert wrong.value.exit_code == 2


def test_errors_in_trainyard_toml(tmp_path: Path) -> None:
    with pytest.raises(WrongSettings, match=r"unknown key 'severity'\. Lint settings belong under \[lint\]"):
        settings_of(tmp_path, "[severity]\n", ".trainyard.toml")
    with pytest.raises(WrongSettings, match="are present"):
        settings_of(tmp_path, "[lint]\n[tool.trainyard.lint]\n", ".trainyard.toml")
    (tmp_path / ".trainyard.toml").write_bytes(b"\xff")
    with pytest.raises(WrongSettings, match="not UTF-8"):
        settings_for([tmp_path], RULES)


def test_a_pyproject_of_others_need_not_be_toml(tmp_path: Path) -> None:
    assert settings_of(tmp_path, "[broken\n") == LintSettings()


def test_files_in_the_working_directory_are_named_from_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WrongSettings, match=r"^pyproject\.toml: unknown"):
        settings_of(tmp_path, "[tool.trainyard.lint]\nx = 1\n")


def test_severities_are_what_the_project_wants(project: Path) -> None:
    train = project / "components" / "train.yaml"
    train.write_text(train.read_text().replace("is_deterministic", "is_determinstic"))
    (found,) = lint([train], LintSettings(severity={"AML101": "info"})).diagnostics
    assert (found.rule, found.severity) == ("AML101", "info")
    assert lint([train], LintSettings(severity={"AML101": "off"})).diagnostics == ()


def test_a_rule_that_is_off_leaves_its_ignores_alone(project: Path) -> None:
    train = project / "components" / "train.yaml"
    train.write_text(train.read_text().replace("is_deterministic", "# trainyard: ignore[AML101]\nis_determinstic"))
    assert lint([train], LintSettings(severity={"AML101": "off"})).diagnostics == ()


def test_excluded_files_are_not_checked_whoever_names_them(project: Path) -> None:
    train = project / "components" / "train.yaml"
    train.write_text(train.read_text().replace("is_deterministic", "is_determinstic"))
    settings = LintSettings(project / "pyproject.toml", exclude=("components/train.yaml",))
    result = lint([project], settings)
    assert (result.diagnostics, len(result.files)) == ((), 4)
    assert lint([project / "pipelines" / "digits.yaml"], settings).diagnostics == ()
    assert lint([train], settings).files == ()
