"""Trials of autotuning as real processes, and the comparison of what they found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from forked_ranks import forked_ranks

from trainyard.render.settings import read_applied
from trainyard.settings.written_settings import Candidate
from trainyard.steps import compare_configs, measure_config
from trainyard.steps.runtime.errors import MEMORY_EXIT_CODE, exit_code_of, is_out_of_memory
from trainyard.steps.training.observing.mlflow_log import MlflowLog
from trainyard.steps.tuning.measurement import MeasuredCandidate, Study, read_measurement, write_measurement

ROOT = Path(__file__).parents[3]
STUDY = Study("5eed", 16, 2, "CPU", None)
FASTEST = MeasuredCandidate(Candidate("zero2", 4, False), 40.0, 0.4, 3 << 30)


def trial(digits: Path, folder: Path, candidate: Candidate, task: str) -> list[str]:
    configs = str(ROOT / "components" / "deepspeed")
    values = ["--data", str(digits), "--measurement", str(folder), "--deepspeed-configs", configs, "--task", task]
    return [*values, "--candidate", str(candidate), "--global-batch-size", "64", "--steps", "4", "--warmup-steps", "1"]


@pytest.mark.slow
def test_a_trial_is_measured_and_one_out_of_memory_is_a_result(digits: Path, tmp_path: Path) -> None:
    fits, too_large = Candidate("zero2", 16, True), Candidate("zero1", 32, False)
    assert measure_config.main(trial(digits, tmp_path / "a", fits, "tiny_task:WithoutDropout")) == 0
    study, measured = read_measurement(tmp_path / "a")
    assert (study.world_size, study.global_batch_size, measured.candidate) == (1, 64, fits)
    assert measured.samples_per_second > 0
    assert measured.peak_memory_bytes is not None
    assert measured.peak_memory_bytes > 1 << 20
    assert json.loads((tmp_path / "a" / "deepspeed.json").read_text())["zero_optimization"]["stage"] == 2

    arguments = trial(digits, tmp_path / "b", too_large, "tiny_task:OutOfMemory")
    exit_codes, outputs = forked_ranks().run("measure_config", arguments, 2)
    assert exit_codes == [0, 0], outputs
    assert "rank 1 ran out of memory" in outputs[0]
    assert read_measurement(tmp_path / "b")[1] == MeasuredCandidate(too_large, 0.0, None, None)


@pytest.mark.parametrize(
    ("candidate", "message"),
    [
        ("zero2", "--candidate: not a candidate: 'zero2'; expected 'config=NAME"),
        (str(Candidate("zero9", 1, False)), "--candidate: no configuration 'zero9': "),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(
    digits: Path, tmp_path: Path, candidate: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = trial(digits, tmp_path, Candidate("zero2", 1, False), "tiny_task:TinyTask")
    arguments[arguments.index("--candidate") + 1] = candidate
    assert measure_config.main(arguments) == 1
    assert message in capsys.readouterr().err


def test_the_winner_becomes_settings_of_the_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    slower, too_large, killed = Candidate("zero3", 4, False), Candidate("zero0", 8, False), Candidate("zero1", 8, False)
    for study, candidate, figures in (
        ("5eed", slower, {"samples_per_second": 30.0, "peak_memory_bytes": 2.0**31}),
        ("5eed", too_large, {"samples_per_second": 0.0}),
        ("5eed", killed, {}),
        ("other", Candidate("zero1", 1, True), {"samples_per_second": 99.0}),
    ):
        log = MlflowLog()
        log.parameters({"study": study, "candidate": str(candidate)})
        log.metrics(figures, 0)
        log.close()
    (tmp_path / "fastest").mkdir()
    write_measurement(tmp_path / "fastest", STUDY, FASTEST, {"zero_optimization": {"stage": 2}})

    arguments = ["--fastest", str(tmp_path / "fastest"), "--winner", str(tmp_path / "winner")]
    assert compare_configs.main(arguments) == 0

    said = capsys.readouterr().out
    assert f"{too_large}: out of memory" in said
    assert f"warning: {killed}: its trial ended without a measurement" in said
    table = json.loads((tmp_path / "winner" / "autotune.json").read_text())
    assert [row["candidate"]["config"] for row in table["trials"]] == ["zero2", "zero3", "zero0"]
    assert "zero3, micro-batch 4" in (tmp_path / "winner" / "autotune.svg").read_text()
    assert read_applied(tmp_path / "winner" / "profile.yaml") == {
        "pipelines.deepspeed.config": "zero2",
        "pipelines.deepspeed.micro_batch_size": 4,
        "pipelines.deepspeed.accumulation_steps": 2,
        "pipelines.deepspeed.activation_checkpointing": False,
    }


def test_if_nothing_had_enough_memory_there_is_no_winner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_measurement(tmp_path, STUDY, MeasuredCandidate(Candidate("zero3", 1, True), 0.0, None, None), {})
    assert compare_configs.main(["--fastest", str(tmp_path), "--winner", str(tmp_path / "winner")]) == 1
    assert "every candidate ran out of memory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried to allocate", True),
        ("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported", True),
        ("HIP error: out of memory", True),
        ("CUDA driver error: out of memory", True),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", True),
        ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", True),
        ("NCCL error, unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'", True),
        ("NCCL WARN Cuda failure 'out of memory'", True),
        ("CUDA error: an illegal memory access was encountered", False),
        ("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", False),
        ("NCCL error, unhandled cuda error\nLast error:\nCuda failure 999 'unknown error'", False),
    ],
)
def test_whether_memory_was_exhausted_is_known_by_the_message(message: str, expected: bool) -> None:
    assert is_out_of_memory(RuntimeError(message)) is expected
    assert (exit_code_of(RuntimeError(message)) == MEMORY_EXIT_CODE) is expected


def test_errors_of_their_own_for_exhausted_memory_are_known() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(ValueError("CUDA error: out of memory"))
