"""A process's place among the ranks, as each launcher states it, and launchers that contradict each other."""

from __future__ import annotations

import pytest

from trainyard.steps.runtime.errors import SetupError
from trainyard.steps.runtime.rank_variables import RankVariables, read_rank_variables

TORCH = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "MASTER_ADDR": "10.0.0.4", "MASTER_PORT": "6105"}
# The sixth of 2 nodes with 4 processes each. The "node rank" is of the process within its node.
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "AZ_BATCH_MASTER_NODE": "10.0.0.4:6000",
}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "gpu[03-04]",
}
# As one process on each of 2 nodes, this one on the second.
MPI_PER_NODE = OPEN_MPI | {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
}
TORCHRUN = TORCH | {"LOCAL_WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "none"}


@pytest.mark.parametrize(
    ("environment", "address", "launcher"),
    [
        (TORCH | {"AZUREML_NODE_COUNT": "2", "NODE_RANK": "1"}, "10.0.0.4", "RANK and WORLD_SIZE"),
        (TORCHRUN, "10.0.0.4", "torchrun"),
        (OPEN_MPI, "10.0.0.4", "Open MPI"),
        (OPEN_MPI | {"MASTER_ADDR": "head"}, "head", "Open MPI"),
        (OPEN_MPI | TORCH, "10.0.0.4", "Open MPI"),
        (SLURM, "gpu03", "Slurm"),
        (SLURM | {"SLURM_STEP_NODELIST": "big7,gpu[03-04]"}, "big7", "Slurm"),
        (MPI_PER_NODE | TORCHRUN, "10.0.0.4", "torchrun"),
    ],
    ids=["azure", "torchrun", "mpi", "mpi, own address", "mpi, torch agrees", "slurm", "slurm, names", "mpi, torchrun"],
)
def test_the_sixth_of_eight_processes_on_two_nodes(environment: dict[str, str], address: str, launcher: str) -> None:
    found = read_rank_variables(environment)
    assert found == RankVariables(5, 1, 8, 2, address, 6105, launcher)
    assert (found.processes_per_node, found.node_rank) == (4, 1)


def test_without_rank_variables_a_process_is_alone() -> None:
    # A batch script has Slurm's variables too, but no step: nothing was started with srun.
    batch_script = {name: value for name, value in SLURM.items() if name != "SLURM_STEP_ID"}
    for environment in ({"PATH": "/bin", "MASTER_ADDR": "ignored"}, batch_script):
        assert read_rank_variables(environment) == RankVariables()


def test_open_mpi_on_one_node_needs_no_address() -> None:
    one_node = OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "5"}
    del one_node["AZ_BATCH_MASTER_NODE"]
    found = read_rank_variables(one_node | {"MASTER_PORT": "7000"})
    assert (found.master_address, found.master_port, found.node_count) == ("127.0.0.1", 7000, 1)


def test_a_spawner_under_a_single_process_of_mpi_is_believed() -> None:
    single = MPI_PER_NODE | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    found = read_rank_variables(single | TORCH | {"AZUREML_NODE_COUNT": "1"})
    assert (found.rank, found.world_size, found.launcher) == (5, 8, "RANK and WORLD_SIZE")


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (TORCH | {"MASTER_PORT": ""}, "some of the variables of a distributed job but not MASTER_PORT; set all five"),
        (TORCH | {"RANK": "8"}, "RANK=8 is not below WORLD_SIZE=8"),
        (TORCH | {"RANK": "first"}, "the environment variable RANK='first' is not a whole number"),
        (
            TORCH | {"AZUREML_NODE_COUNT": "8"},
            "LOCAL_RANK=1 contradicts WORLD_SIZE=8 on 8 nodes .* is 1 per node",
        ),
        (TORCHRUN | {"LOCAL_RANK": "4"}, "LOCAL_RANK=4 is not below LOCAL_WORLD_SIZE=4"),
        (OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": "4"}, "OMPI_COMM_WORLD_RANK=5 is not below OMPI_COMM_WORLD_SIZE=4"),
        (OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": "9"}, "SIZE=9 is not a multiple of OMPI_COMM_WORLD_LOCAL_SIZE=4"),
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_RANK": "2"}, "WORLD_RANK=5 is process 2 of its node .* expected 1"),
        (OPEN_MPI | {"AZ_BATCH_MASTER_NODE": ""}, "on 2 nodes, and no variable names the first .* set MASTER_ADDR"),
        (OPEN_MPI | {"RANK": "1"}, "RANK=1 contradicts OMPI_COMM_WORLD_RANK=5 of Open MPI"),
        (OPEN_MPI | TORCH | {"WORLD_SIZE": "6"}, "WORLD_SIZE=6 contradicts OMPI_COMM_WORLD_SIZE=8"),
        (SLURM | TORCH | {"LOCAL_RANK": "5"}, "LOCAL_RANK=5 contradicts SLURM_LOCALID=1 of Slurm"),
        # torchrun --standalone on each of two nodes: two trainings of 4 processes that take themselves for one.
        (
            MPI_PER_NODE | TORCHRUN | {"RANK": "1", "WORLD_SIZE": "4"},
            r"by torchrun this is rank 1 of 4 \(nodes: 1\) on node 0; by Open MPI it is on node 1 of 2",
        ),
    ],
)
def test_invalid_and_contradicting_variables_are_rejected(environment: dict[str, str], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        read_rank_variables(environment)
