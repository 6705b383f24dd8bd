"""The schemas of settings files: an editor accepts what a step accepts, and underlines what it refuses."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from trainyard.settings.step_fields import StepField
from trainyard.settings.steps import STEP_CONFIGS
from trainyard.settings.steps.tasks import BUILT_IN_TASKS
from trainyard.settings.task_fields import step_fields
from trainyard.settings.written_settings import has_settings_file, keys_of_file

ROOT = Path(__file__).parents[3]
STEPS = [step for step, config in STEP_CONFIGS.items() if has_settings_file(step_fields(config))]


def schema_of(step: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((ROOT / "schemas" / "settings" / f"{step}.schema.json").read_text())
    return document


def problems(step: str, text: str) -> list[str]:
    validator = jsonschema.Draft202012Validator(schema_of(step))
    return [error.message for error in validator.iter_errors(yaml.safe_load(text))]


def test_they_are_generated() -> None:
    texts = runpy.run_path(str(ROOT / "docs" / "generate.py"))["settings_schemas"]()
    assert {file.name for file in (ROOT / "schemas" / "settings").iterdir()} == {file.name for file in texts}
    assert [file for file, text in texts.items() if file.read_text() != text] == []


@pytest.mark.parametrize("step", STEPS)
def test_each_is_self_contained_and_describes_every_setting(step: str) -> None:
    schema = schema_of(step)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert "$ref" not in json.dumps(schema)
    fields = keys_of_file(step_fields(STEP_CONFIGS[step]))
    assert schema["properties"].keys() == fields.keys()
    assert all(schema["properties"][name]["description"] == field.description for name, field in fields.items())


@pytest.mark.parametrize("step", STEPS)
def test_the_defaults_are_accepted(step: str) -> None:
    fields = keys_of_file(step_fields(STEP_CONFIGS[step])).values()
    assert problems(step, json.dumps({field.name: field.default for field in fields})) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing yet\n",
        "task: image_classification\nmodel_overrides: {hidden_sizes: [32, 64]}\naugmentation: shift\n",
        "task: preferences\nbeta: 0.2\nlearning_rate: 3e-4\nweight_decay: 1.\nadam_epsilon: 1e-8\n",
        "model_overrides: '{\"hidden_sizes\": [32]}'\nmax_steps:\n",
        "task: my_package.my_module:MyTask\nhidden_size: 64\nepochs: 3\n",
        "profile_steps: 3:5\ndata_weights: 3,1\n",
    ],
)
def test_what_is_accepted(text: str) -> None:
    assert problems("train_ddp", text) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("epoch: 3\n", "'epoch' is not one of"),
        ("task: language_modeling\naugmentation: shift\n", "'augmentation' is not one of"),
        ("task: preferences\nlabel_smoothing: 0.5\n", "0.5 is greater than the maximum of 0.499999"),
        ("task: language_modelling\n", "'language_modelling' is not valid"),
        ("epochs: many\n", "'many' is not of type 'integer'"),
        ("epochs: 0\n", "0 is less than the minimum of 1"),
        ("learning_rate: fast\n", "'fast' does not match"),
        ("precision: bf61\n", "'bf61' is not one of ['fp32', 'bf16', 'fp16']"),
        ("seed: {a: 1}\n", "is not of type 'integer'"),
        ("model_overrides: [1]\n", "[1] is not of type 'object', 'string', 'null'"),
        ("- epochs\n", "['epochs'] is not of type 'object', 'null'"),
        ("task: my_module:MyTask\nepochs: 0\n", "0 is less than the minimum of 1"),
    ],
)
def test_what_is_refused(text: str, problem: str) -> None:
    assert any(problem in found for found in problems("train_ddp", text)), problems("train_ddp", text)


@pytest.mark.parametrize("task", BUILT_IN_TASKS)
def test_a_task_decides_which_keys_there_are(task: str) -> None:
    def of(name: str) -> dict[str, StepField]:
        return {field.name: field for field in step_fields(BUILT_IN_TASKS[name])}

    foreign = {name for other in BUILT_IN_TASKS for name in of(other)} - set(of(task))
    defaults = {name: field.default for name, field in of(task).items()}
    assert problems("train_fsdp", json.dumps({"task": task, **defaults})) == []
    for name in foreign:
        assert problems("train_fsdp", json.dumps({"task": task, name: 0})), name


def test_tensorflow_has_no_tasks() -> None:
    assert problems("train_tensorflow", "strategy: parameter_server\nlabel_smoothing: 0.1\n") == []
    assert problems("train_tensorflow", "task: image_classification\n")
