"""Rules about a file and its YAML, reported while a document is read (`spec/documents.py`)."""

from __future__ import annotations

from trainyard.spec.rule import Rule

UNREADABLE_FILE = Rule("AML001", "unreadable-file", "error").explained(
    summary="The file cannot be read.",
    why="It does not exist, is not a regular file, or may not be opened.",
)
YAML_SYNTAX = Rule("AML002", "yaml-syntax", "error").explained(
    summary="The file is not valid YAML.",
    why="The finding is where the parser gave up; if the parser says what it was reading, that place is shown too.",
    example="""\
type: command
name: train
command: python train.py
description: ‹Trains‸: well⇒"Trains: well"›
environment: azureml:torch:3
""",
)
WRONG_ENCODING = Rule("AML003", "wrong-encoding", "error").explained(
    summary="The file is not UTF-8 text.",
    why="Azure ML's client cannot read binary files, UTF-16 or Latin-1 either.",
)
TOO_LARGE = Rule("AML004", "too-large", "error").explained(
    summary="The file, its nesting or the expansion of its aliases is too large.",
    why="Files over 2 MiB, nesting over 100 levels (20 of pipelines) and aliases that expand to more than 200,000 "
    "values are not read. A file that takes more than 5 seconds of processor time is not checked to its end.",
    example="""\
type: command
name: train
command: python train.py
environment: azureml:torch:3
tags: ‸‹&tags {a: *tags}⇒{a: b}›
""",
)
NOT_ONE_DOCUMENT = Rule("AML005", "not-one-document", "error").explained(
    summary="The file does not contain exactly one YAML document.",
    why="Azure ML's client rejects a file with two documents, and a file with none.",
    example="""\
type: command
name: train
command: python train.py
environment: azureml:torch:3
‹---
‸version: "2"⇒version: "2"›
""",
)
NOT_A_MAPPING = Rule("AML006", "not-a-mapping", "error").explained(
    summary="The top level of the file is not a mapping.",
    why="An Azure ML file consists of keys with values; a list or a single string means nothing to it.",
    example="""\
type: pipeline
settings: {default_compute: azureml:cpus}
jobs:
  train:
    component: ./train.yaml
=== train.yaml
‹- ⇒›type: command
‹  ⇒›name: train
‹  ⇒›command: python train.py
‹  ⇒›environment: azureml:torch:3
""",
)
DUPLICATE_KEY = Rule("AML007", "duplicate-key", "error").explained(
    summary="A key appears twice; the last one silently wins.",
    why="A whole job can disappear this way: Azure ML's client keeps the second one and drops the first.",
    example="""\
type: pipeline
settings: {default_compute: azureml:cpus}
jobs:
  train:
    component: azureml:train:1
  ‹train⇒evaluate›:
    component: azureml:evaluate:1
""",
)
UNKNOWN_TAG = Rule("AML008", "unknown-tag", "error").explained(
    summary="Azure ML's client does not support this YAML tag.",
    why="Its loader stops at `!tag` and `!!python/…`.",
    example="""\
type: amlcompute
name: cpu-cluster
size: Standard_D8s_v5
max_instances: ‹!count ⇒›2
""",
)
KEY_NOT_TEXT = Rule("AML009", "key-not-text", "error").explained(
    summary="A key is a list or a mapping.",
    why="In YAML, braces open a mapping: a binding without its `$` becomes a mapping used as a key.",
    example="""\
type: pipeline
settings: {default_compute: azureml:cpus}
inputs:
  epochs: 3
jobs:
  train:
    component: azureml:train:1
    inputs:
      epochs: ‸‹⇒$›{{parent.inputs.epochs}}
""",
)
YAML_TRAP = Rule("AML010", "yaml-trap", "warning").explained(
    summary="YAML 1.1 reads this unquoted text as something else.",
    why="Azure ML's client reads YAML 1.1: `no` is False, `1.10` is 1.1, `010` is 8, and `12:30` is 750. It "
    "then sends `str()` of that value. Quote it.",
    example="""\
type: pipeline
settings: {default_compute: azureml:cpus}
jobs:
  train:
    component: ./train.yaml
    inputs:
      label: ‹no⇒"no"›
=== train.yaml
type: command
name: train
command: python -m train --label '${{inputs.label}}'
environment: azureml:torch:3
inputs:
  label: {type: string}
""",
)
UNKNOWN_KIND = Rule("AML011", "unknown-kind", "error").explained(
    summary="The file is of a different kind from what it is used as.",
    why="Files that do not belong to Azure ML are skipped in folders; for one named on the command line, this says "
    "that nothing in it was checked.",
)
