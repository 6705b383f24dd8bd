"""Files that nobody writes twice, and that are right: lint says nothing about them."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from trainyard.lint.linter import lint

COMMAND = "type: command\nenvironment: azureml:torch:3\ncompute: azureml:cpus\n"
COMPONENT = "type: command\nname: step\nenvironment: azureml:torch:3\n"
PIPELINE = "type: pipeline\nsettings: {default_compute: azureml:cpus}\n"
SWEEP = """\
type: sweep
compute: azureml:cpus
trial: {command: "echo ${{search_space.x}}", environment: "azureml:torch:3"}
objective: {goal: maximize, primary_metric: auc}
limits: {max_total_trials: 4}
"""
SCHEDULE = "name: nightly\ncreate_job: azureml:forecast\n"
UNUSUAL: dict[str, str] = {
    "anchors_and_merge_keys": PIPELINE
    + """\
        jobs:
          one: &one
            component: azureml:step:1
            inputs: &settings {rate: 0.1, label: a}
          two:
            <<: *one
            inputs: {<<: *settings, rate: 0.2}
        """,
    "json": '{"type": "command", "command": "ls", "environment": "azureml:torch:3", "compute": "azureml:cpus"}',
    "quoted_keys": '"type": "command"\n"command": "ls"\n"environment": "azureml:torch:3"\n\'compute\': azureml:cpus\n',
    "windows_line_ends": (COMMAND + "command: ls\n").replace("\n", "\r\n"),
    "byte_order_mark": "\ufeff" + COMMAND + "command: ls\n",
    "explicit_document": "%YAML 1.1\n---\n" + COMMAND + "command: ls\n...\n",
    "other_alphabets": COMMAND + "display_name: Обучение 訓練 🚂\ndescription: тест\ncommand: echo 'привет'\n",
    "literal_block_with_heredoc": COMMAND
    + """\
        command: |
          cat > settings.json <<'END'
          {"rate": 0.1, "names": ["a", "b"]}
          END
          cat settings.json
        """,
    "shell_functions": COMMAND + 'command: |\n  say() { echo "$1"; }\n  for i in 1 2 3; do say "$i"; done\n',
    "dollars_of_the_shell": COMMAND + "command: echo $HOME ${PATH%%:*} $$ $(date +%s) $((1 + 2)) ${#USER}\n",
    "awk_braces": COMMAND + "command: cat /etc/hosts | awk '{print $1}' | sort -u\n",
    "braces_expansion": COMMAND + "command: mkdir -p outputs/{a,b,c}\n",
    "binding_with_blanks": COMPONENT + "command: 'echo ${{ inputs.rate }}'\ninputs: {rate: {type: number}}\n",
    "binding_inside_a_word": COMPONENT
    + "command: cat ${{inputs.table}}/part-${{inputs.number}}.csv\n"
    + "inputs: {table: {type: uri_folder}, number: {type: integer}}\n",
    "several_optional_parts": COMPONENT
    + "command: echo $[[--a ${{inputs.a}}]] $[[ --b ${{inputs.b}} ]] end\n"
    + "inputs: {a: {type: integer, optional: true}, b: {type: number, optional: true}}\n",
    "numbers_as_texts": COMPONENT + "version: '007'\ntags: {release: '1.10', build: '1e3', on: 'yes'}\ncommand: ls\n",
    "scientific_numbers": COMPONENT
    + "command: echo ${{inputs.rate}}\ninputs: {rate: {type: number, default: 1e-8, min: 0, max: 1.0e+2}}\n",
    "names_of_one_letter": PIPELINE
    + "inputs: {x: 1}\njobs: {a: {component: azureml:s:1, inputs: {y: '${{parent.inputs.x}}'}}}\n",
    "job_named_like_a_key": PIPELINE + "jobs: {jobs: {component: 'azureml:s:1'}, inputs: {component: 'azureml:s:2'}}\n",
    "outputs_without_a_value": PIPELINE
    + "outputs:\n  model:\njobs:\n  a: {component: azureml:s:1, outputs: {m: '${{parent.outputs.model}}'}}\n",
    "a_chain_of_outputs": PIPELINE
    + """\
        jobs:
          a: {component: azureml:s:1, outputs: {o: {type: uri_file, mode: upload}}}
          b: {component: azureml:s:2, inputs: {i: {type: uri_file, path: "${{parent.jobs.a.outputs.o}}"}}}
        """,
    "serverless_on_request": PIPELINE.replace("azureml:cpus", "serverless")
    + "jobs: {a: {component: azureml:s:1, resources: {instance_type: Standard_E4s_v3}}}\n",
    "named_registered_output": PIPELINE
    + "outputs: {model: {type: custom_model, name: classifier, version: '4'}}\n"
    + "jobs: {a: {component: azureml:s:1, outputs: {m: '${{parent.outputs.model}}'}}}\n",
    "label_of_an_environment": COMMAND.replace("torch:3", "torch@production") + "command: ls\n",
    "compute_by_its_id": COMMAND.replace(
        "azureml:cpus",
        "/subscriptions/1/resourceGroups/g/providers/Microsoft.MachineLearningServices/workspaces/w/computes/c",
    )
    + "command: ls\n",
    "data_of_every_kind": COMMAND
    + """\
        command: ls ${{inputs.a}} ${{inputs.b}} ${{inputs.c}} ${{inputs.d}}
        inputs:
          a: {path: "azureml:sales@latest"}
          b: {type: uri_file, path: "https://example.blob.core.windows.net/raw/a.csv?sv=2024-01-01&sp=r"}
          c: {type: mltable, path: "azureml://registries/shared/data/sales/versions/2"}
          d: {type: uri_folder, mode: download, path: "abfss://raw@account.dfs.core.windows.net/a b/"}
        """,
    "sweep_of_nested_choices": SWEEP
    + "sampling_algorithm: {type: random, rule: sobol, seed: 7}\n"
    + "search_space: {x: {type: choice, values: [1, '2', 3.5, 'true']}}\n",
    "sweep_on_a_logarithm": SWEEP
    + "sampling_algorithm: random\nsearch_space: {x: {type: loguniform, min_value: -6, max_value: -1}}\n",
    "cron_with_names_and_steps": SCHEDULE + 'trigger: {type: cron, expression: "*/15 6-20/2 1,15 jan-jun mon-fri"}\n',
    "recurrence_on_two_days": SCHEDULE
    + "trigger: {type: recurrence, frequency: week, interval: 2, time_zone: UTC,\n"
    + "  schedule: {hours: [6, 18], minutes: [0], week_days: [monday, friday]}}\n",
    "pip_of_many_forms": """\
        name: env
        image: mcr.microsoft.com/azureml/openmpi5.0-ubuntu24.04@sha256:6fe75a90
        conda_file:
          channels: [nodefaults, conda-forge]
          dependencies:
            - python >=3.10,<3.12
            - conda-forge::gcc_linux-64=12.*
            - pip
            - pip:
                - --extra-index-url https://download.pytorch.org/whl/cpu
                - torch==2.4.1+cpu
                - git+https://github.com/huggingface/peft@v0.13.0
                - "numpy<2; python_version < '3.12'"
                - -r https://example.com/requirements.txt
        """,
    "environment_from_a_template": "name: env\nimage: ${REGISTRY}/train:${TAG}\n",
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_unusual_and_right_is_not_reported(tmp_path: Path, name: str) -> None:
    head, _, indented = UNUSUAL[name].partition("        ")
    text = head + textwrap.dedent("        " + indented) if indented else head
    (tmp_path / "file.yml").write_bytes(text.encode())
    found = [d for d in lint([tmp_path / "file.yml"]).diagnostics if d.severity != "info"]
    assert found == []
