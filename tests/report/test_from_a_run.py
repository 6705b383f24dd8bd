"""What `trainyard run` shows of a real run: in a terminal, in its report, and in `trainyard runs serve`."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

TRAINYARD = [sys.executable, "-m", "trainyard"]
PHONE = {"width": 390, "height": 860}

# As MLflow's client writes to its store of files, without the seconds that importing it takes.
FIT = """\
import base64, os, pathlib, sys, time, urllib.parse
rate, depth, out = float(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3])
if rate > 1:
    sys.exit("the rate is too high")
store = pathlib.Path(urllib.parse.urlsplit(os.environ["MLFLOW_TRACKING_URI"]).path)
run = store / os.environ["MLFLOW_EXPERIMENT_ID"] / os.environ["MLFLOW_RUN_ID"]
loss = abs(rate - 0.1) + depth
(run / "metrics" / "loss").write_text("".join(f"{step} {loss + 1 / step} {step}\\n" for step in (1, 2, 4)))
(run / "params" / "optimizer").write_text("adam")
(run / "tags" / "owner").write_text("ada")
(run / "artifacts").mkdir(exist_ok=True)
(run / "artifacts" / "sample.png").write_bytes(base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M/wHwAEBgIApD5fRAAAAABJRU5ErkJggg=="
))
(out / "rate.txt").write_text(str(rate))
time.sleep(0.3)  # as long as it takes to be seen in a terminal
"""
SCORE = "import pathlib\ndef run(files):\n    return [str(int(pathlib.Path(file).read_text())) for file in files]\n"
ENVIRONMENT = {"environment": "azureml:e:1"}
FITTING: dict[str, Any] = {
    **ENVIRONMENT,
    "code": "src",
    "command": "python fit.py ${{inputs.rate}} ${{inputs.depth}} ${{outputs.model}}",
    "inputs": {"rate": {"type": "number"}, "depth": {"type": "integer"}},
    "outputs": {"model": {"type": "uri_folder"}},
}
SEARCH = {
    "type": "sweep",
    "trial": "./fit.yml",
    "sampling_algorithm": "grid",
    "search_space": {
        "rate": {"type": "choice", "values": [0.1, 0.4]},
        "depth": {"type": "choice", "values": [1, 2]},
    },
    "objective": {"goal": "minimize", "primary_metric": "loss"},
    "limits": {"max_total_trials": 4, "max_concurrent_trials": 1},
}
PARALLEL = {
    "type": "parallel",
    "mini_batch_size": "1",
    "mini_batch_error_threshold": 2,
    "inputs": {"data": {"type": "uri_folder", "path": "data"}},
    "input_data": "${{inputs.data}}",
    "outputs": {"rows": {"type": "uri_file"}},
    "task": {
        "type": "run_function",
        "code": "src",
        "entry_script": "score.py",
        "append_row_to": "${{outputs.rows}}",
        **ENVIRONMENT,
    },
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a component that fits, and a script that scores three files, one of which is not a number."""
    monkeypatch.chdir(tmp_path)
    for name, text in {"src/fit.py": FIT, "src/score.py": SCORE, "data/0": "1", "data/1": "one", "data/2": "2"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "fit.yml").write_text(json.dumps({"type": "command", "name": "fit", **FITTING}))
    return tmp_path


def write_pipeline(project: Path, **jobs: Any) -> str:
    document = {
        "type": "pipeline",
        "display_name": "Search and score",
        "settings": {"default_compute": "azureml:cpu"},
        "jobs": jobs,
    }
    (project / "pipeline.yml").write_text(json.dumps(document))
    return "pipeline.yml"


def in_a_terminal(*words: str) -> str:
    """Run a command, and return everything that a terminal was sent."""
    ours, its = pty.openpty()
    shown = []
    with subprocess.Popen([*TRAINYARD, *words], stdin=its, stdout=its, stderr=its, start_new_session=True) as running:
        os.close(its)
        with suppress(OSError):  # EIO: on Linux, the last process has closed its end
            while sent := os.read(ours, 65536):
                shown.append(sent)
        os.close(ours)
        running.wait(timeout=60)
    assert running.returncode == 0, b"".join(shown)
    return b"".join(shown).decode()


def test_trials_and_mini_batches_are_shown_live_in_a_terminal_and_in_the_report(
    project: Path, open_page: Callable[..., Any]
) -> None:
    shown = in_a_terminal("run", write_pipeline(project, search=SEARCH, score=PARALLEL), "--name", "it")

    # What the table has while the sweep runs, and at its end.
    assert re.search(r"[123] of 4, best 1\.25\b", shown), shown
    assert re.search(r"4 of 4, best 1\.25\b", shown), shown

    page = open_page(project / ".trainyard/runs/it/report.html", PHONE)
    assert page.locator("h1").inner_text() == "Search and score"
    trials = page.locator(".trials tbody tr")
    assert page.locator(".trials thead th").all_inner_texts() == ["Trial", "rate", "depth", "loss", "Time", "Status"]
    assert [row.locator("td").nth(2).inner_text() for row in trials.all()] == ["1.25", "2.25", "1.55", "2.55"]
    assert [row.locator("td").last.inner_text().split() for row in trials.all()] == [
        ["completed", "best"],
        *[["completed"]] * 3,
    ]
    assert page.locator("svg.coordinates .axis-name").all_text_contents() == ["rate", "depth", "loss"]
    assert page.locator("svg.coordinates g.trial").count() == 4
    assert page.locator("figure.plot figcaption").all_inner_texts() == ["rate", "depth"]
    assert (
        page.locator("p", has_text="3 of 3 mini-batches, 1 failed, 2 allowed, ")
        .inner_text()
        .endswith(" items per second")
    )
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]


def test_more_mini_batches_that_fail_than_are_allowed_are_the_reason(project: Path) -> None:
    file = write_pipeline(project, score={**PARALLEL, "mini_batch_error_threshold": 0})

    run = subprocess.run([*TRAINYARD, "run", file], capture_output=True, text=True)

    assert run.returncode == 1
    assert "score failed: 1 mini-batch failed, 0 allowed: ValueError: invalid literal for int()" in run.stderr


@pytest.fixture
def index(project: Path, trainyard: Callable[..., Any]) -> Iterator[str]:
    """The address of `runs serve`, after three runs that log to MLflow, the last of which failed."""
    inputs = {"rate": 0.2, "depth": 1}
    document = {"type": "command", "compute": "azureml:cpu", "display_name": "Fit", **FITTING, "inputs": inputs}
    (project / "job.yml").write_text(json.dumps(document))
    for name, rate, exit_code in (("low", "0.2", 0), ("high", "0.7", 0), ("odd", "9", 1)):
        run = trainyard("run", "job.yml", "--name", name, "--set", f"inputs.rate={rate}")
        assert run.exit_code == exit_code, run.stderr
    with subprocess.Popen(
        [*TRAINYARD, "runs", "serve"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as it:
        assert it.stdout is not None
        try:
            yield it.stdout.readline().strip()
        finally:
            it.kill()


def test_runs_are_found_compared_and_opened_in_a_browser(index: str, browser: Any) -> None:
    context = browser.new_context(viewport=PHONE)
    page = context.new_page()
    page.goto(index)
    shown = page.locator("tbody tr:visible")
    expect(shown).to_have_count(3)
    page.fill("#search", "ada")  # a tag
    expect(shown).to_have_count(2)
    page.fill("#search", "")
    page.select_option("#status", "failed")
    expect(shown).to_have_count(1)
    page.select_option("#status", "")
    page.select_option("#metric", "loss")
    assert shown.locator(".metric").all_inner_texts()[:2] == ["1.85", "1.35"], "the highest first"
    for box in shown.locator("input").all()[:2]:
        box.check()
    page.click("#compare")
    expect(page.locator(".kicker")).to_have_text("Comparison of 2 runs")
    said = page.locator("figure.chart > svg").first.get_attribute("aria-label")
    assert "A: first 2.6, last 1.85" in said
    assert "B: first 2.1, last 1.35" in said
    page.locator(".compared-runs a").first.click()
    expect(page.locator("h1")).to_have_text("Fit")
    assert page.get_by_alt_text("sample.png").evaluate("image => image.naturalWidth") == 1
    for kind, (name, value) in {"Tags": ("owner", "ada"), "Parameters": ("optimizer", "adam")}.items():
        page.locator("summary", has_text=kind).click()
        expect(page.get_by_role("row", name=f"{name} {value}")).to_be_visible()
    context.close()
