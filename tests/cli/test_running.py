"""A newcomer's runs, end to end: the committed pipelines on this machine, and what the commands print about them."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainyard.cli import working_folder

Run = Callable[..., Any]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500), pytest.mark.usefixtures("jobs_are_forked")]

FIRST = ("run", "pipelines/ddp.yaml", "--profile", "local")


@pytest.fixture
def runs_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep runs and their cache in this test's folder."""
    folder = tmp_path / ".trainyard" / "runs"
    monkeypatch.setattr(working_folder, "runs_folder", lambda run_folder=None: folder)
    return folder


def weights_digest(run_folder: Path) -> str:
    return hashlib.sha256((run_folder / "jobs/train_ddp/outputs/model/model.safetensors").read_bytes()).hexdigest()


def test_from_a_profile_to_an_evaluated_model(trainyard: Run, runs_here: Path) -> None:
    first = trainyard(*FIRST, "--name", "first")
    assert first.exit_code == 0, first.stderr
    folder = runs_here / "first"
    evaluation = evaluation_of(folder)
    assert evaluation["accuracy"] >= 0.97
    assert evaluation["samples"] == 359
    for words in (
        "test accuracy",
        "; guessing: 10.3 %)",
        "report.html",
        "outputs/model",
        "confusion_matrix.png",
        "user_logs",
        "next",
    ):
        assert words in first.stdout
    (shown,) = re.findall(r"```text\n(\d{8}-.*?)```", Path("docs/rehearsal.md").read_text(), re.DOTALL)
    labels = [[line[:20] for line in text.strip().splitlines()[1:]] for text in (shown, first.stdout)]
    assert labels[0] == labels[1], "docs/rehearsal.md shows how this run ends"
    assert (folder / "jobs/evaluate/outputs/evaluation/confusion_matrix.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (folder / "report.html").read_text()

    # The same again: nothing has changed, so nothing runs.
    second = trainyard(*FIRST, "--name", "second")
    assert second.exit_code == 0
    first_record, record = (json.loads((runs_here / name / "run.json").read_text()) for name in ("first", "second"))
    assert {job["reused_from"] for job in record["jobs"].values()} == {"first"}
    assert record["duration_s"] < first_record["duration_s"] / 2

    # What the other commands print about these runs.
    assert [line.split()[0] for line in trainyard("runs", "list").stdout.splitlines()] == ["run", "second", "first"]
    shown = trainyard("runs", "show", "second").stdout
    assert shown.count("reused from first") == 4
    assert "epoch" in trainyard("runs", "logs", "first", "--job", "train_ddp").stdout
    misnamed = trainyard("runs", "show", "frist")
    assert (misnamed.exit_code, "first" in misnamed.stderr) == (2, True)
    assert trainyard("runs", "clean", "--keep", "1", "--yes").exit_code == 0
    assert [folder.name for folder in runs_here.iterdir()] == ["second"]


def test_a_failed_step_is_reported_resumed_and_repeated_to_the_bit(trainyard: Run, runs_here: Path) -> None:
    short = ("--set", "inputs.epochs=1", "--set", "inputs.minimum_accuracy=0.99")
    failed = trainyard(*FIRST, *short, "--name", "weak")
    assert failed.exit_code == 1
    assert "below --minimum-accuracy 0.99" in failed.stderr
    assert "--minimum-accuracy is inputs.minimum_accuracy, set by --set" in failed.stdout
    again = "--profile local --set inputs.epochs=1 --set inputs.minimum_accuracy=VALUE"
    assert f"run pipelines/ddp.yaml {again}" in failed.stdout, "what else was set stays set"
    assert "runs resume" not in failed.stdout, "it would fail again in the same way"
    record = json.loads((runs_here / "weak" / "run.json").read_text())
    assert [job["status"] for job in record["jobs"].values()] == ["completed", "completed", "failed", "skipped"]

    resumed = trainyard("runs", "resume", "weak")
    assert resumed.exit_code == 1
    assert f"run pipelines/ddp.yaml {again}" in resumed.stdout, (
        "the file that was named, and not the one rendered aside"
    )
    record = json.loads((runs_here / "weak" / "run.json").read_text())
    assert [len(job["attempts"]) for job in record["jobs"].values()] == [1, 1, 2, 0]

    # Trained again with the same seed: the same bits.
    repeated = trainyard(*FIRST, *short, "--name", "again", "--no-cache", "--only", "train_ddp", "--quiet")
    assert repeated.exit_code == 0, repeated.stderr
    assert weights_digest(runs_here / "again") == weights_digest(runs_here / "weak")


def evaluation_of(run_folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((run_folder / "jobs/evaluate/outputs/evaluation/evaluation.json").read_text())
    return document


def assert_tunings_gain(
    trainyard: Run, runs_here: Path, base: str, share: float, settings: tuple[str, ...] = (), epochs: int | None = None
) -> None:
    """Run both tunings as users do. The base model and the tuned one are compared on the same test split.

    `share` is the largest of the base model's perplexity and loss that may be left. `settings` are of fine-tuning,
    `epochs` of the preferences.
    """
    of_preferences = () if epochs is None else (f'inputs.overrides={{"epochs": {epochs}}}',)
    evaluations = {}
    for recipe, shown, given in (
        ("finetune", "test perplexity", (base, *settings)),
        ("preferences", "reward accuracy", (base, *of_preferences)),
    ):
        flags = [word for setting in given for word in ("--set", setting)]
        run = trainyard("run", f"pipelines/{recipe}.yaml", "--profile", "local", "--name", recipe, *flags)
        assert run.exit_code == 0, run.stderr
        for words in (shown, "base model: ", "it writes", "outputs/model"):
            assert words in run.stdout
        evaluations[recipe] = evaluation_of(runs_here / recipe)
        assert evaluations[recipe]["before"]["model"] == "base model"
    before = evaluations["finetune"]["before"]
    assert evaluations["finetune"]["perplexity"] < before["perplexity"] * share
    before = evaluations["preferences"]["before"]
    assert (before["loss"], before["reward_accuracy"]) == (pytest.approx(math.log(2)), 0.5)
    assert evaluations["preferences"]["loss"] < before["loss"] * share
    assert evaluations["preferences"]["reward_accuracy"] > 0.95
    assert evaluations["preferences"]["preference_accuracy"] > before["preference_accuracy"] + 0.3


def test_a_language_model_learns_from_text_then_to_answer_and_then_what_is_preferred(
    trainyard: Run, runs_here: Path
) -> None:
    """The tunings are those that users make, from a model that has seen a small part of what it usually sees.

    So little that one epoch of preferences raises the chosen answers' likelihood above the others' by luck of the seed.
    """
    evaluations = {}
    for recipe in ("fsdp", "deepspeed"):
        short = (f"jobs.train_{recipe}.inputs.max_steps=25", "jobs.evaluate.inputs.sample_tokens=8")
        settings = [word for setting in short for word in ("--set", setting)]
        run = trainyard("run", f"pipelines/{recipe}.yaml", "--profile", "local", "--name", recipe, *settings)
        assert run.exit_code == 0, run.stderr
        for words in ("test perplexity", "bits per byte", "it writes", "outputs/model"):
            assert words in run.stdout
        folder = runs_here / recipe
        evaluations[recipe] = evaluation_of(folder)
        assert "Generated text" in (folder / "report.html").read_text()
        assert evaluations[recipe]["before"]["model"] == "guessing"
        assert evaluations[recipe]["perplexity"] < evaluations[recipe]["before"]["perplexity"] / 3
    assert evaluations["deepspeed"]["perplexity"] == pytest.approx(evaluations["fsdp"]["perplexity"], rel=0.05)
    record = json.loads((runs_here / "deepspeed" / "run.json").read_text())
    assert record["jobs"]["prepare_text"]["reused_from"] == "fsdp", "the same text is prepared once"

    base = f"inputs.base_model.path={runs_here}/fsdp/jobs/train_fsdp/outputs/model"
    assert_tunings_gain(trainyard, runs_here, base, 0.75, ("jobs.finetune.inputs.max_steps=30",), epochs=3)
    model = runs_here / "preferences/jobs/tune_preferences/outputs/model"
    assert {"model.safetensors", "adapters"} <= {file.name for file in model.iterdir()}


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("jobs.train_ddp.inputs.model_type=convnxt", ["convnxt", "convnext"]),
        ("jobs.train_ddp.inputs.task=no_such.module:Task", ["no_such"]),
    ],
)
def test_what_only_the_step_can_know_is_one_clear_line(
    trainyard: Run, runs_here: Path, setting: str, words: list[str]
) -> None:
    outcome = trainyard(*FIRST, "--set", setting, "--quiet")
    assert outcome.exit_code == 1
    for word in words:
        assert word in outcome.stderr


@pytest.mark.soak
@pytest.mark.parametrize("pipeline", ["lightning", "sweep"])
def test_a_classifier_is_far_better_than_guessing(trainyard: Run, runs_here: Path, pipeline: str) -> None:
    run = trainyard("run", f"pipelines/{pipeline}.yaml", "--profile", "local", "--name", pipeline)
    assert run.exit_code == 0, run.stderr
    assert "; guessing: 10.3 %)" in run.stdout
    assert evaluation_of(runs_here / pipeline)["accuracy"] > 0.9


@pytest.mark.soak
def test_language_models_gain_from_whole_trainings(trainyard: Run, runs_here: Path) -> None:
    for engine in ("deepspeed", "fsdp"):
        run = trainyard("run", f"pipelines/{engine}.yaml", "--profile", "local", "--name", engine)
        assert run.exit_code == 0, run.stderr
        evaluation = evaluation_of(runs_here / engine)
        assert evaluation["perplexity"] < evaluation["before"]["perplexity"] / 10
    base = f"inputs.base_model.path={runs_here}/fsdp/jobs/train_fsdp/outputs/model"
    assert_tunings_gain(trainyard, runs_here, base, 0.5)


@pytest.mark.soak
def test_the_fastest_settings_are_named_with_the_slowest(trainyard: Run, runs_here: Path) -> None:
    run = trainyard("run", "pipelines/autotune.yaml", "--profile", "local")
    assert run.exit_code == 0, run.stderr
    assert "samples/s (the slowest that fits: " in run.stdout
