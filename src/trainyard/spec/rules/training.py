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
UNKNOWN_MODEL_TYPE = Rule(
    "AML323",
    "unknown-model-type",
    "error",
    summary="A model type that transformers does not have for the task.",
    why="The training step makes the model of this type, and refuses one that its transformers does not know, once the "
    "machines are running and paid for. The types are compared with those of the version that the message names; "
    "where your environment has a newer one with more of them, add a comment that ignores this rule.",
    example=Example(
        """\
type: pipeline
settings: {default_compute: azureml:cpus}
jobs:
  train:
    component: ./train.yaml
    inputs: {task: language_modeling, model_type: ‸‹lama⇒llama›}
=== train.yaml
type: command
name: train
command: python -m trainyard.steps.train_ddp --task '${{inputs.task}}' --model-type '${{inputs.model_type}}'
environment: azureml:torch:3
inputs:
  task: {type: string}
  model_type: {type: string}
"""
    ),
)
UNKNOWN_MODEL_SETTING = Rule(
    "AML324",
    "unknown-model-setting",
    "error",
    summary="A setting in `model_overrides` that the model type does not have.",
    why="transformers takes any name, so a mistyped one would change nothing; the training step refuses it, once the "
    "machines are running and paid for.",
    example=Example(
        """\
type: pipeline
settings: {default_compute: azureml:cpus}
jobs:
  train:
    component: ./train.yaml
    inputs:
      task: language_modeling
      model_type: llama
      model_overrides: ‸'{"‹num_layers⇒num_hidden_layers›": 4}'
=== train.yaml
type: command
name: train
command: >-
  python -m trainyard.steps.train_ddp --task '${{inputs.task}}' --model-type '${{inputs.model_type}}'
  --model-overrides '${{inputs.model_overrides}}'
environment: azureml:torch:3
inputs:
  task: {type: string}
  model_type: {type: string}
  model_overrides: {type: string}
"""
    ),
)
FORMAT_WITHOUT_SOURCE = Rule(
    "AML325",
    "format-without-source",
    "error",
    summary="Images of a format without the folder that holds them, or a folder for the built-in digits.",
    why="prepare_images reads its `source`, a folder of this `format`; only the digits come with scikit-learn. It "
    "refuses a format without a source, and a source that it would not read.",
    example=Example(
        """\
type: pipeline
settings: {default_compute: azureml:cpus}
jobs:
  prepare:
    component: ./prepare.yaml
    inputs: {format: ‸‹folder⇒digits›}
=== prepare.yaml
type: command
name: prepare
command: python -m trainyard.steps.prepare_images --format '${{inputs.format}}' $[[ --source '${{inputs.source}}' ]]
environment: azureml:torch:3
inputs:
  format: {type: string}
  source: {type: uri_folder, optional: true}
"""
    ),
)
DATA_WEIGHTS = Rule(
    "AML326",
    "data-weights",
    "error",
    summary="Weights of mixed datasets that are not one positive number for each of them.",
    why="`data_weights` has a weight for each of `data`, `data_2`, `data_3` and `data_4` the job has. The training "
    "step refuses others, once the data are prepared and the machines are running and paid for.",
    example=Example(
        """\
type: pipeline
settings: {default_compute: azureml:cpus}
inputs:
  chats: {type: uri_folder, path: azureml:chats:1}
  books: {type: uri_folder, path: azureml:books:1}
jobs:
  train:
    component: ./train.yaml
    inputs:
      data: ${{parent.inputs.chats}}
      data_2: ${{parent.inputs.books}}
      data_weights: ‸"3,1‹,1⇒›"
=== train.yaml
type: command
name: train
command: >-
  python -m trainyard.steps.train_ddp --data '${{inputs.data}}' $[[ --data-2 '${{inputs.data_2}}' ]]
  $[[ --data-weights '${{inputs.data_weights}}' ]]
environment: azureml:torch:3
inputs:
  data: {type: uri_folder}
  data_2: {type: uri_folder, optional: true}
  data_weights: {type: string, optional: true}
"""
    ),
)
