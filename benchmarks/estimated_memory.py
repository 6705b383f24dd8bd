"""What a training takes of this machine's memory, compared with what `trainyard estimate` says of it.

    python benchmarks/estimated_memory.py [--only llama,convnext [--divide-batches 2]]

`train_single` runs two steps of a small model on the CPU, in a process of its own; measured is the process's peak of
resident memory, less that of the same process with a model of a few thousand parameters. Memory that is freed goes
back to the system (malloc's arenas and threshold are set so), so the peak is that of the tensors. The processes are
forked from this one, which has imported what they need: imports would take most of the time. Results go to
benchmarks/results/estimated_memory.json. Exit 1 when a prediction is off by more than 15 %.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from results import save_results
from trainyard.catalogue.gpus import find_gpu
from trainyard.plan.estimate.architectures import from_settings
from trainyard.plan.estimate.image_models import Images, image_model
from trainyard.plan.estimate.memory import memory_of
from trainyard.plan.estimate.training import TrainingShape, machines_of_gpu

BAR = 0.15
VOCABULARY, LENGTH, SIDE, CLASSES = 2048, 128, 8, 10
_LLAMA = {"num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1024}
_GPT2 = {"n_layer": 6, "n_embd": 384, "n_head": 6}
_NEOX = {"num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}
_CONVNEXT = {
    "patch_size": 1,
    "num_stages": 2,
    "depths": [3, 3],
    "hidden_sizes": [96, 192],
    "layer_scale_init_value": 1.0,
}
_VIT = {
    "patch_size": 1,
    "hidden_size": 192,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "intermediate_size": 768,
}
_RESNET = {"embedding_size": 64, "hidden_sizes": [128, 256], "depths": [2, 2], "downsample_in_first_stage": False}
_M_ARENA_MAX, _M_MMAP_THRESHOLD = -8, -3
"""From malloc.h."""
_IMPORTED_BEFORE = (
    "safetensors.torch",
    "tokenizers",
    "torch._dynamo",
    "trainyard.steps.training.run_training",
    "transformers.models.convnext.modeling_convnext",
    "transformers.models.llama.modeling_llama",
)


@dataclass(frozen=True)
class Case:
    """A model, how much of it is computed at once, and flags of the step."""

    name: str
    model_type: str
    settings: dict[str, Any]
    micro_batch_size: int
    flags: tuple[str, ...] = ()
    images: bool = False

    def training(self) -> TrainingShape:
        """What is estimated. One process's memory is that of one GPU."""
        machines = machines_of_gpu(find_gpu("A100-SXM-80GB"), 1, 1)
        if self.images:
            model: Any = image_model(self.model_type, self.settings, Images(SIDE, SIDE, 1, CLASSES))
        else:
            positions = "n_positions" if self.model_type == "gpt2" else "max_position_embeddings"
            needs = {"vocab_size": VOCABULARY, positions: LENGTH}
            model = from_settings(self.model_type, {**self.settings, **needs}, self.model_type)
        return TrainingShape(
            model,
            machines,
            "ddp",
            self.micro_batch_size,
            1,
            1 if self.images else LENGTH,
            "fp32",
            "full" if "--activation-checkpointing" in self.flags else "none",
            loss_chunk_tokens=int(self.flags[1]) if "--loss-chunk-tokens" in self.flags else 0,
        )


CASES = (
    Case("llama", "llama", _LLAMA, 16),
    Case("llama, recomputed", "llama", _LLAMA, 32, ("--activation-checkpointing", "true")),
    Case("llama, loss by chunks", "llama", _LLAMA, 32, ("--loss-chunk-tokens", "512")),
    Case("gpt2", "gpt2", _GPT2, 16),
    Case("gpt_neox", "gpt_neox", _NEOX, 16),
    Case("convnext", "convnext", _CONVNEXT, 512, images=True),
    Case("vit", "vit", _VIT, 256, images=True),
    Case("resnet", "resnet", _RESNET, 1024, images=True),
)


def measure(cases: Sequence[Case]) -> dict[str, dict[str, float]]:
    """Return measured and predicted bytes of cases, by their names."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        text, images = Path(folder, "text"), Path(folder, "images")
        if any(not case.images for case in cases):
            flags = ("--vocabulary-size", str(VOCABULARY), "--sequence-length", str(LENGTH))
            _step("prepare_text", "--prepared", str(text), *flags)
        if any(case.images for case in cases):
            _step("prepare_images", "--prepared", str(images))
        tiny_text = Case("", "llama", {**_LLAMA, "num_hidden_layers": 1, "hidden_size": 12, "intermediate_size": 8}, 1)
        tiny_images = Case("", "convnext", {**_CONVNEXT, "depths": [1, 1], "hidden_sizes": [4, 4]}, 1, images=True)
        baselines: dict[bool, int] = {}
        for case in cases:
            data = images if case.images else text
            if case.images not in baselines:
                baselines[case.images] = _peak(tiny_images if case.images else tiny_text, data, Path(folder))
            measured = _peak(case, data, Path(folder)) - baselines[case.images]
            predicted = memory_of(case.training()).total
            found[case.name] = {
                "measured_bytes": measured,
                "predicted_bytes": round(predicted),
                "error": predicted / measured - 1,
            }
            figures = f"measured {measured / 1e6:.0f} MB, predicted {predicted / 1e6:.0f} MB"
            print(f"{case.name:24}{figures}: {predicted / measured - 1:+.0%}", flush=True)
    return found


def _peak(case: Case, data: Path, folder: Path) -> int:
    """Return the peak of resident memory of a training of two steps."""
    out = Path(tempfile.mkdtemp(dir=folder))
    batch = str(case.micro_batch_size)
    _step(
        "train_single",
        *("--data", str(data), "--model", str(out / "model"), "--metrics", str(out / "metrics")),
        *("--checkpoints", str(out / "checkpoints"), "--checkpoint-every-steps", "0"),
        *("--task", "image_classification" if case.images else "language_modeling"),
        *("--model-type", case.model_type, "--model-overrides", json.dumps(case.settings)),
        *("--micro-batch-size", batch, "--global-batch-size", batch, "--epochs", "99", "--max-steps", "2"),
        *("--log-every-steps", "1", "--evaluate-every-epochs", "0", "--evaluation-batches", "1", *case.flags),
    )
    lines = map(json.loads, (out / "metrics" / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return max(line["peak_memory_bytes"] for line in lines if "peak_memory_bytes" in line and "loss" in line)


def _step(name: str, *flags: str) -> None:
    with tempfile.NamedTemporaryFile() as log:
        process = multiprocessing.get_context("fork").Process(target=_become_step, args=(name, flags, log.fileno()))
        process.start()
        process.join(600)
        if process.exitcode is None:
            process.kill()
        if process.exitcode != 0:
            sys.exit(f"trainyard.steps.{name} {' '.join(flags)} failed:\n{Path(log.name).read_text()[-2000:]}")


def _become_step(name: str, flags: Sequence[str], log: int) -> None:
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.exit(importlib.import_module(f"trainyard.steps.{name}").main(flags))


def _prepare_to_fork() -> None:
    """Set what holds for memory and threads of every step, and import what one step or another imports."""
    os.environ["OMP_NUM_THREADS"] = "1"
    c_library = ctypes.CDLL(None)
    assert c_library.mallopt(_M_ARENA_MAX, 1)
    assert c_library.mallopt(_M_MMAP_THRESHOLD, 65536)
    for module in _IMPORTED_BEFORE:
        importlib.import_module(module)
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"{threads} threads: forking would lose all but one"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of cases, by commas; nothing is saved")
    parser.add_argument("--divide-batches", type=int, default=1, help="how much smaller the cases' micro-batches are")
    arguments = parser.parse_args()
    wanted = [name for name in arguments.only.split(",") if name]
    chosen = [case for case in CASES if not wanted or case.name in wanted]
    _prepare_to_fork()
    found = measure(
        [replace(case, micro_batch_size=case.micro_batch_size // arguments.divide_batches) for case in chosen]
    )
    if not wanted:
        print(save_results("estimated_memory", {"bar": BAR, "cases": found}))
    return int(not found or any(abs(figures["error"]) > BAR for figures in found.values()))


if __name__ == "__main__":
    sys.exit(main())
