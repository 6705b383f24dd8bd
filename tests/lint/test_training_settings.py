"""What Trainyard's own steps would refuse is found by lint and plan, on the line, before the job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainyard.lint.linter import lint
from trainyard.plan.planner import plan
from trainyard.spec.computes import Computes
from trainyard.spec.diagnostic import Diagnostic, SpecError
from trainyard.spec.findings import DocumentStore
from trainyard.spec.loading import load_job

ROOT = Path(__file__).parents[2]
GENERATOR = ROOT / "docs" / "generate_model_types.py"


def copy_with(folder: Path, pipeline: str, changed: str, old: str, new: str) -> Path:
    """One of this project's pipelines with its settings file, in a folder of their own, with one change."""
    beside = {name: f"{os.path.relpath(ROOT, folder / 'pipelines')}/{name}" for name in ("components", "environments")}
    for kind in ("pipelines", "settings"):
        text = (ROOT / kind / pipeline).read_text()
        if kind == changed:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        for name, place in beside.items():
            text = text.replace(f"../{name}/", f"{place}/")
        (folder / kind).mkdir()
        (folder / kind / pipeline).write_text(text)
    return folder / "pipelines" / pipeline


def errors_in(file: Path) -> list[Diagnostic]:
    return [each for each in lint([file]).diagnostics if each.severity == "error"]


CASES = {
    "a mistyped model type": (
        "fsdp.yaml", "settings", "model_type: llama", "model_type: lama", "AML323",
        "unknown model_type 'lama' for language", "lama",
    ),
    "a model type longer than any file name": (
        "fsdp.yaml", "settings", "model_type: llama", f"model_type: {'a' * 300}", "AML323",
        "unknown model_type 'aaa", "a" * 300,
    ),
    "a language model for images": (
        "ddp.yaml", "settings", "model_type: convnext", "model_type: llama", "AML323",
        "'llama' for image classification", "llama",
    ),
    "a mistyped setting": (
        "fsdp.yaml", "settings", "  hidden_size", "  hiden_size", "AML324", "llama has no setting 'hiden_size'",
        "hiden_size",
    ),
    "no JSON": (
        "fsdp.yaml", "settings", "model_overrides:\n", "model_overrides: '{num_hidden'\nmodel_over:\n", "AML320",
        "model_overrides is not JSON", "{num_hidden",
    ),
    "a format without its source": (
        "ddp.yaml", "pipelines", "format: digits", "format: folder", "AML325", "format 'folder' needs a source",
        "format: folder",
    ),
    "a global batch that does not divide": (
        "fsdp.yaml", "pipelines", "global_batch_size: 8", "global_batch_size: 12", "AML319",
        "12 is not a multiple of 2", ": 12",
    ),
    "a micro-batch above the global one": (
        "fsdp.yaml", "pipelines", "micro_batch_size: 2", "micro_batch_size: 16", "AML319",
        "8 is not a multiple of 16 micro", ": 8",
    ),
    "one of a sweep's batches": (
        "sweep.yaml", "pipelines", "[64, 128, 256]", "[64, 100, 256]", "AML319", "100 is not a multiple of 16 micro",
        "choice",
    ),
}  # fmt: skip


MIXED = """\
      data_2: {type: uri_folder, path: azureml:books:1}
      data_3: {type: uri_folder, path: azureml:code:1}
"""


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ('"3,1"', "data_weights 3,1: 2 weights for 3 datasets"),
        ('"3,1,0"', "data_weights '3,1,0': expected a positive number for each dataset, such as 3,1"),
        ('"3,1/2,0.5"', None),
    ],
)
def test_weights_are_one_for_each_dataset_that_is_mixed(tmp_path: Path, weights: str, message: str | None) -> None:
    file = copy_with(tmp_path, "fsdp.yaml", "settings", "epochs: 4", f"epochs: 4\ndata_weights: {weights}")
    data = "      data: ${{parent.jobs.prepare_text.outputs.prepared}}\n"
    file.write_text(file.read_text().replace(data, data + MIXED, 1))
    found = errors_in(file)
    assert [(each.rule, each.message) for each in found] == ([("AML326", message)] if message else [])
    if message is not None:
        assert f"data_weights: {weights}" in found[0].span.file.read_text().splitlines()[found[0].span.line - 1]
        with pytest.raises(SpecError, match=message.split(":")[0]):
            plan(load_job(file, strict=True), Computes(DocumentStore(), {"gpu-t4": "Standard_NC64as_T4_v3"}))


def test_tensorflows_parameter_servers_share_no_batch(tmp_path: Path) -> None:
    """A worker with micro-batches of 16 and a parameter server, two processes: 48 divides, 40 does not."""
    file = copy_with(tmp_path, "tensorflow_ps.yaml", "pipelines", "global_batch_size: 64", "global_batch_size: 48")
    assert not errors_in(file)
    file.write_text(file.read_text().replace("global_batch_size: 48", "global_batch_size: 40"))
    (found,) = errors_in(file)
    assert (found.rule, found.message) == ("AML319", "global_batch_size 40 is not a multiple of 16 micro × 1 processes")


@pytest.mark.parametrize("case", CASES)
def test_what_the_job_would_refuse(tmp_path: Path, case: str) -> None:
    pipeline, changed, old, new, rule, message, at = CASES[case]
    file = copy_with(tmp_path, pipeline, changed, old, new)
    found = errors_in(file)
    assert (found[0].rule, found[0].span.file) == (rule, tmp_path / changed / pipeline)
    assert message in found[0].message
    assert at in found[0].span.file.read_text().splitlines()[found[0].span.line - 1]
    with pytest.raises(SpecError) as refused:
        plan(load_job(file, strict=True), Computes(DocumentStore(), {"gpu-t4": "Standard_NC64as_T4_v3"}))
    assert {each.rule for each in refused.value.diagnostics} == {each.rule for each in found}
    assert len(found) == 1 or case == "no JSON"


def test_other_names_of_settings_and_folders_with_models_are_left_alone(tmp_path: Path) -> None:
    overrides = json.dumps({"num_hidden_layers": 2, "n_embd": 64})
    (tmp_path / "train.yaml").write_text(
        "type: command\nname: train\nenvironment: azureml:torch:3\n"
        "command: python -m trainyard.steps.train_ddp --task ${{inputs.task}} --model-type ${{inputs.model_type}}"
        " --model-overrides '${{inputs.model_overrides}}'\n"
        "inputs: {task: {type: string}, model_type: {type: string}, model_overrides: {type: string}}\n"
    )
    for model_type in ("gpt2", "my/model"):
        (tmp_path / "pipeline.yaml").write_text(
            "type: pipeline\nsettings: {default_compute: azureml:gpus}\njobs:\n  train:\n    component: ./train.yaml\n"
            f"    inputs: {{task: language_modeling, model_type: {model_type}, model_overrides: '{overrides}'}}\n"
        )
        assert [each.rule for each in lint([tmp_path / "pipeline.yaml"]).diagnostics if each.severity == "error"] == []


@pytest.mark.slow  # imports every configuration of transformers
def test_the_table_is_that_of_transformers() -> None:
    done = subprocess.run(
        [sys.executable, GENERATOR, "--check"], capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")
