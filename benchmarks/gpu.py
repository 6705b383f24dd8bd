"""Language models on one NVIDIA GPU: tokens/s and MFU of Trainyard's loop, a bare loop, accelerate and Lightning.

    python benchmarks/gpu.py [--deterministic false] [--seconds 100]      needs torch and transformers only

A Llama of 1.1B, GPT-2 124M and 350M, all at sequence 2048: bf16 autocast over fp32 masters, torch's scaled dot-product
attention, blocks compiled one by one, fused AdamW, clipping, no activation checkpointing. The contenders run one after
the other in this process on the same model, batches and settings; accelerate and Lightning are left out where they are
not installed. All choose deterministic algorithms, of attention too, which is the default of Trainyard's steps;
--deterministic false shows what that costs. MFU = tokens/s x (6N + 12LHQT) / the device's peak
(training/observing/flops.py). Results go to benchmarks/results/gpu.json, or gpu_not_deterministic.json beside it.
Without a GPU, a tiny model runs as a test, and no figures are kept.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from results import RESULTS, save_results
from trainyard.steps.runtime.entrypoint import end_process
from trainyard.steps.runtime.world import World
from trainyard.steps.training.engines.shared_model import without_memory
from trainyard.steps.training.observing.flops import flops_of_transformer, peak_flops_per_second
from trainyard.steps.training.observing.measures import Work
from trainyard.steps.training.randomness import ask_for_determinism
from trainyard.steps.training.samples.batches import Tensors
from trainyard.steps.training.stopping import StopRequest
from whole_loop import InMemoryTask, Loop, Timing, free_memory, whole_loop

LEARNING_RATE, WEIGHT_DECAY, CLIP_NORM = 3e-4, 0.1, 1.0
WARM_UP_STEPS, STEPS_PER_WINDOW, WINDOWS = 8, 8, 5
REACHABLE_TERAFLOPS = 794.5
"""TFLOPS that matrix products reach in bf16 on an H100 or H200, of 989.5: stas00/ml-engineering, "mamf-finder"."""
SETTINGS = {
    "precision": "bf16 autocast",
    "masters": "fp32",
    "optimizer": "AdamW, fused",
    "attention": "sdpa",
    "compiled": "block by block",
    "activation_checkpointing": "none",
    "formula": "MFU = tokens/s * (6N + 12LHQT) / peak FLOP/s; PaLM, appendix B",
}


@dataclass(frozen=True)
class Case:
    """A model and its batch size."""

    name: str
    model_type: str
    overrides: dict[str, Any]
    sequence_length: int
    samples: int


_GPT2 = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
CASES = (
    Case(
        "Llama 1.1B",
        "llama",
        {
            "hidden_size": 2048,
            "num_hidden_layers": 22,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "intermediate_size": 5632,
            "vocab_size": 32000,
            "tie_word_embeddings": False,
        },
        2048,
        8,
    ),
    Case("GPT-2 124M", "gpt2", _GPT2, 2048, 16),
    Case("GPT-2 350M", "gpt2", {**_GPT2, "n_embd": 1024, "n_layer": 24, "n_head": 16}, 2048, 8),
)
"""The Llama has TinyLlama's sizes: arxiv.org/abs/2401.02385. The largest comes first, in case time runs out
before the last. Batches are for 80 GB; they are doubled for larger memories and halved for smaller ones."""
TINY_CASE = Case("tiny Llama", "llama", {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
                 "num_key_value_heads": 2, "intermediate_size": 64, "vocab_size": 128}, 16, 2)  # fmt: skip


def batches_of(case: Case, device: torch.device) -> list[Tensors]:
    """Four batches of random tokens."""
    vocabulary = int(case.overrides.get("vocab_size", 50257))
    shape = (case.samples, case.sequence_length + 1)
    generator = torch.Generator().manual_seed(0)
    return [{"tokens": torch.randint(vocabulary, shape, generator=generator).to(device)} for _ in range(4)]


def new_model(case: Case) -> torch.nn.Module:
    """A model with random weights, in fp32."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(
        case.model_type,
        **{**case.overrides, "max_position_embeddings": case.sequence_length, "use_cache": False},
    )
    model: torch.nn.Module = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    return model.train()


def loss_of(model: torch.nn.Module, batch: Tensors, reduction: str = "mean") -> torch.Tensor:
    """Cross-entropy of the next tokens."""
    tokens = batch["tokens"]
    logits = model(input_ids=tokens[:, :-1]).logits
    return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction=reduction)


class NextToken(InMemoryTask):
    """The same as a task."""

    def loss(self, model: torch.nn.Module, batch: Tensors) -> torch.Tensor:
        return loss_of(model, batch, "sum")

    def loss_terms(self, batch: Tensors) -> int:
        return batch["tokens"].shape[0] * (batch["tokens"].shape[1] - 1)


def new_model_on(case: Case, device: torch.device) -> torch.nn.Module:
    """Build the model on its device: a GPU draws a billion weights in no time."""
    with device:
        return new_model(case)


def new_compiled_model(case: Case, device: torch.device) -> torch.nn.Module:
    """Compile every layer, as Trainyard does with --compile; not on a CPU, where that takes minutes."""
    model = new_model_on(case, device)
    if device.type == "cuda":
        blocks = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList))
        for block in blocks:
            block.compile(dynamic=False)
    return model


def new_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    decaying = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": decaying, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.999), fused=True)


def bare(case: Case, world: World, _: Path) -> Loop:
    """A hand-written loop for one GPU."""
    model = new_compiled_model(case, world.device)
    optimizer = new_optimizer(model)

    def loop(batches: Iterator[Tensors]) -> None:
        for batch in batches:
            with torch.autocast(world.device.type, torch.bfloat16):
                loss = loss_of(model, batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
            optimizer.step()
            optimizer.zero_grad()

    return loop


def ours(case: Case, world: World, folder: Path) -> Loop:
    """The loop of `train_ddp`."""
    return whole_loop(
        NextToken(lambda: new_model_on(case, world.device), case.sequence_length),
        world,
        folder,
        StopRequest(folder / "stop"),
        Work(case.sequence_length),
        global_batch_size=case.samples,
        micro_batch_size=case.samples,
        precision="bf16",
        compile=world.device.type == "cuda",
        deterministic=torch.are_deterministic_algorithms_enabled(),
        learning_rate=LEARNING_RATE,
        weight_decay=WEIGHT_DECAY,
        gradient_clip_norm=CLIP_NORM,
    )


def with_accelerate(case: Case, world: World, _: Path) -> Loop:
    """The loop of accelerate's quick tour."""
    from accelerate import Accelerator

    accelerator = Accelerator(mixed_precision="bf16", cpu=world.device.type == "cpu")
    model = new_compiled_model(case, world.device)
    model, optimizer = accelerator.prepare(model, new_optimizer(model))

    def loop(batches: Iterator[Tensors]) -> None:
        for batch in batches:
            with accelerator.autocast():
                loss = loss_of(model, batch)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), CLIP_NORM)
            optimizer.step()
            optimizer.zero_grad()

    return loop


def with_lightning(case: Case, world: World, _: Path) -> Loop:
    """A LightningModule under a Trainer that does nothing it was not asked for."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = new_compiled_model(case, world.device)

        def training_step(self, batch: Tensors, _: int) -> torch.Tensor:
            return loss_of(self.network, batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return new_optimizer(self.network)

        def configure_gradient_clipping(self, *_: object, **__: object) -> None:
            """Clip here, because Lightning's own clipping refuses fused optimizers in mixed precision."""
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), CLIP_NORM)

    trainer = lightning.Trainer(
        accelerator="gpu" if world.device.type == "cuda" else "cpu",
        devices=1,
        precision="bf16-mixed",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )

    def loop(batches: Iterator[Tensors]) -> None:
        trainer.fit(Module(), _Sized(batches))

    return loop


class _Sized:
    """Batches as Lightning's Trainer takes them: with a length, or it would ask for each one step ahead."""

    def __init__(self, batches: Iterator[Tensors]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Tensors]:
        return self._batches

    def __len__(self) -> int:
        return WARM_UP_STEPS + WINDOWS * STEPS_PER_WINDOW


CONTENDERS: dict[str, tuple[str, Callable[[Case, World, Path], Loop]]] = {
    "bare": ("torch", bare),
    "trainyard": ("torch", ours),
    "accelerate": ("accelerate", with_accelerate),
    "Lightning": ("lightning", with_lightning),
}
"""Each contender with the package it needs."""


def measure(case: Case, world: World, folder: Path, last_start: float) -> dict[str, Any]:
    """Run every contender on one model, as long as it can start before a time of the monotonic clock."""
    each = flops_of_transformer(without_memory(lambda: new_model(case)))
    assert each is not None
    flops = each.per_token + each.per_pair * case.sequence_length
    name = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "a CPU"
    peak = peak_flops_per_second(name, "bf16")
    figures: dict[str, Any] = {}
    for contender, (package, make) in CONTENDERS.items():
        if importlib.util.find_spec(package) is None:
            print(f"  {contender}: left out, {package} is not installed", flush=True)
            continue
        if time.monotonic() > last_start:
            print(f"  {contender}: not measured, the time is up", flush=True)
            continue
        timing = Timing(world.device, WARM_UP_STEPS, STEPS_PER_WINDOW, WINDOWS)
        with contextlib.redirect_stdout(sys.stderr):
            make(case, world, folder / case.name / contender)(timing.batches(batches_of(case, world.device)))
        tokens_per_second = case.samples * case.sequence_length / timing.step_seconds()
        figures[contender] = {
            "tokens_per_second": tokens_per_second,
            "step_seconds": timing.step_seconds(),
            "mfu": None if peak is None else tokens_per_second * flops / peak,
            "teraflops": tokens_per_second * flops / 1e12,
            "share_of_reachable": tokens_per_second * flops / 1e12 / REACHABLE_TERAFLOPS,
        }
        free_memory(world.device)
        ratio = tokens_per_second / figures["bare"]["tokens_per_second"]
        figures[contender]["ratio_to_bare"] = ratio
        mfu = "no MFU" if peak is None else f"MFU {tokens_per_second * flops / peak:.1%}"
        print(f"  {contender:<12} {tokens_per_second:12,.0f} tokens/s  {mfu}  {ratio:.4f} of bare", flush=True)
    return {
        "model": case.name,
        "sequence_length": case.sequence_length,
        "samples_per_step": case.samples,
        "flops_per_token": flops,
        "contenders": figures,
    }


def fitted(case: Case, device: torch.device) -> Case:
    """Return the case with the batch scaled from 80 GB to the memory of this GPU."""
    memory_gib = torch.cuda.get_device_properties(device).total_memory / 2**30
    samples = case.samples * 2 if memory_gib >= 130 else case.samples
    while samples > 1 and memory_gib < 75 * samples / case.samples:
        samples //= 2
    return replace(case, samples=samples)


def measure_what_fits(case: Case, world: World, folder: Path, last_start: float) -> dict[str, Any]:
    """Do as `measure`, but halve the batch of all contenders when one runs out of memory."""
    while True:
        print(f"{case.name}, {case.samples} x {case.sequence_length} tokens a step:", flush=True)
        try:
            return measure(case, world, folder / str(case.samples), last_start)
        except torch.OutOfMemoryError:
            if case.samples == 1:
                raise
        # Only here the exception is gone, and with it the frames that hold the tensors.
        free_memory(world.device)
        print("  out of memory: once more with half the samples", flush=True)
        case = replace(case, samples=case.samples // 2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="only the tiny model, as a test; nothing is saved")
    parser.add_argument("--deterministic", choices=("true", "false"), default="true", help="of every loop")
    parser.add_argument("--seconds", type=float, default=450.0, help="start no contender after so many: one takes 60")
    arguments = parser.parse_args()
    is_deterministic = arguments.deterministic == "true"
    if is_deterministic:
        ask_for_determinism()
        # As in Trainyard's backward passes: attention is deterministic only then.
        torch.use_deterministic_algorithms(True)
    settings = {**SETTINGS, "deterministic": is_deterministic}
    name = "gpu" if is_deterministic else "gpu_not_deterministic"
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    started = time.monotonic()
    has_gpu = torch.cuda.is_available() and torch.version.cuda is not None and not arguments.tiny
    cases = CASES if has_gpu else (TINY_CASE,)
    found = []
    with World(120, {}) as world, tempfile.TemporaryDirectory() as folder:
        for case in cases:
            case = fitted(case, world.device) if has_gpu else case
            found.append(measure_what_fits(case, world, Path(folder), started + arguments.seconds))
            if has_gpu:
                gpu = {"device": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
                save_results(name, {**gpu, "settings": settings, "models": found})
    if not has_gpu:
        print("no NVIDIA GPU: " + "; ".join(f"{case.name} not measured" for case in CASES))
        if not arguments.tiny and not (RESULTS / f"{name}.json").exists():
            models = [{"model": case.name, "contenders": "not measured"} for case in CASES]
            save_results(name, {"device": "not measured", "settings": settings, "models": models})
    print(f"{time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    end_process(main())
