"""Trained models in a chosen type and in files of a chosen size: read by transformers, peft and our own steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from base_models import make_llama, make_small_text
from rank_processes import training_arguments
from safetensors.torch import load_file

from trainyard.steps import evaluate, export_model, train_ddp
from trainyard.steps.training.checkpoints.checkpoint_to_resume import checkpoint_folders
from trainyard.steps.training.checkpoints.commit import COMMIT_FILE

INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def base(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two megabytes of weights in bf16."""
    return make_llama(tmp_path_factory.mktemp("base"), text, hidden_size=256, intermediate_size=256)


@pytest.fixture(scope="module")
def data(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_small_text(text, tmp_path_factory.mktemp("data"))


def train(data: Path, base: Path, out: Path, *more: object) -> Path:
    flags = ("--base-model", base, "--max-steps", 2, "--global-batch-size", 4, "--micro-batch-size", 4, *more)
    assert train_ddp.main([str(flag) for flag in training_arguments(data, out, "language_modeling", *flags)]) == 0
    return out / "model"


def read_model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto")


def last_commit(out: Path) -> str:
    return (checkpoint_folders(out / "checkpoints")[0] / COMMIT_FILE).read_text()


def loss_of(data: Path, model: Path, out: Path) -> float:
    flags = ("--data", data, "--model", model, "--evaluation", out, "--sample-tokens", 0, "--split", "train")
    assert evaluate.main([str(flag) for flag in flags]) == 0
    return float(json.loads((out / "evaluation.json").read_text())["loss"])


def test_a_rounded_model_in_several_files_is_the_trained_one(data: Path, base: Path, tmp_path: Path) -> None:
    exact = train(data, base, tmp_path / "exact")
    rounded = train(data, base, tmp_path / "rounded", "--save-dtype", "bf16", "--save-shard-mb", 1)
    assert last_commit(tmp_path / "exact") == last_commit(tmp_path / "rounded")  # checkpoints are not rounded

    index = json.loads((rounded / INDEX).read_text())
    files = sorted(file.name for file in rounded.glob("*.safetensors"))
    assert sorted(set(index["weight_map"].values())) == files
    assert len(files) > 1
    assert all((rounded / name).stat().st_size < 1_100_000 for name in files)
    assert json.loads((rounded / "config.json").read_text())["dtype"] == "bfloat16"

    weights = load_file(exact / "model.safetensors")
    found = {name: tensor for file in files for name, tensor in load_file(rounded / file).items()}
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], tensor.to(torch.bfloat16)) for name, tensor in weights.items())
    loaded = read_model(rounded)
    assert loaded.dtype == torch.bfloat16
    assert all(torch.equal(tensor, found[name]) for name, tensor in loaded.state_dict().items() if name in found)
    assert loss_of(data, rounded, tmp_path / "a") == pytest.approx(loss_of(data, exact, tmp_path / "b"), rel=0.1)

    flags = ("--data", data, "--split", "train", "--model", rounded)
    written = ("--mlflow-model", tmp_path / "mlflow", "--files", tmp_path / "files")
    assert export_model.main([str(flag) for flag in (*flags, *written)]) == 0


def test_a_model_saved_again_in_another_number_of_files_leaves_none_of_the_others(
    data: Path, base: Path, tmp_path: Path
) -> None:
    for more in (("--save-shard-mb", 1), (), ("--save-shard-mb", 1)):
        model = train(data, base, tmp_path, *more)
        assert (model / INDEX).is_file() is bool(more)
        assert (model / "model.safetensors").is_file() is not bool(more)
        read_model(model)


def test_adapters_are_rounded_and_merged_before_they_are(data: Path, base: Path, tmp_path: Path) -> None:
    lora = ("--tuning", "lora", "--lora-rank", 2, "--merge-adapters", "true")
    exact = train(data, base, tmp_path / "exact", *lora)
    rounded = train(data, base, tmp_path / "rounded", *lora, "--save-dtype", "bf16")
    for file in ("model.safetensors", "adapters/adapter_model.safetensors"):
        expected, found = load_file(exact / file), load_file(rounded / file)
        assert all(torch.equal(found[name], tensor.to(torch.bfloat16)) for name, tensor in expected.items())
