"""The environment variables that Azure ML sets for a process of a job, set here with the same names and meanings.

Each variable is one line of a table: its name, when it is set, its value, and the source of this knowledge. Of the
runner's own environment only what describes the machine is passed on, so that a job sees what it would see on Azure ML
and nothing of the shell, Python environment, cluster or training that the runner was started from.
"""

from __future__ import annotations

import ipaddress
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from trainyard.rehearse.command import WITHOUT_GPUS
from trainyard.rehearse.machine import VISIBLE_DEVICES, job_path

if TYPE_CHECKING:
    from trainyard.rehearse.attempts import Attempt

When = Literal["every job", "several nodes", "one node", "GPUs divided", "preemption rehearsed", "without GPUs"]

NODE_ADDRESS = "127.0.0.1"
"""Every node of a job is this machine; the nodes meet at the first one's address."""
_NO_SUBSCRIPTION = "00000000-0000-0000-0000-000000000000"
_PROVIDER = "Microsoft.MachineLearningServices"
_WORKSPACE = f"/subscriptions/{_NO_SUBSCRIPTION}/resourceGroups/local/providers/{_PROVIDER}/workspaces/local"


class Variable(NamedTuple):
    """One variable: its value for a rank of an attempt, the source of this knowledge, and when it is set."""

    name: str
    value: Callable[[Attempt, int], object]
    source: str
    when: When = "every job"


DISTRIBUTED_DOCS = "MicrosoftDocs/azure-ai-docs how-to-train-distributed-gpu.md"
CHEATSHEET = "Azure/azureml-cheatsheets distributed-training.md"
LOCAL = "local runs only"
_OBSERVED = "observed in published dumps of a job's environment"
_OF_CLUSTERS = f"{_OBSERVED} (AmlCompute)"
_OF_DEEPSPEED = "DeepSpeed comm.py in_aml()"
_MLFLOW = "azureml-mlflow 1.62.0.post6, service_context_loader.py"

VARIABLES: tuple[Variable, ...] = (
    Variable("AZUREML_RUN_ID", lambda attempt, rank: attempt.run.run_id, _OBSERVED),
    Variable("AZUREML_ROOT_RUN_ID", lambda attempt, rank: attempt.run.root_run_id, _OBSERVED),
    Variable("AZUREML_EXPERIMENT_ID", lambda attempt, rank: attempt.run.experiment_id, f"{_OBSERVED}; {_OF_DEEPSPEED}"),
    Variable("AZUREML_ARM_PROJECT_NAME", lambda attempt, rank: attempt.run.experiment, _OBSERVED),
    Variable("AZUREML_ARM_SUBSCRIPTION", lambda attempt, rank: _NO_SUBSCRIPTION, _OBSERVED),
    Variable("AZUREML_ARM_RESOURCEGROUP", lambda attempt, rank: "local", _OBSERVED),
    Variable("AZUREML_ARM_WORKSPACE_NAME", lambda attempt, rank: "local", _OBSERVED),
    Variable("AZUREML_WORKSPACE_SCOPE", lambda attempt, rank: _WORKSPACE, _OBSERVED),
    Variable(
        "AZUREML_EXPERIMENT_SCOPE",
        lambda attempt, rank: f"{_WORKSPACE}/experiments/{attempt.run.experiment}",
        _OBSERVED,
    ),
    Variable("AZUREML_WORKSPACE_ID", lambda attempt, rank: _NO_SUBSCRIPTION, _OBSERVED),
    Variable("AZUREML_NODE_COUNT", lambda attempt, rank: attempt.job.counts.nodes, _OBSERVED),
    Variable("AZUREML_CR_NODE_RANK", lambda attempt, rank: attempt.node_of(rank), _OBSERVED),
    Variable("AZUREML_PROCESS_NAME", lambda attempt, rank: _process_name(attempt, rank), _OBSERVED),
    Variable("AZUREML_CR_COMPUTE_CONTEXT", lambda attempt, rank: _machine(attempt, rank), _OBSERVED),
    Variable(
        "AZUREML_CR_EXECUTION_WORKING_DIR_PATH",
        lambda attempt, rank: attempt.working_folder(attempt.node_of(rank)),
        _OBSERVED,
    ),
    Variable("AZUREML_CR_DATA_CAPABILITY_PATH", lambda attempt, rank: attempt.data_folder, _OBSERVED),
    Variable("AZ_BATCHAI_JOB_MASTER_NODE_IP", lambda attempt, rank: NODE_ADDRESS, _OF_CLUSTERS),
    Variable("AZ_BATCHAI_TASK_INDEX", lambda attempt, rank: attempt.node_of(rank), _OF_CLUSTERS),
    Variable(
        "AZ_BATCH_IS_CURRENT_NODE_MASTER", lambda attempt, rank: str(attempt.node_of(rank) == 0).lower(), _OF_CLUSTERS
    ),
    Variable("AZ_BATCH_HOST_LIST", lambda attempt, rank: _host_list(attempt), _OF_CLUSTERS, "several nodes"),
    Variable("MLFLOW_TRACKING_URI", lambda attempt, rank: attempt.run.tracking_uri, _MLFLOW),
    Variable("MLFLOW_TRACKING_TOKEN", lambda attempt, rank: "local", _MLFLOW),
    Variable("MLFLOW_RUN_ID", lambda attempt, rank: attempt.run.run_id, _MLFLOW),
    Variable("MLFLOW_EXPERIMENT_ID", lambda attempt, rank: attempt.run.experiment_id, _MLFLOW),
    Variable("MLFLOW_EXPERIMENT_NAME", lambda attempt, rank: attempt.run.experiment, _MLFLOW),
    # MLflow 3 refuses its file store without it; the store is ours, so the permission is too.
    Variable("MLFLOW_ALLOW_FILE_STORE", lambda attempt, rank: "true", LOCAL),
    # This machine acts as several nodes, or has too few GPUs: a node sees only its own, which may be none.
    Variable(VISIBLE_DEVICES, lambda attempt, rank: ",".join(attempt.gpus_of(rank)), LOCAL, "GPUs divided"),
    # A shell believes it, and so names the folder by the path that jobs see, not by the one that a link leads to.
    Variable("PWD", lambda attempt, rank: attempt.working_folder(attempt.node_of(rank)), LOCAL),
    # How many devices the CPU stands in for.
    Variable(
        "TRAINYARD_WITHOUT_GPUS", lambda attempt, rank: attempt.job.counts.processes_per_node, LOCAL, "without GPUs"
    ),
    Variable("TORCHDYNAMO_DISABLE", lambda attempt, rank: "1", LOCAL, "without GPUs"),
    # Without it a killed rank loses its last lines, and the live display has nothing to show.
    Variable("PYTHONUNBUFFERED", lambda attempt, rank: "1", LOCAL),
    # On Azure a job asks 169.254.169.254, an address that nobody here can answer at.
    Variable("SCHEDULED_EVENTS_URL", lambda attempt, rank: attempt.events_url, LOCAL, "preemption rehearsed"),
)
"""Those of every distribution; the others are in `local_distributions.py`."""


def _host_list(attempt: Attempt) -> str:
    """An address of this machine for each node: all of 127.0.0.0/8 are its own, on Linux (ip(7))."""
    first, apart = ipaddress.IPv4Address(NODE_ADDRESS), int(sys.platform == "linux")
    return ",".join(str(first + node * apart) for node in range(attempt.job.counts.nodes))


def _process_name(attempt: Attempt, rank: int) -> str:
    """`rank_N` if the ranks know of each other, else `main`."""
    know_each_other = attempt.job.distribution is not None and attempt.job.processes > 1
    return f"rank_{rank}" if know_each_other else "main"


def _machine(attempt: Attempt, rank: int) -> str:
    """The machine, as JSON."""
    resources = attempt.job.resources
    named = resources.instance_type if resources is not None else None
    machine = {
        "cluster_name": "local",
        "node_id": f"local_{attempt.node_of(rank)}",
        "run_attempt_count": attempt.number,
        "gpu_count": len(attempt.gpus_of(rank)),
        "vm_size": str(named.data) if named is not None else "local",
        "vm_priority": "Dedicated",
    }
    return json.dumps(machine)


# One variable per port: prefix + the port's name.
_INPUT_PREFIXES = ("AZURE_ML_INPUT_", "AZUREML_DATAREFERENCE_")
_OUTPUT_PREFIXES = ("AZURE_ML_OUTPUT_", "")
_PARAMETER_PREFIX = "AZUREML_PARAMETER_"
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
    attempt: Attempt, rank: int, of_distribution: Sequence[Variable], inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return the whole environment of one process: what the machine or the image gives, the contract, and its own.

    `inherited` is the runner's environment, of which a job gets what describes this machine, with the folder of its
    Python first on PATH. In a container it gets the way to the network and the GPUs, which it shares with this machine.
    """
    if attempt.image is not None:
        shared = _PROXIES | {VISIBLE_DEVICES}
        environment = dict(attempt.image.environment)
        environment |= {name: value for name, value in inherited.items() if name in shared}
    else:
        environment = {
            name: value
            for name, value in inherited.items()
            if name in _OF_THE_MACHINE or name.startswith(_PREFIXES_OF_THE_MACHINE)
        }
        environment["PATH"] = job_path(attempt.python, inherited.get("PATH"))
    environment |= _contract(attempt, rank, of_distribution) | attempt.job.environment_variables
    if attempt.without_gpus:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(WITHOUT_GPUS), environment.get("PYTHONPATH")]))
    return environment


def _contract(attempt: Attempt, rank: int, of_distribution: Sequence[Variable]) -> dict[str, str]:
    """The variables of the tables, and those of the job's ports."""
    several_nodes = attempt.job.counts.nodes > 1
    holds: dict[When, bool] = {
        "every job": True,
        "several nodes": several_nodes,
        "one node": not several_nodes,
        "GPUs divided": attempt.gpus_of(rank) != attempt.gpus,
        "preemption rehearsed": attempt.events_url is not None,
        "without GPUs": attempt.without_gpus,
    }
    table = (*VARIABLES, *of_distribution)
    variables = {variable.name: str(variable.value(attempt, rank)) for variable in table if holds[variable.when]}
    for name in attempt.input_paths:
        variables |= {prefix + name: str(attempt.given_inputs[name]) for prefix in _INPUT_PREFIXES}
    for name, path in attempt.output_paths.items():
        variables |= {prefix + name: str(path) for prefix in _OUTPUT_PREFIXES}
    for name, value in attempt.parameters.items():
        variables[_PARAMETER_PREFIX + name] = str(value)
    return variables
