"""Models written by all ranks together: the files are those that transformers and peft write, to the byte."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from base_models import make_gpt2, make_llama, make_small_text
from forked_ranks import forked_ranks
from rank_processes import training_arguments
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, MixtralConfig, MixtralForCausalLM

from trainyard.steps.training.fragments import tensors_of
from trainyard.steps.training.from_transformers import save_model
from trainyard.steps.training.models_without_weights import DTYPES_IN_FILES
from trainyard.steps.training.weights_to_files import PlannedFile, divided, file_header, planned_files, write_tensors

MEGABYTE = ("--save-shard-mb", 1)
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def data(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_small_text(text, tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def bases(text: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models of some megabytes; the experts of one are cut and renamed when it is saved."""
    out = tmp_path_factory.mktemp("bases")
    found = {
        "llama": make_llama(out / "llama", text, hidden_size=256, intermediate_size=256),
        "gpt2": make_gpt2(out / "gpt2", text),
        "experts": out / "experts",
    }
    vocabulary = json.loads((found["llama"] / "config.json").read_text())["vocab_size"]
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(3)
    config = MixtralConfig(vocab_size=vocabulary, num_key_value_heads=2, num_local_experts=4, **sizes)
    MixtralForCausalLM(config).save_pretrained(found["experts"])
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(found["llama"] / name, found["experts"] / name)
    return found


def arguments(data: Path, base: Path, out: Path, *more: object) -> list[object]:
    flags = ("--base-model", base, "--max-steps", 2, "--global-batch-size", 12, "--micro-batch-size", 3, *more)
    return training_arguments(data, out, "language_modeling", *flags)


def train(
    step: str, ranks: int, flags: list[object], out: Path, nodes: int = 1, whole_on_rank_0: str | None = None
) -> Path:
    """Return the trained model, which rank 0 has held as a whole only if its log says so, and with how much memory."""
    exit_codes, outputs = forked_ranks().run(step, flags, ranks, limit_seconds=300, nodes=nodes)
    assert exit_codes == [0] * ranks, "\n".join(outputs)
    if whole_on_rank_0 is None:
        assert "rank 0 holds the whole model" not in outputs[0]
    else:
        expected = f"warning: rank 0 holds the whole model while it writes it alone: {whole_on_rank_0} of main memory\n"
        assert expected in outputs[0]
    return out / "model"


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name.startswith("model")}


def by_transformers(model: Any, folder: Path) -> dict[str, bytes]:
    """What transformers alone writes, from one process that has all of a model."""
    model.save_pretrained(folder, max_shard_size=1_000_000)
    return contents(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "step", "ranks", "nodes", "more"),
    [
        ("llama", "train_ddp", 2, 1, ()),
        ("llama", "train_fsdp", 3, 1, ("--micro-batch-size", 4, "--save-dtype", "fp16")),
        ("llama", "train_fsdp", 4, 2, ("--shard-size", 2, "--save-dtype", "bf16")),
        ("llama", "train_deepspeed", 2, 1, (3, "--precision", "bf16")),
        ("llama", "train_deepspeed", 2, 1, (1,)),
        ("gpt2", "train_fsdp", 2, 1, ()),
        ("experts", "train_fsdp", 4, 2, ()),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else None,
)
def test_the_files_are_those_of_transformers(
    data: Path,
    bases: dict[str, Path],
    tmp_path: Path,
    name: str,
    step: str,
    ranks: int,
    nodes: int,
    more: tuple[object, ...],
) -> None:
    if step == "train_deepspeed":
        stage, *more = more
        config = {"train_batch_size": "auto", "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": stage}}
        (tmp_path / "zero.json").write_text(json.dumps(config))
        more = [*more, "--deepspeed-config", tmp_path / "zero.json"]
    written = train(step, ranks, arguments(data, bases[name], tmp_path, *MEGABYTE, *more), tmp_path, nodes)
    found = contents(written)
    assert len(found) == 1 if name == "gpt2" else INDEX in found and len(found) > 3
    model = AutoModelForCausalLM.from_pretrained(written, dtype="auto")
    assert by_transformers(model, tmp_path / "again") == found
    trained = torch.cat([tensor.float().flatten() for tensor in model.parameters()])
    base = AutoModelForCausalLM.from_pretrained(bases[name], dtype=torch.float32)
    assert 0 < (trained - torch.cat([tensor.flatten() for tensor in base.parameters()])).abs().max() < 0.1


@pytest.mark.parametrize("model_type", ["mixtral", "qwen3_moe", "olmoe", "deepseek_v3", "llama"])
def test_what_files_hold_is_known_without_any_values(tmp_path: Path, model_type: str) -> None:
    """Experts that transformers holds together, and cuts when it saves them, included."""
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "n_group": 1, "topk_group": 1}
    experts = {"num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2}
    own = {"moe_intermediate_size": 16, "first_k_dense_replace": 1, "q_lora_rank": 16, "kv_lora_rank": 16}
    config = AutoConfig.for_model(model_type, eos_token_id=0, **sizes, **heads, **experts, **own)
    model: Any = AutoModelForCausalLM.from_config(config)
    with torch.device("meta"):
        without_values = AutoModelForCausalLM.from_config(config)
    (tmp_path / "planned").mkdir()
    files = planned_files(without_values, lambda saved: save_model(saved, tmp_path / "planned", 20_000))
    assert files is not None
    model.save_pretrained(tmp_path / "saved", max_shard_size=20_000)
    index = (tmp_path / "saved" / INDEX).read_bytes()
    assert (tmp_path / "planned" / INDEX).read_bytes() == index
    assert {file.path.name for file in files} == set(json.loads(index)["weight_map"].values())
    tensors = tensors_of(model)
    for file in files:
        saved = load_file(tmp_path / "saved" / file.path.name)
        assert {tensor.name for tensor in file.tensors} == saved.keys()
        for tensor in file.tensors:
            expected = saved[tensor.name]
            found = tensors[tensor.source].flatten()[tensor.start :][: expected.numel()].view(tensor.shape)
            assert torch.equal(found, expected), tensor


def test_what_files_would_hold_of_other_values_is_not_planned() -> None:
    """Columns of a matrix are not one after another, and what is computed or changed is not the ranks' own."""
    model = torch.nn.Linear(6, 4, bias=False)

    def planned(cut: Callable[[torch.Tensor], torch.Tensor]) -> list[PlannedFile] | None:
        return planned_files(model, lambda saved: write_tensors({"cut": cut(saved.weight.detach())}, Path("unused")))

    for cut in (
        lambda weight: weight.t().contiguous(),
        lambda weight: weight[:, :3].contiguous(),
        lambda weight: weight[1:].clone().mul_(2),
        lambda weight: weight[1:] + 1,
        lambda weight: weight.view(torch.int32),
    ):
        assert planned(cut) is None
    (file,) = planned(lambda weight: weight.view(2, 12)[:, :6].contiguous()[1]) or ()
    assert [(tensor.source, tensor.start, tensor.shape) for tensor in file.tensors] == [("weight", 12, (6,))]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "step", "ranks"), [("llama", "train_fsdp", 3), ("gpt2", "train_ddp", 2)])
def test_merged_adapters_are_those_that_peft_merges(
    data: Path, bases: dict[str, Path], tmp_path: Path, name: str, step: str, ranks: int
) -> None:
    """GPT-2's layers are transposed. Two ranks of a replica need nothing of each other."""
    from peft import PeftModel

    lora = ("--tuning", "lora", "--lora-rank", 2, "--merge-adapters", "true", "--micro-batch-size", 12 // ranks)
    written = train(step, ranks, arguments(data, bases[name], tmp_path, *MEGABYTE, *lora), tmp_path)
    base = AutoModelForCausalLM.from_pretrained(bases[name], dtype=torch.float32)
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    merged = PeftModel.from_pretrained(base, written / "adapters").merge_and_unload()
    assert by_transformers(merged, tmp_path / "again") == contents(written)
    changed = [name for name, tensor in merged.state_dict().items() if not torch.equal(tensor, before[name])]
    assert len(changed) == {"llama": 14, "gpt2": 8}[name]


@pytest.mark.slow
def test_adapters_of_weights_of_4_bits_are_merged_into_those_of_the_base_model(
    data: Path, bases: dict[str, Path], tmp_path: Path
) -> None:
    """The ranks' own are useless here, as rounded ones would be: each rank reads what it writes from the files."""
    from peft import PeftModel

    written = train("merging", 3, [data, bases["llama"], tmp_path], tmp_path)
    base = AutoModelForCausalLM.from_pretrained(bases["llama"], dtype=torch.float32)
    merged = PeftModel.from_pretrained(base, written / "adapters").merge_and_unload()
    assert by_transformers(merged, tmp_path / "again") == contents(written)


@pytest.mark.slow
def test_a_full_disk_of_one_writer_is_reported_on_all(data: Path, bases: dict[str, Path], tmp_path: Path) -> None:
    flags = training_arguments(
        data,
        tmp_path,
        "disturbed_tasks:FullDiskOnRank1",
        *("--base-model", bases["llama"], "--max-steps", 2, "--global-batch-size", 12, "--micro-batch-size", 4),
        *("--checkpoint-every-steps", 0, *MEGABYTE),
    )
    exit_codes, outputs = forked_ranks().run("train_fsdp", flags, 3, limit_seconds=300)
    assert exit_codes == [1, 1, 1], "\n".join(outputs)
    for output in outputs:
        assert f"error: cannot write {tmp_path}/model/model-0000" in output, output
        assert "file too large" in output
    assert not (tmp_path / "model" / "task.json").exists()


@pytest.mark.slow
def test_a_format_of_the_users_own_gets_the_whole_model(digits: Path, tmp_path: Path) -> None:
    def trained(task: str, size: str | None) -> Path:
        flags = training_arguments(digits, tmp_path / task, f"tiny_task:{task}", "--max-steps", 2)
        return train("train_fsdp", 2, flags, tmp_path / task, whole_on_rank_0=size)

    expected = load_file(trained("Tied", None) / "model.safetensors")
    with numpy.load(trained("OwnFormat", "12 KiB") / "weights.npz") as found:
        assert found.keys() == expected.keys()
        assert all(numpy.array_equal(found[name], tensor.numpy()) for name, tensor in expected.items())


def test_headers_are_those_of_safetensors(tmp_path: Path) -> None:
    tensors = {f"größe {name}": torch.zeros(3, 2, dtype=dtype) for name, dtype in DTYPES_IN_FILES.items()}
    save_file(tensors, tmp_path / "a", metadata={"format": "pt"})
    described = [(f"größe {name}", dtype, (3, 2)) for name, dtype in DTYPES_IN_FILES.items()]
    header = file_header({"format": "pt"}, described, 8)
    assert (tmp_path / "a").read_bytes()[: len(header)] == header


@pytest.mark.parametrize(("files", "ranks", "expected"), [(3, 6, [1, 0, 1, 0, 1, 0]), (5, 2, [3, 2]), (0, 2, [0, 0])])
def test_files_are_spread_evenly(files: int, ranks: int, expected: list[int]) -> None:
    planned = [PlannedFile(Path(str(number)), ()) for number in range(files)]
    by_rank = divided(planned, ranks)
    assert [len(own) for own in by_rank] == expected
    assert [file for own in by_rank for file in own] == planned
