"""Every verb as a person types it: what it prints where, and how it exits."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import trainyard as package

Run = Callable[..., Any]

VERBS = (
    "init",
    "new",
    "import",
    "model",
    "render",
    "lint",
    "lsp",
    "explain",
    "plan",
    "estimate",
    "graph",
    "run",
    "runs",
    "submit",
    "skus",
    "schemas",
    "doctor",
)


def test_help_lists_the_verbs_in_the_order_of_a_day(trainyard: Run) -> None:
    outcome = trainyard("--help")
    assert outcome.exit_code == 0
    assert [line.split()[0] for line in outcome.stdout.split("Commands:")[1].strip().splitlines()] == list(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(trainyard: Run, verb: str) -> None:
    outcome = trainyard(verb, "--help")
    assert outcome.exit_code == 0
    assert f"trainyard {verb}" in outcome.stdout.split("Options:")[0].split("\n\n", 1)[1]


def test_version(trainyard: Run) -> None:
    assert trainyard("--version").stdout == f"trainyard {package.__version__}\n"


# wrong use -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rnder"], ["rnder"]),
        (["render", "nd69"], ["nd69", "nd96"]),
        (["render", "nd96", "--sett", "nodes=4"], ["--sett", "--set"]),
        (["render", "nd96", "--set", "nodes"], ["--set nodes", "KEY=VALUE"]),
        (["render", "nd96", "--check", "--diff"], ["cannot be combined"]),
        (["run", "pipelines/dpp.yaml"], ["pipelines/dpp.yaml", "pipelines/ddp.yaml"]),
        (["run", "pipelines"], ["is a folder"]),
        (["run"], ["FILE"]),
        (["run", "pipelines/ddp.yaml", "--profile", "lokal"], ["lokal", "local"]),
        (["run", "pipelines/ddp.yaml", "--set", "inputs.epoch=1", "--max-processes", "1"], ["epoch", "epochs"]),
        (["run", "pipelines/ddp.yaml", "-f", "pipelines/ddp.yaml"], ["twice"]),
        (["run", "pipelines/ddp.yaml", "--max-processes", "0"], ["--max-processes"]),
        (["lint", "componets"], ["componets"]),
        (["plan", "no.yaml"], ["no.yaml"]),
        (["skus", "Standard_ND96asr_v5"], ["Standard_ND96asr_v4"]),
        (["schemas", "pipline"], ["pipline", "pipeline"]),
        (["runs", "show", "no-such-run"], ["no-such-run"]),
    ],
)
def test_wrong_use_exits_2_with_one_error_that_says_what_to_do(
    trainyard: Run, arguments: list[str], words: list[str]
) -> None:
    outcome = trainyard(*arguments)
    assert outcome.exit_code == 2
    assert outcome.stdout == ""
    assert outcome.stderr.startswith("error: ")
    assert outcome.stderr.count("error: ") == 1
    for word in words:
        assert word in outcome.stderr


def test_outside_a_project_render_says_what_is_missing(
    trainyard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = trainyard("render", "nd96")
    assert outcome.exit_code == 2
    assert "templates/" in outcome.stderr


# the verbs -----------------------------------------------------------------------------------------------------------


def test_what_is_committed_has_not_drifted(trainyard: Run) -> None:
    outcome = trainyard("render", "--check")
    assert (outcome.exit_code, outcome.stdout) == (0, "")


def test_diff_shows_another_profile_without_writing(trainyard: Run) -> None:
    before = Path("pipelines/ddp.yaml").read_bytes()
    outcome = trainyard("render", "nd96", "--set", "nodes=4", "--diff")
    assert outcome.exit_code == 0
    assert "  resources.instance_count  " in outcome.stdout
    assert "+++ " not in outcome.stdout
    assert "+++ " in trainyard("render", "nd96", "--set", "nodes=4", "--diff", "-v").stdout
    assert Path("pipelines/ddp.yaml").read_bytes() == before


def test_a_file_of_settings_is_laid_over_the_profile(trainyard: Run, tmp_path: Path) -> None:
    file = tmp_path / "profile.yaml"
    file.write_text("pipelines:\n  deepspeed:\n    config: zero3\n    micro_batch_size: 1\n")
    options = ("--set", "pipelines.deepspeed.config=zero1", "--out", str(tmp_path / "out"))
    assert trainyard("render", "t4", "--apply", str(file), *options).exit_code == 0
    pipeline = (tmp_path / "out" / "pipelines" / "deepspeed.yaml").read_text()
    assert "  micro_batch_size: 1\n" in pipeline
    assert "deepspeed/zero1.json" in pipeline, "--set takes precedence"
    assert trainyard("render", "--check", "--out", str(tmp_path / "out")).exit_code == 0
    missing = trainyard("render", "t4", "--apply", str(tmp_path / "none.yaml"))
    assert missing.exit_code != 0
    assert "none.yaml" in missing.stderr
    assert "Traceback" not in missing.stderr


def test_render_elsewhere_then_check_there(trainyard: Run, tmp_path: Path) -> None:
    assert trainyard("render", "nd96", "--out", str(tmp_path)).exit_code == 0
    pipeline = tmp_path / "pipelines" / "ddp.yaml"
    assert trainyard("render", "--check", "--out", str(tmp_path)).exit_code == 0
    pipeline.write_text(pipeline.read_text().replace("gpu-nd96", "my-cluster"))
    outcome = trainyard("render", "--check", "--out", str(tmp_path))
    assert outcome.exit_code == 1
    assert "ddp.yaml" in outcome.stderr
    assert "my-cluster" in outcome.stdout


def test_lint_finds_nothing_in_what_is_committed(trainyard: Run) -> None:
    outcome = trainyard("lint")
    assert outcome.exit_code == 0
    assert "no findings" in outcome.stderr


def test_lint_as_json_has_the_promised_keys(trainyard: Run, tmp_path: Path) -> None:
    rendered = tmp_path / "pipelines" / "ddp.yaml"
    assert trainyard("render", "t4", "--out", str(tmp_path)).exit_code == 0
    rendered.write_text(rendered.read_text().replace("type: pipeline", "type: pipelin"))
    outcome = trainyard("lint", str(rendered), "--format", "json")
    assert outcome.exit_code == 1
    [finding, *_] = json.loads(outcome.stdout)
    assert set(finding) == {
        "file", "line", "column", "end_line", "end_column", "rule", "severity", "message", "hint", "related",
    }  # fmt: skip
    assert finding["severity"] == "error"


def test_a_mistake_in_a_rendered_file_names_the_template_line(trainyard: Run, tmp_path: Path) -> None:
    assert trainyard("render", "t4", "--out", str(tmp_path)).exit_code == 0
    component = tmp_path / "components" / "train_ddp.yaml"
    component.write_text(component.read_text().replace("is_deterministic:", "is_determinstic:"))
    outcome = trainyard("lint", str(component))
    assert outcome.exit_code == 1
    assert "is_deterministic" in outcome.stderr
    assert "templates/components/_step.j2:" in outcome.stderr


def test_plan_and_lint_take_a_profile(trainyard: Run) -> None:
    """The file is rendered aside: it stays as it is, and the cluster is the one that the profile describes."""
    before = Path("pipelines/fsdp.yaml").read_text(encoding="utf-8")
    planned = trainyard("plan", "pipelines/fsdp.yaml", "--profile", "nd96", "--format", "json")
    assert planned.exit_code == 0, planned.stderr
    assert json.loads(planned.stdout)["jobs"]["train_fsdp"]["sku"] == "Standard_ND96asr_v4"
    assert trainyard("lint", "pipelines/fsdp.yaml", "--profile", "nd96").exit_code == 0
    assert Path("pipelines/fsdp.yaml").read_text(encoding="utf-8") == before
    for arguments in (("lint", "--profile", "nd96"), ("plan", "pipelines/fsdp.yaml", "--profile", "nosuch")):
        assert trainyard(*arguments).exit_code == 2


def test_plan_takes_the_size_of_a_cluster_that_nobody_knows(
    trainyard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = "type: command\ncommand: echo\nenvironment: azureml:python:1\ncompute: azureml:gpus\n"
    Path("job.yml").write_text(job, encoding="utf-8")
    advice = 'give its size as --sku, or in .trainyard.toml: [lint.computes] gpus = "Standard_…"'
    assert advice in trainyard("plan", "job.yml").stdout
    assert "1 × Standard_NC24ads_A100_v4" in trainyard("plan", "job.yml", "--sku", "NC24ads_A100_v4").stdout
    assert trainyard("plan", "job.yml", "--sku", "NC24ads_A100_v9").exit_code == 2
    Path(".trainyard.toml").write_text('[lint.computes]\ngpus = "Standard_ND96asr_v4"\n', encoding="utf-8")
    assert "1 × Standard_ND96asr_v4" in trainyard("plan", "job.yml", "--sku", "NC24ads_A100_v4").stdout


def test_plan_knows_the_machines_of_the_committed_pipeline(trainyard: Run) -> None:
    outcome = trainyard("plan", "pipelines/ddp.yaml", "--format", "json")
    assert outcome.exit_code == 0
    assert "Standard_NC64as_T4_v3" in outcome.stdout
    json.loads(outcome.stdout)


@pytest.mark.parametrize("output_format", ["text", "mermaid"])
def test_graph_draws_every_job(trainyard: Run, output_format: str) -> None:
    outcome = trainyard("graph", "-f", "pipelines/ddp.yaml", "--format", output_format)
    assert outcome.exit_code == 0
    assert all(job in outcome.stdout for job in ("prepare", "train", "evaluate"))


def test_skus_lists_a_family(trainyard: Run) -> None:
    machines = [line.split()[0] for line in trainyard("skus", "ND96").stdout.splitlines()[1:]]
    assert "Standard_ND96asr_v4" in machines
    assert "Standard_ND96isr_H100_v5" in machines
    assert all(name.startswith("Standard_ND96") for name in machines)


def test_a_missing_option_is_named_as_it_is_typed(trainyard: Run) -> None:
    assert "error: missing --model, or --task and --data for a task of your own\n" in trainyard("estimate").stderr


def test_skus_lists_all_and_shows_one_in_full(trainyard: Run) -> None:
    listed = trainyard("skus").stdout
    assert len(listed.splitlines()) > 30
    full = trainyard("skus", "nd96asr_v4").stdout
    assert "8 x NVIDIA A100 SXM4 40GB" in full
    assert "source" in full
    assert "closest current sizes: Standard_NC64as_T4_v3" in trainyard("skus", "Standard_NC24").stdout
    assert json.loads(trainyard("skus", "nd96asr_v4", "--format", "json").stdout)[0]["gpu_count"] == 8


def test_schemas_are_listed_and_printed(trainyard: Run) -> None:
    names = [line.split()[0] for line in trainyard("schemas").stdout.splitlines()]
    assert {"profile", "component", "pipeline", "environment", "compute", "run"} <= set(names)
    for name in names:
        assert json.loads(trainyard("schemas", name).stdout)["$schema"].endswith("2020-12/schema")


def test_doctor_finds_this_machine_ready(trainyard: Run) -> None:
    outcome = trainyard("doctor")
    assert outcome.exit_code == 0
    assert f"torch: {version('torch').partition('+')[0]}" in outcome.stdout


HELLO = """\
type: pipeline
inputs:
  greeting:
    type: uri_file
    path: ./not-there.txt
jobs:
  hello:
    type: command
    command: cat ${{inputs.greeting}}
    environment: azureml:any:1
    inputs:
      greeting: ${{parent.inputs.greeting}}
"""


def test_run_refuses_what_lint_calls_an_error(trainyard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hello.yaml").write_text(HELLO + "    distributon: {type: pytorch, process_count_per_instance: 2}\n")
    outcome = trainyard("run", "hello.yaml")
    assert outcome.exit_code == 1
    assert "hello.yaml:13:5" in outcome.stderr
    assert "distribution" in outcome.stderr
    assert not Path(".trainyard/runs").exists()


def test_data_that_is_missing_can_be_given(trainyard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hello.yaml").write_text(HELLO)
    missing = trainyard("run", "hello.yaml")
    assert missing.exit_code == 1
    assert "not-there.txt" in missing.stderr
    assert "--set inputs.greeting.path=" in missing.stderr
    Path("here.txt").write_text("hello from a file\n")
    outcome = trainyard("run", "hello.yaml", "--set", "inputs.greeting=here.txt")
    assert outcome.exit_code == 0, outcome.stderr
    assert "hello from a file" in trainyard("runs", "logs").stdout


def project_copy(folder: Path) -> Path:
    """The project's own sources in another folder, where a test may break them."""
    for name in ("profiles", "settings", "templates", "src", "components", "pipelines", "environments", "compute"):
        shutil.copytree(name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("extends: t4", "extends: t5", ["profiles/nd96.yaml:3:10", "'t5'", "'t4'"]),
        ("extends: t4", "extends: nd96", ["profiles/nd96.yaml:3:10", "circle"]),
        ("sku: Standard_ND96asr_v4", "sku: Standard_ND96asr_v5", ["profiles/nd96.yaml:8:6", "Standard_ND96asr_v4"]),
        ("sku: Standard_ND96asr_v4", "sku: Standard_NC24", ["profiles/nd96.yaml:8:6", "retired"]),
    ],
)
def test_lint_finds_in_a_profile_what_render_would(
    trainyard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, words: list[str]
) -> None:
    monkeypatch.chdir(project_copy(tmp_path))
    profile = Path("profiles/nd96.yaml")
    profile.write_text(profile.read_text().replace(old, new))
    outcome = trainyard("lint")
    assert outcome.exit_code == 1
    for word in words:
        assert word in outcome.stderr


def test_lint_of_a_project_finds_templates_that_cannot_be_rendered(
    trainyard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project_copy(tmp_path))
    template = Path("templates/components/evaluate.yaml.j2")
    line = template.read_text().count("\n") + 1
    template.write_text(template.read_text() + "{{ steps.evaluate.fild }}\n")
    outcome = trainyard("lint")
    assert outcome.exit_code == 1
    assert f"{template}:{line}:19: error[TY202] a step has no 'fild'" in outcome.stderr
    assert "1 error, 0 warnings" in outcome.stderr
    assert trainyard("lint", "--no-templates").exit_code == 0


def test_run_with_a_profile_says_that_it_does_not_see_hand_edits(
    trainyard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project_copy(tmp_path))
    pipeline = Path("pipelines/ddp.yaml")
    pipeline.write_text(pipeline.read_text().replace("seed: 0", "seed: 1"))
    outcome = trainyard("run", "pipelines/ddp.yaml", "--profile", "local", "--set", "inputs.epochs=three")
    assert outcome.exit_code == 2
    assert "pipelines/ddp.yaml was edited by hand" in outcome.stderr
