"""The few lines that a run ends with on a terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trainyard.report.run_report import summarise, write_report
from trainyard.settings.run_record import read_run_record


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


def test_the_summary_has_what_an_own_task_measured_and_the_outputs_of_an_own_component(empty_run: Any) -> None:
    empty_run.run["outputs"] = {"prepared": "jobs/prepare/outputs/prepared"}
    empty_run.add_job("evaluate", outputs={"evaluation": "evaluation"})
    measured = {"split": "test", "samples": 500, "absolute_error": 0.09, "loss": 0.013406, "top_5_accuracy": 0.5}
    empty_run.write("evaluation/evaluation.json", {"format": "trainyard.evaluation/1", "task": "a:B", **measured})

    told = dict(summarise(read_run_record(empty_run.finish())))

    assert told["test"] == "loss 0.01341, absolute error 0.09, top 5 accuracy 50.0 %"
    assert told["output"] == f"prepared: {empty_run.path}/jobs/prepare/outputs/prepared"


def test_the_summary_has_what_the_figures_are_compared_with(empty_run: Any) -> None:
    evaluation = {"format": "trainyard.evaluation/1", "split": "test", "samples": 200}
    measured = {"loss": 0.1, "reward_accuracy": 0.99, "before": {"model": "base model", "loss": 0.6931}}
    empty_run.add_job("evaluate", outputs={"evaluation": "evaluation"})
    empty_run.write("evaluation/evaluation.json", evaluation | measured)
    empty_run.add_job("guess", outputs={"evaluation": "guess"})
    guessing = {"perplexity": 69.2, "before": {"model": "guessing", "perplexity": 2048.0}}
    empty_run.write("guess/evaluation.json", evaluation | guessing)
    empty_run.add_job("compare", outputs={"winner": "winner"})
    trials = [{"samples_per_second": speed} for speed in (129.5, 0.0, 78.9)]
    empty_run.write("winner/autotune.json", {"format": "trainyard.autotune/1", "trials": trials})
    run = read_run_record(empty_run.finish())

    told = dict(summarise(run))

    assert told["test"] == "loss 0.1 (base model: 0.6931), reward accuracy 99.0 %"
    assert told["test perplexity"] == "69.20 (guessing: 2048)"
    assert told["fastest"] == "129.5 samples/s (the slowest that fits: 78.9 samples/s)"
    page = write_report(empty_run.path).read_text()
    assert "0.1</strong> (base model: 0.6931)" in page
    assert "200 samples, guessing: 2048" in page


def test_attempts_say_what_they_repeated_and_how_long_it_took(empty_run: Any) -> None:
    """Steps 40 and 25 were taken twice; 3 s and 1.5 s went by until the training was where it had been."""
    started = {"started": "2026-11-20T22:17:05Z", "exit_codes": {}}
    again = [{**started, "repeated_steps": 40, "lost_s": 3.0}, {**started, "repeated_steps": 25, "lost_s": 1.5}]
    empty_run.add_job("train", attempts=[started, *again])
    empty_run.add_job("evaluate", attempts=[started])

    told = dict(summarise(read_run_record(empty_run.finish())))

    assert told["attempts"] == "train: 3; 65 steps repeated, 4.5 s until it was where it had been"


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
