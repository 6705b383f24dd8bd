"""Rules about keys and the values beneath them, reported by the schemas (`spec/schema_checks.py`) and the readers."""

from __future__ import annotations

from trainyard.spec.rule import Rule

UNKNOWN_KEY = Rule("AML101", "unknown-key", "error").explained(
    summary="Azure ML does not know this key, and ignores or rejects it.",
    why="In a component the key is silently dropped, and the setting keeps its default; on a job that names a "
    "component it is sent and ignored; elsewhere the client rejects the file.",
    example="""\
type: command
name: train
‹is_determinstic⇒is_deterministic›: false
command: python train.py
environment: azureml:torch:3
""",
)
MISSING_KEY = Rule("AML102", "missing-key", "error").explained(
    summary="A required key is missing or empty.",
    why="The client rejects the file, or Azure ML rejects it on submission.",
    example="""\
‸type: command
name: train
command: python train.py
‹⇒environment: azureml:torch:3
›""",
)
WRONG_TYPE = Rule("AML103", "wrong-type", "error").explained(
    summary="A value has the wrong type, such as a list where a string is expected.",
    why="The client rejects the file, or sends something other than what was meant.",
    example="""\
type: command
name: train
display_name: ‹2026⇒"2026"›
command: python train.py
environment: azureml:torch:3
""",
)
NOT_A_CHOICE = Rule("AML104", "not-a-choice", "error").explained(
    summary="The value is not one of the allowed ones.",
    why="The types of inputs are `string integer number boolean` and `uri_file uri_folder mltable mlflow_model "
    "custom_model triton_model`, in lower case.",
    example="""\
type: command
name: train
command: python -m train --epochs ${{inputs.epochs}}
environment: azureml:torch:3
inputs:
  epochs: {type: ‹int⇒integer›, default: 3}
""",
)
BAD_TEXT = Rule("AML105", "bad-text", "error").explained(
    summary="A string does not have the required form.",
    why="Job names are lower-case identifiers, `shm_size` is a number and a unit, `default_compute` is `azureml:NAME`.",
    example="""\
type: pipeline
settings: {default_compute: azureml:cpus}
jobs:
  ‹train-model⇒train_model›:
    component: azureml:train:1
""",
)
OUT_OF_BOUNDS = Rule("AML106", "out-of-bounds", "error").explained(
    summary="A number is too small or too large.",
    why="The client does not check bounds: it sends `process_count_per_instance: 0` as it is.",
    example="""\
type: command
name: train
command: python train.py
environment: azureml:torch:3
is_deterministic: false
resources: {instance_count: ‹0⇒1›, shm_size: 16g}
""",
)
IGNORED_KEY = Rule("AML107", "ignored-key", "error").explained(
    summary="Azure ML accepts this key and ignores it.",
    why="A component's `environment_variables` are dropped; `code`, `command` and `environment` beside a job's "
    "`component` are ignored, and the component's own are used.",
    example="""\
type: pipeline
settings: {default_compute: azureml:cpus}
jobs:
  train:
    component: azureml:train:1
‹    ‸environment: azureml:torch:3
⇒›""",
)
NAME_CLASH = Rule("AML108", "name-clash", "error").explained(
    summary="Two names that Azure ML treats as the same.",
    why="The names of inputs and outputs are case-insensitive.",
    example="""\
type: command
name: train
command: python -m train --epochs ${{inputs.epochs}} --seed ${{inputs.‹Epochs⇒seed›}}
environment: azureml:torch:3
inputs:
  epochs: {type: integer, default: 3}
  ‸‹Epochs⇒seed›: {type: integer, default: 0}
""",
)
BAD_ASSET_NAME = Rule("AML109", "bad-asset-name", "warning").explained(
    summary="Azure ML rejects this name or version on registration.",
    why="Component names consist of lower-case letters, digits and underscores, and start with a letter. Names of "
    "experiments have letters, digits, hyphens and underscores; versions have no blanks, `/`, `:` or `@`.",
    example="""\
type: command
name: ‹Train-DDP⇒train_ddp›
command: python train.py
environment: azureml:torch:3
""",
)
RESERVED_NAME = Rule("AML110", "reserved-name", "error").explained(
    summary="The name of an output overwrites a variable that every job needs.",
    why="Azure ML sets an environment variable with the name of each output to its path: an output `path` overwrites "
    "PATH.",
    example="""\
type: command
name: train
command: python -m train --out '${{outputs.‹path⇒model›}}'
environment: azureml:torch:3
outputs:
  ‸‹path⇒model›: {type: uri_folder}
""",
)
NOT_RUN_LOCALLY = Rule("AML902", "not-run-locally", "error", local_run_only=True).explained(
    summary="A local run does not support this type of job.",
    why="`trainyard run` supports jobs of type command, sweep, parallel and spark.",
)
