"""Every path of the training steps that a CPU cannot take, run once on the GPUs of this machine.

    make gpu-check                    or python benchmarks/gpu_check.py [--only float8,fsdp] [--at-once 4]

The first thing to run where a GPU is at hand: half an hour at most. Small models are trained for a few steps in
processes of their own, one for each GPU. Each training is compared with another of the same data, seed and steps: bit
for bit where that is promised, else within what the precision allows. The first is compared with the CPU. Failures are
reported at the end with the last lines of their output, and the exit code is 1; packages that are not installed are
listed. Figures go to benchmarks/results/gpu_check.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from results import ROOT, save_results

STEPS = 12
LIMIT_SECONDS = 300
LINES_SHOWN = 25
DATASETS = "datasets"
_MARK = "TRAINYARD_GPU_CHECK_CASE"
"""A variable by which the processes of a case are known."""
LLAMA = (
    '{"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, '
    '"intermediate_size": 512}'
)
WIDE = '{"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 1048576}'
"""Takes more than 250 GB for the activations of 128 rows of 128 tokens."""
RESNET = '{"embedding_size": 32, "hidden_sizes": [32, 64], "depths": [1, 1], "layer_type": "basic"}'
TEXT = ("--task", "language_modeling", "--model-type", "llama", "--model-overrides", LLAMA, "--learning-rate", "0.001")
EXPERTS = (
    '{"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, '
    '"intermediate_size": 256, "num_local_experts": 4}'
)
TINY = ("--task", "language_modeling", "--learning-rate", "0.001")
IMAGES = ("--task", "image_classification", "--model-type", "resnet", "--model-overrides", RESNET)
BF16 = ("--precision", "bf16")

_ROWS = ("--sequence-length", "128")
PREPARED = {
    "text": ("prepare_text", "--vocabulary-size", "512", *_ROWS),
    "images": ("prepare_images",),
    "chat": ("prepare_chat", *_ROWS),
    "pairs": ("prepare_chat", "--preferences", "true", *_ROWS),
    "preferences": ("compute_reference",),
}
"""What writes each dataset."""


@dataclass(frozen=True)
class Case:
    """A training, or another step, and what it is compared with."""

    name: str
    flags: tuple[str, ...] = ()
    step: str = "train_ddp"
    data: str = "text"
    task: tuple[str, ...] = TEXT
    against: str | None = None
    """Another case. The same bits of every loss, unless `tolerance` says otherwise."""

    tolerance: float = 0.0
    """How far each loss may be from the other's, as a share of the first one."""

    needs: str | None = None
    """A package that a plain installation lacks."""

    starts_from: str | None = None
    """The case whose model is the base model."""

    on_cpu: bool = False
    fails_with: tuple[int, str] | None = None
    """The exit code and words with which it has to end, where that is what is checked."""

    prints: str = ""
    """Words that a GPU's training has to print, where a fallback would have the same losses."""

    is_killed: bool = False
    """Killed after a checkpoint, and started again; the model has the bits of the other then."""

    @property
    def is_training(self) -> bool:
        """Whether there are losses to look at; of other steps, only how they end."""
        return self.step.startswith("train_")

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The cases that must have ended before."""
        conversations = ("fp32",) if self.data in ("chat", "preferences") else ()
        return tuple({name: None for name in (self.against, self.starts_from, *conversations) if name is not None})

    @property
    def folder(self) -> str:
        """The name as that of a folder."""
        return self.name.replace(",", "").replace(" ", "_")


def _text_cases() -> Iterator[Case]:
    yield Case("cpu fp32", on_cpu=True)
    yield Case("fp32", against="cpu fp32", tolerance=1e-4)
    yield Case("fp32 again", against="fp32")
    yield Case("fp32, killed and resumed", ("--checkpoint-every-steps", "2"), against="fp32", is_killed=True)
    yield Case("tf32", ("--matmul-precision", "high"), against="fp32", tolerance=2e-3)
    yield Case("accumulation", ("--micro-batch-size", "2"), against="fp32", tolerance=1e-5)
    yield Case("plain optimizer", ("--fused-optimizer", "false"), against="fp32", tolerance=1e-5)
    yield Case("ema", ("--ema-decay", "0.9"), against="fp32")
    yield Case("bf16", BF16, against="fp32", tolerance=2e-2)
    yield Case("bf16 again", BF16, against="bf16")
    yield Case("bf16, killed", (*BF16, "--checkpoint-every-steps", "2"), against="bf16", is_killed=True)
    yield Case("fp16", ("--precision", "fp16"), against="fp32", tolerance=2e-2)
    yield Case("not deterministic", (*BF16, "--deterministic", "false"), against="bf16", tolerance=1e-2)
    yield Case("chunked loss", (*BF16, "--loss-chunk-tokens", "64"), against="bf16", tolerance=5e-3)
    recomputed = (*BF16, "--activation-checkpointing", "true")
    yield Case("recomputed", recomputed, against="bf16")
    yield Case("recomputed, cheap", (*recomputed, "--checkpointed-operators", "cheap"), against="bf16")
    yield Case("offloaded activations", (*BF16, "--activation-offload", "true"), against="bf16")
    yield Case("recomputed and offloaded", (*recomputed, "--activation-offload", "true"), against="bf16")
    compiled = (*BF16, "--compile", "true")
    yield Case("compiled", compiled, against="bf16", tolerance=1e-2)
    yield Case("compiled again", compiled, against="compiled")
    yield Case("compiled and recomputed", (*recomputed, "--compile", "true"), against="compiled", tolerance=1e-2)
    experts = (*TEXT[:2], "--model-type", "mixtral", "--model-overrides", EXPERTS, *TEXT[-2:])
    yield Case("experts", task=experts)
    yield Case("experts, bf16", BF16, task=experts, against="experts", tolerance=5e-2)
    yield Case("adafactor", ("--optimizer", "adafactor"))
    yield Case("adamw8bit", ("--optimizer", "adamw8bit"), against="fp32", tolerance=2e-2, needs="torchao")
    yield Case("float8", (*BF16, "--float8", "true"), against="bf16", tolerance=3e-2, needs="torchao")
    yield Case("float8, compiled", (*compiled, "--float8", "true"), against="bf16", tolerance=3e-2, needs="torchao")
    yield Case("traced", (*BF16, "--profile-steps", "3:5"), against="bf16")
    yield Case("restarted inside the job", (*BF16, "--restarts", "1"), against="bf16")
    huge = ("--micro-batch-size", "128", "--global-batch-size", "1024")
    yield Case("out of memory", huge, task=(*TEXT[:4], "--model-overrides", WIDE), fails_with=(1, "out of memory"))


def _engine_cases() -> Iterator[Case]:
    fsdp: dict[str, Any] = {"step": "train_fsdp", "against": "fp32", "tolerance": 1e-4}
    yield Case("fsdp", **fsdp)
    yield Case("fsdp, killed", ("--checkpoint-every-steps", "2"), step="train_fsdp", against="fsdp", is_killed=True)
    yield Case("fsdp, replicas", ("--shard-size", "{replica}"), **fsdp)
    yield Case("fsdp, gathered once", ("--reshard-after-forward", "false"), step="train_fsdp", against="fsdp")
    yield Case("fsdp on main memory", ("--cpu-offload", "true"), **fsdp)
    yield Case("fsdp, gradients each time", ("--micro-batch-size", "2", "--gradient-sync", "every"), **fsdp)
    yield Case("fsdp, compiled bf16", (*BF16, "--compile", "true"), "train_fsdp", against="bf16", tolerance=2e-2)
    recomputed = ("--activation-checkpointing", "true", "--activation-offload", "true")
    yield Case("fsdp, bf16, recomputed", (*BF16, *recomputed), "train_fsdp", against="bf16", tolerance=2e-2)
    float8 = (*BF16, "--float8", "true", "--compile", "true")
    yield Case("fsdp, float8", float8, "train_fsdp", against="bf16", tolerance=3e-2, needs="torchao")
    deepspeed: dict[str, Any] = {"step": "train_deepspeed", "needs": "deepspeed"}
    for stage in ("zero1", "zero2", "zero3", "zero2_offload", "zero3_offload"):
        settings = ("--deepspeed-config", str(ROOT / "components" / "deepspeed" / f"{stage}.json"), *BF16)
        yield Case(stage, settings, against="bf16", tolerance=3e-2, **deepspeed)
        if stage in ("zero2", "zero3"):
            killed = (*settings, "--checkpoint-every-steps", "2")
            yield Case(f"{stage}, killed", killed, against=stage, is_killed=True, **deepspeed)
    yield Case("lightning", BF16, "train_lightning", against="bf16", tolerance=2e-2, needs="lightning")
    yield Case("horovod", (), "train_horovod", against="fp32", tolerance=1e-4, needs="horovod")


def _tuning_cases() -> Iterator[Case]:
    chat: dict[str, Any] = {"data": "chat", "task": TINY, "starts_from": "fp32"}
    yield Case("chat cpu", on_cpu=True, **chat)
    yield Case("chat", against="chat cpu", tolerance=1e-4, **chat)
    yield Case("chat, bf16", BF16, against="chat", tolerance=3e-2, prints="apart by flash attention", **chat)
    yield Case("chat, bf16, compiled", (*BF16, "--compile", "true"), against="chat", tolerance=3e-2, **chat)
    yield Case("lora", ("--tuning", "lora", *BF16), **chat)
    yield Case("lora, killed", ("--tuning", "lora", *BF16, "--checkpoint-every-steps", "2"), against="lora",
               is_killed=True, **chat)  # fmt: skip
    yield Case("lora, merged", ("--tuning", "lora", *BF16, "--merge-adapters", "true"), against="lora", **chat)
    yield Case("lora, fsdp", ("--tuning", "lora", *BF16), "train_fsdp", against="lora", tolerance=2e-2, **chat)
    qlora = ("--tuning", "qlora", *BF16)
    yield Case("qlora", qlora, against="lora", tolerance=2e-1, needs="bitsandbytes", **chat)
    yield Case("qlora, merged", (*qlora, "--merge-adapters", "true"), against="qlora", needs="bitsandbytes", **chat)
    yield Case("qlora, killed", (*qlora, "--checkpoint-every-steps", "2"), against="qlora", needs="bitsandbytes",
               is_killed=True, **chat)  # fmt: skip
    preferences: dict[str, Any] = {"data": "preferences", "task": ("--task", "preferences"), "starts_from": "fp32"}
    yield Case("preferences cpu", on_cpu=True, **preferences)
    yield Case("preferences", against="preferences cpu", tolerance=1e-3, **preferences)
    yield Case("preferences, bf16", BF16, against="preferences", tolerance=5e-2, **preferences)


def _image_cases() -> Iterator[Case]:
    images: dict[str, Any] = {"data": "images", "task": IMAGES}
    yield Case("images cpu", on_cpu=True, **images)
    yield Case("images", against="images cpu", tolerance=1e-3, **images)
    yield Case("images again", against="images", **images)
    yield Case("images, tf32", ("--matmul-precision", "high"), against="images", tolerance=1e-2, **images)
    yield Case("images, bf16", BF16, against="images", tolerance=5e-2, **images)
    yield Case("images, fp16", ("--precision", "fp16"), against="images", tolerance=5e-2, **images)
    yield Case("images, compiled", ("--compile", "true"), against="images", tolerance=1e-2, **images)


def _other_cases() -> Iterator[Case]:
    trained = ("--model={folder}/fp32/model", "--evaluation={out}", f"--data={{folder}}/{DATASETS}/text")
    yield Case("evaluated", trained, "evaluate", starts_from="fp32")
    yield Case("evaluated in bf16", (*trained, *BF16), "evaluate", starts_from="fp32")
    yield Case("evaluated, model sharded", (*trained, "--shard-model", "true"), "evaluate", starts_from="fp32")
    asked = (f"--data={{folder}}/{DATASETS}/pairs", "--base-model={folder}/fp32/model", "--prepared={out}")
    sharded = (*asked, "--shard-model", "true")
    yield Case("reference, model sharded", sharded, "compute_reference", data="pairs", starts_from="fp32")
    yield Case("cluster checked", ("--report={out}", "--disk-mib=64", "--repetitions=3"), "check_cluster")


CASES = (*_text_cases(), *_engine_cases(), *_tuning_cases(), *_image_cases(), *_other_cases())


@dataclass
class Outcome:
    """How a case ended."""

    case: Case
    problem: str | None = None
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    largest_difference: float | None = None
    peak_memory_bytes: float | None = None
    output: str = ""
    is_left_out: bool = False


@dataclass
class Check:
    """All cases, in a folder of their own."""

    folder: Path
    gpus: int
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    preparing: threading.RLock = field(default_factory=threading.RLock)

    def run(self, case: Case) -> Outcome:
        """Train one case. What it is compared with must have ended."""
        if case.needs is not None and find_spec(case.needs) is None:
            return Outcome(case, f"left out: {case.needs} is not installed", is_left_out=True)
        started = time.monotonic()
        outcome = Outcome(case)
        try:
            self._prepare(case.data)
            self._train(case, outcome)
            outcome.problem = self._problem(case, outcome)
        except subprocess.TimeoutExpired:
            outcome.problem = f"did not end within {LIMIT_SECONDS} seconds"
        except (OSError, ValueError, KeyError, AssertionError) as failure:
            outcome.problem = f"{type(failure).__name__}: {failure}"
        outcome.seconds = time.monotonic() - started
        return outcome

    def _prepare(self, data: str) -> None:
        """Write a dataset, once. ValueError with what the step printed where that fails."""
        with self.preparing:
            folder = self.folder / DATASETS / data
            if folder.exists():
                return
            step, *flags = PREPARED[data]
            if step == "compute_reference":
                self._prepare("pairs")
                flags = [f"--data={self.folder / DATASETS / 'pairs'}"]
            if step in ("prepare_chat", "compute_reference"):
                flags += ["--base-model", str(self.folder / "fp32" / "model")]
            command = (sys.executable, "-m", f"trainyard.steps.{step}", "--prepared", str(folder), *flags)
            done = subprocess.run(command, env=_environment(), capture_output=True, text=True)
            if done.returncode != 0:
                raise ValueError(f"{step} ended with exit code {done.returncode}: {done.stdout}{done.stderr}")

    def _train(self, case: Case, outcome: Outcome) -> None:
        out = self.folder / case.folder
        command = [*self._command(case), *self._flags(case, out)]
        if case.is_killed:
            outcome.output += _until_checkpoint(command, out / "checkpoints", self._environment(case))
        with _processes(command, self._environment(case)) as process:
            said, _ = process.communicate(timeout=LIMIT_SECONDS)
        outcome.output += said
        expected, words = case.fails_with or (0, case.prints if torch.cuda.is_available() else "")
        if process.returncode != expected or words not in said:
            raise ValueError(
                f"exit code {process.returncode}, expected {expected}{' and ' + repr(words) if words else ''}"
            )
        if case.fails_with is None and case.is_training:
            lines = [json.loads(line) for line in (out / "metrics" / "metrics.jsonl").read_text().splitlines()]
            by_step = {line["step"]: line for line in lines if "loss" in line}
            outcome.losses = [by_step[step]["loss"] for step in sorted(by_step)]
            outcome.peak_memory_bytes = max(line.get("peak_memory_bytes", 0) for line in by_step.values())

    def _problem(self, case: Case, outcome: Outcome) -> str | None:
        if case.fails_with is not None or not case.is_training:
            return None
        if len(outcome.losses) < STEPS or not all(map(math.isfinite, outcome.losses)):
            return f"losses of {STEPS} steps expected, found {outcome.losses}"
        if case.against is None:
            return None if outcome.losses[-1] < outcome.losses[0] else f"does not learn: {outcome.losses}"
        other = self.outcomes[case.against]
        if len(other.losses) < STEPS:
            return f"cannot be compared: {case.against} failed"
        pairs = zip(outcome.losses, other.losses, strict=True)
        apart = outcome.largest_difference = max(abs(ours - theirs) for ours, theirs in pairs) / other.losses[0]
        if apart > case.tolerance:
            return f"losses are up to {apart:.2g} from those of {case.against}; {case.tolerance:g} is allowed"
        if case.is_killed and self._model_digest(case) != self._model_digest(other.case):
            return f"the model has other bits than that of {case.against}"
        return None

    def _model_digest(self, case: Case) -> str:
        (weights,) = (self.folder / case.folder / "model").glob("*model.safetensors")
        return hashlib.sha256(weights.read_bytes()).hexdigest()

    def _command(self, case: Case) -> list[str]:
        module = f"trainyard.steps.{case.step}"
        if case.on_cpu or self.gpus == 1:
            return [sys.executable, "-m", module]
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        launcher = ("torch.distributed.run", f"--nproc-per-node={self.gpus}", f"--master-port={port}")
        return [sys.executable, "-m", *launcher, "-m", module]

    def _flags(self, case: Case, out: Path) -> list[str]:
        # As many GPUs as share a model where there are to be several replicas.
        replica = max((size for size in range(1, self.gpus) if self.gpus % size == 0), default=1)
        flags = [flag.format(out=out, folder=self.folder, replica=replica) for flag in case.flags]
        if not case.is_training:
            return flags
        folders = (f"--{name}={out / name}" for name in ("model", "checkpoints", "metrics"))
        base = () if case.starts_from is None else (f"--base-model={self.folder / case.starts_from / 'model'}",)
        own = {flag for flag in flags if flag.startswith("--")}
        usual = {"--global-batch-size": "16", "--micro-batch-size": str(max(2, 16 // self.gpus // 2))}
        sizes = [part for flag, value in usual.items() if flag not in own for part in (flag, value)]
        steps = ("--max-steps", str(STEPS), "--log-every-steps", "1", "--epochs", "50")
        return [
            f"--data={self.folder / DATASETS / case.data}",
            *folders,
            *base,
            *case.task,
            *steps,
            *sizes,
            *flags,
        ]

    def _environment(self, case: Case) -> dict[str, str]:
        environment = _environment()
        return {**environment, "CUDA_VISIBLE_DEVICES": ""} if case.on_cpu else environment


def _environment() -> dict[str, str]:
    path = f"{ROOT / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    return {**os.environ, "PYTHONPATH": path, _MARK: str(uuid.uuid4())}


@contextmanager
def _processes(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Start a command none of whose processes outlives the block."""
    with subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            _kill_all(process, environment)


def _kill_all(process: subprocess.Popen[str], environment: dict[str, str]) -> None:
    """Kill a process and all that it has started: torchrun starts ranks in sessions of their own, with the mark."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    mark = f"{_MARK}={environment[_MARK]}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)


def _until_checkpoint(command: list[str], checkpoints: Path, environment: dict[str, str]) -> str:
    """Run until a checkpoint is committed, and kill all processes. Return what they have printed."""
    end = time.monotonic() + LIMIT_SECONDS
    with _processes(command, environment) as process:
        while process.poll() is None and not any(checkpoints.glob("step-*")):
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(command, LIMIT_SECONDS)
            time.sleep(0.005)
        if process.poll() is not None:
            raise ValueError(f"ended with exit code {process.returncode} before it could be killed")
        _kill_all(process, environment)
        return process.communicate()[0]


def _chosen(words: str) -> list[Case]:
    """The cases with one of the words in their name, and those that they wait for, in order."""
    named = {case.name: case for case in CASES}
    chosen = {name for name in named if any(word.strip() in name for word in words.split(","))}
    for case in reversed(CASES):
        if case.name in chosen:
            chosen.update(case.waits_for)
    return [case for case in CASES if case.name in chosen]


def _check(cases: list[Case], folder: Path, gpus: int, at_once: int) -> list[Outcome]:
    """Run the cases, several at once, each after those that it waits for."""
    check = Check(folder, gpus)

    def run(case: Case) -> Outcome:
        for name in case.waits_for:
            futures[name].result()
        outcome = check.outcomes[case.name] = check.run(case)
        said = outcome.problem or (f"loss {outcome.losses[-1]:.4f}" if outcome.losses else "as expected")
        print(f"{case.name:<28} {outcome.seconds:5.0f} s  {said.splitlines()[0]}", flush=True)
        return outcome

    with ThreadPoolExecutor(at_once) as threads:
        futures: dict[str, Future[Outcome]] = {}
        # What a case waits for is before it in the table, so that some thread has begun with it.
        for case in cases:
            futures[case.name] = threads.submit(run, case)
    return [future.result() for future in futures.values()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="words in the names of cases, with commas between them")
    parser.add_argument("--at-once", type=int, default=max(1, (os.cpu_count() or 1) // 4), help="cases at a time")
    parser.add_argument(
        "--without-gpu", action="store_true", help="what of it a CPU can do, as a test; nothing is saved"
    )
    parser.add_argument("--keep", type=Path, help="a folder for everything that is written, kept for a look")
    arguments = parser.parse_args()
    if not torch.cuda.is_available() and not arguments.without_gpu:
        print("no GPU that torch can use: nothing can be checked here", file=sys.stderr)
        return 2
    started = time.monotonic()
    gpus = 1 if arguments.without_gpu else torch.cuda.device_count()
    device = "CPU" if arguments.without_gpu else torch.cuda.get_device_name()
    cases = _chosen(arguments.only)
    print(f"{len(cases)} cases on {gpus} x {device}, torch {torch.__version__}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        outcomes = _check(cases, arguments.keep or Path(folder), gpus, arguments.at_once)
    failed = [outcome for outcome in outcomes if outcome.problem and not outcome.is_left_out]
    for outcome in failed:
        print(f"\n--- {outcome.case.name}: {outcome.problem}")
        print("\n".join(outcome.output.splitlines()[-LINES_SHOWN:]))
    left_out = [outcome.case.name for outcome in outcomes if outcome.is_left_out]
    passed = len(outcomes) - len(failed) - len(left_out)
    print(f"\n{passed} of {len(outcomes)} as expected, {len(failed)} failed, {len(left_out)} left out: {left_out}; "
          f"{time.monotonic() - started:.0f} s")  # fmt: skip
    if not arguments.only and not arguments.without_gpu:
        figures = [
            {
                "case": outcome.case.name,
                "compared_with": outcome.case.against,
                "tolerance": outcome.case.tolerance,
                "largest_difference": outcome.largest_difference,
                "problem": outcome.problem,
                "seconds": round(outcome.seconds, 1),
                "last_loss": outcome.losses[-1] if outcome.losses else None,
                "peak_memory_bytes": outcome.peak_memory_bytes,
            }
            for outcome in outcomes
        ]
        gpu = {"device": device, "gpus": gpus, "cuda": torch.version.cuda}
        save_results("gpu_check", {**gpu, "passed": passed, "cases": figures})
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
