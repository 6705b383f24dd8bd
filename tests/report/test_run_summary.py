"""The few lines that a run ends with on a terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trainyard.foundation.run_record import read_run_record
from trainyard.report.run_report import write_report
from trainyard.report.run_summary import summarise


def test_the_summary_has_accuracy_and_files(
    make_digits_run: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_digits_run()
    folder.write("jobs/train/outputs/model/model.safetensors", "")
    folder.write("jobs/evaluate/outputs/evaluation/confusion_matrix.png", "")
    folder.add_job("export", component="export_model", outputs={"files": "jobs/export/outputs/files"})
    folder.write("jobs/export/outputs/files/model.safetensors", "")
    write_report(folder.finish())
    monkeypatch.chdir(folder.path.parent)

    assert summarise(read_run_record(folder.path)) == [
        ("test accuracy", "0.9861 (355 of 360 correct)"),
        ("report", "brave-otter-7/report.html"),
        ("model", "brave-otter-7/jobs/train/outputs/model"),
        ("confusion matrix", "brave-otter-7/jobs/evaluate/outputs/evaluation/confusion_matrix.png"),
        ("export", "brave-otter-7/jobs/export/outputs/files"),
        ("logs", "brave-otter-7/jobs/*/user_logs/"),
    ]


def test_the_summary_of_a_language_model_has_perplexity_and_text(make_language_run: Callable[[], Any]) -> None:
    folder = make_language_run()

    told = dict(summarise(read_run_record(folder.finish())))

    assert told["test perplexity"] == "109.95 (2.105 bits per byte)"
    assert told["it writes"].startswith("…a new iterator. It raises TypeError where & when it cannot. And so on.")
    assert (len(told["it writes"]), told["it writes"][-1]) == (98, "…")


def test_control_characters_are_removed(make_language_run: Callable[[], Any]) -> None:
    folder = make_language_run()
    evaluation = {
        "format": "trainyard.evaluation/1",
        "split": "test",
        "samples": 1,
        "sample": {"prompt": "", "text": "a\x1b[31m\u202eb\r\nc"},
    }
    folder.write("jobs/evaluate/outputs/evaluation/evaluation.json", evaluation)

    assert dict(summarise(read_run_record(folder.finish())))["it writes"] == "…a [31m b c"


def test_the_summary_omits_what_does_not_exist(empty_run: Any) -> None:
    folder = empty_run.finish()

    assert summarise(read_run_record(folder)) == [("logs", f"{folder}/jobs/*/user_logs/")]
