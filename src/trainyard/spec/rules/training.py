"""Rules about the settings of Trainyard's own training steps: what the job itself would refuse."""

from __future__ import annotations

from trainyard.spec.rule import Example, Rule

_TRAIN = """\
=== train.yaml
type: command
name: train
command: >-
  python -m trainyard.steps.train_ddp --data '${{inputs.data}}' $[[ --settings '${{inputs.settings}}' ]]
  $[[ --overrides '${{inputs.overrides}}' ]] $[[ --epochs ${{inputs.epochs}} ]]
environment: azureml:torch:3
inputs:
  data: {type: uri_folder}
  settings: {type: uri_file, optional: true}
  overrides: {type: string, optional: true}
  epochs: {type: integer, optional: true}
"""
_PIPELINE = """\
type: pipeline
settings: {default_compute: azureml:cpus}
jobs:
  train:
    component: ./train.yaml
    inputs:
      data: {type: uri_folder, path: "azureml:digits:1"}
"""

UNKNOWN_SETTING = Rule(
    "AML340",
    "unknown-setting",
    "error",
    summary="A settings file, or overrides, have a key that the step does not have.",
    why="The step refuses it, once the machines are running and paid for. The keys are the settings of the step and of "
    "its task; data and outputs are given in the pipeline.",
    example=Example(
        _PIPELINE
        + """\
      settings: {type: uri_file, path: settings.yaml}
=== settings.yaml
task: image_classification
‹weight_decai⇒weight_decay›: 0.1
"""
        + _TRAIN
    ),
)
REFUSED_SETTING = Rule(
    "AML341",
    "refused-setting",
    "error",
    summary="A setting has a value that the step refuses: of another type, out of range, or not a choice.",
    why="The step reads a settings file, its flags and overrides by the types, limits and choices of its settings, and "
    "refuses other values, once the machines are running and paid for.",
    example=Example(
        _PIPELINE
        + """\
      settings: {type: uri_file, path: settings.yaml}
=== settings.yaml
warmup_fraction: ‹10⇒0.1›
"""
        + _TRAIN
    ),
)
INVALID_OVERRIDES = Rule(
    "AML343",
    "invalid-overrides",
    "error",
    summary="Overrides that are not a mapping in YAML, or that hold an apostrophe.",
    why="`overrides` are one line such as `{weight_decay: 0.1, model_overrides: {num_hidden_layers: 2}}`. The command "
    "has them between apostrophes, so texts within are quoted with double quotes.",
    example=Example(_PIPELINE + "      overrides: ‸'{epochs: 3‹⇒}›'\n" + _TRAIN),
)
SETTINGS_NOT_FOUND = Rule(
    "AML344",
    "settings-not-found",
    "error",
    summary="The settings file of a job does not exist.",
    why="It is uploaded with the job, so it has to be there when the job is submitted.",
    example=Example(
        _PIPELINE
        + """\
      settings: ‸{type: uri_file, path: ‹setting.yaml⇒settings.yaml›}
=== settings.yaml
epochs: 3
"""
        + _TRAIN
    ),
)
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
