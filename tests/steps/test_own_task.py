"""The worked example of docs/own_task.md, run as its reader would: dataset, two ranks, evaluation."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rank_processes import clean_environment, run_ranks, training_arguments

EXAMPLE = Path(__file__).parents[2] / "docs" / "own_task" / "forecasting.py"


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
