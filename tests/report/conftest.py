"""Run folders as the local runner and the steps leave them, made by code."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

Json = dict[str, Any]

WIDE = {"width": 1280, "height": 900}

DIGITS = [str(digit) for digit in range(10)]


def job(status: str = "completed", **fields: Any) -> Json:
    """A job of run.json with the fields that every one has."""
    return {
        "component": "prepare_images",
        "depends_on": [],
        "nodes": 1,
        "processes_per_node": 1,
        "status": status,
        "environment": "azureml://registries/azureml/environments/acpt-pytorch-2.8-cuda12.6/versions/9",
        "command": "",
        "inputs": {},
        "outputs": {},
        "logs": [],
        "duration_s": None,
        "attempts": [],
        "reused_from": None,
        "reuse": None,
        "reason": None,
        "failed_rank": None,
        "error_lines": None,
        **fields,
    }


def attempt(started: str, duration_s: float | None, exit_codes: Json, reason: str | None = None) -> Json:
    return {"started": started, "duration_s": duration_s, "exit_codes": exit_codes, "reason": reason}


def training_steps(steps: Iterable[int], *, evaluate_every: int = 40) -> list[Json]:
    """Lines of metrics.jsonl as a training of handwritten digits logs them."""
    chance = random.Random(0)
    steps = list(steps)
    total = steps[-1]
    lines = []
    for step in steps:
        progress = step / total
        loss = 2.3 * math.exp(-5.5 * progress) + 0.03 + chance.uniform(0, 0.12) * math.exp(-3 * progress)
        line = {
            "step": step,
            "epoch": int(12 * progress),
            "loss": loss,
            "samples_consumed": step * 64,
            "learning_rate": 0.003 * min(progress / 0.1, 0.5 * (1 + math.cos(math.pi * progress))),
            "grad_norm": 0.4 + 2 * math.exp(-4 * progress) * chance.uniform(0.6, 1.3),
            "step_seconds": 0.05,
            "samples_per_second": 1250 + chance.uniform(-90, 90),
        }
        if step % evaluate_every == 0:
            line["validation_loss"] = 2.3 * math.exp(-4.6 * progress) + 0.06
            line["validation_accuracy"] = 0.985 - 0.85 * math.exp(-7 * progress)
        lines.append(line)
    return lines


def digits_evaluation() -> tuple[Json, Json]:
    """evaluation.json and its confusion_matrix.json: 360 digits, five of them predicted as others."""
    matrix = [[36 if row == column else 0 for column in range(10)] for row in range(10)]
    for true, predicted in ((8, 1), (8, 1), (9, 3), (4, 7), (5, 9)):
        matrix[true][true] -= 1
        matrix[true][predicted] += 1
    classes = []
    for index, name in enumerate(DIGITS):
        predicted_as = sum(row[index] for row in matrix)
        precision, recall = matrix[index][index] / predicted_as, matrix[index][index] / 36
        f1 = 2 * precision * recall / (precision + recall)
        classes.append({"name": name, "precision": precision, "recall": recall, "f1": f1, "support": 36})
    evaluation = {
        "format": "trainyard.evaluation/1",
        "task": "image_classification",
        "split": "test",
        "samples": 360,
        "loss": 0.0713,
        "accuracy": 355 / 360,
        "classes": classes,
    }
    return evaluation, {"format": "trainyard.confusion_matrix/1", "classes": DIGITS, "matrix": matrix}


def language_steps(steps: Iterable[int], *, evaluate_every: int = 100) -> list[Json]:
    """Lines of metrics.jsonl as the training of a language model logs them, with all that is measured of its speed."""
    chance = random.Random(1)
    steps = list(steps)
    lines = []
    for step in steps:
        progress = step / steps[-1]
        loss = 4.6 + 4.4 * math.exp(-5 * progress) + chance.uniform(-0.05, 0.05)
        line = {
            "step": step,
            "epoch": int(4 * progress),
            "loss": loss,
            "samples_consumed": step * 32,
            "learning_rate": 0.003 * min(progress / 0.1, 0.5 * (1 + math.cos(math.pi * progress))),
            "grad_norm": 0.5 + math.exp(-4 * progress) * chance.uniform(0.6, 1.3),
            "step_seconds": 0.08,
            "step_seconds_p50": 0.079,
            "step_seconds_p90": 0.083,
            "step_seconds_p99": 0.09 + chance.uniform(0, 0.02),
            "samples_per_second": 400.0,
            "tokens_per_second": 51_200 + chance.uniform(-900, 900),
            "mfu": 0.41,
            "data_wait_seconds": 0.0004,
            "checkpoint_stall_seconds": 0.002,
            "slowest_rank": 1,
            "slowest_rank_seconds": 0.078,
            "fastest_rank_seconds": 0.075,
            "rank_0_seconds": 0.075,
            "rank_1_seconds": 0.078,
            "peak_memory_bytes": 3 * 2**30,
            "skipped_steps": 2 if progress > 0.5 else 0,
            "loss_spikes": 0,
            "failed_saves": 1 if progress > 0.8 else 0,
        }
        if step % evaluate_every == 0:
            line["validation_loss"] = loss + 0.1
            line["validation_perplexity"] = math.exp(loss + 0.1)
            line["validation_bits_per_byte"] = (loss + 0.1) / 2.7
        lines.append(line)
    lines[-1] |= {"run_step_seconds_p50": 0.0791, "run_step_seconds_p90": 0.084, "run_step_seconds_p99": 0.1234}
    return lines


LANGUAGE_EVALUATION: Json = {
    "format": "trainyard.evaluation/1",
    "task": "language_modeling",
    "split": "test",
    "samples": 61,
    "tokens": 7_808,
    "loss": 4.7,
    "perplexity": 109.947,
    "bits_per_byte": 2.1046,
    "sample": {
        "prompt": "The <function> returns",
        "text": "The <function> returns a new iterator.\nIt raises TypeError where & when it cannot. "
        + "And so on. " * 20,
    },
}


class RunFolder:
    """A run folder to be filled; `run` is what becomes run.json."""

    def __init__(self, path: Path, **fields: Any) -> None:
        self.path = path
        self.run: Json = {
            "format": "trainyard.run/1",
            "name": "brave-otter-7",
            "pipeline": "ddp",
            "pipeline_file": "pipelines/ddp.yaml",
            "status": "completed",
            "reason": None,
            "notes": [],
            "started": "2026-11-20T22:17:05Z",
            "duration_s": 41.27,
            "inputs": {"epochs": 12},
            "outputs": {},
            "jobs": {},
            **fields,
        }
        path.mkdir(parents=True, exist_ok=True)

    def add_job(self, name: str, **fields: Any) -> Json:
        self.run["jobs"][name] = job(**fields)
        return self.run["jobs"][name]

    def write(self, name: str, content: Json | list[Json] | str) -> Path:
        """Write a file of a job: text as it is, a list as JSON lines, a mapping as JSON."""
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, list):
            content = "".join(json.dumps(line) + "\n" for line in content)
        file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return file

    def finish(self) -> Path:
        """Write run.json in one step, as a runner does: a page may be reading it. Return the folder."""
        self.write("run.json.new", self.run).replace(self.path / "run.json")
        return self.path


def digits_run(path: Path) -> RunFolder:
    """A completed run of pipelines/ddp.yaml: prepare (reused), train with two processes, evaluate."""
    folder = RunFolder(path)
    folder.run["outputs"] = {"model": "jobs/train/outputs/model"}
    folder.add_job(
        "prepare",
        reused_from="calm-heron-3",
        reuse="unchanged: snapshot, inputs, command and environment are as in calm-heron-3",
        command="python -m trainyard.steps.prepare_images --prepared 'jobs/prepare/outputs/prepared' --format 'digits'",
        inputs={"format": "digits", "test_fraction": 0.2, "skip_undecodable": False},
        outputs={"prepared": "jobs/prepare/outputs/prepared"},
        logs=["jobs/prepare/user_logs/std_log.txt"],
    )
    folder.add_job(
        "train",
        component="train_ddp",
        depends_on=["prepare"],
        processes_per_node=2,
        duration_s=36.1,
        attempts=[attempt("2026-11-20T22:17:05.200000Z", 36.1, {"0": 0, "1": 0})],
        command="python -m trainyard.steps.train_ddp --data 'jobs/prepare/outputs/prepared' --epochs 12 --seed 0",
        inputs={
            "data": "jobs/prepare/outputs/prepared",
            "epochs": 12,
            "learning_rate": 0.003,
            "model_type": "convnext",
        },
        outputs={port: f"jobs/train/outputs/{port}" for port in ("model", "checkpoints", "metrics")},
        logs=[f"jobs/train/user_logs/std_log_process_{rank}.txt" for rank in range(2)],
    )
    folder.add_job(
        "evaluate",
        component="evaluate",
        depends_on=["prepare", "train"],
        processes_per_node=2,
        duration_s=4.6,
        attempts=[attempt("2026-11-20T22:17:41.500000Z", 4.6, {"0": 0, "1": 0})],
        command="python -m trainyard.steps.evaluate --data 'jobs/prepare/outputs/prepared' --split 'test'",
        inputs={
            "data": "jobs/prepare/outputs/prepared",
            "model": "jobs/train/outputs/model",
            "split": "test",
            "minimum_accuracy": 0.9,
        },
        outputs={"evaluation": "jobs/evaluate/outputs/evaluation"},
        logs=[f"jobs/evaluate/user_logs/std_log_process_{rank}.txt" for rank in range(2)],
    )
    for record in folder.run["jobs"].values():
        for log in record["logs"]:
            folder.write(log, "what the step said\n")
    folder.write(
        "jobs/prepare/outputs/prepared/manifest.json",
        {
            "format": "trainyard.dataset/1",
            "splits": {"train": {"samples": 1294}, "validation": {"samples": 143}, "test": {"samples": 360}},
            "classes": DIGITS,
        },
    )
    folder.write("jobs/train/outputs/metrics/metrics.jsonl", training_steps(range(10, 241, 10)))
    folder.write(
        "jobs/train/outputs/metrics/settings.json",
        {
            "format": "trainyard.settings/1",
            "step": "train_ddp",
            "settings": {"epochs": 12, "learning_rate": 0.003, "precision": "fp32", "max_steps": None},
            "world_size": 2,
            "micro_batch_size": 32,
            "accumulation_steps": 1,
            "global_batch_size": 64,
            "model_parameters": 83_466,
            "versions": {"python": "3.11.7", "torch": "2.13.0", "transformers": "5.2.0"},
        },
    )
    evaluation, confusion = digits_evaluation()
    folder.write("jobs/evaluate/outputs/evaluation/evaluation.json", evaluation)
    folder.write("jobs/evaluate/outputs/evaluation/confusion_matrix.json", confusion)
    return folder


def language_run(path: Path) -> RunFolder:
    """A completed run of pipelines/fsdp.yaml: prepare_text, train with two processes, evaluate."""
    folder = RunFolder(path, name="fluent-crane-5", pipeline="fsdp", pipeline_file="pipelines/fsdp.yaml")
    folder.add_job("prepare_text", component="prepare_text", outputs={"prepared": "jobs/prepare_text/outputs/prepared"})
    folder.add_job(
        "train_fsdp",
        component="train_fsdp",
        depends_on=["prepare_text"],
        processes_per_node=2,
        duration_s=40.2,
        inputs={"data": "jobs/prepare_text/outputs/prepared"},
        outputs={port: f"jobs/train_fsdp/outputs/{port}" for port in ("model", "metrics")},
    )
    folder.add_job(
        "evaluate",
        component="evaluate",
        depends_on=["prepare_text", "train_fsdp"],
        inputs={"model": "jobs/train_fsdp/outputs/model"},
        outputs={"evaluation": "jobs/evaluate/outputs/evaluation"},
    )
    folder.write(
        "jobs/prepare_text/outputs/prepared/manifest.json",
        {
            "format": "trainyard.dataset/1",
            "splits": {"train": {"samples": 1100}, "validation": {"samples": 58}, "test": {"samples": 61}},
            "arrays": {"tokens": {"dtype": "uint16", "shape": [129]}},
            "classes": [],
            "text": {"vocabulary_size": 8192},
        },
    )
    folder.write("jobs/train_fsdp/outputs/metrics/metrics.jsonl", language_steps(range(10, 501, 10)))
    folder.write("jobs/evaluate/outputs/evaluation/evaluation.json", LANGUAGE_EVALUATION)
    return folder


def failed_run(path: Path) -> RunFolder:
    """A run whose training lost a rank after 90 steps of its second attempt; evaluate never began."""
    folder = digits_run(path)
    folder.run.update(name="brisk-lynx-2", status="failed", duration_s=19.4)
    folder.run["jobs"]["train"].update(
        status="failed",
        duration_s=17.9,
        reason="rank 1 ended with exit code 1 after 8.2 s; the other rank was ended",
        failed_rank=1,
        error_lines=[
            "step 90  loss 0.4127  1,231 samples/s",
            "DataError: shard train-images-00000.bin has 81,920 bytes and should have 82,816; was it cut off?",
        ],
        attempts=[
            attempt("2026-11-20T22:17:05.200000Z", 9.3, {"0": 75, "1": 75}, "preempted: a checkpoint was committed"),
            attempt("2026-11-20T22:17:15.100000Z", 8.2, {"0": -15, "1": 1}, "rank 1 ended with exit code 1"),
        ],
    )
    folder.run["jobs"]["evaluate"].update(status="skipped", duration_s=None, attempts=[], reason="train failed")
    folder.write("jobs/train/outputs/metrics/metrics.jsonl", training_steps(range(10, 91, 10)))
    for name in ("evaluation.json", "confusion_matrix.json"):
        (path / "jobs/evaluate/outputs/evaluation" / name).unlink()
    return folder


def wide_run(path: Path) -> RunFolder:
    """A running pipeline with branches, a job that is used four layers further on, and every state a job can have."""
    folder = RunFolder(path, name="still-going", pipeline="sweep", status="running", duration_s=None)
    folder.add_job("prepare_images", duration_s=3.2, attempts=[attempt("2026-11-20T22:17:05Z", 3.2, {"0": 0})])
    folder.add_job("prepare_text", duration_s=5.9, attempts=[attempt("2026-11-20T22:17:05Z", 5.9, {"0": 0})])
    folder.add_job("check_cluster", reused_from="calm-heron-3", component="check_cluster")
    for size, status in (("small", "completed"), ("medium", "running"), ("large", "canceled")):
        folder.add_job(
            f"train_{size}",
            component="train_ddp",
            status=status,
            depends_on=["prepare_images", "check_cluster"],
            nodes=2,
            processes_per_node=8,
            duration_s=None if status == "running" else 64.0,
            attempts=[attempt("2026-11-20T22:17:09Z", None if status == "running" else 64.0, {})],
        )
    folder.add_job(
        "train_language_model_on_documentation", status="failed", depends_on=["prepare_text"], duration_s=12.0
    )
    folder.add_job("choose", status="waiting", depends_on=["train_small", "train_medium", "train_large"])
    folder.add_job("evaluate", status="waiting", depends_on=["choose", "prepare_images"])
    folder.add_job("export", status="skipped", depends_on=["choose", "train_language_model_on_documentation"])
    folder.add_job("announce", status="waiting", depends_on=["evaluate", "export"])
    return folder


def full_run(path: Path) -> RunFolder:
    """The run of the digits with everything else that a page can show: machine use, mistakes, trials, warnings."""
    folder = digits_run(path)
    header = {"format": "trainyard.machine_use/1", "attempt": 1, "processors": 8}
    for name in ("train", "evaluate"):
        samples = [
            {
                "seconds": float(second),
                "processors_busy": 4 + math.sin(second),
                "memory_bytes": second * 2**27,
                "gpus": {"0": {"busy": 0.9, "memory_bytes": 30 * 2**30}},
            }
            for second in range(1, 31)
        ]
        folder.write(f"jobs/{name}/system_logs/machine_use.jsonl", [header, *samples])
    listed = []
    pictures = path / "jobs/evaluate/outputs/evaluation/mistakes"
    pictures.mkdir()
    for number in range(24):
        Image.new("L", (8, 8), number * 10).save(pictures / f"{number}.png")
        wrong = {"true": "a class with a long name", "predicted": "another_class_whose_name_has_no_spaces"}
        listed.append({"sample": number, "file": f"mistakes/{number}.png", **wrong, "probability": 0.99})
    mistakes = {"format": "trainyard.mistakes/1", "searched": 360, "found": 31, "samples": listed}
    folder.write("jobs/evaluate/outputs/evaluation/mistakes.json", mistakes)
    folder.run["jobs"]["train"]["warnings"] = ["not resuming from step-00000014, which is not a complete checkpoint"]
    folder.run["jobs"]["train"]["trials"] = [
        {
            "number": number,
            "status": "completed",
            "inputs": {"learning_rate": 0.1**number, "batch_size": 64, "schedule": "warmup_stable_decay"},
            "metric": 0.5,
            "metric_name": "validation_accuracy",
            "is_best": number == 1,
            "reason": None,
        }
        for number in range(3)
    ]
    return folder


@pytest.fixture
def make_full_run(tmp_path: Path) -> Callable[[], RunFolder]:
    return lambda: full_run(tmp_path / "ample-ibis-9")


@pytest.fixture
def make_digits_run(tmp_path: Path) -> Callable[[], RunFolder]:
    return lambda: digits_run(tmp_path / "brave-otter-7")


@pytest.fixture
def make_language_run(tmp_path: Path) -> Callable[[], RunFolder]:
    return lambda: language_run(tmp_path / "fluent-crane-5")


@pytest.fixture
def make_failed_run(tmp_path: Path) -> Callable[[], RunFolder]:
    return lambda: failed_run(tmp_path / "brisk-lynx-2")


@pytest.fixture
def make_wide_run(tmp_path: Path) -> Callable[[], RunFolder]:
    return lambda: wide_run(tmp_path / "still-going")


@pytest.fixture
def empty_run(tmp_path: Path) -> RunFolder:
    """A run folder whose jobs a test adds."""
    return RunFolder(tmp_path / "quiet-finch-1")


@pytest.fixture
def training_lines() -> Callable[[Iterable[int]], list[Json]]:
    """Makes lines of metrics.jsonl for the given steps."""
    return training_steps


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a page offline; at the end nothing may have been complained of, nor anything else asked for."""
    contexts, complaints, requests, files = [], [], [], []

    def open_it(file: Path, viewport: dict[str, int] = WIDE, color_scheme: str = "light") -> Any:
        context = browser.new_context(offline=True, viewport=viewport, color_scheme=color_scheme)
        contexts.append(context)
        files.append(file.as_uri())
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(file.as_uri())
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert complaints == []
    assert {request for request in requests if not request.startswith("data:")} == set(files)


@pytest.fixture
def make_run_to_compare(tmp_path: Path) -> Callable[[str], Path]:
    """Makes run A, B or C of one pipeline, which differ in settings, results and times; C has no validation."""

    def make(letter: str) -> Path:
        number = "ABC".index(letter) + 1
        folder = RunFolder(tmp_path / f"run-{letter}", name=f"run-{letter}", duration_s=10.0 * number)
        folder.run["inputs"] = {"epochs": number, "format": "digits"}
        folder.add_job(
            "train",
            component="train_ddp",
            processes_per_node=2 * number,
            duration_s=5.0,
            reused_from="run-A" if letter == "B" else None,
            inputs={"epochs": number, **({} if letter == "C" else {"seed": number - 1})},
            outputs={"metrics": "jobs/train/outputs/metrics"},
        )
        folder.add_job(
            "evaluate",
            component="evaluate",
            depends_on=["train"],
            status="failed" if letter == "B" else "completed",
            duration_s=0.0612,
            outputs={"evaluation": "jobs/evaluate/outputs/evaluation"},
        )
        lines = [
            {"step": step, "loss": 2 / 2**step / number, "samples_per_second": 100.0 * number} for step in range(3)
        ]
        if letter != "C":
            lines[1]["validation_loss"], lines[2]["validation_loss"] = 0.6 / number, 0.9
        folder.write("jobs/train/outputs/metrics/metrics.jsonl", lines)
        folder.write(
            "jobs/train/outputs/metrics/settings.json",
            {
                "format": "trainyard.settings/1",
                "step": "train_ddp",
                # As steps record them: the folder of a port is this run's own.
                "settings": {"epochs": number, "precision": "fp32", "metrics": str(folder.path / "jobs/train/outputs")},
                "world_size": 2 * number,
                "micro_batch_size": 8,
                "accumulation_steps": 1,
                "global_batch_size": 16 * number,
                "versions": {"torch": "2.12.0" if letter == "C" else "2.13.0"},
            },
        )
        folder.write(
            "jobs/evaluate/outputs/evaluation/evaluation.json",
            {
                "format": "trainyard.evaluation/1",
                "split": "test",
                "samples": 10,
                "accuracy": 1 - number / 10,
                "loss": number / 10,
            },
        )
        return folder.finish()

    return make
