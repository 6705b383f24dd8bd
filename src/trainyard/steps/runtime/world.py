"""The processes that train together: which of them this one is, and their basic collectives."""

from __future__ import annotations

import os
import re
import resource
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

from trainyard.settings.this_machine import available_processors
from trainyard.steps.runtime.errors import BUG_EXIT_CODE, LostConnection, StepError, exit_code_of, first_line
from trainyard.steps.runtime.files import require_writable
from trainyard.steps.runtime.host_group import HostGroup
from trainyard.steps.runtime.imports import python_and_packages
from trainyard.steps.runtime.long_work import peak_resident_bytes
from trainyard.steps.runtime.meeting import HashStore, Meeting
from trainyard.steps.runtime.rank_variables import RankVariables, read_rank_variables

Value = TypeVar("Value")

UNKNOWN_PERCENT = -1.0
"""Of a GPU's utilization."""
_LOST_CONNECTION_WORDS = ("/gloo/", "ncclRemoteError", "ncclSystemError")
_ONLY_NCCL = "No backend type associated with device type cpu"
"""In torch's error about a tensor in main memory that the default group was to exchange, on GPUs."""
_MEET_EVERY_SECONDS = 1.0
"""While all wait for the work of some."""

_LEFT_GROUPS: deque[list[object]] = deque(maxlen=4)
"""The process groups of the worlds that were left last, kept so that they are not torn down at once.

Gloo's threads are joined when the last reference to a group is dropped, with the GIL held (seen in torch 2.13). One of
them may still be dropping its last tensor, for which it needs the GIL too: a deadlock. A few trainings later that is
long done, and the groups can go: a thread of each polls for as long as it exists.
"""
_RECORDED_COLLECTIVES = "2000"
"""torch's recommendation, of a few hundred bytes each: docs.pytorch.org, "Flight Recorder for Debugging"."""
_RECORDER_VARIABLES = ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE")
"""The name before torch 2.10, of which later ones warn (seen in 2.11), and the one since."""
_ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_REPEATABLE_ALGORITHMS = "^NVLS,NVLSTree"
"""Sums inside NVLink's switches come in any order; NCCL chooses among its other algorithms by topology and size alone.
Megatron-LM's --deterministic-mode asks for the same."""
_OPEN_FILES, _OF_STORE_PER_RANK = 256, 3
"""Files that a rank has open in any case, and how often each rank connects to the store, which rank 0 serves."""
_ON_DEMAND = "TORCH_GLOO_LAZY_INIT"
"""Gloo then connects two ranks once they exchange something. A barrier connects those that are a power of two apart, of
which DDP's and FSDP's collectives are made, while all are here: a rank that dies later is noticed at once."""
_VISIBLE_GPUS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_PACKAGES = ("torch", "numpy", "transformers", "safetensors", "deepspeed", "mlflow-skinny")
_NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
_AMD_DRIVER = Path("/sys/module/amdgpu/version")


class World:
    """The process group of a training or evaluation; with one process, a group of one."""

    def __init__(
        self, timeout_seconds: int, environment: Mapping[str, str] = os.environ, *, uses_gpu: bool = True
    ) -> None:
        """Join the world that the environment describes. StepError if that fails."""
        self.variables = variables = read_rank_variables(environment)
        self.rank, self.size = variables.rank, variables.world_size
        self.local_rank = variables.local_rank
        self.device = torch.device("cpu")
        if uses_gpu and torch.cuda.is_available():
            self.device = torch.device("cuda", own_gpu(variables, torch.cuda.device_count(), os.environ))
            torch.cuda.set_device(self.device)
        self._driver_tells = True
        if not os.environ.get("OMP_NUM_THREADS"):
            # The node's processors are divided among its processes.
            torch.set_num_threads(max(1, available_processors() // variables.processes_per_node))
        self.timeout = timedelta(seconds=timeout_seconds)
        """How long a rank waits for the others."""
        self.allow_open_files()
        self.host = _join(variables, self.device, self.timeout)
        """All ranks, for what is in main memory."""

    def allow_open_files(self, shard_size: int = 0) -> None:
        """Let this process open as many files as it may. StepError where that is too few for its sockets."""
        of_store = _OF_STORE_PER_RANK * self.size if self.is_main else 0
        on_gpu = self.device.type == "cuda"
        needed = _OPEN_FILES + of_store + most_sockets(self.variables, on_gpu=on_gpu, shard_size=shard_size)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        if soft != resource.RLIM_INFINITY and soft < allowed:
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        if allowed < needed:
            raise StepError(
                f"rank {self.rank} of {self.size} needs up to {needed:,} open files, and the hard limit is "
                f"{hard:,}: raise it on every node (`ulimit -Hn`, LimitNOFILE of the container's service)"
            )

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which prints, logs and commits for all."""
        return self.rank == 0

    def log(self, message: str) -> None:
        """Print a line on rank 0 only."""
        if self.is_main:
            print(message, flush=True)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Return the element-wise sum over all ranks, in place."""
        if values.device.type != self.device.type:
            return self.host.sum(values)
        dist.all_reduce(values)
        return values

    def gather(self, value: Value) -> list[Value]:
        """Return the values of all ranks, by rank, on every rank. They must be small and pickle."""
        return self.host.gather(value)

    def broadcast(self, value: Value) -> Value:
        """Return rank 0's value on every rank."""
        return self.host.broadcast(value)

    def barrier(self) -> None:
        """Return once every rank has called it."""
        self.sum(torch.zeros(1, device=self.device))
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def peak_memory_bytes(self) -> int:
        """Return the peak since this process started: tensors on its GPU or, on a CPU, resident memory."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return peak_resident_bytes()

    def gpu_use(self) -> tuple[float, ...]:
        """Return in which percentage of the time this rank's GPU just computed, and how many of its bytes are taken.

        Nothing on a CPU. UNKNOWN_PERCENT without nvidia-ml-py, or where the driver does not tell (a part of a GPU).
        """
        if self.device.type != "cuda":
            return ()
        free_bytes, total_bytes = torch.cuda.mem_get_info(self.device)
        percent = UNKNOWN_PERCENT
        if self._driver_tells:
            try:
                percent = torch.cuda.utilization(self.device)
            except Exception:  # of whatever kind nvidia-ml-py raises
                self._driver_tells = False
        return percent, total_bytes - free_bytes

    def let_some_work(self, work: Callable[[], None], while_waiting: Callable[[], None], *, works: bool) -> None:
        """Let those ranks that are told so do some work for as long as it takes.

        The others meet them every second, so that no timeout counts the work; every rank calls `while_waiting` then.
        """
        with ThreadPoolExecutor(max_workers=1) as threads:
            working = [threads.submit(work)] if works else []
            # On the host, over gloo: on a GPU, NCCL's watchdog would count the wait.
            while self.sum(torch.tensor(float(len(wait(working, _MEET_EVERY_SECONDS).not_done)))).item() > 0:
                while_waiting()
            for done in working:
                done.result()

    def __enter__(self) -> World:
        return self

    def __exit__(self, exception_type: object, *_: object) -> None:
        """Leave together after success; else at once, so that the others notice."""
        if exception_type is None:
            self.barrier()
        # NCCL may wait for ranks that are gone, and the process ends soon in any case.
        if exception_type is None or self.device.type == "cpu":
            # Including those that engines and checkpoints created beside the default group.
            _LEFT_GROUPS.append(list(dist.distributed_c10d._world.pg_map))
            dist.destroy_process_group()


def own_gpu(variables: RankVariables, visible: int, environment: Mapping[str, str]) -> int:
    """Return the number of this process's GPU among those that it sees. StepError if there is none for it.

    A launcher may show each process no GPU but its own, as Slurm does with --gpus-per-task: it is then number 0.
    """
    if visible == 1 and any(environment.get(name) for name in _VISIBLE_GPUS):
        return 0
    if variables.local_rank >= visible:
        raise StepError(
            f"LOCAL_RANK={variables.local_rank} needs GPU {variables.local_rank}, but this node has only {visible}; "
            "lower process_count_per_instance to the number of GPUs"
        )
    return variables.local_rank


def most_sockets(variables: RankVariables, *, on_gpu: bool, shard_size: int = 0) -> int:
    """Return how many sockets gloo gives a rank at most: in each group one to each other rank, and one of its own.

    A training and its checkpoints have a host group each. Between CPUs of several nodes, the default group is a third.
    With a shard size, there is one of the CPUs that hold a replica, and one of those that hold the same shard.
    """
    ranks, nodes = variables.world_size, variables.node_count
    sockets = 2 * (variables.processes_per_node + (nodes if nodes > 1 else 0))
    if shard_size and not on_gpu:
        sockets += shard_size + ranks // shard_size
    if on_gpu or nodes == 1:
        return sockets
    steps = [1 << power for power in range((ranks - 1).bit_length())]
    reached = {step % ranks for each in steps for step in (each, -each)}
    return sockets + (ranks if _ON_DEMAND in os.environ else len(reached) + 1)


def _join(variables: RankVariables, device: torch.device, timeout: timedelta) -> HostGroup:
    """Make the default group, for what is on the ranks' devices. Return the one for what is in main memory."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    # Of groups that torch's meshes, DeepSpeed or a user's code make later without saying how long their ranks wait.
    vars(dist.distributed_c10d).update(default_pg_timeout=timeout, default_pg_nccl_timeout=timeout)
    meeting = None if variables.master_address is None else Meeting(variables, timeout)
    try:
        store = HashStore() if meeting is None else meeting.store()
        nodes = [[0]] if meeting is None else meeting.nodes
        on_demand = backend == "gloo" and len(nodes) > 1 and _ON_DEMAND not in os.environ
        with nullcontext() if meeting is None else meeting.ends_with_siblings():
            os.environ |= {_ON_DEMAND: "1"} if on_demand else {}
            try:
                dist.init_process_group(
                    backend, store=store, rank=variables.rank, world_size=variables.world_size, timeout=timeout
                )
            finally:
                if on_demand:
                    del os.environ[_ON_DEMAND]
            if on_demand:
                dist.barrier()
            # Between CPUs of one node, the default group connects the same ranks.
            shared = None if backend == "nccl" or len(nodes) > 1 else dist.group.WORLD
            return HostGroup(nodes, variables.rank, timeout, shared)
    except (dist.DistNetworkError, dist.DistStoreError) as failure:
        raise StepError(_why_not_joined(variables, timeout, failure)) from None


def _why_not_joined(variables: RankVariables, timeout: timedelta, failure: Exception) -> str:
    address = f"{variables.master_address}:{variables.master_port}"
    if "EADDRINUSE" in str(failure) or "address already in use" in str(failure):
        return f"rank 0 cannot listen on {address} (MASTER_ADDR:MASTER_PORT): another process uses the port"
    return (
        f"rank {variables.rank} of {variables.world_size} met no others at {address} (MASTER_ADDR:MASTER_PORT) within "
        f"{timeout.total_seconds():.0f} seconds (--process-group-timeout-seconds): {first_line(failure)}"
    )


@contextmanager
def lost_connections_explained(rank: int) -> Iterator[None]:
    """Turn what torch raises when another rank is gone into one line: this rank is not to blame."""
    try:
        yield
    except RuntimeError as failure:
        if _ONLY_NCCL in str(failure):
            raise RuntimeError(
                f"{failure}: on GPUs the default process group is NCCL's, which exchanges nothing that is in main "
                'memory; move it to the GPU first, or use a group of your own, dist.new_group(backend="gloo")'
            ) from failure
        # NCCL also reports a fault of this rank's own GPU, or that its memory is full.
        is_own = exit_code_of(failure) != BUG_EXIT_CODE
        is_lost = isinstance(failure, dist.DistError) or any(word in str(failure) for word in _LOST_CONNECTION_WORDS)
        if is_own or not is_lost:
            raise
        raise LostConnection(
            f"rank {rank} lost its connection to another rank, or waited too long for it: {first_line(failure)}"
        ) from None


@contextmanager
def ranks_joined(timeout_seconds: int, outputs: Iterable[Path], *, uses_gpu: bool = True) -> Iterator[World]:
    """Join the world that the environment describes, after a look whether outputs can be written, and log who is in it.

    A connection that is lost meanwhile is explained.
    """
    variables = read_rank_variables(os.environ)
    require_writable(outputs, variables.rank)
    with lost_connections_explained(variables.rank), World(timeout_seconds, uses_gpu=uses_gpu) as world:
        world.log(banner(world.device, variables))
        yield world


def set_gpu_defaults(environment: MutableMapping[str, str], *, deterministic: bool) -> None:
    """Set what is not set yet, before CUDA and NCCL start.

    torch's flight recorder, which the hang watch writes out; memory in segments that grow, which fragment less, where
    NVIDIA's driver has them; and NCCL's repeatable algorithms for trainings that promise the same bits each time.
    """
    if not any(name in environment for name in _RECORDER_VARIABLES):
        # Torch's version compares as a version does, not as a string.
        environment[_RECORDER_VARIABLES[torch.__version__ >= "2.10"]] = _RECORDED_COLLECTIVES
    if torch.version.hip is None and not any(name in environment for name in _ALLOCATOR_VARIABLES):
        environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    if deterministic:
        environment.setdefault("NCCL_ALGO", _REPEATABLE_ALGORITHMS)


def installed_versions() -> dict[str, str]:
    """Return the versions that a result may depend on."""
    versions = python_and_packages(_PACKAGES)
    toolkits = {"cuda": torch.version.cuda, "rocm": torch.version.hip}
    versions |= {name: number for name, number in toolkits.items() if number}
    if torch.cuda.is_available():
        versions["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
        versions["gpu"] = torch.cuda.get_device_name()
        if driver := _driver_version():
            versions["driver"] = driver
    return versions


def _driver_version() -> str | None:
    """Return the version of the GPU driver, as reported by its kernel module."""
    if _NVIDIA_DRIVER.is_file():
        found = re.search(r"\b\d+\.\d+(\.\d+)?\b", _NVIDIA_DRIVER.read_text())
        return found[0] if found else None
    return _AMD_DRIVER.read_text().strip() if _AMD_DRIVER.is_file() else None


def banner(device: torch.device, variables: RankVariables) -> str:
    """Return the first line of a log: versions, ranks, and whose variables the ranks were read from."""
    versions = ", ".join(f"{name} {number}" for name, number in installed_versions().items())
    size = variables.world_size
    ranks = f"{size} rank{'s' if size > 1 else ''} on {device.type} (from {variables.launcher})"
    return f"{versions}; {ranks}, {torch.get_num_threads()} threads each"
