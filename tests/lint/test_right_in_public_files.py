"""What is right in public files, though it looks like a mistake: each case stands for one that was reported falsely."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest

from trainyard.lint.linter import lint
from trainyard.spec.diagnostic import Diagnostic

COMPONENT = "type: command\nname: c\nis_deterministic: false\nenvironment: azureml:e:1\n"
JOB = "type: command\nenvironment: azureml:e:1\ncompute: azureml:gpu-cluster\n"


def findings(folder: Path, text: str) -> list[Diagnostic]:
    file = folder / "file.yml"
    file.write_text(text)
    return list(lint([file]).diagnostics)


def rules(folder: Path, text: str) -> list[str]:
    return [found.rule for found in findings(folder, text)]


@pytest.mark.parametrize(
    ("dockerfile", "expected"),
    [
        ("FROM python:3.12\nRUN pip install -r requirements.txt\n", ["AML420"]),
        ("FROM acme.azurecr.io/base:3\nRUN pip install -r requirements.txt\n", []),
        ("FROM python:3.12\nRUN apt-get update && apt-get install -y git\nRUN pip install -r r.txt\n", ["AML420"]),
        ("FROM python:3.12\nENV PATH=/opt/conda/bin:/usr/local/bin:/usr/bin:/bin\n", []),
        ("FROM python:3.12\nENV PATH ${PATH}:/opt/tools/bin\n", []),
        ("FROM python:3.12\nENV PYTHONPATH=/opt/tools\n", []),
        ('FROM python:3.12\nENV PATH="/opt/my tools/bin:${PATH}"\n', []),
        ("FROM python:3.12\nENV PATH=/opt/venv/bin:\\\n$PATH\n", []),
        ("FROM python:3.12\nENV PATH=/opt/venv/bin:\\\n    /usr/local/bin:/usr/bin:/bin\n", []),
        ("FROM python:3.12\nRUN git -c http.sslVerify=false clone https://x.org/y\nRUN pip install -r y/r.txt\n", []),
        ("FROM python:3.12\nRUN git lfs clone https://x.org/y\nRUN pip install -r y/r.txt\n", []),
        ("FROM python:3.12\nRUN git submodule update --init\nRUN pip install -r y/r.txt\n", []),
        ("FROM python:3.12\nRUN cd /opt/app && pip install -r requirements.txt\n", []),
        ("FROM python:3.12\nRUN apt-get update && \\\n    git clone https://x.org/y\nRUN pip install -r y/r.txt\n", []),
        ("FROM python:3.12\nRUN apt-get update && apt-get install \\\n    -y vim\n", []),
        ("FROM python:3.12\nCOPY train.py \\\n    missing.py /app/\n", ["AML420"]),
    ],
    ids=[
        *("nothing_copied", "own_image", "git_installed", "whole_path", "longer_path", "other_path"),
        *("path_with_a_blank", "path_of_two_lines", "whole_path_of_two_lines", "cloned", "cloned_by_lfs", "submodule"),
        "elsewhere",
        *("cloned_on_a_second_line", "two_lines", "copied_on_a_second_line"),
    ],
)
def test_an_instruction_of_a_dockerfile_may_have_several_lines(
    tmp_path: Path, dockerfile: str, expected: list[str]
) -> None:
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker" / "Dockerfile").write_text(dockerfile)
    (tmp_path / "docker" / "train.py").write_text("print('trained')\n")
    assert rules(tmp_path, "name: e\nversion: 1\nbuild: {path: ./docker}\n") == expected


@pytest.mark.parametrize("image", ["gcr.io/acme/train:1", "ghcr.io/acme/train:1", "library/python:latest"])
def test_a_registry_is_not_another_one_misspelt(tmp_path: Path, image: str) -> None:
    assert rules(tmp_path, f"name: e\nversion: 1\nimage: {image}\n") == []


def test_what_a_name_lacks_may_come_from_the_command_line(tmp_path: Path) -> None:
    text = "$schema: https://azuremlschemas.azureedge.net/latest/environment.schema.json\n"
    (found,) = findings(tmp_path, text + "name: training\ndescription: built from a folder\n")
    assert (found.rule, found.severity) == ("AML102", "warning")


@pytest.mark.parametrize(("key", "severity"), [("display", "warning"), ("contact", "warning"), ("envronment", "error")])
def test_a_key_that_nothing_reads_is_an_error_only_if_another_is_meant(tmp_path: Path, key: str, severity: str) -> None:
    text = COMPONENT.replace("environment", key if severity == "error" else "environment") + "command: run\n"
    text += "" if severity == "error" else f"{key}: someone\n"
    assert (("AML101", severity)) in [(found.rule, found.severity) for found in findings(tmp_path, text)]


@pytest.mark.parametrize(
    ("defined", "named", "expected"),
    [
        ("torch-gpu", "torch-cpu", []),
        ("sales_en", "sales_de", []),
        ("model_a", "model_b", []),
        ("taxi_prep", "taxi_pred", []),
        ("taxi_train", "taxi_trian", ["AML422"]),
    ],
)
def test_one_word_of_a_name_may_differ_on_purpose(
    tmp_path: Path, defined: str, named: str, expected: list[str]
) -> None:
    (tmp_path / "defined.yml").write_text(f"name: {defined}\nversion: 1\nimage: python:3.12\n")
    (tmp_path / "job.yml").write_text(JOB.replace("azureml:e:1", f"azureml:{named}:1") + "command: run\n")
    assert [found.rule for found in lint([tmp_path]).diagnostics] == expected


@pytest.mark.parametrize(("word", "expected"), [("echo", []), ("python", ["AML561"])])
def test_echo_prints_typographic_quotes(tmp_path: Path, word: str, expected: list[str]) -> None:
    text = JOB + f"command: {word} It’s “running” now\n"
    assert rules(tmp_path, text) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("encoding: utf-8, header: all_files_same_headers", []),
        ("encoding: utf8bom, header: All_Files_Same_Headers", []),
        ("encoding: utff8, header: no_header", ["AML421"]),
        ("encoding: latin-1, header: all_file_same_headers", ["AML421"]),
    ],
)
def test_a_table_has_the_words_of_its_schema(tmp_path: Path, words: str, expected: list[str]) -> None:
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "MLTable").write_text(
        "paths: [{file: ./a.csv}]\ntransformations: [{read_delimited: {" + words + "}}, {sample: {probability: 0.1}}]\n"
    )
    assert rules(tmp_path, "name: d\nversion: 1\ntype: mltable\npath: ./table\n") == expected


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("def setup():\n    dist.init_process_group('nccl')\n\n\nsetup()\n", ["AML621"]),
        (
            "def main():\n    dist.init_process_group('nccl')\n\n\nif __name__ == '__main__':\n    main()\n",
            ["AML621"],
        ),
        ("def setup():\n    dist.init_process_group('nccl')\n\n\nif torch.cuda.is_available():\n    setup()\n", []),
        (
            "def setup():\n    if not torch.cuda.is_available():\n        return\n"
            "    dist.init_process_group('nccl')\n\n\nsetup()\n",
            [],
        ),
    ],
    ids=["always", "main", "if_called", "unless_left"],
)
def test_processes_may_be_joined_on_a_condition(tmp_path: Path, script: str, expected: list[str]) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text(f"import torch\nimport torch.distributed as dist\n\n\n{script}")
    text = "type: command\ncommand: python train.py\ncode: ./src\nenvironment: azureml:torch:3\n"
    text += "distribution: {type: pytorch, process_count_per_instance: 4}\n"
    text += "resources: {instance_type: Standard_D8s_v5, shm_size: 4g}\n"
    assert rules(tmp_path, text) == expected


@pytest.mark.parametrize(("package", "expected"), [("cudatoolkit=11.3", []), ("numpy=1.23", ["AML417"])])
def test_a_conda_file_with_cudatoolkit_may_get_a_build_for_cuda_from_any_channel(
    tmp_path: Path, package: str, expected: list[str]
) -> None:
    channels = "{channels: [defaults, pytorch], dependencies: [python=3.8, pytorch=1.13.1, " + package + "]}"
    assert (
        rules(tmp_path, f"name: e\nversion: 1\nimage: python:3.12\nconda_file: {channels}\n$schema: x/environment\n")
        == expected
    )


@pytest.mark.parametrize(
    ("path", "expected"), [("images/dogs/**", []), ("images/*/dogs", ["AML415"]), ("images/*.csv", ["AML415"])]
)
def test_all_that_is_beneath_a_folder_is_the_folder(tmp_path: Path, path: str, expected: list[str]) -> None:
    text = JOB + "command: ls '${{inputs.d}}'\n"
    text += f"inputs: {{d: {{type: uri_folder, path: 'azureml://datastores/raw/paths/{path}'}}}}\n"
    assert rules(tmp_path, text) == expected


@pytest.mark.parametrize(("processes", "machines", "expected"), [(1, 1, []), (8, 1, ["AML617"]), (1, 2, ["AML617"])])
def test_one_process_is_no_distributed_training(
    tmp_path: Path, processes: int, machines: int, expected: list[str]
) -> None:
    text = COMPONENT.replace("is_deterministic: false\n", "") + "command: python -m train\n"
    text += f"distribution: {{type: mpi, process_count_per_instance: {processes}}}\n"
    text += f"resources: {{instance_count: {machines}, shm_size: 8g}}\n"
    assert rules(tmp_path, text) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [("mini_batch", []), ("table, mini_batch_context", []), ("table, model", ["AML506"]), ("", ["AML506"])],
)
def test_a_step_may_ask_for_the_context_of_its_mini_batch(tmp_path: Path, arguments: str, expected: list[str]) -> None:
    (tmp_path / "score.py").write_text(f"def init():\n    pass\n\n\ndef run({arguments}):\n    return []\n")
    text = "type: parallel\nname: p\ninputs: {d: {type: uri_folder}}\noutputs: {o: {type: uri_file}}\n"
    text += "input_data: ${{inputs.d}}\nmini_batch_size: '10'\ntask: {type: run_function, code: ., "
    text += "entry_script: score.py, environment: azureml:e:1, append_row_to: '${{outputs.o}}'}\n"
    assert rules(tmp_path, text) == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("command: |\n  run \\\n    --epochs 3 \\\n    --rate 2\n", []),
        ("command: |\n  run \\ \n    --epochs 3\n", ["AML554"]),
        ("command: >-\n  run \\\n  --epochs 3\n", ["AML554"]),
    ],
    ids=["continued", "a_space_behind_it", "folded"],
)
def test_a_backslash_at_the_end_of_a_line_continues_it(tmp_path: Path, command: str, expected: list[str]) -> None:
    assert rules(tmp_path, COMPONENT + command) == expected


def test_no_more_processes_are_proposed_than_the_machine_has_gpus(tmp_path: Path) -> None:
    text = JOB + "command: run\ndistribution: {type: pytorch, process_count_per_instance: 4}\n"
    text += "resources: {instance_count: 2, instance_type: Standard_NC4as_T4_v3, shm_size: 16g}\n"
    found = next(each for each in findings(tmp_path, text) if each.rule == "AML601")
    assert (found.hint, "has 1 GPU" in found.message, "GPUs" in found.message) == ("Write 1.", True, False)


def test_an_input_that_a_sweep_also_draws_is_not_dropped(tmp_path: Path) -> None:
    (tmp_path / "trial.yml").write_text(COMPONENT + "command: run\n")
    text = (
        "type: pipeline\nsettings: {default_compute: azureml:c}\njobs:\n  search:\n    type: sweep\n"
        "    trial: ./trial.yml\n    inputs: {decay: 0.1}\n    sampling_algorithm: random\n"
        "    search_space:\n      decay: {type: uniform, min_value: 0.1, max_value: 0.5}\n"
        "    objective: {goal: minimize, primary_metric: loss}\n    limits: {max_total_trials: 4}\n"
    )
    (found,) = (each for each in findings(tmp_path, text) if each.rule == "AML302")
    assert found.span.line == 10
    assert "drops" not in found.message


@pytest.mark.parametrize("schema", ["pipelineJob", "commandJob", "environment"])
def test_a_schema_that_contradicts_the_type_is_one_finding(tmp_path: Path, schema: str) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "score.py").write_text(
        "def run(mini_batch):\n    return mini_batch\n\n\ndef init():\n    pass\n"
    )
    text = (
        f"$schema: https://azuremlschemas.azureedge.net/latest/{schema}.schema.json\ntype: parallel\nname: score\n"
        "version: 1\ninputs:\n  images: {type: uri_folder}\ninput_data: ${{inputs.images}}\nmini_batch_size: '10'\n"
        "retry_settings: {max_retries: 2, timeout: 60}\nlogging_level: DEBUG\n"
        "task: {type: run_function, code: ./src, entry_script: score.py, environment: azureml:torch:3}\n"
    )
    (found,) = findings(tmp_path, text)
    assert (found.rule, found.severity, found.span.line) == ("AML012", "warning", 1)


def test_an_environment_of_an_asset_file_of_the_repository_is_known(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "jobs").mkdir()
    job = JOB.replace("azureml:e:1", "azureml://registries/azureml/environments/acpt-pytorch-2.2-cuda12.9/versions/1")
    job = job.replace("cuda12.9", "cuda12.0")
    assert rules(tmp_path / "jobs", job + "command: run\n") == ["AML411"]
    (tmp_path / "environments" / "acpt").mkdir(parents=True)
    asset = "name: acpt-pytorch-2.2-cuda12.0\nversion: auto\ntype: environment\nspec: spec.yaml\n"
    (tmp_path / "environments" / "acpt" / "asset.yaml").write_text(asset)
    assert rules(tmp_path / "jobs", job + "command: run\n") == []


def test_a_virtual_cluster_is_a_compute(tmp_path: Path) -> None:
    assert rules(tmp_path, JOB.replace("gpu-cluster", "virtualClusters/vc") + "command: run\n") == []


@pytest.mark.parametrize(("pinned", "severity"), [("", "warning"), (", pytorch-cuda=11.8", "info")])
def test_no_build_without_cuda_is_claimed_beside_pytorch_cuda(tmp_path: Path, pinned: str, severity: str) -> None:
    text = "name: e\nversion: 1\nimage: python:3.12-slim\nconda_file:\n  channels: [conda-forge, pytorch, nvidia]\n"
    (found,) = findings(tmp_path, text + f"  dependencies: [python=3.10, pytorch=2.1{pinned}]\n")
    assert (found.rule, found.severity) == ("AML417", severity)
    assert ("without CUDA" in found.message) == (severity == "warning")


@pytest.mark.parametrize(
    ("arguments", "superfluous"),
    [
        ('--name abc" --kind "d"', 'abc"'),
        ("--name 'abc'' --kind 'd' --more 'e'", "abc''"),
        ('--name "abc --kind "d"', '"'),
        ('--name "abc" --kind "d', '"abc" --kind "'),
    ],
    ids=["closed_only", "closed_twice", "never_closed", "last"],
)
def test_the_quote_that_is_reported_is_the_one_to_change(tmp_path: Path, arguments: str, superfluous: str) -> None:
    command = f"command: run {arguments}\n"
    (found,) = findings(tmp_path, COMPONENT + command)
    assert found.rule == "AML561"
    assert found.span.column == command.index(superfluous) + len(superfluous)


SCHEMA = "$schema: https://azuremlschemas.azureedge.net/latest/pipelineJob.schema.json\ntype: pipeline\n"


@pytest.mark.parametrize(
    "body",
    [
        "experiment_name: {{NAME}}\njobs:\n  a: {component: azureml:a:1}\n",
        "display_name: {{ cookiecutter.name }}\njobs:\n  a: {component: azureml:a:1}\n",
        "jobs:\n{% for job in jobs %}\n  a: {component: azureml:a:1}\n{% endfor %}\n",
        "{{HEADER}}\njobs:\n  a: {component: azureml:a:1}\n",
    ],
    ids=["a_name", "cookiecutter", "a_loop", "lines"],
)
def test_a_template_that_is_not_rendered_is_one_note(tmp_path: Path, body: str) -> None:
    (found,) = findings(tmp_path, SCHEMA + body)
    assert (found.rule, found.severity) == ("AML011", "info")
    assert "template" in found.message


def test_a_binding_without_its_sign_is_no_template(tmp_path: Path) -> None:
    text = SCHEMA + "experiment_name: e\njobs:\n  a: {component: azureml:a:1, inputs: {x: {{parent.inputs.x}}}}\n"
    assert "AML009" in rules(tmp_path, text)


def test_suggestions_are_of_the_same_kind(tmp_path: Path) -> None:
    cluster = "name: gpu-t4\ntype: amlcompute\nsize: Standard_NC4as_T4_v3\npriority: low\n"
    (found,) = findings(tmp_path, cluster)
    assert "tier: low_priority" in found.hint
    (found,) = findings(tmp_path, COMPONENT + "command: run\ncondition: x\n")
    assert "description'?" not in found.hint
    (tmp_path / "run.py").write_text(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--input_folder')\np.parse_args()\n"
    )
    (found,) = findings(tmp_path, COMPONENT + "code: .\ncommand: python run.py --destination_folder x\n")
    assert found.rule == "AML501"
    assert "input_folder'?" not in found.hint


def test_a_parallel_step_without_init_is_a_note_and_without_run_an_error(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    step = "type: parallel\nname: s\nversion: 1\ninputs:\n  i: {type: uri_folder}\ninput_data: ${{inputs.i}}\n"
    step += "mini_batch_size: '10'\n"
    step += "task: {type: run_function, code: ./src, entry_script: score.py, environment: azureml:torch:3}\n"
    (tmp_path / "src" / "score.py").write_text("def run(mini_batch):\n    return mini_batch\n")
    assert [(each.rule, each.severity) for each in findings(tmp_path, step)] == [("AML506", "info")]
    (tmp_path / "src" / "score.py").write_text("def init():\n    pass\n")
    assert [(each.rule, each.severity) for each in findings(tmp_path, step)] == [("AML506", "error")]


@pytest.mark.parametrize("name", ["latest/featureSetSpecification.schema.json", "sdk-2-0/FeatureSetSpec.json"])
def test_the_specification_of_a_feature_set_is_not_the_feature_set(tmp_path: Path, name: str) -> None:
    schema = f"$schema: https://azuremlschemas.azureedge.net/{name}\n"
    columns = "index_columns:\n  - {name: customer, type: string}\nfeatures:\n  - {name: visits, type: integer}\n"
    (tmp_path / "FeatureSetSpec.yaml").write_text(f"{schema}source: {{type: parquet, path: ./data}}\n{columns}")
    (tmp_path / "count.yml").write_text(COMPONENT + "command: run\n")
    assert lint([tmp_path]).diagnostics == ()


@pytest.mark.parametrize(
    "kind", ["", "type:\n", "type: amlcomput\n"], ids=["no type", "an empty type", "a misspelt type"]
)
def test_a_cluster_without_its_type_is_not_checked_as_all_of_them(tmp_path: Path, kind: str) -> None:
    schema = "$schema: https://azuremlschemas.azureedge.net/latest/amlCompute.schema.json\n"
    (found,) = findings(tmp_path, f"{schema}name: cpus\n{kind}size: Standard_DS3_v2\nmin_instances: 0\n")
    assert "type" in found.message


@pytest.mark.parametrize(("minutes", "expected"), [("00", []), ("07", ["AML010"])])
def test_noughts_are_the_same_number_in_every_yaml(tmp_path: Path, minutes: str, expected: list[str]) -> None:
    trigger = f"trigger: {{type: recurrence, frequency: day, interval: 1, schedule: {{hours: 3, minutes: {minutes}}}}}"
    assert rules(tmp_path, f"name: nightly\n{trigger}\ncreate_job: azureml:train:1\n") == expected


@pytest.mark.parametrize(("key", "expected"), [("PRIVATE", []), ("Zx81/qwLm7+aa0Kd9==", ["AML552"])])
def test_a_word_in_the_place_of_a_key_is_no_secret(tmp_path: Path, key: str, expected: list[str]) -> None:
    place = "account_name: lake\ncontainer_name: curated\n"
    text = f"name: blob\ntype: azure_blob\n{place}credentials: {{account_key: {key}}}\n"
    assert rules(tmp_path, text) == expected


def test_no_file_is_meant_by_its_own_name(tmp_path: Path) -> None:
    (found,) = findings(
        tmp_path, COMPONENT.replace("azureml:e:1", "{image: i, conda_file: fole.yml}") + "command: run\n"
    )
    assert (found.rule, found.hint) == ("AML403", "")


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("def show():\n    print(device)\n\ndef main():\n    device = 0\n    show()\n\nmain()\n", ["AML518"]),
        ("from torch import *\nprint(zeros(1))\n", []),
        ("exec(open('configurator.py').read())\nprint(batch_size)\n", []),
        ("try:\n    text = unicode\nexcept NameError:\n    text = str\nprint(text)\n", []),
        ("def show(model: 'Model') -> 'Model':\n    shown: 'Model' = model\n    return shown\n", []),
        ("def begin():\n    global device\n    device = 0\n\ndef show():\n    print(device)\n", []),
        ("print(__file__, [x for x in range(3)])\nmatch 3:\n    case y:\n        print(y)\n", []),
        ("print({{ name }}, other)\n", []),
    ],
    ids=["of_another_function", "star", "exec", "tried", "annotations", "global", "pattern", "template"],
)
def test_a_name_may_be_defined_in_many_ways(tmp_path: Path, script: str, expected: list[str]) -> None:
    (tmp_path / "train.py").write_text(script)
    assert rules(tmp_path, JOB + "code: .\ncommand: python train.py\n") == expected


SPARK = """\
type: spark
code: ./src
entry: {file: count.py}
conf:
  spark.driver.cores: 1
  spark.driver.memory: 2g
  spark.executor.cores: 2
  spark.executor.memory: 2g
  spark.executor.instances: 2
environment: {conda_file: conda.yml}
"""
MACHINES = 'resources: {instance_type: standard_e4s_v3, runtime_version: "3.4"}\n'


@pytest.mark.parametrize(
    "text",
    [
        SPARK + MACHINES,
        "name: count\nversion: 1\n" + SPARK,
        "type: pipeline\njobs:\n  count:\n" + indent(SPARK + MACHINES, "    "),
    ],
    ids=["job", "component", "job_of_a_pipeline"],
)
def test_the_environment_of_a_spark_job_may_lack_an_image(tmp_path: Path, text: str) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "count.py").write_text("print('counted')\n")
    (tmp_path / "conda.yml").write_text("dependencies: [python=3.10, pandas]\n")
    assert rules(tmp_path, text) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: ${CLUSTER}\ntype: amlcompute\nsize: Standard_DS3_v2\nmax_instances: ${MACHINES}\n", ["AML011"]),
        ("type: command\ncommand: train\ncompute: azureml:c\nenvironment: azureml:${IMAGE}\n", ["AML011"]),
        (JOB + "command: $TRAINER --epochs 3\n", []),
        (JOB + "command: train\nenvironment_variables:\n  HOME_OF_DATA: ${DATA}\n", []),
    ],
    ids=["a cluster", "a job", "the shell's variable", "a variable of the job"],
)
def test_what_envsubst_fills_in_is_one_note(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert [(found.rule, found.severity) for found in findings(tmp_path, text)] == [(rule, "info") for rule in expected]


@pytest.mark.parametrize(("value", "expected"), [("azureml:houses:1", []), ("./houses", []), ("1", ["AML309"])])
def test_a_text_is_the_path_of_a_component_s_data(tmp_path: Path, value: str, expected: list[str]) -> None:
    ports = "name: clean\nversion: 1\ninputs: {raw: {type: uri_folder}}\n"
    (tmp_path / "clean.yml").write_text(
        "type: command\ncommand: clean ${{inputs.raw}}\nenvironment: azureml:e:1\n" + ports
    )
    step = f"{{component: ./clean.yml, compute: azureml:c, inputs: {{raw: {value}}}}}"
    assert rules(tmp_path, f"type: pipeline\njobs:\n  clean: {step}\n") == expected


def test_an_output_that_is_set_to_a_text_is_one_finding(tmp_path: Path) -> None:
    ports = 'outputs: {clean: "${{parent.outputs.clean}}"}, environment: azureml:e:1, compute: azureml:c'
    job = f'{{command: "prepare ${{{{outputs.clean}}}}", {ports}}}'
    assert rules(tmp_path, f"type: pipeline\noutputs: {{clean: uri_file}}\njobs:\n  prepare: {job}\n") == ["AML103"]
    assert rules(tmp_path, JOB + "command: train ${{outputs.model}}\noutputs: {model: mlflow_model}\n") == ["AML103"]


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ("print(args.lr)", ["AML515"]),
        ("join(args)\nprint(args.lr)", []),
        ("args.lr = 0.1\nprint(args.lr)", []),
        ("args.__setattr__('lr', 0.1)\nprint(args.lr)", []),
        ("print(args._get_kwargs())", []),
        ("print(args)\nif hasattr(args, 'lr'):\n    print(args.lr)", []),
    ],
    ids=[
        "nothing adds it",
        "another module may",
        "it is set",
        "it is set as an attribute",
        "a method",
        "it is asked for",
    ],
)
def test_arguments_may_be_added_to_what_was_parsed(tmp_path: Path, after: str, expected: list[str]) -> None:
    parser = (
        "import argparse\nfrom mine import join\n\nparser = argparse.ArgumentParser()\nparser.add_argument('--rate')\n"
    )
    (tmp_path / "mine.py").write_text("def join(args):\n    args.lr = 0.1\n")
    (tmp_path / "train.py").write_text(f"{parser}args = parser.parse_args()\n{after}\n")
    assert rules(tmp_path, JOB + "code: .\ncommand: python train.py --rate 3\n") == expected


@pytest.mark.parametrize(
    ("params", "flags", "expected"),
    [
        ('{"lr": 1e-3, "eps": 1e-8, "weight_decay": 3e-7}', "", []),
        ('{"lr": "auto", "eps": "auto"}', "--learning_rate 1e-3", []),
        ('{"lr": 1e-3, "eps": 1e-8}', "--learning_rate 0.001 --adam_epsilon 1e-08", []),
        ('{"lr": 1e-3, "eps": 1e-8}', "--learning_rate 2e-3", ["AML710"]),
        ('{"lr": 1e-3}', "--learning_rate $RATE", []),
        ('{"lr": "1e-3"}', "", ["AML708"]),
    ],
    ids=["without a dot", "filled in", "the same", "another", "a variable", "in quotes"],
)
def test_numbers_of_json_may_lack_a_dot(tmp_path: Path, params: str, flags: str, expected: list[str]) -> None:
    trainer = "from transformers import HfArgumentParser, TrainingArguments\n\nHfArgumentParser(TrainingArguments)\n"
    (tmp_path / "train.py").write_text(trainer)
    (tmp_path / "ds.json").write_text(f'{{"optimizer": {{"type": "AdamW", "params": {params}}}}}')
    command = f"command: python train.py --deepspeed ds.json {flags}\n"
    assert rules(tmp_path, JOB + "code: .\n" + command) == expected


@pytest.mark.parametrize("name", ["adamw", "Adam", "RMSprop", "OneBitAdam"])
def test_optimizers_of_deepspeed_and_pytorch_are_known(tmp_path: Path, name: str) -> None:
    (tmp_path / "train.py").write_text("print('training')\n")
    (tmp_path / "ds.json").write_text(
        f'{{"optimizer": {{"type": "{name}"}}, "scheduler": {{"type": "CosineAnnealingLR"}}}}'
    )
    assert rules(tmp_path, JOB + "code: .\ncommand: python train.py --deepspeed_config ds.json\n") == []


def test_a_misspelt_type_is_one_finding(tmp_path: Path) -> None:
    job = "{command: train, environment: azureml:e:1, compute: azureml:c}"
    assert rules(tmp_path, f"typ: pipeline\njobs:\n  train: {job}\n") == ["AML101"]
