"""Evaluation in this process: its files, its threshold, and models that do not fit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rank_processes import training_arguments

from trainyard.steps import evaluate, prepare_images, train_ddp
from trainyard.steps.data.dataset.manifest import read_manifest
from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.evaluation.confusion import class_figures, draw_confusion_matrix


@pytest.fixture(scope="module")
def model(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained")
    overrides = '{"hidden_sizes": [16, 32], "depths": [1, 1]}'
    arguments = training_arguments(digits, out, "image_classification", "--model-overrides", overrides)
    arguments += ["--learning-rate", 0.01, "--epochs", 3]
    assert train_ddp.main([str(argument) for argument in arguments]) == 0
    return out / "model"


def run(data: Path, model: Path, out: Path, *more: object) -> int:
    return evaluate.main(
        ["--data", str(data), "--model", str(model), "--evaluation", str(out), *[str(argument) for argument in more]]
    )


def test_what_an_evaluation_leaves(digits: Path, model: Path, tmp_path: Path) -> None:
    assert run(digits, model, tmp_path, "--minimum-accuracy", 0.2) == 0
    found = json.loads((tmp_path / "evaluation.json").read_text())
    assert (found["format"], found["task"], found["split"], found["samples"]) == (
        "trainyard.evaluation/1",
        "image_classification",
        "test",
        359,
    )
    confusion = json.loads((tmp_path / "confusion_matrix.json").read_text())
    matrix = np.array(confusion["matrix"])
    assert confusion["classes"] == list("0123456789")
    assert matrix.trace() / 359 == pytest.approx(found["accuracy"])
    for number, figures in enumerate(found["classes"]):
        assert figures["support"] == matrix[number].sum()
        assert figures["recall"] == pytest.approx(matrix[number, number] / matrix[number].sum())
    with Image.open(tmp_path / "confusion_matrix.png") as picture:
        assert min(picture.size) > 400


def test_convolutions_are_as_exact_as_matrices_in_an_evaluation_too(
    digits: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)  # torch's default
    assert run(digits, model, tmp_path) == 0
    assert not torch.backends.cudnn.allow_tf32
    assert torch.get_float32_matmul_precision() == "highest"


def test_mistakes_are_written_as_pictures_with_both_classes(digits: Path, model: Path, tmp_path: Path) -> None:
    assert run(digits, model, tmp_path) == 0
    mistakes = json.loads((tmp_path / "mistakes.json").read_text())
    matrix = np.array(json.loads((tmp_path / "confusion_matrix.json").read_text())["matrix"])
    assert (mistakes["format"], mistakes["searched"]) == ("trainyard.mistakes/1", 359)
    assert mistakes["found"] == 359 - matrix.trace()
    shown = mistakes["samples"]
    assert len(shown) == min(24, mistakes["found"]) > 0
    assert shown == sorted(shown, key=lambda sample: -sample["probability"])
    split = SplitReader(digits, read_manifest(digits), "test")
    samples = split.gather(np.array([sample["sample"] for sample in shown]))
    assert [sample["true"] for sample in shown] == [str(label) for label in samples["labels"]]
    assert all(sample["true"] != sample["predicted"] for sample in shown)
    for sample, pixels in zip(shown, samples["images"], strict=True):
        with Image.open(tmp_path / sample["file"]) as picture:
            assert np.array_equal(np.asarray(picture), pixels[0])


def test_a_task_that_makes_its_own_model_has_nothing_to_compare_with_a_base_model(
    digits: Path, model: Path, tmp_path: Path
) -> None:
    arguments = training_arguments(digits, tmp_path / "trained", "tiny_task:TinyTask", "--max-steps", 1)
    assert train_ddp.main([str(argument) for argument in arguments]) == 0
    trained, evaluation = tmp_path / "trained/model", tmp_path / "evaluation"
    assert run(digits, trained, evaluation, "--task", "tiny_task:TinyTask", "--base-model", model) == 0
    assert json.loads((evaluation / "evaluation.json").read_text())["before"]["model"] == "guessing"


def test_another_split_and_batch_give_their_own_figures(digits: Path, model: Path, tmp_path: Path) -> None:
    for name, size in (("a", 7), ("b", 500)):
        assert run(digits, model, tmp_path / name, "--split", "validation", "--micro-batch-size", size) == 0
    first, second = (json.loads((tmp_path / name / "evaluation.json").read_text()) for name in ("a", "b"))
    assert first["samples"] == 145
    assert first["loss"] == pytest.approx(second["loss"], rel=1e-6)
    assert first["accuracy"] == second["accuracy"]


def complaint(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    assert run(*arguments) == 1  # type: ignore[arg-type]
    (line,) = capsys.readouterr().err.splitlines()
    return line.removeprefix("trainyard.steps.evaluate: error: ")


def test_an_accuracy_below_the_minimum_fails_after_the_results(
    digits: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = complaint(capsys, digits, model, tmp_path, "--minimum-accuracy", "1.0")
    accuracy = json.loads((tmp_path / "evaluation.json").read_text())["accuracy"]
    assert said == (f"accuracy {accuracy:.4f} on test is below --minimum-accuracy 1; the results are in {tmp_path}")
    assert (tmp_path / "confusion_matrix.png").exists()


def test_what_cannot_be_evaluated(
    digits: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert complaint(capsys, digits, tmp_path, tmp_path / "e") == (
        f"{tmp_path}/task.json is missing, which training writes beside a model: give --task, and the task's settings "
        "that are not at their defaults"
    )
    assert complaint(capsys, digits, tmp_path, tmp_path / "e", "--task", "image_classification") == (
        f"{tmp_path} is not a trained model: config.json is missing"
    )
    assert complaint(capsys, digits, model, tmp_path / "e", "--task", "language_modeling") == (
        f"--task language_modeling: the model was trained for image_classification, as {model}/task.json says; leave "
        "--task out"
    )
    smoothing = ("--task", "image_classification", "--label-smoothing", "0.2")
    assert complaint(capsys, digits, model, tmp_path / "e", *smoothing) == (
        f"--label-smoothing 0.2: the model was trained with 0.05, as {model}/task.json says"
    )
    assert complaint(capsys, digits, model, tmp_path / "e", "--split", "dev") == (
        f"the dataset in {digits} has no split 'dev'; it has train, validation, test"
    )
    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for number in range(5):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / "pets" / name / f"{number}.png")
    flags = ["--format", "folder", "--source", str(tmp_path / "pets"), "--prepared", str(tmp_path / "two")]
    assert prepare_images.main(flags) == 0
    assert complaint(capsys, tmp_path / "two", model, tmp_path / "e") == (
        f"the model in {model} has 10 classes; the dataset has 2"
    )
    (tmp_path / "broken").mkdir()
    for name in ("config.json", "task.json"):
        (tmp_path / "broken" / name).write_text((model / name).read_text())
    (tmp_path / "broken" / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes()[:-100])
    assert complaint(capsys, digits, tmp_path / "broken", tmp_path / "e").startswith(
        f"transformers cannot build the model {tmp_path}/broken: "
    )


def test_figures_of_classes_that_never_come() -> None:
    assert class_figures(np.array([[3, 1], [0, 0]]), ["seen", "absent"]) == [
        {"name": "seen", "precision": 1.0, "recall": 0.75, "f1": pytest.approx(6 / 7), "support": 4},
        {"name": "absent", "precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 0},
    ]


@pytest.mark.parametrize("classes", [2, 25, 100])
def test_pictures_of_few_and_of_many_classes(tmp_path: Path, classes: int) -> None:
    matrix = np.random.default_rng(0).integers(0, 3, (classes, classes)) + 40 * np.eye(classes, dtype=np.int64)
    names = [f"a class with a long name {number}" for number in range(classes)]
    draw_confusion_matrix(matrix, names, "test", tmp_path / "picture.png")
    with Image.open(tmp_path / "picture.png") as picture:
        assert min(picture.size) > 300
        assert max(picture.size) < 2000
