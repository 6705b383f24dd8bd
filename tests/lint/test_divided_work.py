"""Checks that are divided over processes find the same, in the same order."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainyard.lint.linter import lint
from trainyard.lint.processors import divided

COMPONENT = """\
type: command
name: train_{0}
command: python train.py --epochs ${{{{inputs.epoch{1}}}}}
environment: azureml:torch:3
inputs:
  epochs: {{type: integer, default: 3}}
"""
PIPELINE = """\
type: pipeline
settings: {{default_compute: azureml:cpus}}
jobs:
  train:
    component: ./train_{0}.yaml
    inputs: {{epochs: {1}}}
"""


@pytest.fixture(scope="module")
def many_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pipelines and their components, every third with a mistake."""
    folder = tmp_path_factory.mktemp("many")
    for number in range(120):
        misspelt, wrong = ("" if number % 3 else "x"), ("5" if number % 5 else "1.5")
        (folder / f"train_{number}.yaml").write_text(COMPONENT.format(number, misspelt or "s"), encoding="utf-8")
        (folder / f"a_pipeline_{number}.yaml").write_text(PIPELINE.format(number, wrong), encoding="utf-8")
    return folder


def test_findings_are_the_same_with_any_number_of_processes(many_files: Path) -> None:
    alone = lint([many_files]).diagnostics
    assert len(alone) > 60
    assert lint([many_files], processes=2).diagnostics == alone
    assert lint([many_files], processes=5).diagnostics == alone


def test_results_come_in_the_order_of_the_items() -> None:
    results = divided(range(1000), lambda number: (number * 2, os.getpid()), processes=3)
    assert [result for result, _ in results] == list(range(0, 2000, 2))
    assert os.getpid() not in {process for _, process in results}


def test_few_items_are_not_worth_a_process() -> None:
    assert {divided([1, 2, 3], lambda _: os.getpid(), processes=8)[0]} == {os.getpid()}


def test_what_a_process_fails_at_is_done_here() -> None:
    here = os.getpid()

    def fails_in_a_copy(number: int) -> int:
        if os.getpid() != here:
            raise MemoryError
        return number

    assert divided(range(400), fails_in_a_copy, processes=2) == list(range(400))
