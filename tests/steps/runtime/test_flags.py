"""A dataclass becomes a command line; errors name the value and suggest what was meant."""

from __future__ import annotations

import runpy
from dataclasses import dataclass
from pathlib import Path

import pytest

from trainyard.settings.step_fields import input_folder, output_folder, parameter
from trainyard.settings.steps import STEP_CONFIGS
from trainyard.settings.steps.models import Evaluate
from trainyard.settings.steps.preparation import PrepareImages, PrepareText
from trainyard.settings.steps.training import TrainDDP, TrainFSDP
from trainyard.settings.task_fields import TaskError, step_fields
from trainyard.steps.runtime.flags import parse_flags, parse_task_flags

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Bake:
    """Bake bread."""

    flour: Path = input_folder()
    """Where the flour is."""

    bread: Path = output_folder()
    """Where the bread goes: 100 % of it."""

    yeast: Path | None = input_folder(optional=True)
    """Where the yeast is, if any."""

    loaves: int = parameter(3, minimum=1, maximum=9)
    """How many loaves."""

    salt_grams: float = parameter(1e-05, minimum=0.0)
    """How much salt | or none."""

    kind: str = parameter("rye", choices=("rye", "wheat"))
    """Which bread."""

    crusty: bool = parameter(True)
    """Whether with a crust."""

    baker: str | None = parameter(None)
    """Who bakes."""


PORTS = ["--flour", "sack", "--bread", "shelf"]


def bake(*arguments: str) -> Bake:
    return parse_flags(Bake, "trainyard.steps.bake", [*PORTS, *arguments])


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as end:
        parse_flags(Bake, "trainyard.steps.bake", list(arguments))
    assert end.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[1:] == ["  run `python -m trainyard.steps.bake --help` to see every flag."]
    return lines[0].removeprefix("trainyard.steps.bake: error: ")


def test_defaults() -> None:
    assert bake() == Bake(Path("sack"), Path("shelf"))


def test_every_kind_of_value() -> None:
    given = bake("--loaves", "9", "--salt-grams=1e-3", "--kind", "wheat", "--crusty", "False", "--baker", "Ann")
    assert given == Bake(Path("sack"), Path("shelf"), None, 9, 0.001, "wheat", False, "Ann")
    assert bake("--yeast", "jar").yeast == Path("jar")


@pytest.mark.parametrize(
    ("text", "value"), [("True", True), ("False", False), ("yes", True), ("off", False), ("1", True), ("0", False)]
)
def test_booleans_as_azure_ml_and_people_write_them(text: str, value: bool) -> None:
    assert bake("--crusty", text).crusty is value


def test_a_boolean_flag_alone_means_true() -> None:
    assert bake("--crusty").crusty is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--loave", "3"], "unknown flag --loave; did you mean --loaves?"),
        (["--salt_grams=3"], "unknown flag --salt_grams; did you mean --salt-grams?"),
        (["--quantum", "3"], "unknown flag --quantum"),
        (["--loaves", "many"], "argument --loaves: expected a whole number, got 'many'"),
        (["--loaves", "2.5"], "argument --loaves: expected a whole number, got '2.5'"),
        (["--loaves", "0"], "argument --loaves: 0 is below the minimum of 1"),
        (["--loaves", "10"], "argument --loaves: 10 is above the maximum of 9"),
        (["--salt-grams", "much"], "argument --salt-grams: expected a number, got 'much'"),
        (["--salt-grams", "nan"], "argument --salt-grams: expected a finite number, got 'nan'"),
        (["--salt-grams", "inf"], "argument --salt-grams: expected a finite number, got 'inf'"),
        (["--kind", "weat"], "argument --kind: 'weat' is not one of rye, wheat; did you mean wheat?"),
        (["--crusty", "perhaps"], "argument --crusty: expected true or false, got 'perhaps'"),
        (["--yeast", ""], "argument --yeast: expected a folder, got an empty name"),
        (["stray"], "unrecognized arguments: stray"),
    ],
)
def test_invalid_values_are_named(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert complaint(capsys, *PORTS, *arguments) == message


def test_a_misspelt_required_flag_is_named_before_the_missing_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert complaint(capsys, "--flower", "sack", "--bread", "shelf") == "unknown flag --flower; did you mean --flour?"


def test_missing_flags_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert complaint(capsys, "--bread", "shelf") == "the following arguments are required: --flour"


def test_help_shows_defaults_and_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse_flags(Bake, "trainyard.steps.bake", ["--help"])
    assert end.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "How many loaves. (default: 3)" in text
    assert "100 % of it. (required)" in text
    assert "example: python -m trainyard.steps.bake --flour FOLDER --bread FOLDER" in text


def test_the_table_of_settings_in_the_docs() -> None:
    settings_table = runpy.run_path(str(ROOT / "docs" / "generate.py"))["settings_table"]
    assert settings_table(Bake).splitlines() == [
        "| flag | takes | default | what it does |",
        "|---|---|---|---|",
        "| `--flour` | input folder | required | Where the flour is. |",
        "| `--bread` | output folder | required | Where the bread goes: 100 % of it. |",
        "| `--yeast` | input folder | not given | Where the yeast is, if any. |",
        "| `--loaves` | integer, 1 to 9 | `3` | How many loaves. |",
        "| `--salt-grams` | number, at least 0 | `1e-05` | How much salt \\| or none. |",
        "| `--kind` | `rye`, `wheat` | `rye` | Which bread. |",
        "| `--crusty` | boolean | `true` | Whether with a crust. |",
        "| `--baker` | string | not given | Who bakes. |",
    ]


def test_every_step_describes_all_its_settings() -> None:
    for step, config_class in STEP_CONFIGS.items():
        fields = step_fields(config_class)
        assert all(field.description.endswith(".") for field in fields), step
        assert any(field.kind == "output" for field in fields), step


def test_inherited_settings_keep_their_documentation() -> None:
    described = {field.name: field for field in step_fields(TrainDDP)}
    assert described["epochs"].description == "Passes over the training samples."
    assert described["max_steps"].optional
    assert described["data"].required


def test_a_field_without_documentation_is_rejected() -> None:
    @dataclass(frozen=True)
    class Silent:
        """A step."""

        loud: bool = parameter(False)

    with pytest.raises(TaskError, match="the setting loud has no documentation"):
        step_fields(Silent)


def test_an_optional_input_has_no_default() -> None:
    source = next(field for field in step_fields(PrepareImages) if field.name == "source")
    assert (source.optional, source.required, source.default, source.type) == (True, False, None, "uri_folder")


@pytest.mark.parametrize("config", [PrepareImages, PrepareText, TrainDDP])
def test_a_seed_that_some_generators_reject_is_invalid(
    config: type[object], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_flags(config, "trainyard.steps.any", ["--seed", str(2**32)])
    assert "--seed: 4294967296 is above the maximum of 2147483647" in capsys.readouterr().err


TRAINING = ["--data", "d", "--model", "m", "--checkpoints", "c", "--metrics", "x"]
EVALUATION = ["--data", "d", "--model", "m", "--evaluation", "e"]


class TestFlagsOfATask:
    """`--task` decides which flags there are beside the step's own."""

    def test_only_those_that_are_given_are_returned(self) -> None:
        given = parse_task_flags(TrainDDP, "trainyard.steps.any", [*TRAINING, "--label-smoothing", "0.2"])
        assert (given.step.task, given.task) == ("image_classification", {"label_smoothing": 0.2})
        assert parse_task_flags(TrainFSDP, "trainyard.steps.any", TRAINING).task == {}

    @pytest.mark.parametrize(
        ("config", "arguments", "message"),
        [
            (
                TrainDDP,
                [*TRAINING, "--task", "language_modeling", "--label-smoothing", "0.1"],
                "unknown flag --label-smoothing for the task language_modeling; it belongs to image_classification",
            ),
            (TrainFSDP, [*TRAINING, "--augmentation=shift"], "unknown flag --augmentation for the task"),
            (
                Evaluate,
                [*EVALUATION, "--label-smoothing", "0.1"],
                "--label-smoothing is a setting of a task, and --task is not given; it belongs to image_classification",
            ),
            (TrainDDP, [*TRAINING, "--label-smothing", "0.1"], "did you mean --label-smoothing?"),
            (TrainDDP, [*TRAINING, "--adam-beta2", "1"], "--adam-beta2: 1 is above the maximum of 0.999999"),
            *(
                (TrainDDP, [*TRAINING, "--task", "preferences", *wrong], message)
                for wrong, message in (
                    (["--label-smoothing", "0.5"], "--label-smoothing: 0.5 is above the maximum of 0.499999"),
                    (["--beta", "0"], "--beta: 0 is below the minimum of 0.0001"),
                )
            ),
            (TrainDDP, [*TRAINING, "--task", "language_modelling"], "unknown task 'language_modelling'. Did you mean"),
            (TrainDDP, [*TRAINING, "--task", "mine:"], "unknown task 'mine:'. Built in: image_classification, lang"),
            (TrainDDP, [*TRAINING, "--task"], "argument --task: expected one argument"),
        ],
    )
    def test_one_that_does_nothing_is_refused(
        self, capsys: pytest.CaptureFixture[str], config: type[object], arguments: list[str], message: str
    ) -> None:
        with pytest.raises(SystemExit) as end:
            parse_task_flags(config, "trainyard.steps.any", arguments)
        assert end.value.code == 2
        assert message in capsys.readouterr().err

    def test_help_shows_them(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            parse_task_flags(TrainDDP, "trainyard.steps.any", ["--task", "language_modeling", "--help"])
        text = " ".join(capsys.readouterr().out.split())
        assert "settings of the task language_modeling:" in text
        assert "--adam-beta2 X" in text
        assert "(default: 0.95)" in text
        assert "--epochs N" in text
        assert "--label-smoothing" not in text
