"""Which of the processes that train together this one is, and which ran beside it, read from the variables of whatever
started them.

Azure ML with `distribution: type: pytorch`, torchrun, and most other launchers set torch's variables; Azure ML with
`type: mpi` starts processes with Open MPI; Slurm has its own. One launcher may start another, once per node.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from trainyard.settings.files import is_private_folder, open_lock_file
from trainyard.settings.quantities import first_names
from trainyard.steps.runtime.errors import SetupError

MASTER_PORT = 6105
"""The port that Azure ML itself gives to `type: pytorch`; taken where a launcher names none."""
_TORCH_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_THIS_MACHINE = "127.0.0.1"
_LOOK_EVERY_SECONDS = 0.25
_GONE_SECONDS = 3.0
"""A rank may be started again at once, for example by a wrapper."""
_NAMED_RANKS = 8
_SAME_JOB = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
_PROCESSES = Path("/proc")
_FILES = Path(tempfile.gettempdir(), f"trainyard-joining-{os.getuid()}")
_OTHERS_BEGIN_WITHIN_SECONDS = 10.0
"""An older file is of an earlier attempt: the same process may start ranks at the same port again."""


@dataclass(frozen=True)
class RankVariables:
    """One process's place among all, and where they meet."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    node_count: int = 1
    master_address: str | None = None
    master_port: int = 0
    launcher: str = "no launcher"
    """Whose variables were taken."""

    @property
    def processes_per_node(self) -> int:
        """The number of processes per node, the same on every node."""
        return max(1, self.world_size // self.node_count)

    @property
    def node_rank(self) -> int:
        """This node's index. Ranks are counted node by node."""
        return self.rank // self.processes_per_node


@dataclass(frozen=True)
class _Launcher:
    """The variables in which a launcher states a process's place."""

    name: str
    rank: str
    world_size: str
    local_rank: str


# OMPI_COMM_WORLD_NODE_RANK is not the node's: it counts the processes within a node.
_OPEN_MPI = _Launcher("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")
_SLURM = _Launcher("Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")


def attempt_of_ranks() -> str:
    """Return the number of the attempt, where something that outlives the ranks starts them again: torchrun's agent, or
    a watcher. What an earlier attempt left in their common store is not this one's."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Return `rank 3`, `ranks 1, 4`, and of many the first few and how many more."""
    return f"rank{'s' if len(ranks) > 1 else ''} {first_names(map(str, ranks), _NAMED_RANKS)}"


def read_rank_variables(environment: Mapping[str, str]) -> RankVariables:
    """Read the variables of torch (as torchrun sets them too), Open MPI or Slurm. Without any, this process is alone.

    Torch's variables beside those of another launcher must agree with them, or come from a spawner that the other
    launcher started once per node. SetupError if variables are missing, invalid, or contradict each other.
    """
    outer = _of_open_mpi(environment) or _of_slurm(environment)
    given = [name for name in _TORCH_NAMES[:3] if name in environment]
    if outer is None:
        return _of_torch(environment) if given else RankVariables()
    if given and outer.world_size > 1:
        if outer.processes_per_node == 1 and all(environment.get(name) for name in _TORCH_NAMES):
            spawned = _of_torch(environment, outer.node_count)
            if spawned.world_size != outer.world_size:
                return _spawned_per_node(spawned, outer)
        _refuse_contradictions(environment, outer)
    elif given and _whole_number(environment, "WORLD_SIZE", 1) > 1:
        return _of_torch(environment)  # a spawner in the only process of the other launcher
    return outer


def _of_torch(environment: Mapping[str, str], node_count: int | None = None) -> RankVariables:
    missing = [name for name in _TORCH_NAMES if not environment.get(name)]
    if missing:
        raise SetupError(
            f"the environment has some of the variables of a distributed job but not {', '.join(missing)}; "
            "set all five (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) or none"
        )
    rank, local_rank, world_size, port = (
        _whole_number(environment, name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT")
    )
    _require_below(rank, world_size, "RANK", "WORLD_SIZE")
    if node_count is None:
        node_count = _whole_number(environment, "AZUREML_NODE_COUNT", 0)
    per_node = _whole_number(environment, "LOCAL_WORLD_SIZE", 0)
    if per_node:  # of torchrun, which may be started on other nodes than Azure ML counts
        _require_below(local_rank, per_node, "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        node_count = max(1, world_size // per_node)
    elif node_count and world_size % node_count == 0:
        per_node = world_size // node_count
        if local_rank >= per_node:
            raise SetupError(
                f"LOCAL_RANK={local_rank} contradicts WORLD_SIZE={world_size} on {node_count} nodes "
                f"(AZUREML_NODE_COUNT), which is {per_node} per node"
            )
    launcher = "torchrun" if "TORCHELASTIC_RUN_ID" in environment else "RANK and WORLD_SIZE"
    address = environment["MASTER_ADDR"]
    return RankVariables(rank, local_rank, world_size, max(1, node_count), address, port, launcher)


def _of_open_mpi(environment: Mapping[str, str]) -> RankVariables | None:
    if not (environment.get(_OPEN_MPI.rank) and environment.get(_OPEN_MPI.world_size)):
        return None
    per_node = _whole_number(environment, "OMPI_COMM_WORLD_LOCAL_SIZE", 1)
    found = _place(environment, _OPEN_MPI, per_node)
    if found.world_size % per_node:
        raise SetupError(
            f"OMPI_COMM_WORLD_SIZE={found.world_size} is not a multiple of OMPI_COMM_WORLD_LOCAL_SIZE={per_node}; "
            "start equally many processes on every node"
        )
    if found.local_rank != found.rank % per_node:
        raise SetupError(
            f"OMPI_COMM_WORLD_RANK={found.rank} is process {found.local_rank} of its node "
            f"(OMPI_COMM_WORLD_LOCAL_RANK); expected {found.rank % per_node}, as mpirun counts with --map-by slot"
        )
    node = environment.get("AZ_BATCH_MASTER_NODE") or environment.get("AZ_BATCHAI_MPI_MASTER_NODE")
    # The port that follows the host belongs to Azure Batch.
    host = node and re.sub(r":\d+$", "", node)
    return _meeting(environment, found, host, "Azure ML sets AZ_BATCH_MASTER_NODE")


def _of_slurm(environment: Mapping[str, str]) -> RankVariables | None:
    # Only srun sets a step: a batch script has the other variables too, though it is a single process.
    if not all(environment.get(name) for name in (_SLURM.rank, _SLURM.world_size, "SLURM_STEP_ID")):
        return None
    nodes = _whole_number(environment, "SLURM_STEP_NUM_NODES", _whole_number(environment, "SLURM_JOB_NUM_NODES", 1))
    per_node = max(1, _whole_number(environment, "SLURM_NTASKS") // max(1, nodes))
    found = _place(environment, _SLURM, per_node)
    names = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST")
    return _meeting(environment, found, names and _first_host(names), "Slurm sets SLURM_STEP_NODELIST")


def _place(environment: Mapping[str, str], launcher: _Launcher, per_node: int) -> RankVariables:
    rank, world_size = _whole_number(environment, launcher.rank), _whole_number(environment, launcher.world_size)
    local_rank = _whole_number(environment, launcher.local_rank, rank % per_node)
    _require_below(rank, world_size, launcher.rank, launcher.world_size)
    return RankVariables(rank, local_rank, world_size, max(1, world_size // per_node), launcher=launcher.name)


def _meeting(environment: Mapping[str, str], found: RankVariables, host: str | None, who_sets_it: str) -> RankVariables:
    """Add where the processes meet: what MASTER_ADDR and MASTER_PORT say, else the launcher's first node."""
    host = environment.get("MASTER_ADDR") or host or (_THIS_MACHINE if found.node_count == 1 else None)
    if host is None:
        raise SetupError(
            f"{found.launcher} started processes on {found.node_count} nodes, and no variable names the first of them "
            f"({who_sets_it}); set MASTER_ADDR"
        )
    port = _whole_number(environment, "MASTER_PORT", MASTER_PORT)
    return replace(found, master_address=host, master_port=port)


def _first_host(names: str) -> str:
    """Return the first host of Slurm's notation: `gpu[03-04,7],big1` gives gpu03."""
    prefix, bracket, rest = names.partition("[")
    if not bracket or "," in prefix:
        return names.partition(",")[0]
    numbers, _, suffix = rest.partition("]")
    return prefix + re.split("[-,]", numbers)[0] + suffix.partition(",")[0]


def _spawned_per_node(spawned: RankVariables, outer: RankVariables) -> RankVariables:
    """Return the place that a spawner gave, which another launcher started once on each of its nodes."""
    if spawned.node_count != outer.node_count or spawned.node_rank != outer.rank:
        raise SetupError(
            f"two launchers contradict each other: by {spawned.launcher} this is rank {spawned.rank} of "
            f"{spawned.world_size} (nodes: {spawned.node_count}) on node {spawned.node_rank}; by {outer.launcher} it "
            f"is on node {outer.rank} of {outer.node_count}; give the inner one the outer one's nodes (torchrun "
            "--nnodes, --node-rank), or leave it out"
        )
    return spawned


def _refuse_contradictions(environment: Mapping[str, str], outer: RankVariables) -> None:
    for name, expected in (("RANK", outer.rank), ("WORLD_SIZE", outer.world_size), ("LOCAL_RANK", outer.local_rank)):
        if environment.get(name) and _whole_number(environment, name) != expected:
            launcher = _OPEN_MPI if outer.launcher == _OPEN_MPI.name else _SLURM
            theirs = {"RANK": launcher.rank, "WORLD_SIZE": launcher.world_size, "LOCAL_RANK": launcher.local_rank}
            raise SetupError(
                f"{name}={environment[name]} contradicts {theirs[name]}={expected} of {outer.launcher}; start the "
                "processes with one launcher only, and leave torch's variables to it"
            )


def _require_below(value: int, bound: int, name: str, bound_name: str) -> None:
    if not 0 <= value < bound:
        raise SetupError(f"{name}={value} is not below {bound_name}={bound}")


def _whole_number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name)
    if not text and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError:
        raise SetupError(f"the environment variable {name}={text!r} is not a whole number") from None


@contextmanager
def restored(environment: MutableMapping[str, str], names: Collection[str]) -> Iterator[None]:
    """A context after which these variables are what they were before."""
    before = {name: environment[name] for name in names if name in environment}
    try:
        yield
    finally:
        for name in names:
            environment.pop(name, None)
        environment.update(before)


class SiblingWatch:
    """Watches in a thread, until closed, which ranks have processes on this node: one that ends before it joins the
    others could be reported by no process group.

    The kernel shows each process's environment to its user, but not what a forked one has set in it, and a rank may end
    before another looks. So each also locks a file, which it removes once it has joined: one that nobody locks is of a
    rank that ended. Only the standard library is used: watching begins before torch is imported, which takes seconds.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._job = {name: environment[name] for name in _SAME_JOB if name in environment}
        self._own_rank = environment.get("RANK")
        self._seen: dict[int, float] = {}
        """When each rank was last seen."""
        self._last_look = time.monotonic()
        self._closed = threading.Event()
        self._since = time.time() - _OTHERS_BEGIN_WITHIN_SECONDS
        self._files = re.sub(r"\W", "_", f"{os.getppid()} {self._job} {attempt_of_ranks()} ")
        self._own_file: TextIO | None = None
        if len(self._job) == len(_SAME_JOB) and (self._own_rank or "").isdigit():
            with suppress(OSError):  # no place for files: then only /proc shows who is here
                self._lock_own_file()
            self._look()
            threading.Thread(target=self._run, name="siblings", daemon=True).start()

    def gone(self) -> list[int]:
        """Return the ranks that ran on this node and do so no longer."""
        seen, last_look = dict(self._seen), self._last_look
        return sorted(rank for rank, moment in seen.items() if last_look - moment >= _GONE_SECONDS)

    def close(self) -> None:
        """Stop watching: this rank has joined the others."""
        self._closed.set()
        if self._own_file is not None:
            (_FILES / f"{self._files}{self._own_rank}").unlink(missing_ok=True)

    def _lock_own_file(self) -> None:
        _FILES.mkdir(mode=0o700, exist_ok=True)
        if is_private_folder(_FILES):
            self._own_file = open_lock_file(_FILES / f"{self._files}{self._own_rank}")
            fcntl.flock(self._own_file, fcntl.LOCK_EX)
            os.utime(self._own_file.fileno())
            for file in _FILES.iterdir():  # those of other jobs' ranks that ended before they joined
                with suppress(OSError), file.open() as opened:
                    fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    if not file.name.startswith(self._files) and file.stat().st_mtime < self._since:
                        file.unlink()

    def _run(self) -> None:
        while not self._closed.wait(_LOOK_EVERY_SECONDS):
            self._look()

    def _look(self) -> None:
        now = time.monotonic()
        for rank in _ranks_running(self._job):
            if str(rank) != self._own_rank:
                self._seen[rank] = now
        for file in _FILES.glob(f"{self._files}*") if self._own_file else ():
            rank = int(file.name.removeprefix(self._files))
            try:
                is_of_this_attempt = file.stat().st_mtime >= self._since
                with file.open() as opened:
                    fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:  # locked, or removed meanwhile
                self._seen.pop(rank, None)
            else:
                if is_of_this_attempt:
                    self._seen.setdefault(rank, now)
        self._last_look = now


def _ranks_running(job: Mapping[str, str]) -> Iterator[int]:
    """Yield the rank of each process on this node that belongs to the job and has not ended."""
    expected = {f"{name}={value}".encode() for name, value in job.items()}
    for process in _PROCESSES.glob("[0-9]*"):
        try:
            variables = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # another user's, or it has just ended
        if expected <= set(variables):
            yield from (int(text[5:]) for text in variables if text.startswith(b"RANK=") and text[5:].isdigit())


_watch: SiblingWatch | None = None


def watch_siblings() -> SiblingWatch:
    """Return this process's watch, which begins with the first call."""
    global _watch
    if _watch is None:
        _watch = SiblingWatch(os.environ)
    return _watch
