"""Settings files and overrides: what lint finds in them, on the line, alone and through the pipelines that use them."""

from __future__ import annotations

from pathlib import Path

import pytest

from settings_project import SCHEMA, SETTINGS, change, write_project
from trainyard.lint.config import LintSettings
from trainyard.lint.linter import LintResult, lint
from trainyard.plan.planner import plan
from trainyard.spec.computes import Computes
from trainyard.spec.diagnostic import Diagnostic, SpecError
from trainyard.spec.findings import DocumentStore
from trainyard.spec.loading import load_job

MACHINE = LintSettings(computes={"gpus": "Standard_NC64as_T4_v3"})


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write_project(tmp_path)
    return tmp_path


def check(file: Path) -> LintResult:
    return lint([file], MACHINE)


def only(file: Path) -> Diagnostic:
    (found,) = check(file).diagnostics
    return found


def text_at(found: Diagnostic) -> str:
    line = found.span.file.read_text().splitlines()[found.span.line - 1]
    return line[found.span.column - 1 : found.span.end_column - 1]


def test_a_pipeline_with_a_settings_file_is_clean_and_its_file_is_checked(project: Path) -> None:
    result = check(project / "pipelines" / "ddp.yaml")
    assert result.diagnostics == ()
    assert project / "settings" / "ddp.yaml" in result.files
    assert lint([project], MACHINE).diagnostics == ()


IN_FILE = {
    "a mistyped key": (
        "label_smoothing: 0.05", "label_smothing: 0.05", "AML340", "unknown key 'label_smothing'", "label_smothing"
    ),
    "a key of another task": (
        "label_smoothing: 0.05", "loss_chunk_tokens: 8", "AML340", "unknown key 'loss_chunk_tokens'",
        "loss_chunk_tokens",
    ),
    "data": ("label_smoothing: 0.05", "data: ./here", "AML340", "data is not in settings files", "data"),
    "a text for a number": ("learning_rate: 3e-3", "learning_rate: fast", "AML341", "expected a number", "fast"),
    "a fraction for a whole number": ("epochs: 16", "epochs: 1.5", "AML341", "expected a whole number", "1.5"),
    "a number that is too small": ("epochs: 16", "epochs: 0", "AML341", "below the minimum of 1", "0"),
    "a number that is too large": (
        "label_smoothing: 0.05", "label_smoothing: 5", "AML341", "above the maximum of 0.9", "5"
    ),
    "no choice": (
        "label_smoothing: 0.05", "augmentation: shfit", "AML341", "did you mean shift?", "shfit"
    ),
    "a mapping for a number": ("epochs: 16", "epochs: {a: 1}", "AML341", "expected a whole number", "{a: 1}"),
    "nothing": ("epochs: 16", "epochs:", "AML341", "got nothing", ""),
    "an unknown task": (
        "task: image_classification", "task: image_clasification", "AML341", "unknown task", "image_clasification"
    ),
    "an unknown model type": ("model_type: convnext", "model_type: convnxt", "AML323", "convnxt", "convnxt"),
    "an unknown setting of the model": ("depths: ", "depth: ", "AML324", "no setting 'depth'", "depth"),
    "a key twice": ("label_smoothing: 0.05", "epochs: 3", "AML007", "is written twice", "epochs"),
}  # fmt: skip


@pytest.mark.parametrize("case", IN_FILE)
@pytest.mark.parametrize("linted", ["pipelines/ddp.yaml", "settings/ddp.yaml"])
def test_what_the_step_would_refuse_of_its_settings_file(project: Path, case: str, linted: str) -> None:
    old, new, rule, message, at = IN_FILE[case]
    file = project / "settings" / "ddp.yaml"
    change(file, old, new)
    found = only(project / linted)
    assert (found.rule, found.span.file, text_at(found)) == (rule, file, at)
    assert message in f"{found.message}; {found.hint}"
    if linted.startswith("pipelines") and rule != "AML007":
        assert [each.span.file.name for each in found.related] == ["ddp.yaml"], "the job that uses the file is named"
        with pytest.raises(SpecError, match=message.split(";")[0].split("'")[0]):
            plan(load_job(project / linted, strict=True), Computes(DocumentStore(), MACHINE.computes))


def test_a_mistyped_key_is_corrected_if_asked(project: Path) -> None:
    change(project / "settings" / "ddp.yaml", "label_smoothing", "label_smothing")
    assert only(project / "settings" / "ddp.yaml").replacement == "label_smoothing"


def test_a_file_is_known_by_its_schema_or_by_the_job_that_uses_it(project: Path) -> None:
    file = project / "settings" / "ddp.yaml"
    file.write_text(SETTINGS.replace("epochs: 16", "epochs: 0"))
    assert only(project / "pipelines" / "ddp.yaml").rule == "AML341"
    assert [each.rule for each in lint([project], MACHINE).diagnostics] == ["AML341"]
    (unknown,) = check(file).diagnostics
    assert unknown.severity == "info", "alone, and without a schema, it could be anything"
    file.write_text(SCHEMA.replace("train_ddp", "train_dpp") + SETTINGS)
    assert "train_dpp" in only(file).message
    assert "train_ddp" in only(file).hint


def test_a_comment_ignores_a_finding_in_a_settings_file(project: Path) -> None:
    change(project / "settings" / "ddp.yaml", "epochs: 16", "epochs: 0  # trainyard: ignore[AML341] to see it fail")
    assert check(project / "pipelines" / "ddp.yaml").diagnostics == ()


def test_a_file_that_is_no_mapping(project: Path) -> None:
    (project / "settings" / "ddp.yaml").write_text(SCHEMA + "- epochs\n")
    assert only(project / "settings" / "ddp.yaml").rule == "AML006"


def test_settings_of_ones_own_task_come_from_the_code_of_the_component(project: Path) -> None:
    file = project / "settings" / "ddp.yaml"
    file.write_text(f"{SCHEMA}task: my_task:Mine\nmargin: 0.4\n")
    assert check(project / "pipelines" / "ddp.yaml").diagnostics == ()
    file.write_text(f"{SCHEMA}task: my_task:Mine\nmargin: 4\nmodel_type: vit\n")
    found = check(project / "pipelines" / "ddp.yaml").diagnostics
    assert [(each.rule, text_at(each)) for each in found] == [("AML341", "4"), ("AML340", "model_type")]
    assert check(file).diagnostics == (), "alone, nobody knows where the task is"


def test_a_missing_file_is_reported_once(project: Path) -> None:
    (project / "settings" / "ddp.yaml").rename(project / "settings" / "dpp.yaml")
    (found,) = lint([project / "pipelines" / "ddp.yaml"], LintSettings(pedantic=True)).diagnostics[-1:]
    assert (found.rule, found.hint) == ("AML344", "Did you mean 'dpp.yaml', in the same folder?")


def test_a_file_without_a_type_would_be_sent_as_a_folder(project: Path) -> None:
    change(project / "pipelines" / "ddp.yaml", "{type: uri_file, path: ../settings", "{path: ../settings")
    assert only(project / "pipelines" / "ddp.yaml").rule == "AML345"


def test_a_key_that_the_pipeline_binds_has_no_effect(project: Path) -> None:
    change(project / "settings" / "ddp.yaml", "epochs: 16", "epochs: 16\nmicro_batch_size: 8")
    found = only(project / "pipelines" / "ddp.yaml")
    assert (found.rule, text_at(found)) == ("AML342", "micro_batch_size")
    assert "16" in found.message
    assert [(each.span.file.parent.name, each.span.line) for each in found.related] == [("pipelines", 4)]


OVERRIDES = {
    "an apostrophe": ("\"{model_type: 'vit'}\"", "AML343", "apostrophe", None),
    "no YAML": ('"{epochs: 3"', "AML343", "not valid YAML", None),
    "no mapping": ('"epochs"', "AML343", "expected a mapping", None),
    "a key twice": ('"{epochs: 3, epochs: 4}"', "AML343", "is written twice", None),
    "an unknown key": ('"{epochs: 3, weight_decai: 0.1}"', "AML340", "did you mean weight_decay?", "weight_decai"),
    "a value that is refused": ('"{epochs: 0}"', "AML341", "below the minimum of 1", "0"),
}


@pytest.mark.parametrize("case", OVERRIDES)
def test_what_the_step_would_refuse_of_overrides(project: Path, case: str) -> None:
    text, rule, message, at = OVERRIDES[case]
    file = project / "pipelines" / "ddp.yaml"
    change(file, 'overrides: ""', f"overrides: {text}")
    # That an apostrophe breaks the command's quotes is true of every text.
    (found,) = [each for each in check(file).diagnostics if each.rule != "AML557"]
    assert (found.rule, found.span.file, found.span.line) == (rule, file, 5)
    assert message in f"{found.message}; {found.hint}".replace("Did", "did")
    if at is not None:
        assert text_at(found) == at


def test_overrides_beat_the_pipeline_and_its_settings_file(project: Path) -> None:
    change(project / "pipelines" / "ddp.yaml", 'overrides: ""', 'overrides: "{micro_batch_size: 15, epochs: 3}"')
    found = only(project / "pipelines" / "ddp.yaml")
    assert (found.rule, text_at(found)) == ("AML319", "64")
    assert found.span.file == project / "settings" / "ddp.yaml"
    assert "not a multiple of 15 micro" in found.message
    assert [each.span.line for each in found.related] == [5, 7], "the micro-batch, and the job"


def test_bf16_in_a_settings_file_is_held_against_the_machine(project: Path) -> None:
    change(project / "settings" / "ddp.yaml", "epochs: 16", "epochs: 16\nprecision: bf16")
    found = only(project / "pipelines" / "ddp.yaml")
    assert (found.rule, text_at(found)) == ("AML607", "bf16")
    assert found.span.file == project / "settings" / "ddp.yaml"


def test_a_sweep_draws_what_it_searches(project: Path) -> None:
    file = project / "pipelines" / "ddp.yaml"
    sweep = """\
    type: sweep
    trial: ../components/train.yaml
    sampling_algorithm: random
    search_space:
      learning_rate: {type: loguniform, min_value: -7.6, max_value: -3.9}
      global_batch_size: {type: choice, values: [64, 100]}
    objective: {primary_metric: validation_accuracy, goal: maximize}
    limits: {max_total_trials: 2, max_concurrent_trials: 1}
"""
    change(file, "    component: ../components/train.yaml\n", sweep)
    found = [(each.rule, text_at(each)) for each in check(file).diagnostics if each.rule != "AML620"]
    assert found == [
        ("AML319", "{type: choice, values: [64, 100]}"),
        ("AML342", "learning_rate"),
        ("AML342", "global_batch_size"),
    ]
