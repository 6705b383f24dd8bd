"""Rules about files and assets that YAML refers to, reported while it is read."""

from __future__ import annotations

from trainyard.spec.rule import Rule

COMPONENT_NOT_FOUND = Rule("AML401", "component-not-found", "error").explained(
    summary="The component's file does not exist.",
    why="A path is relative to the folder of the file that contains it.",
    example="""\
type: pipeline
settings: {default_compute: azureml:cpus}
jobs:
  train:
    component: ‹./trian.yaml⇒./train.yaml›
=== train.yaml
type: command
name: train
command: python train.py
environment: azureml:torch:3
""",
)
CODE_NOT_FOUND = Rule("AML402", "code-not-found", "error").explained(
    summary="The `code` folder does not exist.",
    why="`code` is a folder, relative to the file that names it; it is uploaded as it is.",
    example="""\
type: command
name: train
code: ‹./scr⇒./src›
command: python train.py
environment: azureml:torch:3
=== src/train.py
print("training")
""",
)
ENVIRONMENT_FILE_NOT_FOUND = Rule("AML403", "environment-file-not-found", "error").explained(
    summary="A file of the environment does not exist.",
    why="The paths of a conda file, a Dockerfile and a `file:` are relative to the file that names them.",
    example="""\
type: command
name: train
command: python train.py
environment:
  image: mcr.microsoft.com/azureml/openmpi5.0-ubuntu24.04
  conda_file: ‹conda.yml⇒conda.yaml›
=== conda.yaml
channels: [conda-forge]
dependencies: [python=3.11]
""",
)
DATA_NOT_FOUND = Rule("AML404", "data-not-found", "warning", pedantic=True).explained(
    summary="The local data of an input does not exist.",
    why="A local path is uploaded on submission; it may be created before then.",
    example="""\
type: pipeline
settings: {default_compute: azureml:cpus}
inputs:
  images: {type: uri_folder, path: ‹./image⇒./images›}
jobs:
  train:
    component: azureml:train:1
    inputs: {images: "${{parent.inputs.images}}"}
=== images/labels.csv
file,label
""",
)
BAD_REFERENCE = Rule("AML405", "bad-reference", "error").explained(
    summary="Azure ML's client cannot resolve this reference.",
    why="An environment in a file is `file:./environment.yaml`; a registered one is `azureml:NAME:VERSION`.",
    example="""\
type: command
name: train
command: python train.py
environment: ‹⇒file:›./environment.yaml
=== environment.yaml
name: torch
image: mcr.microsoft.com/azureml/openmpi5.0-ubuntu24.04
""",
)
SCRIPT_NOT_FOUND = Rule("AML406", "script-not-found", "error").explained(
    summary="The `code` folder does not contain the script that the command runs.",
    why="The command runs in the `code` folder; Python exits at once if the file does not exist. Only reported if "
    "nothing earlier in the command could have created it, and if the folder contains Python files at all.",
    example="""\
type: command
name: train
code: ./src
command: python ‹trian.py⇒train.py›
environment: azureml:torch:3
=== src/train.py
print("training")
""",
)
NOT_SEEN_OFFLINE = Rule("AML901", "not-seen-offline", "error", local_run_only=True).explained(
    summary="This is stored in Azure ML, so it cannot be inspected offline.",
    why="`trainyard lint` does not report it; `trainyard run` needs a local file.",
)
