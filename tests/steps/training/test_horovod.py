"""Training with Horovod: the losses of the other engines, under any launcher, and the same resume."""

from __future__ import annotations

import importlib
import json
import random
import sys
from pathlib import Path

import pytest
import torch
from engines_to_resume import HOROVOD as RESUMED
from forked_ranks import RankServer
from horovod_installed import needs_horovod
from killing import Training, kill_until
from mpi_processes import needs_mpirun, run_with_mpi
from parity_worlds import DDP, HOROVOD, IN_MICRO_BATCHES, World, largest_difference, run_trainings
from rank_processes import free_port, training_arguments
from safetensors.torch import load_file


def train(step: str, data: Path, out: Path, task: str, *flags: object) -> int:
    """Train in this process, alone."""
    arguments = [str(argument) for argument in training_arguments(data, out, task, *flags)]
    exit_code: int = importlib.import_module(f"trainyard.steps.{step}").main(arguments)
    return exit_code


@needs_horovod
@needs_mpirun
@pytest.mark.slow
def test_fifty_losses_agree_with_ddp_over_gloo_and_mpi(digits: Path, tmp_path: Path) -> None:
    trainings = {"horovod": HOROVOD, "horovod, micro-batches": HOROVOD | IN_MICRO_BATCHES}
    over_gloo = run_trainings(digits, tmp_path, World(2, {"ddp": DDP, **trainings}, {}))
    expected = over_gloo["curve ddp"]["losses"]
    assert expected[-1] < 0.7 * expected[0], "it learns"
    differences = {name: largest_difference(figures["losses"], expected) for name, figures in over_gloo.items()}
    print("largest relative difference of a loss in 50 steps:", differences)
    assert max(differences.values()) <= 1e-4

    (tmp_path / "trainings.json").write_text(json.dumps({"over mpi": HOROVOD | {"steps": 50}}))
    command = [sys.executable, "-m", "engine_trainings", tmp_path / "trainings.json", digits, tmp_path]
    environment = {"HOROVOD_CONTROLLER": "mpi", "AZ_BATCH_MASTER_NODE": "127.0.0.1:6000"}
    exit_code, said = run_with_mpi(
        command, tmp_path, hosts=2, environment=environment | {"MASTER_PORT": str(free_port())}
    )
    assert exit_code == 0, said
    assert json.loads((tmp_path / "over mpi.json").read_text()) == over_gloo["curve horovod"], "the same bits"


@needs_horovod
@pytest.mark.slow
def test_a_killed_training_ends_with_the_bits_of_an_uninterrupted_one(
    digits: Path, tmp_path: Path, server: RankServer
) -> None:
    """With three ranks it matters in which order numbers are added."""

    def new_training(name: str) -> Training:
        return Training(server, RESUMED.step, digits, tmp_path / name, RESUMED.flags(tmp_path), 3)

    kill_until(new_training, 2, random.Random(3), print)


@needs_horovod
def test_an_unused_parameter_is_left_alone(digits: Path, tmp_path: Path) -> None:
    for step in ("train_ddp", "train_horovod"):
        assert train(step, digits, tmp_path / step, "tiny_task:PartlyUsed", "--max-steps", 5) == 0
    ddp, horovod = (
        load_file(tmp_path / step / "model" / "model.safetensors") for step in ("train_ddp", "train_horovod")
    )
    assert torch.equal(horovod["4.unused"], torch.ones(3))
    assert all(torch.equal(horovod[name], ddp[name]) for name in ddp)


@needs_horovod
def test_mpi_without_mpirun_is_one_line(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import horovod.torch

    horovod.torch.shutdown()
    monkeypatch.setenv("HOROVOD_CONTROLLER", "mpi")
    assert train("train_horovod", digits, tmp_path, "tiny_task:TinyTask") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "HOROVOD_CONTROLLER=mpi: no mpirun of Open MPI started this process" in line


def test_without_horovod_the_step_says_how_to_build_it(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "horovod.torch", None)
    assert train("train_horovod", digits, tmp_path, "tiny_task:TinyTask") == 2
    said = capsys.readouterr().err
    assert "train_horovod needs the package horovod; build it with `make setup-horovod`" in said
