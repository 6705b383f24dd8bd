"""The worked example of docs/own_task.md, run as its reader would; and tasks that cannot be found or read."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest
import torch
from forked_ranks import forked_ranks
from rank_processes import clean_environment, training_arguments

from trainyard.settings.step_fields import describe_field
from trainyard.settings.steps.tasks import BUILT_IN_TASKS
from trainyard.settings.task_fields import task_fields
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.tasks.chosen import choose_task
from trainyard.steps.training.tasks.task import require_loss, require_sums
from trainyard.steps.training.used_settings import UsedSettings

EXAMPLE = Path(__file__).parents[3] / "docs" / "own_task" / "forecasting.py"


def test_the_page_shows_the_code_that_is_tested() -> None:
    (shown,) = re.findall(r"```python\n(.*?)```", (EXAMPLE.parents[1] / "own_task.md").read_text(), re.DOTALL)
    assert shown == EXAMPLE.read_text()


@pytest.mark.slow
def test_the_example_trains_resumes_and_evaluates_at_the_size_of_its_setting(
    tmp_path: Path, forked_python: Path
) -> None:
    data = tmp_path / "waves"
    environment = clean_environment()
    environment["PYTHONPATH"] += f":{EXAMPLE.parent}"
    subprocess.run([forked_python, EXAMPLE, data], env=environment, check=True, timeout=400)

    task = ("forecasting:Forecasting", "--hidden-size", 96, "--learning-rate", 0.01)
    stopped = training_arguments(data, tmp_path, *task, "--max-steps", 20)
    assert forked_ranks().run("train_ddp", stopped, 2, environment=environment)[0] == [0, 0]
    other_size = training_arguments(data, tmp_path, "forecasting:Forecasting", "--hidden-size", 32)
    exit_codes, outputs = forked_ranks().run("train_ddp", other_size, 1, environment=environment)
    assert exit_codes == [1]
    assert "with hidden_size 96 (now 32)" in outputs[0]
    resumed = training_arguments(data, tmp_path, *task, "--absolute-error-weight", 0.1)
    exit_codes, outputs = forked_ranks().run("train_ddp", resumed, 2, environment=environment)
    assert exit_codes == [0, 0], outputs
    assert "step 20" in outputs[0]
    assert "max_steps was 20, is now None; absolute_error_weight was 0.0, is now 0.1" in outputs[0]
    settings = json.loads((tmp_path / "metrics" / "settings.json").read_text())["settings"]
    assert (settings["hidden_size"], settings["adam_beta2"]) == (96, 0.999)

    folders = ("--data", data, "--model", tmp_path / "model", "--evaluation", tmp_path / "evaluation")
    assert forked_ranks().run("evaluate", folders, 2, environment=environment)[0] == [0, 0]
    found = json.loads((tmp_path / "evaluation" / "evaluation.json").read_text())
    assert (found["task"], found["samples"]) == ("forecasting:Forecasting", 500)
    assert found["loss"] < 0.05  # the series' own variance is 0.5
    assert found["absolute_error"] < np.sqrt(found["loss"])

    (tmp_path / "model" / "task.json").unlink()
    own = ("--task", "forecasting:Forecasting", "--hidden-size", 96)
    assert forked_ranks().run("evaluate", [*folders, *own], 1, environment=environment)[0] == [0]
    assert json.loads((tmp_path / "evaluation" / "evaluation.json").read_text())["loss"] == pytest.approx(found["loss"])


SETTINGS = "class Mine(Task):\n    class Settings(TaskSettings):\n        "
TASK = "from dataclasses import dataclass\nfrom trainyard.tasks import Task, TaskSettings, parameter\n"
MODULES = {
    "unfinished:Mine": (
        TASK + "class Mine(Task):\n    pass\n",
        "Mine lacks loss and measure and new_model, which every task defines",
    ),
    "mistyped:Mine": ("class Mine(:\n", "mistyped.py:1 is not valid Python: invalid syntax"),
    "needy:Mine": (TASK + "import is_not_here\nclass Mine(Task): ...\n", "the module is_not_here is missing"),
    "other:Mine": ("class Yours:\n    pass\n", "the module other has no class Mine"),
    "near:Mine": ("class Mina:\n    pass\n", "the module near has no class Mine. Did you mean 'Mina'?"),
    "stranger:Mine": ("class Mine:\n    pass\n", "Mine in stranger does not derive from trainyard.tasks.Task"),
    "number:Mine": ("Mine = 3\n", "the module number has no class Mine"),
    "nameless:": ("", "unknown task 'nameless:'"),
    "plain:Mine": (
        TASK + SETTINGS + "size: int = 3\n",
        "plain.py:5: declare size with one of parameter, input_folder",
    ),
    "silent:Mine": (
        TASK + SETTINGS + "size: int = parameter(3)\n",
        "silent.py:5: the setting size has no documentation: add a string beneath it",
    ),
    "listed:Mine": (
        TASK + SETTINGS + "sizes: list = parameter(3)\n        'S.'\n",
        "listed.py:5: expected one of the types str, int, float, bool, Path, each",
    ),
    "computed:Mine": (
        TASK + SETTINGS + "n: int = parameter(len('a'))\n        'S.'\n",
        "computed.py:5: defaults and limits of settings are literals",
    ),
    "made:Mine": (TASK + "class Mine(Task):\n    Settings = make()\n", "made.py:4: the class of a task's Settings"),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_task_that_cannot_be_found_or_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    code, message = MODULES[name]
    (tmp_path / f"{name.partition(':')[0]}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(StepError, match=re.escape(message)):
        choose_task(name, {})


def test_settings_are_found_in_other_modules_and_in_what_a_task_derives_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("from .tasks import Smooth as Task, Wide\n")
    (package / "sizes.py").write_text(
        TASK + "SMALL = 8\n@dataclass(frozen=True, kw_only=True)\nclass Sizes(TaskSettings):\n"
        "    size: 'int | None' = parameter(SMALL, minimum=1)\n    'How large.'\n"
    )
    (package / "tasks.py").write_text(
        "from trainyard import tasks\nfrom mine import sizes\n"
        "class Smooth(tasks.ImageClassification): ...\nclass Wide(Smooth):\n    Settings = sizes.Sizes\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert [field.name for field in task_fields("mine:Task")] == [
        field.name for field in task_fields("image_classification")
    ]
    size, *common = task_fields("mine:Wide")
    assert (size.name, size.default, size.minimum, size.optional, size.description) == (
        "size", 8, 1, True, "How large."
    )  # fmt: skip
    assert [field.name for field in common] == ["adam_beta1", "adam_beta2", "adam_epsilon"]
    assert UsedSettings(choose_task("mine:Wide", {"size": 3}).settings, None, {}).values("identity") == {"size": 3}


def test_what_is_read_of_a_built_in_task_is_what_its_class_says() -> None:
    for name, settings in BUILT_IN_TASKS.items():
        read = {field.name: field for field in task_fields(name)}
        hints = get_type_hints(settings)
        declared = {field.name: field for field in dataclasses.fields(settings)}
        assert read == {
            key: describe_field(field, hints[key], read[key].description) for key, field in declared.items()
        }
        assert choose_task(name, {}).settings == settings()


def test_wrong_values_of_a_task_are_reported_where_it_returns_them() -> None:
    weight = torch.ones(3, requires_grad=True)
    assert require_loss(weight.sum()) is not None
    for loss, problem in (
        (3.5, "a float"),
        (None, "a NoneType"),
        (weight * 2, r"a tensor of shape \[3\]"),
        (weight.sum().detach(), "a tensor that does not depend on the model's weights"),
    ):
        with pytest.raises(StepError, match=rf"the task's loss\(\) returned {problem}; expected a tensor of one"):
            require_loss(loss)
    one = torch.ones(())
    assert require_sums({"loss_sum": one, "samples": one})
    for measured, message in (
        (None, "returned a NoneType; expected a dictionary of tensors"),
        ({"loss_sum": 1.5, "samples": one}, "returned a float for 'loss_sum'; expected a tensor"),
        ({"loss_sum": one}, "returned loss_sum; expected 'samples' too, their number"),
    ):
        with pytest.raises(StepError, match=message):
            require_sums(measured)
