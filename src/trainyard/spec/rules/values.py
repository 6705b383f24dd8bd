"""Rules about what jobs pass to their components, reported while a pipeline is read."""

from __future__ import annotations

from trainyard.spec.rule import Rule

_TRAIN = """\
=== train.yaml
type: command
name: train
command: python -m train --epochs ${{inputs.epochs}} --precision '${{inputs.precision}}' --model '${{outputs.model}}'
environment: azureml:torch:3
inputs:
  epochs: {type: integer, min: 1}
  precision: {type: string, enum: [fp32, bf16], default: fp32}
outputs:
  model: {type: uri_folder}
"""
_JOB = """\
type: pipeline
settings: {default_compute: azureml:cpus}
jobs:
  train:
    component: ./train.yaml
    inputs:
"""

MISSING_INPUT = Rule("AML301", "missing-input", "error").explained(
    summary="A required input is not set.",
    why="Each job must set every input that has no default and is not optional.",
    example="""\
type: pipeline
settings: {default_compute: azureml:cpus}
jobs:
  ‸train:
    component: ./train.yaml
‹⇒    inputs: {epochs: 3}
›"""
    + _TRAIN,
)
UNKNOWN_INPUT = Rule("AML302", "unknown-input", "error").explained(
    summary="The job sets an input that its component does not have.",
    why="The client silently drops it, and the component's default is used.",
    example=_JOB + "      epochs: 3\n      ‹precison⇒precision›: bf16\n" + _TRAIN,
)
UNKNOWN_OUTPUT = Rule("AML303", "unknown-output", "error").explained(
    summary="The job binds an output that its component does not have.",
    why="Nothing is ever written there.",
    example="""\
type: pipeline
settings: {default_compute: azureml:cpus}
outputs:
  model: {type: uri_folder}
jobs:
  train:
    component: ./train.yaml
    inputs:
      epochs: 3
    outputs:
      ‹modle⇒model›: ${{parent.outputs.model}}
"""
    + _TRAIN,
)
WRONG_LITERAL = Rule("AML304", "wrong-literal", "error").explained(
    summary="A literal does not match the type of its input.",
    why="The client sends `str()` of whatever it finds, and the script fails on the cluster.",
    example=_JOB + "      epochs: ‹three⇒3›\n" + _TRAIN,
)
LITERAL_OUT_OF_RANGE = Rule("AML305", "literal-out-of-range", "error").explained(
    summary="A literal is below its input's min or above its max.",
    why="Azure ML's client does not check min and max.",
    example=_JOB + "      epochs: ‹0⇒1›\n" + _TRAIN,
)
LITERAL_NOT_A_CHOICE = Rule("AML306", "literal-not-a-choice", "error").explained(
    summary="A literal is not in its input's enum.",
    why="Azure ML's client does not check enum.",
    example=_JOB + "      epochs: 3\n      precision: ‹bfloat16⇒bf16›\n" + _TRAIN,
)
