"""Settings files and overrides: which value counts, where it came from, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trainyard.settings.steps import STEP_CONFIGS
from trainyard.settings.steps.train_tensorflow import TrainTensorFlow
from trainyard.settings.steps.training import TrainDDP, TrainHorovod, TrainLightning, TrainSingle
from trainyard.steps.runtime.flags import GivenSettings, parse_flags, parse_task_flags
from trainyard.steps.runtime.watcher import own_command

PORTS = ["--data", "d", "--model", "m", "--checkpoints", "c", "--metrics", "x"]

DIGITS = """\
# What is trained.
task: image_classification
model_type: convnext
model_overrides: {hidden_sizes: [32, 64], initializer_range: 3e-2}

epochs: 3
learning_rate: 3e-4     # the highest
label_smoothing: 0.1
max_steps: 7
"""


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "settings").mkdir()
    (tmp_path / "settings" / "ddp.yaml").write_text(DIGITS)


def given(*arguments: str, config: type = TrainDDP) -> GivenSettings[TrainDDP]:
    ports = [*PORTS, "--evaluation", "e"] if config is TrainTensorFlow else PORTS
    return parse_task_flags(config, "trainyard.steps.train_ddp", [*ports, *arguments])


def problem(capsys: pytest.CaptureFixture[str], *arguments: str, config: type = TrainDDP, step: str = "any") -> str:
    ports = [*PORTS, "--evaluation", "e"] if config is TrainTensorFlow else PORTS
    with pytest.raises(SystemExit) as end:
        parse_task_flags(config, f"trainyard.steps.{step}", [*ports, *arguments])
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line.removeprefix(f"trainyard.steps.{step}: error: ")


def problem_in_file(capsys: pytest.CaptureFixture[str], text: str, config: type = TrainDDP, step: str = "any") -> str:
    Path("settings/wrong.yaml").write_text(text)
    return problem(capsys, "--settings", "settings/wrong.yaml", config=config, step=step)


def test_values_are_read_by_the_types_of_their_settings() -> None:
    read = given("--settings", "settings/ddp.yaml")
    assert (read.step.epochs, read.step.learning_rate, read.step.max_steps) == (3, 0.0003, 7)
    assert read.task == {
        "model_type": "convnext",
        "model_overrides": '{"hidden_sizes": [32, 64], "initializer_range": 0.03}',
        "label_smoothing": 0.1,
    }
    assert read.step.weight_decay == TrainDDP.weight_decay


def test_overrides_beat_flags_which_beat_the_file() -> None:
    overrides = '{epochs: 9, weight_decay: 1e-1, max_steps: null, resume: "never"}'
    read = given("--settings", "settings/ddp.yaml", "--epochs", "5", "--learning-rate=0.1", "--overrides", overrides)
    assert (read.step.epochs, read.step.learning_rate, read.step.weight_decay) == (9, 0.1, 0.1)
    assert (read.step.max_steps, read.step.resume) == (None, "never")
    assert read.origins | {
        "task": "settings/ddp.yaml:2",
        "model_overrides": "settings/ddp.yaml:4",
        "label_smoothing": "settings/ddp.yaml:8",
        "learning_rate": "--learning-rate",
        "data": "--data",
        "epochs": "overrides",
        "max_steps": "overrides",
    } == dict(read.origins)
    assert "seed" not in read.origins


def test_an_absolute_path_is_named_by_its_last_parts(tmp_path: Path) -> None:
    assert given("--settings", str(tmp_path / "settings" / "ddp.yaml")).origins["epochs"] == "settings/ddp.yaml:6"


@pytest.mark.parametrize("text", ["", "# nothing yet\n"])
def test_nothing_is_a_settings_file_too(text: str) -> None:
    Path("empty.yaml").write_text(text)
    assert given("--settings", "empty.yaml", "--overrides", "").step.epochs == TrainDDP.epochs


@pytest.mark.parametrize("config", [TrainHorovod, TrainLightning, TrainSingle, TrainTensorFlow])
def test_every_training_step_has_one(config: type) -> None:
    Path("some.yaml").write_text("epochs: 4\n")
    assert given("--settings", "some.yaml", config=config).step.epochs == 4


class TestTheTask:
    """Whoever names it, it decides which other settings there are."""

    def test_the_file_names_it(self) -> None:
        Path("words.yaml").write_text("task: language_modeling\nloss_chunk_tokens: 1024\n")
        read = given("--settings", "words.yaml", "--adam-beta2", "0.9")
        assert (read.step.task, read.task) == ("language_modeling", {"loss_chunk_tokens": 1024, "adam_beta2": 0.9})

    def test_a_flag_beats_the_file(self, capsys: pytest.CaptureFixture[str]) -> None:
        Path("images.yaml").write_text("task: image_classification\naugmentation: shift\n")
        assert problem(capsys, "--settings", "images.yaml", "--task", "preferences") == (
            "images.yaml:2: unknown key 'augmentation' for the task preferences; it belongs to image_classification"
        )

    def test_overrides_beat_both(self) -> None:
        Path("words.yaml").write_text("task: language_modeling\n")
        overrides = "{task: preferences, beta: 0.2}"
        read = given("--settings", "words.yaml", "--task", "image_classification", "--overrides", overrides)
        assert (read.step.task, read.task) == ("preferences", {"beta": 0.2})

    def test_an_unknown_one_is_named_with_its_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        found = problem_in_file(capsys, "epochs: 1\ntask: language_modelling\n")
        assert found.startswith("settings/wrong.yaml:2: task: unknown task 'language_modelling'. Did you mean")

    def test_a_required_setting_of_ones_own_task_may_be_in_the_file(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "waves.py").write_text(
            "from dataclasses import dataclass\n"
            "from trainyard.settings.step_fields import parameter\n"
            "from trainyard.settings.steps.tasks import TaskSettings\n"
            "from trainyard.tasks import Task\n"
            "@dataclass(frozen=True, kw_only=True)\n"
            "class WaveSettings(TaskSettings):\n"
            "    width: int = parameter(minimum=1)\n"
            "    '''How wide.'''\n"
            "class Waves(Task):\n"
            "    Settings = WaveSettings\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        Path("waves.yaml").write_text("task: waves:Waves\nwidth: 3\n")
        assert given("--settings", "waves.yaml").task == {"width": 3}
        with pytest.raises(SystemExit):
            given("--task", "waves:Waves")
        assert "the following arguments are required: --width" in capsys.readouterr().err
        assert "overrides: unknown key 'widht'; did you mean width?" in problem(
            capsys, "--settings", "waves.yaml", "--overrides", "{widht: 4}"
        )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs: 1\nepoch: 3\n", "settings/wrong.yaml:2: unknown key 'epoch'; did you mean epochs?"),
        ("quantum: 3\n", "settings/wrong.yaml:1: unknown key 'quantum'"),
        ("\n\nepochs: many\n", "settings/wrong.yaml:3: epochs: expected a whole number, got 'many'"),
        ("epochs: 0\n", "settings/wrong.yaml:1: epochs: 0 is below the minimum of 1"),
        ("epochs: 1.5\n", "settings/wrong.yaml:1: epochs: expected a whole number, got '1.5'"),
        ("epochs:\n", "settings/wrong.yaml:1: epochs: expected a whole number, got nothing"),
        ("lora_targets: [q, v]\n", "settings/wrong.yaml:1: lora_targets: expected text, got a list"),
        ("seed: {a: 1}\n", "settings/wrong.yaml:1: seed: expected a whole number, got a mapping"),
        (
            "precision: bf61\n",
            "settings/wrong.yaml:1: precision: 'bf61' is not one of fp32, bf16, fp16; did you mean bf16?",
        ),
        ("epochs: 1\nseed: 2\nepochs: 3\n", "settings/wrong.yaml:3: epochs is given twice, also in line 1"),
        ("- epochs: 1\n", "settings/wrong.yaml:1: expected a mapping such as {epochs: 3}"),
        ("epochs\n", "settings/wrong.yaml:1: expected a mapping such as {epochs: 3}"),
        ("? [1]\n: 3\n", "settings/wrong.yaml:1: expected a name as the key"),
        (
            "epochs: 1\nseed: [\n",
            "settings/wrong.yaml:3: invalid YAML: while parsing a flow node did not find expected node content",
        ),
        (
            "loss_chunk_tokens: 3\n",
            "settings/wrong.yaml:1: unknown key 'loss_chunk_tokens' for the task image_classification; it belongs to "
            "language_modeling and preferences",
        ),
        (
            "data: x\n",
            "settings/wrong.yaml:1: data is not in settings files; give it with --data, or bind it in the pipeline",
        ),
        (
            "overrides: x\n",
            "settings/wrong.yaml:1: overrides is not in settings files; give it with --overrides, or bind it in the "
            "pipeline",
        ),
    ],
)
def test_a_mistake_is_one_line_that_begins_with_where(
    capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    assert problem_in_file(capsys, text) == message


def test_a_setting_of_another_step_names_the_steps_that_have_it(capsys: pytest.CaptureFixture[str]) -> None:
    found = problem_in_file(capsys, "shard_size: 2\n", TrainHorovod, "train_horovod")
    assert found == "settings/wrong.yaml:1: unknown key 'shard_size' for train_horovod; it belongs to train_fsdp"
    found = problem_in_file(capsys, "strategy: ddp\n", TrainDDP, "train_ddp")
    assert found.endswith("it belongs to train_lightning and train_tensorflow")
    found = problem_in_file(capsys, "task: language_modeling\n", TrainTensorFlow, "train_tensorflow")
    assert "unknown key 'task' for train_tensorflow; it belongs to train_ddp, train_fsdp" in found


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("{epochs: many}", "overrides: epochs: expected a whole number, got 'many'"),
        ("{epochs:3}", "overrides: unknown key 'epochs:3'; write a space after the colon: epochs: 3"),
        ("epochs=3", "overrides: expected a mapping such as {epochs: 3}"),
        ("{epochs: 3", "overrides: invalid YAML: while parsing a flow mapping did not find expected ',' or '}'"),
        ("{epochs: 3, epochs: 4}", "overrides: epochs is given twice"),
        (
            "{task: 'preferences'}",
            "overrides: an apostrophe would end the command's quotes; quote with double quotes instead",
        ),
    ],
)
def test_a_mistake_in_overrides(capsys: pytest.CaptureFixture[str], overrides: str, message: str) -> None:
    assert problem(capsys, "--overrides", overrides) == message


def test_files_that_cannot_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert problem(capsys, "--settings", "no.yaml") == "--settings: no.yaml: no such file or directory"
    assert problem(capsys, "--settings", "settings") == "--settings: settings: is a directory"
    Path("binary.yaml").write_bytes(b"epochs: \xff\n")
    assert problem(capsys, "--settings", "binary.yaml").startswith("--settings: binary.yaml is not UTF-8")


def test_help_mentions_both(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        given("--help")
    text = " ".join(capsys.readouterr().out.split())
    assert "--settings FILE A YAML file that says what is trained" in text
    assert "--overrides TEXT Settings of one run" in text


def test_a_restarted_worker_gets_the_same_settings() -> None:
    arguments = [*PORTS, "--settings", "settings/ddp.yaml", "--overrides", "{epochs: 9}"]
    command = own_command("trainyard.steps.train_ddp", arguments)
    assert parse_task_flags(TrainDDP, "trainyard.steps.train_ddp", command[3:]).step.epochs == 9


def test_a_step_started_as_a_module_refuses_a_wrong_file_before_torch_is_imported(tmp_path: Path) -> None:
    Path("wrong.yaml").write_text("epoch: 3\n")
    finished = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "trainyard.steps.train_ddp", *PORTS, "--settings", "wrong.yaml"],
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 2
    assert "wrong.yaml:1: unknown key 'epoch'" in finished.stderr
    assert " torch" not in finished.stderr


def test_steps_without_the_port_have_no_settings_file() -> None:
    with_file = {step for step, config in STEP_CONFIGS.items() if "settings" in config.__dataclass_fields__}
    assert with_file == {step for step in STEP_CONFIGS if step.startswith("train_")}


def test_a_step_without_a_task_reads_it_too() -> None:
    Path("some.yaml").write_text("seed: 4\n")
    arguments = [*PORTS, "--evaluation", "e", "--settings", "some.yaml"]
    assert parse_flags(TrainTensorFlow, "trainyard.steps.any", arguments).seed == 4
