"""Cross-entropy without whole logits: the numbers of whole ones, in a fraction of their memory, under every engine."""

from __future__ import annotations

import json
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
import torch
from forked_ranks import forked_ranks
from rank_processes import training_arguments
from torch.profiler import ProfilerActivity, profile

from trainyard.settings.steps.tasks import LanguageModelingSettings
from trainyard.steps import train_ddp
from trainyard.steps.data.dataset.manifest import read_manifest
from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.samples.batches import Tensors
from trainyard.steps.training.tasks.language_modeling import LanguageModeling

TINY_GPT2 = {"n_layer": 1, "n_embd": 16, "n_head": 2}
TINY_LLAMA = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
TINY_MIXTRAL = {**TINY_LLAMA, "num_key_value_heads": 2, "num_local_experts": 4, "router_aux_loss_coef": 0.5}
TINY_GEMMA2 = {**TINY_LLAMA, "num_key_value_heads": 1, "head_dim": 8}
MODELS = {
    "output layer of its own": ("llama", TINY_LLAMA),
    "weights shared with the embedding": ("gpt2", TINY_GPT2),
    "mixture of experts": ("mixtral", TINY_MIXTRAL),
    "logits without a cap": ("gemma2", {**TINY_GEMMA2, "final_logit_softcapping": None}),
}
CHUNK = 7


def task_for(data: Path, model_type: str, overrides: dict[str, object], chunk: int) -> LanguageModeling:
    settings = LanguageModelingSettings(
        model_type=model_type, model_overrides=json.dumps(overrides), loss_chunk_tokens=chunk
    )
    return LanguageModeling(read_manifest(data), settings)


def rows(data: Path, split: str, most: int) -> Tensors:
    manifest = read_manifest(data)
    samples = np.arange(manifest.splits[split].samples)[-most:]
    return {"tokens": torch.from_numpy(SplitReader(data, manifest, split).gather(samples)["tokens"].astype(np.int64))}


@pytest.mark.parametrize(("model_type", "overrides"), MODELS.values(), ids=MODELS)
def test_loss_and_gradients_are_those_of_whole_logits(
    text: Path, model_type: str, overrides: dict[str, object]
) -> None:
    batch = rows(text, "validation", 5)
    prepared = read_manifest(text).text
    assert prepared is not None
    assert (batch["tokens"] == prepared.padding).any(), "labels are ignored"
    measured, gradients = [], []
    for chunk in (0, CHUNK):
        task = task_for(text, model_type, overrides, chunk)
        torch.manual_seed(0)
        model = task.new_model()
        loss = task.loss(model, batch)
        loss.backward()
        with torch.no_grad():
            measured.append((loss.item(), task.measure(model, batch)["loss_sum"].item()))
        gradients.append([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
    assert measured[1] == pytest.approx(measured[0], rel=1e-6)
    for found, expected in zip(*gradients, strict=True):
        assert (found - expected).norm() <= 1e-6 * expected.norm()


def test_under_autocast_as_exact_as_whole_logits(text: Path) -> None:
    batch = rows(text, "train", 5)
    model = task_for(text, "gpt2", TINY_GPT2, 0).new_model()
    exact = task_for(text, "gpt2", TINY_GPT2, 0).loss(model, batch)
    found = []
    for chunk in (0, CHUNK):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = task_for(text, "gpt2", TINY_GPT2, chunk).loss(model, batch)
        loss.backward()
        found.append((loss.item(), torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]).item()))
    assert found[0][0] != exact.item(), "it is computed in bf16"
    assert found[1] == pytest.approx(found[0], rel=2e-3)


def peak_bytes_of_loss(task: LanguageModeling, model: torch.nn.Module, batch: Tensors) -> int:
    """What torch's allocator gave out at most during the forward and backward pass."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        task.loss(model, batch).backward()
    model.zero_grad()
    profiled = profiler.profiler
    assert profiled is not None
    events = profiled.kineto_results.events()
    in_order = sorted((event for event in events if event.name() == "[memory]"), key=lambda event: event.start_ns())
    return max(accumulate(event.nbytes() for event in in_order))


def test_with_32k_tokens_of_vocabulary_the_loss_takes_at_most_a_quarter_of_the_memory(text: Path) -> None:
    overrides = {**TINY_LLAMA, "vocab_size": 32_000}
    batch = rows(text, "train", 32)
    model = task_for(text, "llama", overrides, 0).new_model()
    whole, chunked = (peak_bytes_of_loss(task_for(text, "llama", overrides, chunk), model, batch) for chunk in (0, 128))
    print(
        f"peak of forward and backward pass: {whole / 1e6:.0f} MB with whole logits, {chunked / 1e6:.0f} MB in chunks"
    )
    assert whole >= 2 * 32 * 32 * 32_000 * 4, "logits and their gradient are seen"
    assert chunked <= whole / 4


def test_a_model_that_caps_its_logits_is_refused(text: Path) -> None:
    task = task_for(text, "gemma2", {**TINY_GEMMA2, "final_logit_softcapping": 30.0}, CHUNK)
    model = task.new_model()
    with pytest.raises(StepError, match=r"type gemma2 scales, caps or adds .* use --loss-chunk-tokens 0"):
        task.loss(model, rows(text, "train", 2))
    assert task.logits(model, rows(text, "train", 2)["tokens"]).shape[-1] == 320, "the model is as it was"


def test_a_model_that_scales_its_logits_is_refused(text: Path) -> None:
    task = task_for(text, "granite", {**TINY_LLAMA, "num_key_value_heads": 2, "logits_scaling": 8.0}, CHUNK)
    with pytest.raises(StepError, match="type granite scales, caps or adds"):
        task.loss(task.new_model(), rows(text, "train", 2))


def test_copies_of_a_model_by_data_parallel_are_refused(text: Path) -> None:
    task = task_for(text, "gpt2", TINY_GPT2, CHUNK)
    with pytest.raises(StepError, match="--loss-chunk-tokens does not work with --data-parallel"):
        task.loss(torch.nn.DataParallel(task.new_model()), rows(text, "train", 2))


def arguments(data: Path, out: Path, *more: object) -> list[str]:
    model = ("--model-type", "gpt2", "--model-overrides", json.dumps(TINY_GPT2))
    steps = ("--max-steps", 3, "--log-every-steps", 1)
    return [str(flag) for flag in training_arguments(data, out, "language_modeling", *model, *steps, *more)]


def losses_of(out: Path) -> list[float]:
    lines = [json.loads(line) for line in (out / "metrics" / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines] + [lines[-1]["validation_loss"]]


@pytest.fixture(scope="module")
def whole_losses(text: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    out = tmp_path_factory.mktemp("whole")
    assert train_ddp.main(arguments(text, out)) == 0
    return losses_of(out)


def test_recomputed_blocks_train_the_same(text: Path, whole_losses: list[float], tmp_path: Path) -> None:
    flags = ("--loss-chunk-tokens", 500, "--activation-checkpointing", "true")
    assert train_ddp.main(arguments(text, tmp_path, *flags)) == 0
    assert losses_of(tmp_path) == pytest.approx(whole_losses, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["train_ddp", "train_fsdp", "train_deepspeed"])
def test_two_ranks_train_the_same(text: Path, whole_losses: list[float], tmp_path: Path, step: str) -> None:
    flags = arguments(text, tmp_path, "--loss-chunk-tokens", 500)
    if step == "train_deepspeed":
        config = tmp_path / "zero3.json"
        config.write_text(json.dumps({"zero_optimization": {"stage": 3}}))
        flags += ["--deepspeed-config", str(config)]
    exit_codes, outputs = forked_ranks().run(step, flags, 2)
    assert exit_codes == [0, 0], outputs
    assert losses_of(tmp_path) == pytest.approx(whole_losses, rel=1e-6)
