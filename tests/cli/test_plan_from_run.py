"""`trainyard plan --from-run`: what a run measured replaces what was estimated, and the difference is told."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

ROOT = Path(__file__).parents[2]
FSDP = "pipelines/fsdp.yaml"


@pytest.fixture(autouse=True)
def project_of_its_own(in_the_project: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This project's YAML in a folder of its own, because what a run measured is kept in a project."""
    folder = tmp_path / "project"
    for name in ("components", "pipelines", "environments", "compute", "settings"):
        shutil.copytree(ROOT / name, folder / name)
    (folder / "src" / "trainyard" / "steps").mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


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
    assert "estimated: step_seconds +" in outcome.stdout
    assert "500 steps, 25 ms a step, 50,000 tokens a second, 40.0 MB" in outcome.stdout


def test_a_run_without_a_metrics_file_is_an_error(trainyard: Run, tmp_path: Path) -> None:
    outcome = trainyard("plan", FSDP, "--from-run", str(tmp_path))
    assert outcome.exit_code == 2
    assert "expected a metrics.jsonl" in outcome.stderr


def test_what_runs_measured_corrects_later_plans_of_trainings_alike(
    trainyard: Run, metrics: Path, project_of_its_own: Path
) -> None:
    """Two runs of 25 and 50 ms: their median, half way between, in each figure; the same run counts once."""
    before = train_job(trainyard("plan", FSDP, "--format", "json"))
    slower = metrics.with_name("slower.jsonl")
    slower.write_text(metrics.read_text(encoding="utf-8").replace("0.025", "0.05"), encoding="utf-8")
    for run in (metrics, slower, metrics):
        said = trainyard("plan", FSDP, "--from-run", str(run))
        assert "later plans of small micro-batches on T4, fp32 are corrected by it" in said.stderr
    after = train_job(trainyard("plan", FSDP, "--format", "json"))
    factor = 0.0375 / before["time"]["step_seconds"]
    assert after["time"]["step_seconds"] == pytest.approx(0.0375)
    assert after["time"]["remark"] == f"corrected by {factor:.2f} × from 2 runs of this project"
    assert after["time"]["parts"] == pytest.approx({k: v * factor for k, v in before["time"]["parts"].items()})
    assert after["memory"] == before["memory"]
    assert f"corrected by {factor:.2f} × from 2 runs of this project" in trainyard("plan", FSDP).stdout
    for content in ([], *({"any": {"run": ratio}} for ratio in (math.nan, math.inf, 0, -1))):
        (project_of_its_own / ".trainyard" / "measured_runs.json").write_text(json.dumps(content), encoding="utf-8")
        broken = trainyard("plan", FSDP)
        assert broken.exit_code == 2
        assert "measured_runs.json: no measured runs can be read from it; delete it" in broken.stderr
