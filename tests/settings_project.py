"""A project of one training job with few ports, for tests of settings files: pipeline, component, settings, code."""

from __future__ import annotations

from pathlib import Path

COMPONENT = """\
type: command
name: train
is_deterministic: true
command: >-
  python -m trainyard.steps.train_ddp
  --data '${{inputs.data}}'
  $[[ --base-model '${{inputs.base_model}}' ]]
  $[[ --settings '${{inputs.settings}}' ]]
  $[[ --overrides '${{inputs.overrides}}' ]]
  $[[ --task '${{inputs.task}}' ]]
  $[[ --model-type '${{inputs.model_type}}' ]]
  $[[ --epochs ${{inputs.epochs}} ]]
  $[[ --learning-rate ${{inputs.learning_rate}} ]]
  $[[ --micro-batch-size ${{inputs.micro_batch_size}} ]]
  $[[ --global-batch-size ${{inputs.global_batch_size}} ]]
  $[[ --precision '${{inputs.precision}}' ]]
code: ../src
environment: azureml:torch:3
inputs:
  data: {type: uri_folder}
  base_model: {type: custom_model, optional: true}
  settings: {type: uri_file, optional: true}
  overrides: {type: string, optional: true}
  task: {type: string, optional: true}
  model_type: {type: string, optional: true}
  epochs: {type: integer, optional: true, min: 1}
  learning_rate: {type: number, optional: true, min: 0}
  micro_batch_size: {type: integer, optional: true, min: 1}
  global_batch_size: {type: integer, optional: true, min: 1}
  precision: {type: string, optional: true, enum: [fp32, bf16, fp16]}
distribution: {type: pytorch, process_count_per_instance: 4}
resources: {instance_count: 1, shm_size: 16g}
"""
PIPELINE = """\
type: pipeline
settings: {default_compute: azureml:gpus}
inputs:
  micro_batch_size: 16
  overrides: ""
jobs:
  train:
    component: ../components/train.yaml
    inputs:
      data: {type: uri_folder, path: "azureml:digits:1"}
      settings: {type: uri_file, path: ../settings/ddp.yaml}
      overrides: ${{parent.inputs.overrides}}
      micro_batch_size: ${{parent.inputs.micro_batch_size}}
"""
SCHEMA = "# yaml-language-server: $schema=../schemas/settings/train_ddp.schema.json\n"
SETTINGS = """\
task: image_classification
model_type: convnext
model_overrides: {num_stages: 2, hidden_sizes: [32, 64], depths: [2, 2]}

epochs: 16
learning_rate: 3e-3
label_smoothing: 0.05
global_batch_size: 64
"""
OWN_TASK = """\
from dataclasses import dataclass

from trainyard.settings.step_fields import parameter
from trainyard.tasks import Task, TaskSettings


class Mine(Task):
    @dataclass(frozen=True, kw_only=True)
    class Settings(TaskSettings):
        margin: float = parameter(0.5, minimum=0.0, maximum=1.0)
        \"\"\"How far apart.\"\"\"
"""


def write_project(folder: Path) -> Path:
    """Write the project into a folder, and return the pipeline's file."""
    files = {
        "components/train.yaml": COMPONENT,
        "pipelines/ddp.yaml": PIPELINE,
        "settings/ddp.yaml": SCHEMA + SETTINGS,
        "src/my_task.py": OWN_TASK,
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder / "pipelines" / "ddp.yaml"


def change(file: Path, old: str, new: str) -> None:
    """Replace a text that a file has once."""
    text = file.read_text()
    assert text.count(old) == 1, f"{old!r} in {file.name}"
    file.write_text(text.replace(old, new))
