"""Adapters and full fine-tuning: the numbers of plain loops with peft and transformers, and files that peft reads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from base_models import make_llama
from forked_ranks import forked_ranks
from rank_processes import training_arguments
from safetensors.torch import load_file, save_file
from tiny_task import TinyTask
from torch.nn import functional

from trainyard.settings.steps.training import TrainDDP
from trainyard.steps import evaluate, export_model, train_ddp, train_deepspeed, train_fsdp, train_lightning
from trainyard.steps.data.dataset.manifest import read_manifest
from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.data.sample_order import SampleOrder
from trainyard.steps.training.adapters import new_model
from trainyard.steps.training.checkpoints.checkpoint_to_resume import checkpoint_folders
from trainyard.steps.training.checkpoints.state_files import pieces_in

STEPS, BATCH = 20, 8
LORA = ("--tuning", "lora", "--lora-rank", 4, "--lora-alpha", 8)


@pytest.fixture(scope="module")
def base(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("base"), text)


def arguments(data: Path, base: Path, out: Path, *more: object) -> list[str]:
    flags = (
        *("--base-model", base, "--max-steps", STEPS, "--global-batch-size", BATCH, "--micro-batch-size", BATCH // 2),
        *("--learning-rate", 0.01, "--learning-rate-schedule", "constant", "--warmup-fraction", 0),
        *("--weight-decay", 0.0, "--log-every-steps", 1, "--checkpoint-every-steps", 10, *more),
    )
    return [str(flag) for flag in training_arguments(data, out, "language_modeling", *flags)]


@pytest.fixture(scope="module")
def trained(text: Path, base: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Trains once for each set of flags, in this process."""
    done: dict[tuple[object, ...], Path] = {}

    def train(*flags: object) -> Path:
        if flags not in done:
            done[flags] = tmp_path_factory.mktemp("trained")
            assert train_ddp.main(arguments(text, base, done[flags], *flags)) == 0
        return done[flags]

    return train


def losses_of(out: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (out / "metrics" / "metrics.jsonl").read_text().splitlines()]


def batches(data: Path) -> list[torch.Tensor]:
    """The rows of each step, in the order of the training."""
    manifest = read_manifest(data)
    order = SampleOrder(manifest.splits["train"].samples, seed=0, epoch=1)
    reader = SplitReader(data, manifest, "train")
    return [
        torch.from_numpy(reader.gather(order.sample_ids(step * BATCH, (step + 1) * BATCH))["tokens"].astype(np.int64))
        for step in range(STEPS)
    ]


def plain_losses(model: torch.nn.Module, data: Path) -> list[float]:
    """The losses of the plainest loop there is."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.01, betas=(0.9, 0.95), weight_decay=0.0)
    losses = []
    for tokens in batches(data):
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def read_base(base: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)


def test_full_fine_tuning_has_the_losses_of_a_plain_loop(text: Path, base: Path, trained: Callable[..., Path]) -> None:
    assert losses_of(trained()) == pytest.approx(plain_losses(read_base(base).train(), text), abs=1e-5)


def test_lora_has_the_losses_of_a_plain_loop_with_peft(text: Path, base: Path, trained: Callable[..., Path]) -> None:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    model = get_peft_model(read_base(base), LoraConfig(r=4, lora_alpha=8, target_modules="all-linear")).train()
    assert losses_of(trained(*LORA)) == pytest.approx(plain_losses(model, text), abs=1e-5)


def test_the_configuration_of_adapters_is_written_in_a_stable_order(trained: Callable[..., Path]) -> None:
    targets = json.loads((trained(*LORA) / "model" / "adapter_config.json").read_text())["target_modules"]
    assert len(targets) == 14
    assert targets == sorted(targets)


def test_lora_learns_the_same_from_chunks_of_logits(trained: Callable[..., Path]) -> None:
    assert losses_of(trained(*LORA, "--loss-chunk-tokens", 50)) == pytest.approx(losses_of(trained(*LORA)), rel=1e-6)


def test_peft_loads_the_adapters_and_merges_what_training_merged(
    text: Path, base: Path, trained: Callable[..., Path]
) -> None:
    from peft import PeftModel

    tokens = batches(text)[0][:, :-1]
    with_adapters = PeftModel.from_pretrained(read_base(base), trained(*LORA) / "model").eval()
    merged_folder = trained(*LORA, "--merge-adapters", "true") / "model"
    with torch.no_grad():
        expected = with_adapters(input_ids=tokens).logits
        assert not torch.allclose(expected, read_base(base)(input_ids=tokens).logits, atol=1e-2)
        torch.testing.assert_close(with_adapters.merge_and_unload()(input_ids=tokens).logits, expected)
        torch.testing.assert_close(read_base(merged_folder)(input_ids=tokens).logits, expected)
    adapters = PeftModel.from_pretrained(read_base(base), merged_folder / "adapters").eval()
    with torch.no_grad():
        torch.testing.assert_close(adapters(input_ids=tokens).logits, expected)


def test_checkpoints_hold_what_is_trained_and_the_digest_of_the_base_model(trained: Callable[..., Path]) -> None:
    newest = checkpoint_folders(trained(*LORA) / "checkpoints")[0]
    keys = {piece.key for file in newest.glob("*.safetensors") for piece in pieces_in(file)}
    weights = {key for key in keys if key.startswith(("model/", "optimizer/"))}
    assert weights
    assert all(".lora_" in key for key in weights)
    identity = json.loads((newest / "commit.json").read_text())["identity"]
    assert identity["model_type"].startswith("a folder with the SHA-256 ")
    assert (identity["tuning"], identity["lora_rank"]) == ("lora", 4)


def evaluation(data: Path, model: Path, out: Path, *more: object) -> float:
    flags = ("--data", data, "--model", model, "--evaluation", out, "--sample-tokens", 4, *more)
    assert evaluate.main([str(flag) for flag in flags]) == 0
    loss: float = json.loads((out / "evaluation.json").read_text())["loss"]
    return loss


def test_evaluation_and_export_read_adapters_and_their_base_model(
    text: Path, base: Path, trained: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    adapters, merged = trained(*LORA) / "model", trained(*LORA, "--merge-adapters", "true") / "model"
    moved = shutil.copytree(base, tmp_path / "moved")
    found = evaluation(text, adapters, tmp_path / "adapters", "--base-model", moved)
    before = json.loads((tmp_path / "adapters" / "evaluation.json").read_text())["before"]
    assert (before["model"], before["loss"] > found) == ("base model", True)
    alone = (text, adapters, tmp_path / "alone", "--base-model", moved, "--compare-with-base-model", "false")
    assert evaluation(*alone) == found
    assert json.loads((tmp_path / "alone" / "evaluation.json").read_text())["before"]["model"] == "guessing"
    assert found == pytest.approx(evaluation(text, merged, tmp_path / "merged"), abs=1e-6)
    folders = ("--mlflow-model", tmp_path / "mlflow", "--files", tmp_path / "files")
    exported = ("--data", text, "--model", adapters, "--base-model", moved, "--samples", 2, *folders)
    assert export_model.main([str(flag) for flag in exported]) == 0
    assert (tmp_path / "files" / "model.safetensors").is_file()

    weights = load_file(moved / "model.safetensors")
    next(iter(weights.values())).add_(1)
    save_file(weights, moved / "model.safetensors", metadata={"format": "pt"})
    flags = ("--data", text, "--model", adapters, "--base-model", moved, "--evaluation", tmp_path / "wrong")
    assert evaluate.main([str(flag) for flag in flags]) == 1
    assert f"{moved} is not the model that the adapters in {adapters} were trained on" in capsys.readouterr().err


def test_a_head_for_new_classes_is_trained_whole(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    sizes = {"num_channels": 1, "image_size": 8, "patch_size": 1, "num_stages": 2}
    config = ConvNextConfig(depths=[1, 1], hidden_sizes=[8, 16], num_labels=3, **sizes)
    ConvNextForImageClassification(config).save_pretrained(tmp_path / "base")
    flags = ("--base-model", tmp_path / "base", "--max-steps", 3, "--tuning", "lora")
    arguments = training_arguments(digits, tmp_path, "image_classification", *flags)
    assert train_ddp.main([str(flag) for flag in arguments]) == 0
    new = "has no matching weights for classifier.bias, classifier.weight; they start at random"
    assert capsys.readouterr().out.count(f"warning: {tmp_path / 'base'} {new}") == 1
    saved = load_file(tmp_path / "model" / "adapter_model.safetensors")
    assert saved["base_model.model.classifier.weight"].shape == (10, 16)
    assert sum(".lora_" in name for name in saved) > 2
    flags = ("--data", digits, "--model", tmp_path / "model", "--evaluation", tmp_path / "evaluation")
    assert evaluate.main([str(flag) for flag in flags]) == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--base-model", "NOWHERE"), "--base-model NOWHERE: expected one folder with config.json; found none"),
        (("--tuning", "lora"), "--tuning lora trains adapters beside the weights of a model: name it by --base-model"),
        (("--merge-adapters", "true"), "--merge-adapters true: --tuning full trains without adapters"),
        (("--base-model", "BASE", "--tuning", "lora", "--lora-targets", "attn"), "--lora-targets attn: Target modules"),
    ],
)
def test_adapters_that_cannot_be_are_refused(
    text: Path,
    base: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    flags: tuple[str, ...],
    message: str,
) -> None:
    given = [str(base) if flag == "BASE" else flag for flag in flags]
    assert train_ddp.main([str(flag) for flag in training_arguments(text, tmp_path, "language_modeling", *given)]) == 1
    assert message in capsys.readouterr().err


def test_adapters_of_a_weight_that_two_layers_share_are_not_merged(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output layer would change with the embedding, which it does not do in the training."""
    tied = make_llama(tmp_path / "tied", text, tie_word_embeddings=True)
    flags = (*LORA, "--lora-targets", "embed_tokens,q_proj", "--max-steps", 1)
    assert train_ddp.main(arguments(text, tied, tmp_path / "merged", *flags, "--merge-adapters", "true")) == 1
    refused = "the adapters of model.embed_tokens cannot be merged, since another layer has the same weight"
    assert refused in capsys.readouterr().err
    assert train_ddp.main(arguments(text, tied, tmp_path / "alone", *flags)) == 0
    exported = ("--mlflow-model", tmp_path / "mlflow", "--files", tmp_path / "files", "--samples", 2)
    model = ("--data", text, "--model", tmp_path / "alone" / "model", "--base-model", tied)
    assert export_model.main([str(flag) for flag in (*model, *exported)]) == 1
    assert refused.replace("model.", "base_model.model.model.") in capsys.readouterr().err
    within = (*LORA, "--max-steps", 1, "--merge-adapters", "true")  # of all other layers
    assert train_ddp.main(arguments(text, tied, tmp_path / "others", *within)) == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_qlora_needs_a_gpu_and_an_engine_with_whole_weights(
    text: Path, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train_ddp.main(arguments(text, base, tmp_path, "--tuning", "qlora")) == 1
    assert "--tuning qlora computes with weights of 4 bits, which needs a GPU; choose lora" in capsys.readouterr().err
    assert train_fsdp.main(arguments(text, base, tmp_path, "--tuning", "qlora")) == 1
    assert "--tuning qlora does not work with FSDP" in capsys.readouterr().err


def test_adapters_of_layers_that_compute_in_bf16_are_fp32(digits: Path, tmp_path: Path) -> None:
    """peft makes them in the type that layers of 4 bits name; steps of a millionth of a weight would be lost in it."""

    class ComputesInBf16(torch.nn.Linear):
        compute_dtype = torch.bfloat16

    class OfSuchLayers(TinyTask):
        def new_model(self) -> torch.nn.Module:
            return torch.nn.Sequential(ComputesInBf16(4, 4))

    folders = dict.fromkeys(("model", "checkpoints", "metrics"), tmp_path)
    settings = TrainDDP(data=digits, **folders, tuning="lora", lora_targets="0")
    model = new_model(OfSuchLayers(read_manifest(digits), OfSuchLayers.Settings()), settings)
    adapters = {name: parameter.dtype for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert len(adapters) == 2
    assert set(adapters.values()) == {torch.float32}


def test_deepspeed_refuses_adapters(text: Path, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "zero.json").write_text('{"zero_optimization": {"stage": 2}}')
    flags = arguments(text, base, tmp_path, *LORA, "--deepspeed-config", tmp_path / "zero.json")
    assert train_deepspeed.main(flags) == 1
    assert "--tuning lora does not work with DeepSpeed" in capsys.readouterr().err


def test_lightning_refuses_adapters(text: Path, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train_lightning.main(arguments(text, base, tmp_path, *LORA)) == 1
    assert capsys.readouterr().err.splitlines() == [
        "trainyard.steps.train_lightning: error: --tuning lora does not work with Lightning, whose checkpoints would "
        "hold the base model too; use train_ddp or train_fsdp"
    ]


@pytest.mark.slow
def test_lora_sharded_over_two_ranks_learns_the_same_and_resumes_exactly(
    text: Path, base: Path, trained: Callable[..., Path], tmp_path: Path
) -> None:
    flags = arguments(text, base, tmp_path, *LORA)
    exit_codes, outputs = forked_ranks().run("train_fsdp", flags, 2)
    assert exit_codes == [0, 0], outputs
    assert losses_of(tmp_path) == pytest.approx(losses_of(trained(*LORA)), abs=1e-5)
    whole = (tmp_path / "model" / "adapter_model.safetensors").read_bytes()
    newest = checkpoint_folders(tmp_path / "checkpoints")[0]
    shutil.rmtree(newest)
    exit_codes, outputs = forked_ranks().run("train_fsdp", flags, 2)
    assert exit_codes == [0, 0], outputs
    assert "continuing from" in outputs[0]
    assert (tmp_path / "model" / "adapter_model.safetensors").read_bytes() == whole
