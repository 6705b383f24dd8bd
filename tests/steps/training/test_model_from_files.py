"""Weights in files are read by all ranks, each its part, and give the bits that building the model whole gives."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from base_models import make_gpt2, make_llama
from forked_ranks import forked_ranks
from rank_processes import training_arguments
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from trainyard.settings.steps.tasks import LanguageModelingSettings
from trainyard.steps import train_ddp
from trainyard.steps.data.dataset.manifest import read_manifest
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.models_without_weights import (
    CannotLeaveOut,
    WeightInFile,
    WeightReader,
    model_without_weights,
)
from trainyard.steps.training.tasks.language_modeling import LanguageModeling

RANKS = 3
BUILT_BY_RANK_ZERO = ("of the base model alone", "tied, and in the file twice")
Tensors = dict[str, torch.Tensor]


def saved_again(folder: Path, copy: Path, change: Callable[[LlamaForCausalLM], object], **options: Any) -> Path:
    """A copy of a model that was changed, or is saved in another way."""
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.safetensors"))
    model = AutoModelForCausalLM.from_pretrained(folder)
    change(model)
    model.save_pretrained(copy, **options)
    return copy


def with_config(folder: Path, copy: Path, **settings: object) -> Path:
    shutil.copytree(folder, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | settings))
    return copy


def with_weights(
    folder: Path, copy: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]
) -> Path:
    shutil.copytree(folder, copy)
    file = copy / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})
    return copy


@pytest.fixture(scope="module")
def llama(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("llama"), text)


@pytest.fixture(scope="module")
def folders(text: Path, llama: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models by what is special about them."""
    out = tmp_path_factory.mktemp("folders")
    return {
        "as it is": llama,
        "lora": llama,
        "in several files": saved_again(llama, out / "several", lambda model: None, max_shard_size=4000),
        "bf16": saved_again(llama, out / "bf16", lambda model: model.bfloat16()),
        "rounded to what the configuration asks for": with_config(llama, out / "rounded", dtype="bfloat16"),
        "without a type in the configuration": with_config(llama, out / "no type", dtype=None),
        "tied": make_gpt2(out / "gpt2", text),
        "of the base model alone": with_weights(
            llama, out / "base", lambda found: {name.removeprefix("model."): found[name] for name in found}
        ),
        "tied, and in the file twice": with_weights(
            out / "gpt2",
            out / "twice",
            lambda found: found | {"lm_head.weight": found["transformer.wte.weight"].clone()},
        ),
    }


WAYS = ("rows", "replicas", "in turn")


@pytest.mark.slow
def test_each_rank_reads_its_part(text: Path, folders: dict[str, Path], tmp_path: Path) -> None:
    named = [f"{name}={folder}" for name, folder in folders.items()]
    exit_codes, outputs = forked_ranks().run("models_in_files", [text, tmp_path, *named], RANKS)
    assert exit_codes == [0] * RANKS, "\n".join(outputs)
    found = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(RANKS)]
    for name, folder in folders.items():
        of_ranks = [each[name] for each in found]
        assert all(each["elements"] is True for each in of_ranks), name
        if name in BUILT_BY_RANK_ZERO:
            assert {each[way] for each in of_ranks for way in WAYS} == {"built by rank 0"}, name
            continue
        assert {each[way] for each in of_ranks for way in WAYS} == {True}, name
        whole = sum(tensor.nbytes for file in folder.glob("*.safetensors") for tensor in load_file(file).values())
        for way in WAYS:
            read = [each[f"{way}: bytes"] for each in of_ranks]
            assert sum(read) == whole, f"{name}, {way}: each byte once"
            assert max(read) < 0.6 * whole, f"{name}, {way}: nobody reads most of it"


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("--tuning", "lora", "--lora-rank", 2)], ids=["full", "lora"])
def test_every_engine_starts_from_the_same_bits(text: Path, llama: Path, tmp_path: Path, flags: tuple[object]) -> None:
    """Without a learning rate the model that comes out is the one that was read, adapters included."""
    trainings: dict[str, tuple[object, ...]] = {"fsdp": (), "hsdp": ("--shard-size", 2, "--micro-batch-size", 16)}
    if not flags:  # DeepSpeed refuses adapters
        for stage in (2, 3):
            config = {"train_batch_size": "auto", "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": stage}}
            (tmp_path / f"zero{stage}.json").write_text(json.dumps(config))
            trainings[f"zero{stage}"] = ("--deepspeed-config", tmp_path / f"zero{stage}.json", "--precision", "bf16")

    def arguments(name: str) -> list[object]:
        more = ("--base-model", llama, "--learning-rate", 0, "--max-steps", 1, "--weight-decay", 0, *flags)
        return training_arguments(text, tmp_path / name, "language_modeling", *more)

    assert train_ddp.main([str(argument) for argument in arguments("ddp")]) == 0
    for name, more in trainings.items():
        step, ranks = "train_deepspeed" if "zero" in name else "train_fsdp", 4 if name == "hsdp" else 2
        exit_codes, outputs = forked_ranks().run(step, [*arguments(name), *more], ranks)
        assert exit_codes == [0] * ranks, "\n".join(outputs)
        file = "adapter_model.safetensors" if flags else "model.safetensors"
        found, expected = (load_file(tmp_path / each / "model" / file) for each in (name, "ddp"))
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], expected[key]) for key in expected), name


def new_model_of(folder: Path, text: Path) -> Callable[[], torch.nn.Module]:
    settings = LanguageModelingSettings(model_type=str(folder))
    return LanguageModeling(read_manifest(text), settings).new_model


def test_what_is_not_in_files_as_it_is_in_the_model_has_to_be_built(text: Path, llama: Path, tmp_path: Path) -> None:
    """Weights that transformers merges, quantized ones, files that cannot be read; but new ones are drawn."""
    from transformers import MixtralConfig, MixtralForCausalLM

    model_without_weights(new_model_of(llama, text))
    fresh = Path(shutil.copytree(llama, tmp_path / "fresh", ignore=shutil.ignore_patterns("*.safetensors")))
    model_without_weights(new_model_of(fresh, text))

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vocabulary = json.loads((llama / "config.json").read_text())["vocab_size"]
    experts = MixtralConfig(vocab_size=vocabulary, num_key_value_heads=2, num_local_experts=2, **sizes)
    MixtralForCausalLM(experts).save_pretrained(tmp_path / "experts")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(llama / name, tmp_path / "experts" / name)
    with pytest.raises(CannotLeaveOut, match="converted when loaded"):
        model_without_weights(new_model_of(tmp_path / "experts", text))

    quantized = with_config(llama, tmp_path / "quantized", quantization_config={"quant_method": "fp8"})
    with pytest.raises(CannotLeaveOut, match="quantized"):
        model_without_weights(new_model_of(quantized, text))
    cut = Path(shutil.copytree(llama, tmp_path / "cut"))
    (cut / "model.safetensors").write_bytes((llama / "model.safetensors").read_bytes()[:-100])
    with pytest.raises(CannotLeaveOut, match="incomplete metadata"):
        model_without_weights(new_model_of(cut, text))


def test_parts_of_a_tensor_are_read_as_they_are(tmp_path: Path) -> None:
    tensors = {"matrix": torch.randn(5, 3, 2), "number": torch.tensor(2.5), "empty": torch.empty(0, 4)}
    save_file(tensors, tmp_path / "a.safetensors")

    def weight(key: str) -> WeightInFile:
        shape, dtype = tuple(tensors[key].shape), torch.float32
        return WeightInFile(tmp_path / "a.safetensors", key, shape, rounded_to=torch.bfloat16, dtype=dtype)

    reader, rounded = WeightReader(), tensors["matrix"].bfloat16().float()
    for start in range(31):
        for stop in range(start, 31):
            found = reader.elements(weight("matrix"), start, stop)
            assert torch.equal(found, rounded.view(-1)[start:stop])
    assert reader.elements(weight("number"), 0, 1).tolist() == [2.5]
    assert reader.elements(weight("number"), 1, 1).numel() == 0
    assert reader.elements(weight("empty"), 0, 0).numel() == 0


def test_a_file_that_breaks_while_it_is_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"nothing to read")
    for name in ("a", "missing"):
        weight = WeightInFile(tmp_path / f"{name}.safetensors", "x", (2,), torch.float32, torch.float32)
        with pytest.raises(StepError, match=rf"cannot read .*{name}\.safetensors"):
            WeightReader().elements(weight, 0, 2)
