"""The same training, whatever starts its processes: Azure ML, a real mpirun, or torchrun beneath it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from forked_ranks import forked_ranks
from mpi_processes import needs_mpirun, run_with_mpi, torchrun
from rank_processes import free_port, training_arguments

pytestmark = [pytest.mark.slow, needs_mpirun]

TRAININGS = {
    "ddp": {"engine": "ddp", "steps": 3},
    "fsdp": {"engine": "fsdp", "steps": 3},
    "zero2": {"engine": "deepspeed", "zero": {"stage": 2}, "steps": 3},
}


@pytest.fixture
def arguments(digits: Path, tmp_path: Path) -> list[object]:
    (tmp_path / "trainings.json").write_text(json.dumps(TRAININGS))
    return [tmp_path / "trainings.json", digits, tmp_path]


def figures(folder: Path) -> dict[str, str]:
    """What every training computed, removed so that the next must write it."""
    found = {}
    for name in TRAININGS:
        file = folder / f"{name}.json"
        found[name] = file.read_text()
        file.unlink()
    return found


def test_every_engine_computes_the_same_bits_under_pytorch_and_mpi(
    arguments: list[object], tmp_path: Path, forked_python: Path
) -> None:
    exit_codes, outputs = forked_ranks().run("engine_trainings", arguments, 2)
    assert exit_codes == [0, 0], outputs
    expected = figures(tmp_path)

    azure = {"AZ_BATCH_MASTER_NODE": "127.0.0.1:6000", "AZUREML_EXPERIMENT_ID": "of a job on Azure ML"}
    per_process = [forked_python, "-m", "engine_trainings", *arguments]
    environment = azure | {"MASTER_PORT": str(free_port())}
    exit_code, said = run_with_mpi(per_process, tmp_path, hosts=2, environment=environment)
    assert exit_code == 0, said
    assert figures(tmp_path) == expected

    per_node = torchrun(forked_python, 2, free_port(), "engine_trainings", *arguments)
    exit_code, said = run_with_mpi(per_node, tmp_path, environment=azure | {"PYTHON_EXEC": str(forked_python)})
    assert exit_code == 0, said
    assert figures(tmp_path) == expected


def test_a_step_says_whose_variables_it_took_and_refuses_two_launchers(
    digits: Path, tmp_path: Path, forked_python: Path
) -> None:
    flags = training_arguments(digits, tmp_path, "tiny_task:TinyTask", "--max-steps", 2)
    train = [forked_python, "-m", "trainyard.steps.train_ddp", *flags]
    port = {"MASTER_PORT": str(free_port())}
    exit_code, said = run_with_mpi(train, tmp_path, per_host=2, environment=port)
    assert exit_code == 0, said
    assert "2 ranks on cpu (from Open MPI)" in said

    exit_code, said = run_with_mpi(train, tmp_path, per_host=2, environment={"RANK": "0", **port})
    assert exit_code == 2
    assert "error: RANK=0 contradicts OMPI_COMM_WORLD_RANK=1 of Open MPI; start the processes with one launcher" in said
