"""The environment of real processes, held name for name against what Azure ML gives."""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from trainyard.rehearse.errors import RunError
from trainyard.rehearse.job_variables import VARIABLES
from trainyard.rehearse.local_distributions import local_distribution
from trainyard.rehearse.machine import AZURE_ML_MASTER_PORT, is_free, reserved_port
from trainyard.spec.diagnostic import Span
from trainyard.spec.distributions import DISTRIBUTIONS

EVERY_JOB = {
    "AZUREML_RUN_ID",
    "AZUREML_ROOT_RUN_ID",
    "AZUREML_EXPERIMENT_ID",
    "AZUREML_ARM_PROJECT_NAME",
    "AZUREML_ARM_SUBSCRIPTION",
    "AZUREML_ARM_RESOURCEGROUP",
    "AZUREML_ARM_WORKSPACE_NAME",
    "AZUREML_WORKSPACE_SCOPE",
    "AZUREML_WORKSPACE_ID",
    "AZUREML_EXPERIMENT_SCOPE",
    "AZUREML_NODE_COUNT",
    "AZUREML_CR_NODE_RANK",
    "AZUREML_PROCESS_NAME",
    "AZUREML_CR_COMPUTE_CONTEXT",
    "AZUREML_CR_EXECUTION_WORKING_DIR_PATH",
    "AZUREML_CR_DATA_CAPABILITY_PATH",
    "AZ_BATCHAI_JOB_MASTER_NODE_IP",
    "AZ_BATCHAI_TASK_INDEX",
    "AZ_BATCH_IS_CURRENT_NODE_MASTER",
    "MLFLOW_TRACKING_URI",
    "MLFLOW_TRACKING_TOKEN",
    "MLFLOW_RUN_ID",
    "MLFLOW_EXPERIMENT_ID",
    "MLFLOW_EXPERIMENT_NAME",
    "MLFLOW_ALLOW_FILE_STORE",
    "PWD",
    "PYTHONUNBUFFERED",
}
PYTORCH = {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "NODE_RANK", "RANK", "LOCAL_RANK"}
PORTS = range(AZURE_ML_MASTER_PORT, AZURE_ML_MASTER_PORT + 1000)
MPI = {f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "NODE_RANK", "LOCAL_SIZE")}
MPI |= {"AZ_BATCH_MASTER_NODE", "AZ_BATCHAI_MPI_MASTER_NODE"}
NAMES_OF = {
    "none": set[str](),
    "pytorch": PYTORCH,
    "mpi": {f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "NODE_RANK", "LOCAL_SIZE")},
    "tensorflow": {"TF_CONFIG"},
}
SHELL_ADDS = {"SHLVL", "_", "OLDPWD", "LC_CTYPE"}
OF_THE_MACHINE = {"PATH", "HOME", "LANG", "TZ", "HTTPS_PROXY", "SSL_CERT_FILE", "OMP_NUM_THREADS"}

WRITE = "python write_environment.py '${{outputs.seen}}'"


def environments(folder: Path) -> dict[str, dict[str, str]]:
    return {file.stem: json.loads(file.read_text())["environment"] for file in folder.glob("*.json")}


@pytest.mark.parametrize("distribution", ["none", "pytorch", "mpi", "tensorflow"])
@pytest.mark.parametrize(("nodes", "processes"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_a_process_gets_exactly_the_contract_and_what_describes_the_machine(
    dumped: Any, distribution: str, nodes: int, processes: int
) -> None:
    expected = EVERY_JOB | NAMES_OF[distribution] | {"AZURE_ML_OUTPUT_seen", "seen"} | OF_THE_MACHINE
    expected |= {"AZ_BATCH_HOST_LIST"} if nodes > 1 else set()
    if distribution == "mpi":
        expected.add("AZ_BATCH_MASTER_NODE" if nodes > 1 else "AZ_BATCHAI_MPI_MASTER_NODE")
    of_mpirun = ("OMPI_", "PMIX_", "PRTE_", "OPAL_") if distribution == "mpi" else ()
    found = dumped.of(distribution, nodes, processes)

    count = {"none": nodes, "tensorflow": nodes * processes + 1}.get(distribution, nodes * processes)
    assert len(found) == count
    for environment in found:
        names = {name for name in environment if not name.startswith(of_mpirun) or name in expected} - SHELL_ADDS
        assert names == expected
        assert "from the shell" not in environment.values()
        assert environment["HOME"] == "/of/this/machine"
        assert environment["AZUREML_NODE_COUNT"] == str(nodes)
        assert environment["AZUREML_RUN_ID"].endswith(f"_{distribution}_{nodes}_{processes}")
        assert Path(environment["AZUREML_CR_EXECUTION_WORKING_DIR_PATH"]).is_relative_to(dumped.record.folder)
        assert json.loads(environment["AZUREML_CR_COMPUTE_CONTEXT"]) == {
            "cluster_name": "local",
            "node_id": f"local_{environment['AZUREML_CR_NODE_RANK']}",
            "run_attempt_count": 1,
            "gpu_count": 0,
            "vm_size": "Standard_ND96asr_v4",
            "vm_priority": "Dedicated",
        }


@pytest.mark.parametrize(("nodes", "processes"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_ranks_of_pytorch_are_counted_node_by_node(dumped: Any, nodes: int, processes: int) -> None:
    found = dumped.of("pytorch", nodes, processes)

    names = ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "AZUREML_CR_NODE_RANK")
    for rank, environment in enumerate(found):
        node, local_rank = divmod(rank, processes)
        assert [int(environment[name]) for name in names] == [rank, local_rank, node, nodes * processes, node]
        assert environment["AZUREML_PROCESS_NAME"] == (f"rank_{rank}" if nodes * processes > 1 else "main")
        assert environment["AZ_BATCH_IS_CURRENT_NODE_MASTER"] == ("true" if node == 0 else "false")
    assert len({(environment["MASTER_ADDR"], environment["MASTER_PORT"]) for environment in found}) == 1


def test_processes_without_a_distribution_are_all_called_main(dumped: Any) -> None:
    found = dumped.of("none", 2, 1)

    assert [environment["AZUREML_PROCESS_NAME"] for environment in found] == ["main", "main"]
    assert [environment["AZUREML_CR_NODE_RANK"] for environment in found] == ["0", "1"]


@pytest.mark.parametrize(
    ("gpus", "chosen", "max_processes", "seen_by_rank", "note"),
    [
        (8, None, None, ["0,1,2,3", "0,1,2,3", "4,5,6,7", "4,5,6,7"], None),
        (8, "7, 5,3,1", None, ["7,5", "7,5", "3,1", "3,1"], None),
        (8, "7,5,3", 1, [None], "work: 4 processes (2 x 2) were reduced to 1 (1 x 1) by --max-processes 1"),
        (1, None, None, ["", "", "", ""], "work: 4 processes run without GPUs, since this machine has 1 GPU: "),
        (0, None, None, [None, None, None, None], None),
    ],
)
def test_each_node_has_its_own_gpus(
    workspace: Any,
    output_of: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    gpus: int,
    chosen: str | None,
    max_processes: int | None,
    seen_by_rank: list[str | None],
    note: str | None,
) -> None:
    for number in range(gpus):
        (tmp_path / f"nvidia{number}").touch()
    if chosen is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    file = workspace.one_job(
        WRITE,
        outputs={"seen": "uri_folder"},
        distribution={"type": "pytorch", "process_count_per_instance": 2},
        resources={"instance_count": 2},
    )

    record = workspace.run(file, max_processes=max_processes, devices=tmp_path)

    seen = environments(output_of(record, "work", "seen"))
    expected = [chosen if visible is None else visible for visible in seen_by_rank]
    assert [environment.get("CUDA_VISIBLE_DEVICES") for _, environment in sorted(seen.items())] == expected
    assert len(record.notes) == (note is not None)
    assert all(text.startswith(str(note)) for text in record.notes)


def test_run_experiment_and_tracking_agree(workspace: Any, output_of: Any) -> None:
    file = workspace.pipeline(
        {"work": {"component": workspace.component("worker", WRITE, outputs={"seen": "uri_folder"})}},
        experiment_name="digits",
    )

    first = workspace.run(file, name="first-run")
    second = workspace.run(file, name="second-run", use_cache=False)

    one = environments(output_of(first, "work", "seen"))["main_0"]
    two = environments(output_of(second, "work", "seen"))["main_0"]
    assert one["AZUREML_ROOT_RUN_ID"] == first.id
    assert one["AZUREML_RUN_ID"] == one["MLFLOW_RUN_ID"] == f"{first.id}_work"
    assert first.id.startswith("first-run-")
    assert one["AZUREML_ARM_PROJECT_NAME"] == one["MLFLOW_EXPERIMENT_NAME"] == "digits"
    assert one["AZUREML_EXPERIMENT_ID"] == one["MLFLOW_EXPERIMENT_ID"] == two["AZUREML_EXPERIMENT_ID"]
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", one["AZUREML_EXPERIMENT_ID"])
    assert one["MLFLOW_TRACKING_URI"] == (workspace.root / ".trainyard/mlruns").as_uri()


def test_inputs_outputs_and_parameters_have_their_variables(workspace: Any, output_of: Any) -> None:
    (workspace.root / "images").mkdir()
    (workspace.root / "images" / "one.txt").write_text("1")
    (workspace.root / "labels.csv").write_text("0")
    component = workspace.component(
        "worker",
        WRITE + " && cat '${{inputs.images}}/one.txt' '${{inputs.labels}}'",
        inputs={
            "images": {"type": "uri_folder"},
            "labels": {"type": "uri_file"},
            "extra": {"type": "uri_folder", "optional": True},
            "learning_rate": {"type": "number", "default": 0.00001},
        },
        outputs={"seen": "uri_folder"},
    )
    data = {
        "images": {"type": "uri_folder", "path": "../images"},
        "labels": {"type": "uri_file", "path": "../labels.csv"},
    }

    record = workspace.run(workspace.pipeline({"work": {"component": component, "inputs": data}}))

    seen = environments(output_of(record, "work", "seen"))["main_0"]
    links = Path(seen["AZUREML_CR_DATA_CAPABILITY_PATH"])
    assert seen["AZURE_ML_INPUT_images"] == seen["AZUREML_DATAREFERENCE_images"] == str(links / "INPUT_images")
    assert seen["AZURE_ML_INPUT_labels"] == str(links / "INPUT_labels" / "labels.csv")
    assert (record.folder / record.jobs["work"].logs[0]).read_text() == "10"
    assert (links / "seen").resolve() == Path(seen["AZURE_ML_OUTPUT_seen"]) == Path(seen["seen"])
    assert seen["AZUREML_PARAMETER_learning_rate"] == "1e-05"
    assert "AZURE_ML_INPUT_extra" not in seen


def test_a_jobs_own_variables_take_precedence(workspace: Any, output_of: Any) -> None:
    component = workspace.component("worker", WRITE, outputs={"seen": "uri_folder"})
    variables = {"NCCL_DEBUG": "${{parent.inputs.level}}", "THREADS": 4}
    level = {"type": "string", "default": "INFO"}
    jobs = {"work": {"component": component, "environment_variables": variables}}

    record = workspace.run(workspace.pipeline(jobs, inputs={"level": level}))

    seen = environments(output_of(record, "work", "seen"))["main_0"]
    assert (seen["NCCL_DEBUG"], seen["THREADS"]) == ("INFO", "4")


def test_python_on_the_path_is_the_one_that_runs_trainyard(workspace: Any, output_of: Any) -> None:
    record = workspace.run(workspace.one_job(WRITE, outputs={"seen": "uri_folder"}))

    seen = environments(output_of(record, "work", "seen"))["main_0"]
    assert seen["PATH"].split(os.pathsep)[0] == os.path.dirname(sys.executable)


def test_every_variable_has_a_source() -> None:
    of_distributions = [local_distribution(kind(Span(Path()))).variables for kind in DISTRIBUTIONS.values()]
    variables = [*VARIABLES, *itertools.chain(*of_distributions)]
    names = [variable.name for variable in variables]
    assert len(names) == len(set(names))
    of_some = {"AZ_BATCH_HOST_LIST", "CUDA_VISIBLE_DEVICES", "SCHEDULED_EVENTS_URL", "RAY_ADDRESS"}
    of_some |= {"TRAINYARD_WITHOUT_GPUS", "TORCHDYNAMO_DISABLE"}
    assert set(names) == EVERY_JOB | PYTORCH | MPI | {"TF_CONFIG"} | of_some
    assert all(variable.source for variable in variables)


def test_the_port_is_azure_mls_where_it_is_free_and_the_next_where_it_is_not() -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_free(AZURE_ML_MASTER_PORT):
            server.bind(("127.0.0.1", AZURE_ML_MASTER_PORT))
            server.listen()
        assert not is_free(AZURE_ML_MASTER_PORT)
        with reserved_port(PORTS) as port:
            assert port > AZURE_ML_MASTER_PORT
            assert is_free(port)


def test_two_jobs_at_once_get_different_ports() -> None:
    with reserved_port(PORTS) as one, reserved_port(PORTS) as two:
        assert one != two
        with reserved_port(PORTS) as three:
            assert len({one, two, three}) == 3


def test_when_every_port_is_taken_the_message_says_so() -> None:
    with (
        reserved_port(PORTS) as taken,
        pytest.raises(RunError, match="MASTER_PORT: every port"),
        reserved_port([taken]),
    ):
        pass
