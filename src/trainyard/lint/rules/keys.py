"""Keys and what stands beneath them. Found by the schemas (`lint/schema_checks.py`) and the readers of `spec`."""

from __future__ import annotations

from trainyard.lint.rule import Example, Rule
from trainyard.spec import rule_ids

RULES = (
    Rule(
        rule_ids.UNKNOWN_KEY,
        "unknown-key",
        "error",
        "A key that Azure ML does not know, and ignores or refuses.",
        "In a component the key is dropped in silence and what it was to set keeps its default; on a job that names a "
        "component it is sent along and ignored; elsewhere the client refuses the file.",
        Example("""\
type: command
name: train
‹is_determinstic⇒is_deterministic›: false
command: python train.py
environment: azureml:torch:3
"""),
    ),
    Rule(
        rule_ids.MISSING_KEY,
        "missing-key",
        "error",
        "A key that has to be there is not, or is empty.",
        "The client refuses the file, or Azure ML does when it is submitted.",
        Example("""\
‸type: command
name: train
command: python train.py
‹⇒environment: azureml:torch:3
›"""),
    ),
    Rule(
        rule_ids.WRONG_TYPE,
        "wrong-type",
        "error",
        "A value is of the wrong kind: a list for a text, for example.",
        "The client refuses the file, or sends something else than was meant.",
        Example("""\
type: command
name: train
display_name: ‹2026⇒"2026"›
command: python train.py
environment: azureml:torch:3
"""),
    ),
    Rule(
        rule_ids.NOT_A_CHOICE,
        "not-a-choice",
        "error",
        "A value is none of those that can stand here.",
        "Types of inputs are written as `string integer number boolean` and `uri_file uri_folder mltable mlflow_model "
        "custom_model triton_model`, in lower case.",
        Example("""\
type: command
name: train
command: python -m train --epochs ${{inputs.epochs}}
environment: azureml:torch:3
inputs:
  epochs: {type: ‹int⇒integer›, default: 3}
"""),
    ),
    Rule(
        rule_ids.BAD_TEXT,
        "bad-text",
        "error",
        "A text does not have the form it has to have.",
        "Names of jobs are lower-case identifiers, `shm_size` a number and a unit, `default_compute` `azureml:NAME`.",
        Example("""\
type: pipeline
settings: {default_compute: azureml:cpus}
jobs:
  ‹train-model⇒train_model›:
    component: azureml:train:1
"""),
    ),
    Rule(
        rule_ids.OUT_OF_BOUNDS,
        "out-of-bounds",
        "error",
        "A number is smaller or larger than it can be.",
        "The client checks no bounds: `process_count_per_instance: 0` is sent as it is.",
        Example("""\
type: command
name: train
command: python train.py
environment: azureml:torch:3
is_deterministic: false
resources: {instance_count: ‹0⇒1›, shm_size: 16g}
"""),
    ),
    Rule(
        rule_ids.IGNORED_KEY,
        "ignored-key",
        "error",
        "A key that Azure ML takes and does nothing with.",
        "`environment_variables` of a component are dropped; `code`, `command` and `environment` beside a job's "
        "`component` are ignored in favour of the component's own.",
        Example("""\
type: pipeline
settings: {default_compute: azureml:cpus}
jobs:
  train:
    component: azureml:train:1
‹    ‸environment: azureml:torch:3
⇒›"""),
    ),
    Rule(
        rule_ids.NAME_CLASH,
        "name-clash",
        "error",
        "Two names that Azure ML takes for the same.",
        "Names of inputs and outputs are compared without regard to case.",
        Example("""\
type: command
name: train
command: python -m train --epochs ${{inputs.epochs}} --seed ${{inputs.‹Epochs⇒seed›}}
environment: azureml:torch:3
inputs:
  epochs: {type: integer, default: 3}
  ‸‹Epochs⇒seed›: {type: integer, default: 0}
"""),
    ),
    Rule(
        rule_ids.BAD_ASSET_NAME,
        "bad-asset-name",
        "warning",
        "A name that Azure ML refuses when it is registered.",
        "Names of components are lower-case letters, digits and underscores, beginning with a letter.",
        Example("""\
type: command
name: ‹Train-DDP⇒train_ddp›
command: python train.py
environment: azureml:torch:3
"""),
    ),
    Rule(
        rule_ids.RESERVED_NAME,
        "reserved-name",
        "error",
        "An output's name replaces a variable that each job needs.",
        "Azure ML sets each output's path as an environment variable of the output's bare name: an output `path` "
        "replaces PATH.",
        Example("""\
type: command
name: train
command: python -m train --out '${{outputs.‹path⇒model›}}'
environment: azureml:torch:3
outputs:
  ‸‹path⇒model›: {type: uri_folder}
"""),
    ),
)
