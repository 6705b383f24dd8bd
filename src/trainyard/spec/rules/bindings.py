"""Rules about `${{…}}` and `$[[ … ]]`, reported while a pipeline is read (`spec/bindings.py`)."""

from __future__ import annotations

from trainyard.spec.rule import Rule

TRAIN_COMPONENT = """\
=== train.yaml
type: command
name: train
command: python -m train --epochs ${{inputs.epochs}} --model '${{outputs.model}}'
environment: azureml:torch:3
inputs:
  epochs: {type: integer, default: 3}
outputs:
  model: {type: uri_folder}
"""
_EVALUATE_COMPONENT = """\
=== evaluate.yaml
type: command
name: evaluate
command: python -m evaluate --model '${{inputs.model}}' --report '${{outputs.report}}'
environment: azureml:torch:3
inputs:
  model: {type: uri_folder}
outputs:
  report: {type: uri_folder}
"""

MALFORMED_EXPRESSION = Rule("AML201", "malformed-expression", "error").explained(
    summary="A malformed '${{' or '$[['.",
    why="Azure ML only substitutes exactly `${{name.name}}`; anything else reaches the shell as it is.",
    example="""\
type: command
name: train
command: python -m train --epochs ‸${{inputs.epochs}‹⇒}›
environment: azureml:torch:3
inputs:
  epochs: {type: integer, default: 3}
""",
)
UNKNOWN_SCOPE = Rule("AML202", "unknown-scope", "error").explained(
    summary="The binding starts with names that mean nothing here.",
    why="A command can use `inputs` and `outputs`; a job in a pipeline can use `parent.inputs`, `parent.outputs` and "
    "`parent.jobs.JOB.outputs`. Other forms are rejected on submission, or left as they are.",
    example="""\
type: pipeline
settings: {default_compute: azureml:cpus}
inputs:
  epochs: 3
jobs:
  train:
    component: azureml:train:1
    inputs:
      epochs: ${{‹⇒parent.›‸inputs.epochs}}
""",
)
UNKNOWN_PIPELINE_PORT = Rule("AML203", "unknown-pipeline-port", "error").explained(
    summary="The pipeline has no such input or output.",
    why="The client sends the name as it is; the job fails when Azure ML cannot resolve it.",
    example="""\
type: pipeline
settings: {default_compute: azureml:cpus}
inputs:
  epochs: 3
jobs:
  train:
    component: azureml:train:1
    inputs:
      epochs: ${{parent.inputs.‹epoch⇒epochs›}}
      rounds: ${{parent.inputs.epochs}}
""",
)
UNKNOWN_JOB = Rule("AML204", "unknown-job", "error").explained(
    summary="The pipeline has no such job.",
    why="The client sends the name as it is; Azure ML rejects the pipeline when it cannot resolve it.",
    example="""\
type: pipeline
settings: {default_compute: azureml:cpus}
jobs:
  train:
    component: azureml:train:1
  evaluate:
    component: azureml:evaluate:1
    inputs:
      model: ${{parent.jobs.‹training⇒train›.outputs.model}}
""",
)
UNKNOWN_JOB_PORT = Rule("AML205", "unknown-job-port", "error").explained(
    summary="The other job has no such input or output.",
    why="The client does not look at the other job's component.",
    example="""\
type: pipeline
settings: {default_compute: azureml:cpus}
jobs:
  train:
    component: ./train.yaml
  evaluate:
    component: ./evaluate.yaml
    inputs:
      model: ${{parent.jobs.train.outputs.‹modle⇒model›}}
"""
    + TRAIN_COMPONENT
    + _EVALUATE_COMPONENT,
)
UNKNOWN_COMMAND_PORT = Rule("AML206", "unknown-command-port", "error").explained(
    summary="The command uses an undeclared input or output.",
    why="The client does not check a component's command when it loads a pipeline; the job fails on the cluster.",
    example="""\
type: command
name: train
command: python -m train --epochs ${{inputs.epochs}} --rounds ${{inputs.‹epoch⇒epochs›}}
environment: azureml:torch:3
inputs:
  epochs: {type: integer, default: 3}
""",
)
CYCLE = Rule("AML207", "cycle", "error").explained(
    summary="Jobs wait for each other.",
    why="The client serializes cycles without complaint. The message shows the whole cycle.",
    example="""\
type: pipeline
settings: {default_compute: azureml:cpus}
inputs:
  model: {type: uri_folder, path: azureml:start:1}
jobs:
  evaluate:
    component: ./evaluate.yaml
    inputs:
      model: ${{‹parent.jobs.tune.outputs.report⇒parent.inputs.model›}}
  tune:
    component: ./evaluate.yaml
    inputs:
      model: ${{parent.jobs.evaluate.outputs.report}}
""".replace("${{‹", "‸${{‹")
    + _EVALUATE_COMPONENT,
)
