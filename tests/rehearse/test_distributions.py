"""What processes of each distribution find in their environment: 1 and 2 nodes, 1 and 2 processes on each."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from trainyard.rehearse.errors import UsageError
from trainyard.rehearse.guardian import processes_beneath
from trainyard.rehearse.local_distributions import RayHere
from trainyard.settings.run_record import RunRecord
from trainyard.spec.diagnostic import Span
from trainyard.spec.distributions import Ray

DUMP = "python -c 'import json, os; print(json.dumps(dict(os.environ)))'"
needs_mpirun = pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun on this machine")
sizes = pytest.mark.parametrize(("nodes", "processes"), [(1, 1), (1, 2), (2, 1), (2, 2)])


def check_mpi(found: list[dict[str, str]], nodes: int, processes: int) -> None:
    assert len(found) == nodes * processes
    for rank, environment in enumerate(found):
        assert environment["OMPI_COMM_WORLD_RANK"] == str(rank)
        assert environment["OMPI_COMM_WORLD_SIZE"] == str(nodes * processes)
        assert environment["OMPI_COMM_WORLD_LOCAL_RANK"] == str(rank % processes)
        assert environment["OMPI_COMM_WORLD_NODE_RANK"] == str(rank % processes)
        assert environment["OMPI_COMM_WORLD_LOCAL_SIZE"] == str(processes)
        assert environment["AZUREML_CR_NODE_RANK"] == str(rank // processes)
        assert ("AZ_BATCH_MASTER_NODE" in environment) is (nodes > 1)
        assert ("AZ_BATCHAI_MPI_MASTER_NODE" in environment) is (nodes == 1)
        assert not {"RANK", "WORLD_SIZE", "TF_CONFIG"} & environment.keys()


@needs_mpirun
@sizes
def test_ranks_of_mpi_are_started_by_mpirun(dumped: Any, nodes: int, processes: int) -> None:
    check_mpi(dumped.of("mpi", nodes, processes), nodes, processes)
    log = dumped.record.folder / f"jobs/mpi_{nodes}_{processes}/system_logs/job.log"
    assert "started by " in log.read_text()


def test_ranks_of_mpi_have_its_variables_without_mpirun(workspace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    distribution = {"type": "mpi", "process_count_per_instance": 2}
    file = workspace.one_job(DUMP, distribution=distribution, resources={"instance_count": 2})
    monkeypatch.setenv("PATH", "/nowhere")
    record: RunRecord = workspace.run(file)

    logs = [record.folder / log for log in record.jobs["work"].logs]
    check_mpi([json.loads(log.read_text().splitlines()[-1]) for log in logs], 2, 2)
    assert "no mpirun" in (record.folder / "jobs/work/system_logs/job.log").read_text()


@needs_mpirun
def test_a_rank_of_mpi_that_fails_is_named(workspace: Any) -> None:
    command = "test $OMPI_COMM_WORLD_RANK = 0 && sleep 60; echo no labels; exit 3"
    distribution = {"type": "mpi", "process_count_per_instance": 2}
    record = workspace.run(workspace.one_job(command, distribution=distribution))

    assert record.status == "failed"
    assert record.jobs["work"].failed_rank == 1
    assert record.jobs["work"].error_lines == ["no labels"]


@needs_mpirun
def test_a_rank_that_mpirun_does_not_name_is_known_by_its_log(
    workspace: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    silent = tmp_path / "bin" / "mpirun"
    real = shutil.which("mpirun")
    silent.write_text(f"#!/bin/bash\n{real} \"$@\" 2>&1 | grep -v 'Process name'\nexit ${{PIPESTATUS[0]}}\n")
    silent.chmod(0o755)
    monkeypatch.setenv("PATH", f"{silent.parent}:{os.environ['PATH']}")
    command = "test $OMPI_COMM_WORLD_RANK = 0 && exec sleep 60; echo no labels; exit 3"
    job = workspace.one_job(command, distribution={"type": "mpi", "process_count_per_instance": 2})

    assert workspace.run(job).jobs["work"].failed_rank == 1


@needs_mpirun
def test_a_rank_of_mpi_that_is_killed_is_named(workspace: Any) -> None:
    command = "test $OMPI_COMM_WORLD_RANK = 0 && sleep 60; kill -9 $$"
    distribution = {"type": "mpi", "process_count_per_instance": 2}
    record = workspace.run(workspace.one_job(command, distribution=distribution))

    assert record.jobs["work"].failed_rank == 1
    assert record.jobs["work"].reason == "rank 1 was killed by SIGKILL (out of memory?)"


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="Open MPI refuses root alone")


@needs_mpirun
@pytest.mark.parametrize(
    ("otherwise", "why"),
    [
        pytest.param('"${@/--allow-run-as-root/--quiet}"', "detected an attempt to run as root", marks=needs_root),
        ('--mca plm none "$@"', "component was not found"),
    ],
    ids=["as root", "broken"],
)
def test_an_mpirun_that_starts_nothing_is_an_error_before_anything_starts(
    workspace: Any, monkeypatch: pytest.MonkeyPatch, otherwise: str, why: str
) -> None:
    """The real one, as an administrator's script may start it."""
    script = workspace.root / "bin" / "mpirun"
    script.parent.mkdir()
    script.write_text(f"#!/bin/bash\nexec {shutil.which('mpirun')} {otherwise}\n")
    script.chmod(0o755)
    file = workspace.one_job("true", distribution={"type": "mpi", "process_count_per_instance": 2})
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(UsageError, match=rf"cannot start: {script}: .*({why})") as caught:
        workspace.run(file)

    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


@needs_mpirun
@needs_root
def test_a_command_whose_own_mpirun_refuses_root_is_explained_in_one_line(workspace: Any) -> None:
    record = workspace.run(workspace.one_job("mpirun -n 2 true"))

    assert record.jobs["work"].reason == (
        "mpirun refuses to run as root (its process ended with exit code 1); leave it out of the command and set "
        "`distribution: {type: mpi}`, or give it --allow-run-as-root"
    )


@sizes
def test_tasks_of_tensorflow_know_their_cluster(dumped: Any, nodes: int, processes: int) -> None:
    workers = nodes * processes
    configs = [json.loads(environment["TF_CONFIG"]) for environment in dumped.of("tensorflow", nodes, processes)]
    assert [config["task"] for config in configs] == [
        *({"type": "worker", "index": index} for index in range(workers)),
        {"type": "ps", "index": 0},
    ]
    assert all(config["cluster"] == configs[0]["cluster"] for config in configs)
    cluster = configs[0]["cluster"]
    assert (len(cluster["worker"]), len(cluster["ps"])) == (workers, 1)
    assert len({*cluster["worker"], *cluster["ps"]}) == workers + 1
    ports = [int(address.rpartition(":")[2]) for address in (*cluster["worker"], *cluster["ps"])]
    assert min(ports) >= 2222
    assert max(ports) < 6105


def test_a_parameter_server_shares_a_node_with_the_first_worker(workspace: Any) -> None:
    distribution = {"type": "tensorflow", "worker_count": 2, "parameter_server_count": 1}
    command = "echo $AZUREML_CR_NODE_RANK; sleep 1"
    record = workspace.run(workspace.one_job(command, distribution=distribution, resources={"instance_count": 2}))

    logs = [record.folder / log for log in record.jobs["work"].logs]
    assert [log.read_text() for log in logs] == ["0\n", "1\n", "0\n"]


def test_parameter_servers_end_with_the_workers(workspace: Any) -> None:
    command = 'python -c \'import os; exit(os.environ["TF_CONFIG"].count("ps") < 2)\' && exec sleep 60 || true'
    distribution = {"type": "tensorflow", "worker_count": 1, "parameter_server_count": 1}
    record = workspace.run(workspace.one_job(command, distribution=distribution))

    assert record.status == "completed"
    assert record.jobs["work"].attempts[0].exit_codes["0"] == 0


def unused_port() -> int:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        return int(reserved.getsockname()[1])


def shell(command: str, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=60, env=variables)


def test_a_head_on_which_ray_does_not_start_says_where_it_is_logged(tmp_path: Path) -> None:
    log = tmp_path / "the head's.log"
    head = RayHere().head_command(Ray(Span(tmp_path)), unused_port(), 2, tmp_path, log)
    ended = shell(head, {"PATH": str(tmp_path)})

    assert ended.returncode == 1
    assert ended.stderr == f"error: Ray did not start; see {log}\n"
    assert "ray" in log.read_text()


def test_other_nodes_give_up_on_a_head_on_which_ray_does_not_listen(tmp_path: Path) -> None:
    node = RayHere(start_seconds=0.1).node_command(Ray(Span(tmp_path)), unused_port())
    ended = shell(node, {"PATH": os.environ["PATH"]})

    assert ended.returncode == 1
    assert "error: Ray does not listen on 127.0.0.1:" in ended.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("ray") is None, reason="ray is not installed")
def test_the_head_of_ray_runs_the_command_with_all_nodes(workspace: Any) -> None:
    (workspace.code / "count.py").write_text(
        "import ray\nray.init()\nprint('nodes:', sum(node['Alive'] for node in ray.nodes()))\n"
    )
    record = workspace.run(
        workspace.one_job("python count.py", distribution={"type": "ray"}, resources={"instance_count": 2})
    )

    assert record.status == "completed"
    assert "nodes: 2" in (record.folder / record.jobs["work"].logs[0]).read_text()
    assert not list(processes_beneath(record.folder))
