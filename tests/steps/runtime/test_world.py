"""What a process reads about its world from the environment, and a world of one process."""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed import fake_pg

from trainyard.steps.runtime.errors import DEVICE_EXIT_CODE, MEMORY_EXIT_CODE, StepError, exit_code_of
from trainyard.steps.runtime.meeting import HashStore
from trainyard.steps.runtime.rank_variables import RankVariables
from trainyard.steps.runtime.world import World, lost_connections_explained, most_sockets
from trainyard.steps.training.randomness import random_state, restore_random_state

assert fake_pg  # its import makes the backend known


def test_a_world_of_one_sums_and_gathers_like_any_other() -> None:
    with World(timeout_seconds=10, environment={}) as world:
        assert world.is_main
        assert world.sum(torch.tensor([2.0])).tolist() == [2.0]
        assert world.gather("thing") == ["thing"]
        assert world.broadcast(Path("a")) == Path("a")
    assert not torch.distributed.is_initialized()


def test_a_world_is_left_after_an_error_too() -> None:
    with pytest.raises(StepError, match="wrong"), World(timeout_seconds=10, environment={}):
        raise StepError("wrong")
    assert not torch.distributed.is_initialized()


OPEN_FILES = """
import resource, sys
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.world import World
resource.setrlimit(resource.RLIMIT_NOFILE, (64, int(sys.argv[1])))
variables = {"RANK": "1", "WORLD_SIZE": sys.argv[2], "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
try:
    World(1, {**variables, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"} if sys.argv[2] != "1" else {})
except StepError as error:
    print(error)
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_a_process_may_open_a_socket_to_each_rank() -> None:
    """The usual soft limit is 1,024, and the hard one far higher."""
    outcome = subprocess.run(
        [sys.executable, "-c", OPEN_FILES, "512", "1"], capture_output=True, text=True, timeout=120
    )
    assert outcome.stdout == "(261, 512)\n", outcome.stderr


@pytest.mark.parametrize(("gloo", "needed"), [({}, "1,300"), ({"TORCH_GLOO_LAZY_INIT": "0"}, "1,794")])
def test_too_low_a_limit_of_open_files_is_named_before_ranks_meet(gloo: dict[str, str], needed: str) -> None:
    """Of 512 CPUs, gloo connects those a power of two apart, unless a variable asks it to connect all."""
    outcome = subprocess.run(
        [sys.executable, "-c", OPEN_FILES, "1024", "512"],
        env=os.environ | gloo,
        capture_output=True,
        text=True,
        timeout=120,
    )
    expected = f"rank 1 of 512 needs up to {needed} open files, and the hard limit is 1,024"
    assert expected in outcome.stdout, outcome.stderr


@pytest.mark.parametrize(("device", "more"), [("cpu", 8 + 64), ("cuda", 0)])
def test_groups_of_replicas_count_as_sockets(device: str, more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which gloo connects between CPUs: 8 ranks that share a model, and the 64 that hold the same shard of it."""
    variables = RankVariables(world_size=512, node_count=64)
    whole, replicas = (most_sockets(variables, on_gpu=device == "cuda", shard_size=size) for size in (0, 8))
    assert replicas - whole == more

    with World(timeout_seconds=10, environment={}) as world:
        needed = 256 + 3 * 512 + replicas  # of rank 0, which serves the store
        monkeypatch.setattr(resource, "getrlimit", lambda _: (needed - 1, needed - 1))
        of_512 = {"variables": variables, "size": 512, "device": torch.device(device)}
        with patch.multiple(world, **of_512), pytest.raises(StepError, match=f"needs up to {needed:,} open files"):
            world.allow_open_files(8)


def test_the_threads_of_worlds_that_were_left_do_not_add_up() -> None:
    def polling_threads() -> int:
        names = [(thread / "comm").read_text() for thread in Path("/proc/self/task").iterdir()]
        return names.count("gloo_tcp_loop\n")

    before = polling_threads()
    for _ in range(8):
        with World(timeout_seconds=60):
            pass

    assert polling_threads() - before <= 4


def test_processors_are_divided_unless_a_variable_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with World(timeout_seconds=10, environment={}):
        assert torch.get_num_threads() == len(os.sched_getaffinity(0))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    with World(timeout_seconds=10, environment={}):
        assert torch.get_num_threads() == 1
    torch.set_num_threads(before)


def test_groups_that_others_make_wait_as_long_as_the_ranks() -> None:
    """Those of a mesh, of DeepSpeed, of a user's code, which torch would let wait 10 minutes, or 30 over gloo."""
    with World(timeout_seconds=7, environment={}):
        group = dist.new_group([0])
        assert group._get_backend(torch.device("cpu")).options._timeout == timedelta(seconds=7)
        assert dist.distributed_c10d._get_default_timeout(dist.Backend("nccl")) == timedelta(seconds=7)


def test_only_lost_connections_are_explained() -> None:
    with (
        pytest.raises(StepError, match=r"rank 3 lost its connection to another rank.*Connection closed by peer"),
        lost_connections_explained(3),
    ):
        raise RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer")
    with pytest.raises(RuntimeError, match="shape"), lost_connections_explained(3):
        raise RuntimeError("shape mismatch")


@pytest.mark.parametrize(
    ("last_error", "expected"),
    [
        ("Cuda failure 2 'out of memory'", MEMORY_EXIT_CODE),
        ("Cuda failure 214 'uncorrectable ECC error encountered'", DEVICE_EXIT_CODE),
    ],
)
def test_what_nccl_reports_of_a_ranks_own_gpu_is_no_lost_connection(last_error: str, expected: int) -> None:
    message = f"NCCL error in: ProcessGroupNCCL.cpp:94, unhandled cuda error\nncclUnhandledCudaError\n{last_error}"
    with pytest.raises(dist.DistBackendError) as raised, lost_connections_explained(3):
        raise dist.DistBackendError(message)
    assert exit_code_of(raised.value) == expected


def test_a_tensor_in_main_memory_between_gpus_is_explained() -> None:
    """A module of the user's, where the default group is for what is on GPUs only."""
    dist.init_process_group("cuda:fake", store=HashStore(), rank=0, world_size=2)
    try:
        with pytest.raises(RuntimeError, match="move it to the GPU first") as explained, lost_connections_explained(0):
            dist.all_reduce(torch.zeros(1))
        assert explained.value.__cause__ is not None  # with the traceback, which says where
    finally:
        dist.destroy_process_group()


def test_every_generator_continues_where_it_was() -> None:
    def draw() -> list[float]:
        return [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(()).item()]

    random.gauss(0, 1)
    np.random.randn()
    state = random_state(torch.device("cpu"))
    first = draw()
    restore_random_state(state, torch.device("cpu"))
    assert draw() == first
