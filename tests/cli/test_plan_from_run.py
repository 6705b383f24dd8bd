"""`trainyard plan --from-run`: what a run measured replaces what was estimated, and the difference is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

FSDP = "pipelines/fsdp.yaml"


@pytest.fixture
def metrics(tmp_path: Path) -> Path:
    lines = [
        {"step": 250, "step_seconds_p50": 0.03, "tokens_per_second": 30_000, "peak_memory_bytes": 40_000_000},
        {"step": 500, "step_seconds_p50": 0.02, "run_step_seconds_p50": 0.025, "tokens_per_second": 50_000},
    ]
    file = tmp_path / "metrics.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return file


def train_job(outcome: Any) -> dict[str, Any]:
    assert outcome.exit_code == 0, outcome.stderr
    return json.loads(outcome.stdout)["jobs"]["train_fsdp"]


@pytest.mark.parametrize("names_folder", [False, True])
def test_what_a_run_measured_replaces_the_estimate(trainyard: Run, metrics: Path, names_folder: bool) -> None:
    run = metrics.parent if names_folder else metrics
    estimated = train_job(trainyard("plan", FSDP, "--format", "json"))
    found = train_job(trainyard("plan", FSDP, "--from-run", str(run), "--format", "json"))
    assert found["time"]["step_seconds"] == 0.025
    assert found["memory"]["total_bytes_per_gpu"] == 40_000_000
    assert found["measured"]["steps"] == 500
    assert found["measured"]["tokens_per_second"] == 50_000
    assert found["measured"]["estimate_differs_by"] == pytest.approx(
        {
            "step_seconds": estimated["time"]["step_seconds"] / 0.025 - 1,
            "memory": estimated["memory"]["total_bytes_per_gpu"] / 40_000_000 - 1,
        }
    )
    price = found["money"]["on_demand_usd_per_hour"]
    assert found["money"]["on_demand_usd"] == pytest.approx((600 + 500 * 0.025) / 3600 * price)


@pytest.mark.parametrize("output_format", ["text", "markdown", "html"])
def test_the_difference_is_told_to_people_too(trainyard: Run, metrics: Path, output_format: str) -> None:
    outcome = trainyard("plan", FSDP, "--from-run", str(metrics), "--format", output_format)
    assert outcome.exit_code == 0
    assert "estimated: step_seconds -" in outcome.stdout
    assert "500 steps, 25 ms a step, 50,000 tokens a second, 40.0 MB" in outcome.stdout


def test_a_run_without_a_metrics_file_is_an_error(trainyard: Run, tmp_path: Path) -> None:
    outcome = trainyard("plan", FSDP, "--from-run", str(tmp_path))
    assert outcome.exit_code == 2
    assert "expected a metrics.jsonl" in outcome.stderr
