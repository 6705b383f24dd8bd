"""Checks that are divided over processes find the same, in the same order."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from multiprocessing import Barrier
from pathlib import Path

import pytest

from trainyard.lint.config import LintSettings
from trainyard.lint.linter import lint, lint_files
from trainyard.lint.processors import TooSlow, aside, divided, limited_cpu
from trainyard.spec.diagnostic import SpecError
from trainyard.spec.documents import Document
from trainyard.spec.findings import DocumentStore

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


class Interrupted(Exception):
    """Raised between files."""


@pytest.mark.parametrize("processes", [1, 2])
def test_a_first_pass_can_be_interrupted_before_any_file_is_read(many_files: Path, processes: int) -> None:
    """As an editor does that has another text to check by then."""

    def interrupt() -> None:
        raise Interrupted

    documents: dict[Path, Document | SpecError] = {}
    store = DocumentStore(documents=documents)
    files = [(file, False) for file in sorted(many_files.iterdir())]
    with pytest.raises(Interrupted):
        lint_files(files, LintSettings(), store, checkpoint=interrupt, processes=processes)
    assert not documents


def test_results_come_in_the_order_of_the_items() -> None:
    results = divided(range(1000), lambda number: (number * 2, os.getpid()), processes=3)
    assert [result for result, _ in results] == list(range(0, 2000, 2))


def test_copies_take_parts_while_this_process_is_at_another() -> None:
    rendezvous = Barrier(3)  # each of three processes has taken a part before any of them goes on
    processes = divided(range(3), lambda _: (rendezvous.wait(), os.getpid())[1], processes=3)
    assert len(set(processes)) == 3


def test_this_process_begins_with_the_first_part_and_a_copy_with_the_last() -> None:
    rendezvous = Barrier(2, timeout=60)  # each has taken its part before either goes on

    def place(number: int) -> int:
        if number in (0, 3):
            rendezvous.wait()
        return os.getpid()

    processes = divided(range(4), place, processes=2)
    assert processes[0] == os.getpid() != processes[3]


def test_one_process_does_everything_itself() -> None:
    assert set(divided(range(200), lambda _: os.getpid(), processes=1)) == {os.getpid()}


def test_what_a_process_fails_at_is_done_here() -> None:
    here = os.getpid()

    def fails_in_a_copy(number: int) -> int:
        if os.getpid() != here:
            raise MemoryError
        return number

    assert divided(range(400), fails_in_a_copy, processes=2) == list(range(400))


def test_an_error_in_a_copy_is_raised_here() -> None:
    def fails() -> None:
        raise ValueError(f"in process {os.getpid()}")

    result = aside(fails)
    with pytest.raises(ValueError, match=f"in process {os.getpid()}$"):
        result()


@pytest.mark.parametrize("ends", [lambda: os._exit(0), lambda: os.kill(os.getpid(), signal.SIGKILL)])
def test_what_a_copy_that_ends_early_leaves_is_done_here(ends: Callable[[], object]) -> None:
    here = os.getpid()
    assert aside(lambda: "done" if os.getpid() == here else ends())() == "done"


def test_a_result_is_taken_where_ends_of_children_are_ignored() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert aside(os.getpid)() != os.getpid()
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_limit_of_time_holds_where_others_use_its_signal_and_leaves_their_handler() -> None:
    before = signal.getsignal(signal.SIGPROF)
    signal.signal(signal.SIGPROF, signal.SIG_IGN)
    try:
        with pytest.raises(TooSlow):
            _works_forever()
        assert signal.getsignal(signal.SIGPROF) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGPROF, before)


@limited_cpu(0.05)
def _works_forever() -> None:
    while True:
        os.getpid()
