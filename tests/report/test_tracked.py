"""What any job logged with MLflow, written by the real client, on the report of its run."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from trainyard.report.job_results import read_tracked
from trainyard.report.run_report import write_report
from trainyard.settings.run_record import read_run_record


@pytest.fixture
def logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an MLflow run with parameters, metrics and images."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    run = client.create_run(client.create_experiment("taxis"))
    run_id = run.info.run_id
    client.log_param(run_id, "max_depth", 7)
    for step, value in ((0, 0.9), (2, 0.5), (1, 0.7)):
        client.log_metric(run_id, "rmse", value, step=step)
    client.log_metric(run_id, "rmse", 0.4, step=2)  # as after a restart
    client.log_metric(run_id, "test/r2", 0.875)
    Image.new("RGB", (40, 20), "navy").save(tmp_path / "residuals.png")
    client.log_artifact(run_id, str(tmp_path / "residuals.png"), "plots")
    (tmp_path / "notes.txt").write_text("no image")
    client.log_artifact(run_id, str(tmp_path / "notes.txt"))
    return tmp_path / "mlruns" / run.info.experiment_id / run_id


def test_what_the_client_wrote_is_read(logged: Path) -> None:
    tracked = read_tracked(logged)

    assert tracked.parameters == {"max_depth": "7"}
    assert tracked.metrics.series == {"rmse": ((0, 0.9), (1, 0.7), (2, 0.4)), "test/r2": ((0, 0.875),)}
    [image] = tracked.images
    assert image.name == "plots/residuals.png"
    content = base64.b64decode(image.address.removeprefix("data:image/png;base64,"))
    assert content == (logged / "artifacts/plots/residuals.png").read_bytes()
    assert tracked.more_images == 0


def test_images_too_many_for_the_page_are_counted(tmp_path: Path) -> None:
    (tmp_path / "artifacts").mkdir()
    for number in range(15):
        Image.new("L", (1, 1)).save(tmp_path / f"artifacts/{number:02}.png")
    (tmp_path / "artifacts/00.png").write_bytes(b"x" * (3 << 20))

    tracked = read_tracked(tmp_path)

    assert [image.name for image in tracked.images] == [f"{number:02}.png" for number in range(1, 13)]
    assert tracked.more_images == 3


def test_a_job_without_outputs_of_ours_shows_what_it_logged(
    open_page: Callable[..., Any], empty_run: Any, logged: Path
) -> None:
    tracking = os.path.relpath(logged, empty_run.path)
    empty_run.add_job("train", tracking=tracking, outputs={})
    page = open_page(write_report(empty_run.finish()))

    # What it has no files of is not missed.
    assert page.locator(".absent").count() == 0
    section = page.locator("#tracked-train")
    assert section.locator("dl").inner_text().split() == ["rmse", "0.4", "test/r2", "0.875"]
    assert section.locator("figure.chart figcaption strong").all_inner_texts() == ["rmse"]
    assert section.locator("img").evaluate("image => image.naturalWidth") == 40
    section.locator("summary").click()
    assert section.locator("table").inner_text().split() == ["max_depth", "7"]


def test_a_long_name_stays_within_its_box_and_on_a_phone(open_page: Any, empty_run: Any, logged: Path) -> None:
    tracking = os.path.relpath(logged, empty_run.path)
    empty_run.add_job("evaluate_the_model_with_a_long_name", tracking=tracking, outputs={}, duration_s=4.6)

    page = open_page(write_report(empty_run.finish()))

    box, text = (page.locator(f".graph-wide .node {part}").first.bounding_box() for part in ("rect", ".node-name"))
    assert text["x"] + text["width"] < box["x"] + box["width"]
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_what_our_trainings_log_to_both_is_shown_once(make_digits_run: Callable[[], Any], logged: Path) -> None:
    folder = make_digits_run()
    (logged / "metrics/loss").write_text("0 1.0 1\n0 0.5 2\n")
    folder.run["jobs"]["train"]["tracking"] = os.path.relpath(logged, folder.path)
    page = write_report(folder.finish()).read_text()

    tracked = page[page.index('id="tracked-train"') :]
    assert "<strong>rmse</strong>" in tracked
    assert "<strong>loss</strong>" not in tracked
    assert "max_depth" not in tracked  # the settings are listed with the job


def test_what_an_evaluation_logs_to_both_is_shown_once(make_digits_run: Callable[[], Any], logged: Path) -> None:
    folder = make_digits_run()
    (logged / "metrics/test_accuracy").write_text("0 0.9 0\n")
    folder.run["jobs"]["evaluate"]["tracking"] = os.path.relpath(logged, folder.path)
    page = write_report(folder.finish()).read_text()

    tracked = page[page.index('id="tracked-evaluate"') :]
    assert "<strong>rmse</strong>" in tracked
    assert "test_accuracy" not in tracked


def test_the_commit_is_on_the_page(make_digits_run: Callable[[], Any]) -> None:
    folder = make_digits_run()
    folder.run["commit"] = f"{'0123456789' * 4} + changes"
    file = write_report(folder.finish())

    assert read_run_record(folder.path).commit == f"{'0123456789' * 4} + changes"
    assert "commit <span" in file.read_text()
    assert ">012345678901 + changes<" in file.read_text()


def test_smoothed_labels_explain_a_high_training_loss(make_digits_run: Callable[[], Any]) -> None:
    folder = make_digits_run()
    assert "smoothed labels" not in write_report(folder.finish()).read_text()
    file = folder.path / "jobs/train/outputs/metrics/settings.json"
    written = json.loads(file.read_text())
    file.write_text(json.dumps({**written, "settings": {**written["settings"], "label_smoothing": 0.1}}))
    assert "smoothed labels (label_smoothing 0.1)" in write_report(folder.finish()).read_text()
