"""The environment variables that Azure ML sets for a process of a job, set here with the same names and meanings.

Each variable is one line of a table: its name, when it is set, its value, and the source of this knowledge. Of the
runner's own environment only what describes the machine is passed on, so that a job sees what it would see on Azure ML
and nothing of the shell, Python environment, cluster or training that the runner was started from.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from trainyard.rehearse.machine import VISIBLE_DEVICES, job_path
from trainyard.rehearse.tracking_store import RunIdentity
from trainyard.spec.literals import ParameterValue

When = Literal[
    "every job",
    "pytorch",
    "mpi",
    "tensorflow",
    "ray",
    "several nodes",
    "mpi on one node",
    "mpi on several nodes",
    "GPUs divided",
    "preemption rehearsed",
]

NODE_ADDRESS = "127.0.0.1"
"""Every node of a job is this machine."""
_NO_SUBSCRIPTION = "00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True)
class ProcessContext:
    """One process of a job: its run, its place among the ranks, its files.

    `node_rank` counts nodes, `local_rank` processes on a node. `input_paths` and `output_paths` belong to ports that
    carry files, `parameters` are the literals. `attempt` counts from 1. `gpus` are the node's own; `gpus_are_divided`
    says that they are not all of the machine's. `world_size` counts the processes of all nodes, the
    `parameter_servers` (TensorFlow's, the last ranks) among them; `task_ports` are TensorFlow's, by rank.
    `events_url` is the address of scheduled events, in a run that rehearses a preemption.
    """

    run: RunIdentity
    distribution: str | None
    nodes: int
    processes_per_node: int
    node_rank: int
    local_rank: int
    master_port: int
    working_folder: Path
    data_folder: Path
    world_size: int
    task_ports: Sequence[int] = ()
    parameter_servers: int = 0
    attempt: int = 1
    gpus: Sequence[str] = ()
    gpus_are_divided: bool = False
    vm_size: str = "local"
    input_paths: Mapping[str, Path] = field(default_factory=dict)
    output_paths: Mapping[str, Path] = field(default_factory=dict)
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)
    events_url: str | None = None

    @property
    def rank(self) -> int:
        """The global rank, counted node by node."""
        return self.node_rank * self.processes_per_node + self.local_rank

    @property
    def process_name(self) -> str:
        """`rank_N` if the ranks know of each other, else `main`."""
        return f"rank_{self.rank}" if self.distribution is not None and self.world_size > 1 else "main"

    @property
    def tf_config(self) -> str:
        """TensorFlow's cluster and this task's place in it, as JSON."""
        workers = self.world_size - self.parameter_servers
        hosts = [f"{NODE_ADDRESS}:{port}" for port in self.task_ports]
        servers = {"ps": hosts[workers:]} if self.parameter_servers else {}
        is_worker = self.rank < workers
        task = {"type": "worker" if is_worker else "ps", "index": self.rank if is_worker else self.rank - workers}
        return json.dumps({"cluster": {"worker": hosts[:workers], **servers}, "task": task, "environment": "cloud"})

    @property
    def compute_context(self) -> str:
        """The machine, as JSON."""
        return json.dumps(
            {
                "cluster_name": "local",
                "node_id": f"local_{self.node_rank}",
                "run_attempt_count": self.attempt,
                "gpu_count": len(self.gpus),
                "vm_size": self.vm_size,
                "vm_priority": "Dedicated",
            }
        )


@dataclass(frozen=True)
class Variable:
    """One variable of the contract, and the source of this knowledge."""

    name: str
    when: When
    value: Callable[[ProcessContext], object]
    source: str


_DISTRIBUTED_DOCS = "MicrosoftDocs/azure-ai-docs how-to-train-distributed-gpu.md"
_CHEATSHEET = "Azure/azureml-cheatsheets distributed-training.md"
_OBSERVED = "observed in published dumps of a job's environment"
_MLFLOW = "azureml-mlflow 1.62.0.post6, service_context_loader.py"
_LOCAL = "local runs only"

VARIABLES: tuple[Variable, ...] = (
    Variable("MASTER_ADDR", "pytorch", lambda _: NODE_ADDRESS, _DISTRIBUTED_DOCS),
    Variable("MASTER_PORT", "pytorch", lambda p: p.master_port, _CHEATSHEET),
    Variable("WORLD_SIZE", "pytorch", lambda p: p.world_size, _DISTRIBUTED_DOCS),
    Variable("NODE_RANK", "pytorch", lambda p: p.node_rank, _DISTRIBUTED_DOCS),
    Variable("RANK", "pytorch", lambda p: p.rank, _DISTRIBUTED_DOCS),
    Variable("LOCAL_RANK", "pytorch", lambda p: p.local_rank, _DISTRIBUTED_DOCS),
    Variable("OMPI_COMM_WORLD_RANK", "mpi", lambda p: p.rank, _CHEATSHEET),
    Variable("OMPI_COMM_WORLD_SIZE", "mpi", lambda p: p.world_size, _CHEATSHEET),
    Variable("OMPI_COMM_WORLD_LOCAL_RANK", "mpi", lambda p: p.local_rank, _CHEATSHEET),
    Variable("OMPI_COMM_WORLD_LOCAL_SIZE", "mpi", lambda p: p.processes_per_node, _CHEATSHEET),
    Variable("TF_CONFIG", "tensorflow", lambda p: p.tf_config, _DISTRIBUTED_DOCS),
    Variable(
        "AZ_BATCH_MASTER_NODE",
        "mpi on several nodes",
        lambda p: f"{NODE_ADDRESS}:{p.master_port}",
        f"{_CHEATSHEET}; DeepSpeed comm.py",
    ),
    Variable(
        "AZ_BATCHAI_MPI_MASTER_NODE", "mpi on one node", lambda _: NODE_ADDRESS, "DeepSpeed comm.py mpi_discovery()"
    ),
    Variable("AZUREML_RUN_ID", "every job", lambda p: p.run.run_id, _OBSERVED),
    Variable("AZUREML_ROOT_RUN_ID", "every job", lambda p: p.run.root_run_id, _OBSERVED),
    Variable(
        "AZUREML_EXPERIMENT_ID", "every job", lambda p: p.run.experiment_id, f"{_OBSERVED}; DeepSpeed comm.py in_aml()"
    ),
    Variable("AZUREML_ARM_PROJECT_NAME", "every job", lambda p: p.run.experiment, _OBSERVED),
    Variable("AZUREML_ARM_SUBSCRIPTION", "every job", lambda p: _NO_SUBSCRIPTION, _OBSERVED),
    Variable("AZUREML_ARM_RESOURCEGROUP", "every job", lambda p: "local", _OBSERVED),
    Variable("AZUREML_ARM_WORKSPACE_NAME", "every job", lambda p: "local", _OBSERVED),
    Variable("AZUREML_NODE_COUNT", "every job", lambda p: p.nodes, _OBSERVED),
    Variable("AZUREML_CR_NODE_RANK", "every job", lambda p: p.node_rank, _OBSERVED),
    Variable("AZUREML_PROCESS_NAME", "every job", lambda p: p.process_name, _OBSERVED),
    Variable("AZUREML_CR_COMPUTE_CONTEXT", "every job", lambda p: p.compute_context, _OBSERVED),
    Variable("AZUREML_CR_EXECUTION_WORKING_DIR_PATH", "every job", lambda p: p.working_folder, _OBSERVED),
    Variable("AZUREML_CR_DATA_CAPABILITY_PATH", "every job", lambda p: p.data_folder, _OBSERVED),
    Variable("AZ_BATCHAI_JOB_MASTER_NODE_IP", "every job", lambda _: NODE_ADDRESS, f"{_OBSERVED} (AmlCompute)"),
    Variable("AZ_BATCHAI_TASK_INDEX", "every job", lambda p: p.node_rank, f"{_OBSERVED} (AmlCompute)"),
    Variable(
        "AZ_BATCH_IS_CURRENT_NODE_MASTER",
        "every job",
        lambda p: "true" if p.node_rank == 0 else "false",
        f"{_OBSERVED} (AmlCompute)",
    ),
    Variable(
        "AZ_BATCH_HOST_LIST",
        "several nodes",
        lambda p: ",".join([NODE_ADDRESS] * p.nodes),
        f"{_OBSERVED} (AmlCompute)",
    ),
    Variable("MLFLOW_TRACKING_URI", "every job", lambda p: p.run.tracking_uri, _MLFLOW),
    Variable("MLFLOW_TRACKING_TOKEN", "every job", lambda p: "local", _MLFLOW),
    Variable("MLFLOW_RUN_ID", "every job", lambda p: p.run.run_id, _MLFLOW),
    Variable("MLFLOW_EXPERIMENT_ID", "every job", lambda p: p.run.experiment_id, _MLFLOW),
    Variable("MLFLOW_EXPERIMENT_NAME", "every job", lambda p: p.run.experiment, _MLFLOW),
    # MLflow 3 refuses its file store without it; the store is ours, so the permission is too.
    Variable("MLFLOW_ALLOW_FILE_STORE", "every job", lambda p: "true", _LOCAL),
    # This machine acts as several nodes, or has too few GPUs: a node sees only its own, which may be none.
    Variable(VISIBLE_DEVICES, "GPUs divided", lambda p: ",".join(p.gpus), _LOCAL),
    # Without it a killed rank loses its last lines, and the live display has nothing to show.
    Variable("PYTHONUNBUFFERED", "every job", lambda p: "1", _LOCAL),
    # Several clusters of Ray may run on this machine, and `ray.init()` takes any of them.
    Variable("RAY_ADDRESS", "ray", lambda p: f"{NODE_ADDRESS}:{p.master_port}", _LOCAL),
    # On Azure a job asks 169.254.169.254, an address that nobody here can answer at.
    Variable("SCHEDULED_EVENTS_URL", "preemption rehearsed", lambda p: p.events_url, _LOCAL),
)

# One variable per port: prefix + the port's name.
INPUT_PREFIXES = ("AZURE_ML_INPUT_", "AZUREML_DATAREFERENCE_")
OUTPUT_PREFIXES = ("AZURE_ML_OUTPUT_", "")
PARAMETER_PREFIX = "AZUREML_PARAMETER_"

_PROXIES = frozenset(
    {"http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy"}
    | {"HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY"}
)

# What an inherited variable must be to reach a job: it describes this machine, where a node of Azure ML has its own.
# All others belong to the shell, environment or training that the runner was started from; a job that needs one of
# them works here alone, and fails on the cluster.
_OF_THE_MACHINE = _PROXIES | frozenset(
    {"HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TMP", "TEMP", "HOSTNAME"}
    | {"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE"}
    | {"LD_LIBRARY_PATH", "LD_PRELOAD", "LIBRARY_PATH", "CPATH"}
    | {VISIBLE_DEVICES, "CUDA_HOME", "CUDA_PATH", "CUDA_DEVICE_ORDER", "ROCM_PATH", "ROCR_VISIBLE_DEVICES"}
    | {"HIP_VISIBLE_DEVICES", "JAVA_HOME", "SPARK_HOME", "HADOOP_HOME"}
    | {"HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_ENDPOINT", "TORCH_HOME", "NLTK_DATA"}
)
_PREFIXES_OF_THE_MACHINE = (
    "LC_",
    "DYLD_",
    "NVIDIA_",
    "XDG_CACHE_",
    # How many threads, over which interfaces: what a machine takes.
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "NCCL_",
    "GLOO_",
    "UCX_",
    # Which index pip installs from: a job may install packages.
    "PIP_",
)


def process_environment(
    process: ProcessContext, own_variables: Mapping[str, str], inherited: Mapping[str, str], python: Path
) -> dict[str, str]:
    """Return the whole environment of one process.

    `inherited` is the runner's environment, of which a job gets what describes this machine; the folder of `python` is
    put first on PATH. `own_variables` are the job's, and take precedence.
    """
    environment = {name: value for name, value in inherited.items() if describes_the_machine(name)}
    environment["PATH"] = job_path(python, inherited.get("PATH"))
    return environment | contract_variables(process) | dict(own_variables)


def container_environment(
    process: ProcessContext,
    own_variables: Mapping[str, str],
    inherited: Mapping[str, str],
    of_image: Mapping[str, str],
) -> dict[str, str]:
    """Return the whole environment of one process in a container: what its image sets, then the contract, then its own.

    Of the runner's own environment it gets the way to the network and the GPUs, which it shares with this machine.
    """
    shared = {name: value for name, value in inherited.items() if name in _PROXIES | {VISIBLE_DEVICES}}
    return {**of_image, **shared, **contract_variables(process), **own_variables}


def contract_variables(process: ProcessContext) -> dict[str, str]:
    """Return the variables of the contract for this process: those of the table, and those of its ports."""
    holds: dict[When, bool] = {
        "every job": True,
        "pytorch": process.distribution == "pytorch",
        "mpi": process.distribution == "mpi",
        "tensorflow": process.distribution == "tensorflow",
        "ray": process.distribution == "ray",
        "mpi on several nodes": process.distribution == "mpi" and process.nodes > 1,
        "mpi on one node": process.distribution == "mpi" and process.nodes == 1,
        "several nodes": process.nodes > 1,
        "GPUs divided": process.gpus_are_divided,
        "preemption rehearsed": process.events_url is not None,
    }
    variables = {variable.name: str(variable.value(process)) for variable in VARIABLES if holds[variable.when]}
    for name, path in process.input_paths.items():
        variables |= {prefix + name: str(path) for prefix in INPUT_PREFIXES}
    for name, path in process.output_paths.items():
        variables |= {prefix + name: str(path) for prefix in OUTPUT_PREFIXES}
    for name, value in process.parameters.items():
        variables[PARAMETER_PREFIX + name] = str(value)
    return variables


def describes_the_machine(name: str) -> bool:
    """Return whether an inherited variable describes this machine, so that jobs get it; PATH is theirs to have."""
    return name in _OF_THE_MACHINE or name.startswith(_PREFIXES_OF_THE_MACHINE)
