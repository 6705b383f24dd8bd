"""Trainings on one NVIDIA GPU, measured and compared with what `trainyard estimate` says of them.

    python benchmarks/measured_trainings.py --predict       needs no GPU: writes predictions for the GPU named there
    python benchmarks/measured_trainings.py                 on that GPU, about five minutes: adds what is measured

Models of many families and sizes train a few steps on random tokens or images through the loop of `train_ddp`, with its
defaults (deterministic algorithms, fused AdamW, torch's scaled dot-product attention), one after the other in one
process. Measured are a step's time, of the median of three windows, and the peaks of what torch's allocator hands out
and of what it takes from the GPU. Predictions are written and committed before anything is measured. Settings and
figures are in benchmarks/results/measured_trainings.json; docs/held_out_trainings.csv has them as a round of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from results import RESULTS, save_results
from trainyard.catalogue.gpus import find_gpu
from trainyard.plan.estimate.config_file import architecture_of, image_model_of
from trainyard.plan.estimate.estimator import estimate
from trainyard.plan.estimate.image_models import IMAGE_FAMILIES, IMAGE_SIZE, Images
from trainyard.plan.estimate.memory import memory_of
from trainyard.plan.estimate.training import Adapters, TrainingShape, machines_of_gpu
from trainyard.settings.steps.training import TrainDDP
from trainyard.steps.runtime.entrypoint import end_process
from trainyard.steps.runtime.world import World, set_gpu_defaults
from trainyard.steps.training.adapters import new_model as with_adapters
from trainyard.steps.training.randomness import ask_for_determinism
from trainyard.steps.training.samples.batches import Tensors
from trainyard.steps.training.stopping import StopRequest
from whole_loop import InMemoryTask, Timing, free_memory, whole_loop

GPU = "H200-SXM"
WARM_UP_STEPS, STEPS_PER_WINDOW, WINDOWS = 4, 3, 3
FILE = RESULTS / "measured_trainings.json"
SMALLER = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 128,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 2,
    "ffn_dim": 128,
    "word_embed_proj_dim": 64,
    "vocab_size": 256,
    "depths": [1, 1, 1, 1],
    "hidden_sizes": [8, 16, 24, 32],
}
"""Settings of any model that make it one for a CPU, to try this program there."""


def _llama(hidden: int, layers: int, heads: int, pairs: int, inner: int, words: int, **more: Any) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": pairs,
        "intermediate_size": inner,
        "vocab_size": words,
        **more,
    }


def _vit(hidden: int, layers: int, heads: int, inner: int) -> dict[str, Any]:
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
    return {"model_type": "vit", **sizes, "intermediate_size": inner}


_TIED: dict[str, Any] = {"tie_word_embeddings": True}
MODELS: dict[str, dict[str, Any]] = {
    "llama-3.2-1b": _llama(2048, 16, 32, 8, 8192, 128256, **_TIED),
    "llama-3.2-3b": _llama(3072, 28, 24, 8, 8192, 128256, head_dim=128, **_TIED),
    "llama-3.1-8b": _llama(4096, 32, 32, 8, 14336, 128256),
    "tinyllama-1.1b": _llama(2048, 22, 32, 4, 5632, 32000),
    "smollm2-135m": _llama(576, 30, 9, 3, 1536, 49152, **_TIED),
    "smollm2-360m": _llama(960, 32, 15, 5, 2560, 49152, **_TIED),
    "mistral-7b": _llama(4096, 32, 32, 8, 14336, 32768, model_type="mistral"),
    "qwen2.5-0.5b": _llama(896, 24, 14, 2, 4864, 151936, model_type="qwen2", **_TIED),
    "qwen2.5-1.5b": _llama(1536, 28, 12, 2, 8960, 151936, model_type="qwen2", **_TIED),
    "qwen3-0.6b": _llama(1024, 28, 16, 8, 3072, 151936, model_type="qwen3", head_dim=128, **_TIED),
    "gpt2": {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257},
    "gpt2-medium": {"model_type": "gpt2", "n_embd": 1024, "n_layer": 24, "n_head": 16, "vocab_size": 50257},
    "gpt2-large": {"model_type": "gpt2", "n_embd": 1280, "n_layer": 36, "n_head": 20, "vocab_size": 50257},
    "opt-1.3b": {
        "model_type": "opt",
        "hidden_size": 2048,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "ffn_dim": 8192,
        "word_embed_proj_dim": 2048,
        "vocab_size": 50272,
    },
    "pythia-160m": _llama(768, 12, 12, 12, 3072, 50304, model_type="gpt_neox"),
    "pythia-410m": _llama(1024, 24, 16, 16, 4096, 50304, model_type="gpt_neox"),
    "pythia-1.4b": _llama(2048, 24, 16, 16, 8192, 50304, model_type="gpt_neox"),
    "bert-base": _llama(768, 12, 12, 12, 3072, 30522, model_type="bert"),
    "bert-large": _llama(1024, 24, 16, 16, 4096, 30522, model_type="bert"),
    "roberta-base": _llama(768, 12, 12, 12, 3072, 50265, model_type="roberta"),
    "resnet-50": {"model_type": "resnet", "depths": [3, 4, 6, 3], "hidden_sizes": [256, 512, 1024, 2048]},
    "vit-base": _vit(768, 12, 12, 3072),
    "vit-large": _vit(1024, 24, 16, 4096),
    "convnext-base": {"model_type": "convnext", "depths": [3, 3, 27, 3], "hidden_sizes": [128, 256, 512, 1024]},
    "swin-tiny": {"model_type": "swin", "depths": [2, 2, 6, 2], "num_heads": [3, 6, 12, 24], "embed_dim": 96},
}
"""As their config.json, where that differs from the defaults of transformers."""


@dataclass(frozen=True)
class Case:
    """One training. `length` is a sample's tokens, 1 of an image."""

    model: str
    micro_batch_size: int
    length: int = 1
    precision: str = "bf16"
    activation_checkpointing: bool = False
    compile: bool = False
    tuning: str = "full"
    lora_targets: str = "all-linear"
    lora_rank: int = 16
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def is_of_images(self) -> bool:
        """Whether samples are images."""
        return self.settings["model_type"] in IMAGE_FAMILIES

    def shape(self) -> TrainingShape:
        """What is estimated."""
        family = self.settings["model_type"]
        if self.is_of_images:
            model: Any = image_model_of(family, self.settings, Images(IMAGE_SIZE, IMAGE_SIZE))
        else:
            model = architecture_of(family, self.settings, self.model)
        adapters = (
            None if self.tuning == "full" else Adapters(self.lora_rank, self.lora_targets, self.tuning == "qlora")
        )
        return TrainingShape(
            model,
            machines_of_gpu(find_gpu(GPU), 1, 1),
            "ddp",
            self.micro_batch_size,
            1,
            self.length,
            self.precision,
            "full" if self.activation_checkpointing else "none",
            compiled=self.compile,
            adapters=adapters,
            is_deterministic=True,
        )


_FULL: dict[str, Any] = {"activation_checkpointing": True}
_LORA: dict[str, Any] = {"tuning": "lora"}
CASES = (
    Case("llama-3.2-1b", 4, 2048),
    Case("llama-3.2-1b", 8, 2048, **_FULL),
    Case("llama-3.2-1b", 1, 8192),
    Case("llama-3.2-3b", 2, 4096, **_FULL),
    Case("qwen2.5-0.5b", 4, 4096),
    Case("qwen2.5-1.5b", 4, 2048, **_FULL),
    Case("qwen3-0.6b", 8, 2048),
    Case("smollm2-360m", 8, 2048),
    Case("gpt2-medium", 16, 1024),
    Case("gpt2-large", 8, 1024, **_FULL),
    Case("gpt2", 8, 1024, "fp32"),
    Case("opt-1.3b", 4, 2048),
    Case("pythia-410m", 8, 2048),
    Case("pythia-1.4b", 4, 2048, **_FULL),
    Case("llama-3.2-1b", 1, 512),
    Case("qwen2.5-0.5b", 2, 512),
    Case("smollm2-135m", 1, 1024),
    Case("gpt2", 1, 1024),
    Case("pythia-160m", 2, 512),
    Case("llama-3.1-8b", 2, 2048, **_LORA),
    Case("llama-3.1-8b", 2, 4096, **_FULL, **_LORA),
    Case("llama-3.2-3b", 4, 1024, **_LORA),
    Case("mistral-7b", 4, 2048, **_FULL, **_LORA, lora_targets="q_proj,v_proj", lora_rank=8),
    Case("qwen2.5-1.5b", 2, 2048, **_FULL, tuning="qlora"),
    Case("llama-3.2-1b", 4, 2048, tuning="qlora"),
    Case("bert-large", 16, 512),
    Case("bert-base", 64, 128, "fp16"),
    Case("roberta-base", 16, 512),
    Case("roberta-base", 32, 512, **_FULL),
    Case("resnet-50", 256),
    Case("resnet-50", 128, precision="fp32"),
    Case("vit-base", 128),
    Case("vit-large", 64, **_FULL),
    Case("convnext-base", 64),
    Case("swin-tiny", 128),
    Case("tinyllama-1.1b", 8, 2048, compile=True),
    Case("smollm2-360m", 8, 2048, compile=True),
)


def with_settings(case: Case, *, is_small: bool) -> Case:
    """Return the case with its model's settings, of a size for a CPU if it is to be small."""
    settings = dict(MODELS[case.model])
    positions = {"gpt2": "n_positions", "roberta": ""}.get(settings["model_type"], "max_position_embeddings")
    if case.length > 1 and positions:
        settings[positions] = max(case.length, 512)
    if settings["model_type"] == "roberta":
        settings |= {"max_position_embeddings": 514, "type_vocab_size": 1}
    if is_small:
        settings |= {name: value for name, value in SMALLER.items() if name in settings}
    values = {name: value for name, value in asdict(case).items() if name != "settings"}
    if is_small:
        values["tuning"] = case.tuning.replace("qlora", "lora")  # 4 bits need a GPU
        values |= {"micro_batch_size": 2, "length": min(case.length, 32), "precision": "fp32", "compile": False}
    return Case(**values, settings=settings)


class Pretraining(InMemoryTask):
    """A model of transformers with its usual loss over random tokens or images."""

    def __init__(self, case: Case, new_model: Callable[[], torch.nn.Module]) -> None:
        super().__init__(new_model, None if case.is_of_images else case.length)
        self._case = case

    def loss(self, model: torch.nn.Module, batch: Tensors) -> torch.Tensor:
        if self._case.is_of_images:
            return functional.cross_entropy(model(batch["pixel_values"]).logits, batch["labels"], reduction="sum")
        logits = model(input_ids=batch["tokens"][:, :-1]).logits
        return functional.cross_entropy(logits.flatten(0, 1), batch["tokens"][:, 1:].flatten(), reduction="sum")

    def loss_terms(self, batch: Tensors) -> int:
        if self._case.is_of_images:
            return len(batch["labels"])
        return batch["tokens"].shape[0] * (batch["tokens"].shape[1] - 1)


def _new_model(case: Case, device: torch.device) -> torch.nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageClassification, AutoModelForMaskedLM

    config = AutoConfig.for_model(**case.settings)
    config.use_cache = False
    kind: Any = AutoModelForMaskedLM if case.settings["model_type"] in ("bert", "roberta") else AutoModelForCausalLM
    if case.is_of_images:
        config.num_labels = 1000
        kind = AutoModelForImageClassification
    # A GPU draws billions of weights in no time. Weights are rounded to 4 bits as they move there.
    with torch.device("cpu") if case.tuning == "qlora" else device:
        model: torch.nn.Module = kind.from_config(config)
    return model


def batch_of(case: Case, device: torch.device) -> Tensors:
    """Random tokens or images."""
    generator = torch.Generator(device).manual_seed(0)
    samples = case.micro_batch_size
    if case.is_of_images:
        pixels = torch.randn(samples, 3, IMAGE_SIZE, IMAGE_SIZE, generator=generator, device=device)
        return {"pixel_values": pixels, "labels": torch.zeros(samples, dtype=torch.long, device=device)}
    shape, words = (samples, case.length + 1), case.settings["vocab_size"]
    return {"tokens": torch.randint(words, shape, generator=generator, device=device)}


def measure(case: Case, world: World, folder: Path) -> dict[str, float]:
    """Train a few steps. Return the samples a second, and both peaks of memory in bytes (none on a CPU)."""
    is_on_gpu = world.device.type == "cuda"
    if is_on_gpu:
        torch.cuda.reset_peak_memory_stats(world.device)
    task = Pretraining(case, partial(_new_model, case, world.device))
    settings: dict[str, Any] = {
        name: getattr(case, name)
        for name in ("micro_batch_size", "precision", "activation_checkpointing", "compile", "tuning", "lora_targets")
    } | {"global_batch_size": case.micro_batch_size, "lora_rank": case.lora_rank}
    if case.tuning != "full":
        nowhere = dict.fromkeys(("data", "model", "checkpoints", "metrics"), folder)
        task = Pretraining(case, partial(with_adapters, task, TrainDDP(**nowhere, **settings)))
    timing = Timing(world.device, WARM_UP_STEPS, STEPS_PER_WINDOW, WINDOWS)
    with contextlib.redirect_stdout(sys.stderr):
        loop = whole_loop(task, world, folder, StopRequest(folder / "stop"), **settings)
        loop(timing.batches([batch_of(case, world.device)]))
    figures = {"samples_per_second": case.micro_batch_size / timing.step_seconds()}
    if is_on_gpu:
        figures["allocated_bytes"] = torch.cuda.max_memory_allocated(world.device)
        figures["reserved_bytes"] = torch.cuda.max_memory_reserved(world.device)
    return figures


def predict(case: Case) -> dict[str, float]:
    """Return what the estimate says, in the same units."""
    shape = case.shape()
    rate = estimate(shape).samples_per_second_per_gpu
    assert rate is not None
    memory = memory_of(shape)
    return {"samples_per_second": rate, "allocated_bytes": memory.total, "reserved_bytes": memory.reserved}


def _name(case: Case) -> str:
    kind = "" if case.tuning == "full" else f", {case.tuning} of {case.lora_targets}, rank {case.lora_rank}"
    more = (", recomputed" if case.activation_checkpointing else "") + (", compiled" if case.compile else "")
    return f"{case.model}, {case.micro_batch_size} x {case.length}, {case.precision}{kind}{more}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--predict", action="store_true", help="write what is predicted, without measuring")
    parser.add_argument("--tiny", action="store_true", help="small models on a CPU, as a test; nothing is saved")
    parser.add_argument("--only", default="", help="words in the names of cases, by commas; nothing is saved")
    parser.add_argument("--seconds", type=float, default=600.0, help="start no case after so many")
    arguments = parser.parse_args()
    cases = [with_settings(case, is_small=arguments.tiny) for case in CASES]
    chosen = [case for case in cases if any(word in _name(case) for word in arguments.only.split(","))]
    if arguments.predict:
        predicted = [{**asdict(case), "predicted": predict(case)} for case in cases]
        print(save_results(FILE.stem, {"device": f"predicted for {GPU}", "cases": predicted}))
        return 0
    if not torch.cuda.is_available() and not arguments.tiny:
        print("no NVIDIA GPU: nothing can be measured here", file=sys.stderr)
        return 2
    known = json.loads(FILE.read_text(encoding="utf-8"))["cases"]
    set_gpu_defaults(os.environ, deterministic=True)
    ask_for_determinism()
    torch.use_deterministic_algorithms(True)
    warnings.filterwarnings("ignore")
    started = time.monotonic()
    failed = 0
    with World(120, {}) as world, tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate(cases):
            if case not in chosen or time.monotonic() - started > arguments.seconds:
                continue
            try:
                measured = measure(case, world, Path(folder, str(number)))
            except Exception as failure:
                failed += 1
                print(f"{_name(case)}: {type(failure).__name__}: {str(failure)[:300]}", flush=True)
                free_memory(world.device)
                continue
            free_memory(world.device)
            predicted = known[number]["predicted"]
            errors = ", ".join(f"{name} {predicted[name] / value - 1:+.0%}" for name, value in measured.items())
            print(f"{_name(case)}: {errors}; {time.monotonic() - started:.0f} s", flush=True)
            known[number]["measured"] = measured
            if not arguments.tiny and not arguments.only:
                gpu = {"device": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
                save_results(FILE.stem, {**gpu, "cases": known})
    return int(failed > 0)


if __name__ == "__main__":
    end_process(main())
