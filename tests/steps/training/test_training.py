"""Training in this process: what a training writes, how it resumes, what it rejects."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from rank_processes import training_arguments
from safetensors.torch import load_file

from trainyard.resources import schema_file
from trainyard.steps import train_ddp, train_fsdp
from trainyard.steps.data.dataset.manifest import read_manifest


def train(data: Path, out: Path, task: str = "tiny_task:TinyTask", *more: object) -> int:
    return train_ddp.main([str(argument) for argument in training_arguments(data, out, task, *more)])


def complaint(capsys: pytest.CaptureFixture[str], data: Path, out: Path, *more: object) -> str:
    capsys.readouterr()
    task = "image_classification" if "--model-type" in more or "--model-overrides" in more else "tiny_task:TinyTask"
    assert train(data, out, task, *more) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert not (out / "model" / "model.safetensors").exists()
    return line.removeprefix("trainyard.steps.train_ddp: error: ")


def metrics(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics" / "metrics.jsonl").read_text().splitlines()]


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "model" / "model.safetensors")


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    """Whether two models have the same bits."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_what_a_training_writes(digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(digits, tmp_path, "tiny_task:TinyTask", "--log-every-steps", 5, "--checkpoint-every-steps", 8) == 0
    said = capsys.readouterr().out.splitlines()
    assert "1 rank on cpu" in said[0]
    assert said[1:6] == [
        "settings that differ from their defaults:",
        "  task                    tiny_task:TinyTask  --task",
        "  epochs                  1                   --epochs",
        "  checkpoint_every_steps  8                   --checkpoint-every-steps",
        "  log_every_steps         5                   --log-every-steps",
    ]
    del said[1:6]
    assert said[1].startswith("verified every byte of the dataset's ")
    assert said[2] == "global batch 64 = micro-batch 32 x 2 accumulation steps x 1 ranks"
    assert said[-1].startswith("trained 21 steps in ")

    lines = metrics(tmp_path)
    assert [line["step"] for line in lines] == [5, 10, 15, 20, 21]
    assert lines[-1]["samples_consumed"] == 1293
    seconds = float(said[-1].removeprefix("trained 21 steps in ").split()[0])
    assert all(0 < line["step_seconds"] <= seconds + 0.05 and line["grad_norm"] > 0 for line in lines)
    assert 0 < lines[-1]["validation_accuracy"] <= 1

    settings = json.loads((tmp_path / "metrics" / "settings.json").read_text())
    assert settings["format"] == "trainyard.settings/1"
    assert settings["settings"]["seed"] == 0
    assert settings["origins"].keys() == settings["settings"].keys()
    assert [settings["origins"][name] for name in ("seed", "epochs", "data")] == ["default", "--epochs", "--data"]
    assert (settings["micro_batch_size"], settings["accumulation_steps"], settings["world_size"]) == (32, 2, 1)
    assert settings["model_parameters"] == sum(tensor.numel() for tensor in weights(tmp_path).values())

    committed = sorted((tmp_path / "checkpoints").iterdir())
    assert [folder.name for folder in committed] == ["step-00000016", "step-00000021"]
    schema = json.loads(schema_file("checkpoint_commit").read_text())
    for folder in committed:
        jsonschema.validate(json.loads((folder / "commit.json").read_text()), schema)


@pytest.mark.parametrize(("precision", "is_allowed"), [("highest", False), ("high", True)])
def test_convolutions_are_as_exact_as_matrices(digits: Path, tmp_path: Path, precision: str, is_allowed: bool) -> None:
    """cuDNN has its own TF32 switch, which is on by default."""
    arguments = ("--matmul-precision", precision, "--max-steps", 1)
    try:
        assert train(digits, tmp_path, "tiny_task:TinyTask", *arguments) == 0
        assert torch.backends.cudnn.allow_tf32 is is_allowed
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision("highest")


def test_the_same_seed_gives_the_same_bits_and_another_does_not(digits: Path, tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        assert train(digits, tmp_path / name, "tiny_task:TinyTask", "--seed", seed) == 0
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert not same(weights(tmp_path / "a"), weights(tmp_path / "c"))


def test_determinism_does_not_fill_new_memory(digits: Path, tmp_path: Path) -> None:
    assert train(digits, tmp_path, "tiny_task:TinyTask", "--max-steps", 1) == 0
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.utils.deterministic.fill_uninitialized_memory


def test_accumulation_changes_only_rounding(digits: Path, tmp_path: Path) -> None:
    for name, micro in (("whole", 64), ("pieces", 4)):
        arguments = ("--micro-batch-size", micro, "--log-every-steps", 1)
        assert train(digits, tmp_path / name, "tiny_task:WithoutDropout", *arguments) == 0
    for whole, pieces in zip(metrics(tmp_path / "whole"), metrics(tmp_path / "pieces"), strict=True):
        assert pieces["loss"] == pytest.approx(whole["loss"], rel=1e-4)
        assert pieces["samples_consumed"] == whole["samples_consumed"]


@pytest.mark.parametrize("cut_after", [8, 21])
def test_resuming_gives_the_bits_of_an_uninterrupted_training(digits: Path, tmp_path: Path, cut_after: int) -> None:
    flags = ("--epochs", 2, "--log-every-steps", 1, "--keep-checkpoints", 9)
    assert train(digits, tmp_path / "whole", "tiny_task:Slow", *flags, "--checkpoint-every-steps", 8) == 0
    # Interrupted by removing what came after a step: what a vanished machine leaves behind.
    assert train(digits, tmp_path / "cut", "tiny_task:Slow", *flags, "--checkpoint-every-steps", cut_after) == 0
    for folder in (tmp_path / "cut" / "checkpoints").iterdir():
        if folder.name != f"step-{cut_after:08d}":
            (folder / "commit.json").unlink()
    (tmp_path / "cut" / "model" / "model.safetensors").unlink()
    assert train(digits, tmp_path / "cut", "tiny_task:Slow", *flags) == 0
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))

    def figures(out: Path) -> list[tuple[int, float, float]]:
        return [(line["step"], line["loss"], line["grad_norm"]) for line in metrics(out)]

    assert figures(tmp_path / "whole") == figures(tmp_path / "cut")


def test_a_finished_training_goes_on_as_if_its_model_had_not_been_saved(digits: Path, tmp_path: Path) -> None:
    """FSDP builds a new model to save it, whose first weights are random; so is the dropout of the next step."""
    flags = ("--learning-rate-schedule", "constant", "--warmup-fraction", 0, "--max-steps")
    for out, steps in (("whole", 12), ("parts", 5), ("parts", 12)):
        arguments = training_arguments(digits, tmp_path / out, "tiny_task:TinyTask", *flags, steps)
        assert train_fsdp.main([str(argument) for argument in arguments]) == 0
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))


def test_a_broken_newest_checkpoint_is_skipped(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--checkpoint-every-steps", 7, "--keep-checkpoints", 5)
    assert train(digits, tmp_path / "whole", "tiny_task:TinyTask", *flags) == 0
    assert train(digits, tmp_path / "out", "tiny_task:TinyTask", *flags) == 0
    newest, middle = (tmp_path / "out" / "checkpoints" / f"step-{step:08d}" for step in (21, 14))
    (newest / "commit.json").write_text((newest / "commit.json").read_text()[:100])
    altered = bytearray((middle / "state-rank-00000.safetensors").read_bytes())
    altered[-1] ^= 1
    (middle / "state-rank-00000.safetensors").write_bytes(altered)
    capsys.readouterr()

    assert train(digits, tmp_path / "out", "tiny_task:TinyTask", *flags) == 0
    said = capsys.readouterr().out
    assert "warning: not resuming from step-00000021, which is not a complete checkpoint" in said
    altered_file = middle / "state-rank-00000.safetensors"
    assert f"not resuming from step-00000014, which is not a complete checkpoint: {altered_file}" in said
    assert f"continuing from {tmp_path}/out/checkpoints/step-00000007: step 7, 448 samples consumed" in said
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "out"))


def test_a_finished_training_only_saves_its_model_again(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(digits, tmp_path) == 0
    before = weights(tmp_path)
    lines = metrics(tmp_path)
    (tmp_path / "model" / "model.safetensors").unlink()
    assert train(digits, tmp_path) == 0
    assert "no steps are left to train" in capsys.readouterr().out
    assert same(before, weights(tmp_path))
    assert metrics(tmp_path) == lines


def test_resume_never_starts_anew(digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(digits, tmp_path) == 0
    assert train(digits, tmp_path, "tiny_task:TinyTask", "--resume", "never", "--max-steps", 3) == 0
    aside = tmp_path / "checkpoints" / "set-aside-1"
    assert f"--resume never: moved the existing checkpoints to {aside}" in capsys.readouterr().out
    assert {folder.name for folder in aside.parent.iterdir()} == {"step-00000003", "set-aside-1"}
    assert {folder.name for folder in aside.iterdir()} == {"step-00000021"}
    assert [line["step"] for line in metrics(tmp_path)] == [3]
    earlier = (tmp_path / "metrics" / "metrics-set-aside-1.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in earlier] == [10, 20, 21]


def test_resuming_from_a_named_checkpoint_elsewhere(digits: Path, tmp_path: Path) -> None:
    assert train(digits, tmp_path / "whole") == 0
    assert train(digits, tmp_path / "first", "tiny_task:TinyTask", "--checkpoint-every-steps", 10) == 0
    named = tmp_path / "first" / "checkpoints" / "step-00000020"
    assert train(digits, tmp_path / "second", "tiny_task:TinyTask", "--resume", named) == 0
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "second"))


def test_going_back_to_an_earlier_checkpoint(digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Back to step 7 of 21. Stopped after step 14 and started again, the same command does not go back again."""
    flags = ("--checkpoint-every-steps", 7, "--keep-checkpoints", 3)
    assert train(digits, tmp_path, "tiny_task:TinyTask", *flags) == 0
    assert [line["step"] for line in metrics(tmp_path)] == [10, 20, 21]
    undisturbed = weights(tmp_path)
    back = ("--resume", tmp_path / "checkpoints" / "step-00000007")
    for max_steps, continued_from in ((14, 7), (21, 14)):
        capsys.readouterr()
        assert train(digits, tmp_path, "tiny_task:TinyTask", *flags, *back, "--max-steps", max_steps) == 0
        assert f"step-{continued_from:08d}: step {continued_from}, " in capsys.readouterr().out
    assert not same(undisturbed, weights(tmp_path)), "the schedule of 14 steps ended sooner"
    aside = tmp_path / "checkpoints" / "set-aside-1"
    assert {folder.name for folder in aside.iterdir()} == {"step-00000014", "step-00000021"}
    assert train(digits, tmp_path, "tiny_task:TinyTask", *flags, "--resume", aside / "step-00000021") == 0


def test_resuming_from_the_newest_of_a_folder_of_checkpoints(digits: Path, tmp_path: Path) -> None:
    assert train(digits, tmp_path / "whole") == 0
    assert train(digits, tmp_path / "first", "tiny_task:TinyTask", "--checkpoint-every-steps", 10) == 0
    named = tmp_path / "first" / "checkpoints"
    (named / "step-00000021" / "commit.json").unlink()
    assert train(digits, tmp_path / "second", "tiny_task:TinyTask", "--resume", named) == 0
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "second"))


@pytest.mark.parametrize("resume", ["nver", "elsewhere/step-00000010"])
def test_a_missing_checkpoint_to_resume_from_is_an_error(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], resume: str
) -> None:
    """Even if there are others to resume from: somebody asked for this one."""
    assert train(digits, tmp_path) == 0
    capsys.readouterr()
    assert train(digits, tmp_path, "tiny_task:TinyTask", "--resume", resume) == 1
    assert f"error: --resume {resume}: no such folder; expected auto, never or the folder" in capsys.readouterr().err


def test_a_training_by_a_settings_file(digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "settings" / "ddp.yaml"
    file.parent.mkdir()
    file.write_text("task: tiny_task:TinyTask\nepochs: 9\nweight_decay: 1e-1\nlearning_rate: 3e-3\nmax_steps: 9\n")
    folders = training_arguments(digits, tmp_path)[:8]
    more = ("--settings", file, "--max-steps", 3, "--overrides", "{epochs: 2}")
    assert train_ddp.main([str(argument) for argument in (*folders, *more)]) == 0
    said = capsys.readouterr().out
    assert (
        "settings that differ from their defaults:\n"
        "  task          tiny_task:TinyTask  settings/ddp.yaml:1\n"
        "  epochs        2                   overrides\n"
        "  max_steps     3                   --max-steps\n"
        "  weight_decay  0.1                 settings/ddp.yaml:3\n"
    ) in said
    record = json.loads((tmp_path / "metrics" / "settings.json").read_text())
    origins = {name: record["origins"][name] for name in ("epochs", "max_steps", "learning_rate", "seed")}
    assert origins == {
        "epochs": "overrides",
        "max_steps": "--max-steps",
        "learning_rate": "settings/ddp.yaml:4",
        "seed": "default",
    }
    # A comment and another way to write the same values make no other training.
    file.write_text("# again\ntask: tiny_task:TinyTask\nepochs: 2\nweight_decay: 0.1\n")
    assert train_ddp.main([str(argument) for argument in (*folders, "--settings", file, "--max-steps", 4)]) == 0
    changed = "max_steps was 3, is now 4; continuing with the new ones"
    assert f"warning: settings have changed since the checkpoint: {changed}" in capsys.readouterr().out


def test_changed_settings_are_logged(digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(digits, tmp_path, "tiny_task:TinyTask", "--max-steps", 5) == 0
    more = ("--max-steps", 9, "--learning-rate", 0.01, "--reduce-precision", "bf16", "--log-every-steps", 1)
    assert train(digits, tmp_path, "tiny_task:TinyTask", *more) == 0
    changed = (
        "max_steps was 5, is now 9; learning_rate was 0.003, is now 0.01; reduce_precision was fp32, is now bf16; "
        "continuing with the new ones"
    )
    assert f"warning: settings have changed since the checkpoint: {changed}" in capsys.readouterr().out


def test_sigterm_commits_a_checkpoint_and_exits_75(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import tiny_task

    class Interrupted(tiny_task.Slow):
        calls = 0

        def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
            Interrupted.calls += model.training  # not in the warm-up
            if Interrupted.calls == 7:
                signal.raise_signal(signal.SIGTERM)
            return super().loss(model, batch)

    monkeypatch.setattr(tiny_task, "Replaced", Interrupted)
    assert train(digits, tmp_path / "whole", "tiny_task:Slow") == 0
    assert train(digits, tmp_path / "out", "tiny_task:Replaced") == 75
    assert "stopped after step 5 of 21 because of SIGTERM" in capsys.readouterr().out
    assert not list((tmp_path / "out" / "model").iterdir())
    checkpoint = tmp_path / "out" / "checkpoints" / "step-00000005"
    assert json.loads((checkpoint / "commit.json").read_text())["samples_consumed"] == 320
    assert train(digits, tmp_path / "out", "tiny_task:Replaced") == 0
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "out"))


def test_a_file_stops_a_training(digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "stop").touch()
    assert train(digits, tmp_path, "tiny_task:TinyTask", "--stop-file", tmp_path / "stop") == 75
    said = capsys.readouterr().out
    assert f"stopped before the first step because of the file {tmp_path}/stop appeared" in said


def test_steps_that_are_not_finite_are_skipped_and_counted(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOT_FINITE_STEPS", "3-4")
    flags = ("--micro-batch-size", 64, "--log-every-steps", 1)
    assert train(digits, tmp_path, "tiny_task:NotFinite", *flags) == 0
    lines = metrics(tmp_path)
    assert [line["skipped_steps"] for line in lines[:6]] == [0, 0, 1, 2, 2, 2]
    assert [line["loss"] is None for line in lines[:6]] == [False, False, True, True, False, False]
    assert all(torch.isfinite(tensor).all() for tensor in weights(tmp_path).values())


def test_too_many_steps_in_a_row_that_are_not_finite(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NOT_FINITE_STEPS", "6-99")
    flags = ("--micro-batch-size", 64, "--nonfinite-steps-limit", 4, "--checkpoint-every-steps", 5)
    assert train(digits, tmp_path, "tiny_task:NotFinite", *flags) == 1
    assert "the last 4 steps, up to step 9, had a loss or gradient that is not finite" in capsys.readouterr().err
    assert [folder.name for folder in (tmp_path / "checkpoints").iterdir()] == ["step-00000005"]


def test_a_dataset_without_validation(tmp_path: Path) -> None:
    from trainyard.steps import prepare_images

    assert prepare_images.main(["--prepared", str(tmp_path / "data"), "--validation-fraction", "0"]) == 0
    assert "validation" not in read_manifest(tmp_path / "data").splits
    assert train(tmp_path / "data", tmp_path, "tiny_task:TinyTask", "--max-steps", 2) == 0
    assert "validation_loss" not in metrics(tmp_path)[-1]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--micro-batch-size", "24"], "global_batch_size 64 is not a multiple of micro_batch_size 24 x world size 1 = "
         "24. The nearest that divide: --global-batch-size 48 or 72, or --micro-batch-size 32"),
        (["--max-tokens", "9"], "--max-tokens 9: samples of the task tiny_task:TinyTask have no tokens; use "
         "--max-steps"),
        (["--precision", "fp16"], "--precision fp16 needs a GPU; use bf16 or fp32 on a CPU"),
        (["--resume", "sometimes"], "--resume sometimes: no such folder; expected auto, never or the folder of a "
         "checkpoint"),
        (["--model-type", "convnxt"], "--model-type 'convnxt': unknown image classifier in this version of "
         "transformers; did you mean convnext"),
        (["--model-type", "no/such/folder"], "--model-type no/such/folder: expected a folder with a "
         "config.json"),
        (["--model-overrides", "{depths: 2}"], "--model-overrides is not valid JSON: "),
        (["--model-overrides", "[2]"], "--model-overrides must be a JSON object such as "),
        (["--model-overrides", '{"depth": [2, 2]}'], "--model-overrides: convnext has no setting 'depth'; did you mean "
         "depths?"),
        (["--model-overrides", '{"depths": "many"}'], "transformers cannot build the model convnext: "),
    ],
)  # fmt: skip
def test_invalid_settings_are_rejected(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    assert complaint(capsys, digits, tmp_path, *flags).startswith(message)


def test_a_folder_that_is_not_a_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert complaint(capsys, tmp_path, tmp_path / "out") == (
        f"{tmp_path} is not a dataset: manifest.json, which prepare steps write last, is missing"
    )


def test_a_checkpoint_of_another_training(digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(digits, tmp_path) == 0
    capsys.readouterr()
    assert train(digits, tmp_path, "tiny_task:TinyTask", "--seed", 5) == 1
    assert "belongs to another training, with seed 0 (now 5); start over with --resume never" in capsys.readouterr().err


def test_an_output_that_cannot_be_written(digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "checkpoints").write_text("in the way")
    assert complaint(capsys, digits, tmp_path) == f"{tmp_path}/checkpoints: file exists"


def test_a_model_of_transformers_is_trained_saved_and_tuned_further(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = '{"hidden_sizes": [8, 8], "depths": [1, 1]}'
    flags = ("--max-steps", 3, "--precision", "bf16")
    assert train(digits, tmp_path / "a", "image_classification", "--model-overrides", overrides, *flags) == 0
    config = json.loads((tmp_path / "a" / "model" / "config.json").read_text())
    assert (config["num_channels"], config["patch_size"], config["id2label"]["9"]) == (1, 1, "9")
    assert train(digits, tmp_path / "b", "image_classification", "--model-type", tmp_path / "a" / "model", *flags) == 0
    tuned, first = weights(tmp_path / "b"), weights(tmp_path / "a")
    assert tuned.keys() == first.keys()
    assert not same(tuned, first)
    assert capsys.readouterr().err == ""
