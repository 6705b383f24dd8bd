"""The worked example of docs/own_task.md, run as its reader would: dataset, two ranks, evaluation."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from rank_processes import clean_environment, run_ranks, training_arguments

from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.tasks import find_task
from trainyard.steps.training.tasks.base import require_loss, require_sums

EXAMPLE = Path(__file__).parents[3] / "docs" / "own_task" / "forecasting.py"


def test_the_page_shows_the_code_that_is_tested() -> None:
    (shown,) = re.findall(r"```python\n(.*?)```", (EXAMPLE.parents[1] / "own_task.md").read_text(), re.DOTALL)
    assert shown == EXAMPLE.read_text()


@pytest.mark.slow
def test_the_example_from_its_dataset_to_its_evaluation(tmp_path: Path) -> None:
    data, task = tmp_path / "waves", "forecasting:Forecasting"
    environment = clean_environment()
    environment["PYTHONPATH"] += f":{EXAMPLE.parent}"
    subprocess.run([sys.executable, EXAMPLE, data], env=environment, check=True, timeout=60)

    flags = training_arguments(data, tmp_path, task, "--learning-rate", 0.01)
    assert run_ranks("train_ddp", flags, 2, environment=environment)[0] == [0, 0]

    folders = ("--data", data, "--model", tmp_path / "model", "--evaluation", tmp_path / "evaluation")
    assert run_ranks("evaluate", [*folders, "--task", task], 2, environment=environment)[0] == [0, 0]
    found = json.loads((tmp_path / "evaluation" / "evaluation.json").read_text())
    assert found["samples"] == 500
    assert found["loss"] < 0.05  # the series' own variance is 0.5
    assert found["absolute_error"] < np.sqrt(found["loss"])


MODULES = {
    "unfinished:Mine": (
        "from trainyard.steps.training.tasks.base import Task\nclass Mine(Task):\n    pass\n",
        "Mine lacks loss and measure and new_model, which every task defines",
    ),
    "mistyped:Mine": ("class Mine(:\n", "mistyped.py:1 is not valid Python: invalid syntax"),
    "needy:Mine": ("import is_not_here\n", "needy needs a module that is not here: is_not_here"),
    "other:Mine": ("class Yours:\n    pass\n", "the module other has no class Mine"),
    "nameless:": ("", "lacks a name: your own is given as package.module:Class"),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_task_that_cannot_be_found_or_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    code, message = MODULES[name]
    (tmp_path / f"{name.partition(':')[0]}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(StepError, match=re.escape(message)):
        find_task(name)


def test_what_a_task_gives_is_said_to_be_wrong_where_it_gives_it() -> None:
    weight = torch.ones(3, requires_grad=True)
    assert require_loss(weight.sum()) is not None
    for loss, problem in (
        (3.5, "a float"),
        (None, "a NoneType"),
        (weight * 2, r"a tensor of the shape \[3\]"),
        (weight.sum().detach(), "a tensor that does not depend on the model's weights"),
    ):
        with pytest.raises(StepError, match=rf"the task's loss\(\) gave {problem}; it gives a tensor of one number"):
            require_loss(loss)
    one = torch.ones(())
    assert require_sums({"loss_sum": one, "samples": one})
    for measured, message in (
        (None, "gave a NoneType; it gives a tensor for each name"),
        ({"loss_sum": 1.5, "samples": one}, "gave a float for 'loss_sum', where a tensor belongs"),
        ({"loss_sum": one}, "gave loss_sum without 'samples', the number of samples"),
    ):
        with pytest.raises(StepError, match=message):
            require_sums(measured)
