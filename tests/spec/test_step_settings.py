"""The settings of a job that runs a step: each value, where it is from, and what `--set` makes of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from settings_project import change, write_project
from trainyard.errors import UsageError
from trainyard.plan.planner import plan
from trainyard.settings.step_fields import describe_field
from trainyard.settings.steps import STEP_CONFIGS
from trainyard.settings.task_fields import built_in_step_fields
from trainyard.spec.computes import Computes
from trainyard.spec.findings import DocumentStore
from trainyard.spec.loading import load_job
from trainyard.spec.resolution import JobUse, Resolution
from trainyard.spec.resolved import Known, Unknown
from trainyard.spec.set_inputs import resolve_with

MACHINE = {"gpus": "Standard_NC64as_T4_v3"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_project(tmp_path)


def training(file: Path, **set_to: str) -> JobUse:
    arguments = {f"inputs.{name}": text for name, text in set_to.items()}
    return resolve_with(load_job(file, strict=True), arguments).jobs["train"]


def value(use: JobUse, name: str) -> Any:
    found = use.setting(name)
    assert isinstance(found, Known), found
    return found.value


def place(use: JobUse, name: str) -> str:
    found = use.setting(name)
    assert isinstance(found, Known)
    span = found.written.span
    return f"{span.file.parent.name}/{span.file.name}:{span.line}:{span.column}"


@pytest.mark.parametrize("step", STEP_CONFIGS)
def test_steps_read_from_source_are_those_that_run(step: str) -> None:
    read = built_in_step_fields(step)
    assert read is not None
    hints = get_type_hints(STEP_CONFIGS[step])
    declared = dataclasses.fields(STEP_CONFIGS[step])
    described = zip(declared, read, strict=True)
    assert read == tuple(describe_field(each, hints[each.name], field.description) for each, field in described)


def test_each_value_is_typed_and_knows_where_it_is_written(file: Path) -> None:
    change(file, 'overrides: ""', 'overrides: "{weight_decay: 1e-4, compile: yes}"')
    use = training(file)
    assert (value(use, "learning_rate"), place(use, "learning_rate")) == (0.003, "settings/ddp.yaml:7:16")
    assert (value(use, "micro_batch_size"), place(use, "micro_batch_size")) == (16, "pipelines/ddp.yaml:4:21")
    assert (value(use, "weight_decay"), place(use, "weight_decay")) == (0.0001, "pipelines/ddp.yaml:5:30")
    assert (value(use, "compile"), place(use, "compile")) == (True, "pipelines/ddp.yaml:5:45")
    assert json.loads(value(use, "model_overrides")) == {"num_stages": 2, "hidden_sizes": [32, 64], "depths": [2, 2]}
    assert value(use, "keep_checkpoints") == 2
    assert place(use, "keep_checkpoints").startswith("steps/training.py:")
    assert value(use, "max_steps") is None
    assert value(use, "no_such_setting") is None
    assert use.settings["epochs"] == use.setting("epochs")


def test_constants_of_the_command_count(file: Path) -> None:
    component = file.parents[1] / "components" / "train.yaml"
    change(component, "$[[ --epochs ${{inputs.epochs}} ]]", "--epochs 7 --compile --weight-decay=0.5")
    use = training(file)
    assert (value(use, "epochs"), place(use, "epochs")) == (7, "components/train.yaml:12:12")
    assert value(use, "compile") is True
    assert value(use, "weight_decay") == 0.5


def test_numbers_within_mappings_are_those_of_yaml_1_2(file: Path) -> None:
    settings = file.parents[1] / "settings" / "ddp.yaml"
    change(settings, "depths: [2, 2]", 'layer_norm_eps: 1e-6, drop: no, name: "1e-6"')
    assert json.loads(value(training(file), "model_overrides")) == {
        "num_stages": 2,
        "hidden_sizes": [32, 64],
        "layer_norm_eps": 1e-6,
        "drop": "no",
        "name": "1e-6",
    }


@pytest.mark.parametrize("path", ["azureml:settings:1", "https://example.org/ddp.yaml"])
def test_a_file_elsewhere_leaves_unknown_what_is_not_bound(file: Path, path: str) -> None:
    change(file, "path: ../settings/ddp.yaml", f'path: "{path}"')
    use = training(file)
    epochs = use.setting("epochs")
    assert isinstance(epochs, Unknown)
    assert path in epochs.reason
    assert value(use, "micro_batch_size") == 16


def test_components_with_all_settings_as_ports_are_read_as_before(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text("""\
type: command
name: train
command: python trainyard/steps/train_fsdp.py --epochs ${{inputs.epochs}} --task '${{inputs.task}}'
environment: azureml:torch:3
inputs:
  epochs: {type: integer, default: 3}
  task: {type: string, default: language_modeling}
""")
    pipeline = tmp_path / "pipeline.yaml"
    pipeline.write_text(
        "type: pipeline\nsettings: {default_compute: azureml:gpus}\njobs:\n  train: {component: ./train.yaml}\n"
    )
    use = training(pipeline)
    assert (value(use, "epochs"), place(use, "epochs").rpartition("/")[2]) == (3, "train.yaml:6:36")
    assert value(use, "model_type") == "gpt2"


def test_plan_reads_the_settings_file(file: Path) -> None:
    (job,) = plan(load_job(file, strict=True), Computes(DocumentStore(), MACHINE)).jobs
    assert job.batch is not None
    assert (job.batch.micro_batch_size, job.batch.global_batch_size, job.batch.accumulation_steps) == (16, 64, 1)
    assert job.estimate is not None, job.estimate_reason
    change(file.parents[1] / "settings" / "ddp.yaml", "epochs: 16", "max_steps: 50")
    (job,) = plan(load_job(file, strict=True), Computes(DocumentStore(), MACHINE)).jobs
    assert job.steps == 50


def test_a_setting_that_is_no_input_becomes_an_override(file: Path) -> None:
    use = training(file, weight_decay="0.1", model_overrides="{depths: [1, 1]}", augmentation="shift")
    assert (value(use, "weight_decay"), value(use, "augmentation")) == (0.1, "shift")
    assert json.loads(value(use, "model_overrides")) == {"depths": [1, 1]}
    assert value(use, "epochs") == 16, "from the file, as before"
    given = use.input("overrides")
    assert isinstance(given, Known)
    assert given.value == "{weight_decay: 0.1, model_overrides: {depths: [1, 1]}, augmentation: shift}"


def test_what_overrides_have_already_stays(file: Path) -> None:
    change(file, 'overrides: ""', 'overrides: "{weight_decay: 0.2, best_metric: accuracy}"')
    given = training(file, weight_decay="0.1", stop_file="a b").input("overrides")
    assert isinstance(given, Known)
    assert given.value == '{weight_decay: 0.1, best_metric: accuracy, stop_file: "a b"}'
    assert value(training(file, overrides="{epochs: 2}", weight_decay="0.1"), "epochs") == 2


def test_a_port_that_the_pipeline_does_not_bind_is_set_alike(file: Path) -> None:
    use = training(file, epochs="1")
    assert value(use, "epochs") == 1
    by_job = resolve_with(load_job(file, strict=True), {"jobs.train.inputs.epochs": "2", "jobs.train.inputs.seed": "5"})
    assert (value(by_job.jobs["train"], "epochs"), value(by_job.jobs["train"], "seed")) == (2, 5)


def test_the_task_decides_which_settings_there_are(file: Path) -> None:
    use = training(file, beta="0.2", task="preferences")
    assert (value(use, "task"), value(use, "beta")) == ("preferences", 0.2)
    assert value(training(file, task="my_task:Mine", margin="0.25"), "margin") == 0.25


TRAIN_TWICE = """
  again:
    component: ../components/train.yaml
    inputs:
      data: {type: uri_folder, path: "azureml:digits:1"}
"""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"inputs.weight_decai": "0.1"}, ["the pipeline has no input 'weight_decai'", "'weight_decay'"]),
        ({"jobs.train.inputs.weight_decai": "0.1"}, ["the job 'train' has no input", "'weight_decay'"]),
        ({"jobs.trian.inputs.weight_decay": "0.1"}, ["unknown job 'trian'", "'train'"]),
        ({"inputs.weight_decay": "much"}, ["--set inputs.weight_decay=much", "expected a number"]),
        ({"inputs.label_smoothing": "2"}, ["above the maximum of 0.9"]),
        ({"inputs.augmentation": "shfit"}, ["did you mean shift"]),
        ({"inputs.stop_file": "it's"}, ["apostrophe"]),
        ({"inputs.model_overrides": "{depths: [2"}, ["--set inputs.model_overrides={depths: [2"]),
        ({"inputs.loss_chunk_tokens": "8"}, ["has no input 'loss_chunk_tokens'"]),
        ({"inputs.base_model": "m"}, ["Did you mean 'jobs.train.inputs.base_model'"]),
    ],
)
def test_what_names_no_setting_or_does_not_suit_it_is_refused(
    file: Path, arguments: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(UsageError) as refused:
        resolve_with(load_job(file, strict=True), arguments)
    for word in words:
        assert word in str(refused.value)


def test_a_setting_of_several_jobs_has_to_name_one(file: Path) -> None:
    file.write_text(file.read_text() + TRAIN_TWICE.lstrip("\n"))
    with pytest.raises(UsageError, match=r"jobs\.train\.inputs\.weight_decay or jobs\.again\.inputs\.weight_decay"):
        training(file, weight_decay="0.1")
    both = resolve_with(load_job(file, strict=True), {"jobs.again.inputs.weight_decay": "0.1"}).jobs
    assert [value(both[name], "weight_decay") for name in ("train", "again")] == [0.3, 0.1]


def test_what_a_sweep_draws_cannot_be_set(file: Path) -> None:
    sweep = """\
    type: sweep
    trial: ../components/train.yaml
    sampling_algorithm: random
    search_space:
      learning_rate: {type: loguniform, min_value: -7.6, max_value: -3.9}
    objective: {primary_metric: validation_accuracy, goal: maximize}
    limits: {max_total_trials: 2, max_concurrent_trials: 1}
"""
    change(file, "    component: ../components/train.yaml\n", sweep)
    drawn = training(file).setting("learning_rate")
    assert isinstance(drawn, Unknown)
    assert drawn.reason == "the sweep draws it"
    assert value(training(file, weight_decay="0.1"), "weight_decay") == 0.1
    with pytest.raises(UsageError, match="the sweep 'train' draws it; change its search_space"):
        training(file, learning_rate="0.1")


def test_a_standalone_job_has_settings_too(tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text("epochs: 5\n")
    job = tmp_path / "job.yaml"
    job.write_text("""\
type: command
command: python -m trainyard.steps.train_ddp --settings '${{inputs.settings}}' --overrides '${{inputs.overrides}}'
environment: azureml:torch:3
compute: azureml:gpus
inputs:
  settings: {type: uri_file, path: settings.yaml}
  overrides: "{seed: 3}"
""")
    use = Resolution(load_job(job)).jobs["job"]
    assert (value(use, "epochs"), value(use, "seed")) == (5, 3)
    changed = resolve_with(load_job(job), {"inputs.weight_decay": "0.1"}).jobs["job"]
    assert [value(changed, name) for name in ("epochs", "seed", "weight_decay")] == [5, 3, 0.1]
