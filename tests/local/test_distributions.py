"""What processes of each distribution find in their environment: 1 and 2 nodes, 1 and 2 processes on each."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from trainyard.foundation.run_record import RunRecord
from trainyard.local.kinds.mpi_jobs import open_mpi

DUMP = "python -c 'import json, os; print(json.dumps(dict(os.environ)))'"


def environments(record: RunRecord) -> list[dict[str, str]]:
    """The environment of each process, by rank."""
    assert record.status == "completed", record.reason
    return [json.loads((record.folder / log).read_text().splitlines()[-1]) for log in record.jobs["work"].logs]


def sizes(test: Any) -> Any:
    return pytest.mark.parametrize(("nodes", "processes"), list(itertools.product((1, 2), (1, 2))))(test)


def run_mpi(workspace: Any, nodes: int, processes: int) -> RunRecord:
    distribution = {"type": "mpi", "process_count_per_instance": processes}
    return workspace.run(workspace.one_job(DUMP, distribution=distribution, resources={"instance_count": nodes}))


def check_mpi(found: list[dict[str, str]], nodes: int, processes: int) -> None:
    assert len(found) == nodes * processes
    for rank, environment in enumerate(found):
        assert environment["OMPI_COMM_WORLD_RANK"] == str(rank)
        assert environment["OMPI_COMM_WORLD_SIZE"] == str(nodes * processes)
        assert environment["OMPI_COMM_WORLD_LOCAL_RANK"] == str(rank % processes)
        assert environment["OMPI_COMM_WORLD_LOCAL_SIZE"] == str(processes)
        assert environment["AZUREML_CR_NODE_RANK"] == str(rank // processes)
        assert ("AZ_BATCH_MASTER_NODE" in environment) is (nodes > 1)
        assert ("AZ_BATCHAI_MPI_MASTER_NODE" in environment) is (nodes == 1)
        assert not {"RANK", "WORLD_SIZE", "TF_CONFIG", "VIRTUAL_ENV"} & environment.keys() - os.environ.keys()
        assert not any(name.startswith("TRAINYARD") for name in environment)


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun on this machine")
@sizes
def test_ranks_of_mpi_are_started_by_mpirun(workspace: Any, nodes: int, processes: int) -> None:
    record = run_mpi(workspace, nodes, processes)

    check_mpi(environments(record), nodes, processes)
    assert "started by " in (record.folder / "jobs/work/system_logs/job.log").read_text()


def test_ranks_of_mpi_have_its_variables_without_mpirun(workspace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    open_mpi.cache_clear()
    try:
        record = run_mpi(workspace, 2, 2)
    finally:
        open_mpi.cache_clear()

    check_mpi(environments(record), 2, 2)
    assert "no mpirun" in (record.folder / "jobs/work/system_logs/job.log").read_text()


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun on this machine")
def test_a_rank_of_mpi_that_fails_is_named(workspace: Any) -> None:
    command = "test $OMPI_COMM_WORLD_RANK = 0 && sleep 60; echo no labels; exit 3"
    distribution = {"type": "mpi", "process_count_per_instance": 2}
    record = workspace.run(workspace.one_job(command, distribution=distribution))

    assert record.status == "failed"
    assert record.jobs["work"].failed_rank == 1
    assert record.jobs["work"].error_lines == ["no labels"]


@sizes
def test_tasks_of_tensorflow_know_their_cluster(workspace: Any, nodes: int, processes: int) -> None:
    workers = nodes * processes
    distribution = {"type": "tensorflow", "worker_count": workers, "parameter_server_count": 1}
    # The parameter server is ended with the workers: they give it time to write.
    command = f"{DUMP} && sleep 1"
    record = workspace.run(workspace.one_job(command, distribution=distribution, resources={"instance_count": nodes}))

    configs = [json.loads(environment["TF_CONFIG"]) for environment in environments(record)]
    assert [config["task"] for config in configs] == [
        *({"type": "worker", "index": index} for index in range(workers)),
        {"type": "ps", "index": 0},
    ]
    assert all(config["cluster"] == configs[0]["cluster"] for config in configs)
    cluster = configs[0]["cluster"]
    assert (len(cluster["worker"]), len(cluster["ps"])) == (workers, 1)
    assert len({*cluster["worker"], *cluster["ps"]}) == workers + 1


def test_parameter_servers_end_with_the_workers(workspace: Any) -> None:
    command = 'python -c \'import os; exit(os.environ["TF_CONFIG"].count("ps") < 2)\' && exec sleep 60 || true'
    distribution = {"type": "tensorflow", "worker_count": 1, "parameter_server_count": 1}
    record = workspace.run(workspace.one_job(command, distribution=distribution))

    assert record.status == "completed"
    assert record.jobs["work"].attempts[0].exit_codes["0"] == 0


@sizes
def test_without_a_distribution_there_are_no_ranks(workspace: Any, nodes: int, processes: int) -> None:
    record = workspace.run(workspace.one_job(DUMP, resources={"instance_count": nodes}))

    for environment in environments(record):
        added = environment.keys() - os.environ.keys()
        assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "TF_CONFIG"} & added
        assert not any(name.startswith("OMPI_") for name in added)
        assert Path(environment["AZUREML_CR_EXECUTION_WORKING_DIR_PATH"]).is_relative_to(record.folder)
