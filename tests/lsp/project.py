"""A small project of Azure ML files, by name: a pipeline of two components, a nested one, and a cluster."""

from __future__ import annotations

from pathlib import Path

TRAIN = """\
$schema: https://azuremlschemas.azureedge.net/latest/commandComponent.schema.json
type: command
name: train
display_name: Train a model
inputs:
  data: {type: uri_folder, description: What to learn from.}
  epochs:
    type: integer
    default: 3
    min: 1
    description: How often every sample is seen.
  optimizer: {type: string, default: adam, enum: [adam, sgd]}
outputs:
  model: {type: uri_folder}
code: ../src
environment: azureml:torch:3
command: >-
  python train.py --data ${{inputs.data}} --epochs ${{inputs.epochs}}
  --optimizer ${{inputs.optimizer}} --model ${{outputs.model}}
"""
PREPARE = """\
type: command
name: prepare
inputs:
  source: {type: uri_folder}
outputs:
  prepared: {type: uri_folder}
code: ../src
environment: azureml:torch:3
command: python prepare.py --source ${{inputs.source}} --prepared ${{outputs.prepared}}
"""
FIT = """\
$schema: https://azuremlschemas.azureedge.net/latest/pipelineJob.schema.json
type: pipeline
inputs:
  source: {type: uri_folder, path: ../data}
  epochs: 5
outputs:
  model: {type: uri_folder}
settings:
  default_compute: azureml:gpus
jobs:
  prepare:
    component: ../components/prepare.yaml
    inputs:
      source: ${{parent.inputs.source}}
  train:
    component: ../components/train.yaml
    inputs:
      data: ${{parent.jobs.prepare.outputs.prepared}}
      epochs: ${{parent.inputs.epochs}}
    outputs:
      model: ${{parent.outputs.model}}
    resources:
      instance_type: Standard_ND96asr_v4
"""
AGAIN = """\
type: pipeline
inputs:
  data: {type: uri_folder, path: ../data}
settings:
  default_compute: azureml:gpus
jobs:
  again:
    component: ../components/train.yaml
    inputs:
      data: ${{parent.inputs.data}}
      epochs: 7
"""
CLUSTER = """\
$schema: https://azuremlschemas.azureedge.net/latest/amlCompute.schema.json
name: gpus
type: amlcompute
size: Standard_ND96asr_v4
min_instances: 0
max_instances: 2
"""
TRAIN_SCRIPT = """\
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True)
parser.add_argument("--epochs", type=int)
parser.add_argument("--optimizer", choices=["adam", "sgd"])
parser.add_argument("--model")
print(parser.parse_args())
"""
PREPARE_SCRIPT = """\
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--source")
parser.add_argument("--prepared")
print(parser.parse_args())
"""

FILES = {
    "components/train.yaml": TRAIN,
    "components/prepare.yaml": PREPARE,
    "pipelines/fit.yaml": FIT,
    "pipelines/again.yaml": AGAIN,
    "compute/gpus.yaml": CLUSTER,
    "src/train.py": TRAIN_SCRIPT,
    "src/prepare.py": PREPARE_SCRIPT,
    "data/zero.txt": "0\n",
}


def plant(folder: Path) -> None:
    """Write the project into a folder."""
    for name, text in FILES.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def line_of(text: str, part: str) -> int:
    """The first line that has a part, from 1."""
    return text[: text.index(part)].count("\n") + 1


def place_of(text: str, part: str, behind: int = 0) -> tuple[int, int]:
    """The line and column, from 1, of the first place of a part, and so many characters behind."""
    offset = text.index(part)
    return text[:offset].count("\n") + 1, offset - text.rfind("\n", 0, offset) + behind
