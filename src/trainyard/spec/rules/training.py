"""Rules about the settings of Trainyard's own training steps: what the job itself would refuse."""

from __future__ import annotations

from trainyard.spec.rule import Example, Rule

BATCH_DOES_NOT_DIVIDE = Rule(
    "AML319",
    "batch-does-not-divide",
    "error",
    summary="A global batch size is not a multiple of micro-batch size × processes.",
    why="micro_batch_size × accumulation steps × processes = global_batch_size. The training step refuses sizes that "
    "do not multiply out, once the machines are running and paid for.",
    example=Example(
        """\
type: pipeline
settings: {default_compute: azureml:gpus}
jobs:
  train:
    component: ./train.yaml
    inputs: {micro_batch_size: 32, global_batch_size: ‹1000⇒1024›}
=== train.yaml
type: command
name: train
is_deterministic: true
command: >-
  python -m trainyard.steps.train_ddp --micro-batch-size ${{inputs.micro_batch_size}}
  --global-batch-size ${{inputs.global_batch_size}}
environment: azureml:torch:3
inputs:
  micro_batch_size: {type: integer}
  global_batch_size: {type: integer}
distribution: {type: pytorch, process_count_per_instance: 8}
resources: {instance_count: 2, shm_size: 64g}
"""
    ),
)
SETTINGS_NOT_JSON = Rule(
    "AML320",
    "settings-not-json",
    "error",
    summary="A model's settings are not a JSON object.",
    why="The training step reads `model_overrides` as JSON, and refuses anything else.",
    example=Example(
        """\
type: pipeline
settings: {default_compute: azureml:cpus}
jobs:
  train:
    component: ./train.yaml
    inputs: {model_overrides: ‸'{‹⇒"›depths‹⇒"›: [2, 2]}'}
=== train.yaml
type: command
name: train
command: python -m trainyard.steps.train_ddp --model-overrides '${{inputs.model_overrides}}'
environment: azureml:torch:3
inputs:
  model_overrides: {type: string}
"""
    ),
)
