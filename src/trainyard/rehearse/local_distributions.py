"""What each distribution needs of this machine: its variables, `mpirun`, a cluster of Ray."""

from __future__ import annotations

import functools
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from trainyard.rehearse.command import PROGRAMS
from trainyard.rehearse.errors import UsageError, error_at
from trainyard.rehearse.job_variables import CHEATSHEET, DISTRIBUTED_DOCS, LOCAL, NODE_ADDRESS, Variable
from trainyard.rehearse.machine import job_path
from trainyard.rehearse.rank_processes import Process, ProcessesEnded
from trainyard.settings.regex import regex
from trainyard.spec.distributions import Ray
from trainyard.spec.model import Distribution, DistributionType

if TYPE_CHECKING:
    from trainyard.rehearse.attempts import Attempt

_OPTIONS = ("--allow-run-as-root", "--oversubscribe", "--bind-to", "none")
_FAILED_RANK = regex(r"Process name: \[\S+,(\d+)\]")
_KILLED_RANK = regex(r"process rank (\d+) with PID \d+ on node \S+ exited on signal (\d+)")

# Waits until as many nodes as given have joined.
_WAIT_FOR_NODES = """\
import sys, time, ray
end = time.monotonic() + float(sys.argv[3])
ray.init(address=sys.argv[1], logging_level="ERROR")
while (found := sum(node["Alive"] for node in ray.nodes())) < int(sys.argv[2]):
    if time.monotonic() > end:
        sys.exit(f"{found} of {sys.argv[2]} nodes have joined Ray within {sys.argv[3]} seconds")
    time.sleep(0.1)
"""
# Waits until Ray listens on the head, without a shell's own way to connect, which sh does not have.
_WAIT_FOR_HEAD = """\
import socket, sys, time
host, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
end = time.monotonic() + seconds
while True:
    try:
        socket.create_connection((host, port), timeout=1).close()
        break
    except OSError as error:
        if time.monotonic() > end:
            sys.exit(f"error: Ray does not listen on {host}:{port} after {seconds:g} seconds: {error}")
        time.sleep(0.2)
"""


class LocalDistribution:
    """How the processes of a job are started here and find each other."""

    variables: tuple[Variable, ...] = ()
    """What Azure ML sets for each process, besides the variables of every job."""

    def check(self, job: str, distribution: Distribution, python: Path) -> None:
        """Raise `SpecError` or `UsageError` if jobs with this Python cannot be started."""
        program = distribution.program
        if program is not None and shutil.which(program, path=job_path(python, os.environ.get("PATH"))) is None:
            raise error_at(
                distribution.span,
                f"job {job!r}: distribution '{distribution.type}' needs {program}, which {python} does not have",
                f"install {program} for it, or name another with --python PATH",
            )

    def arranged(
        self, attempt: Attempt, processes: Sequence[Process], stack: ExitStack
    ) -> tuple[Sequence[Process], Sequence[Path]]:
        """Return what is started for these ranks, and the folders that their containers write besides the job's."""
        return processes, ()

    def ended(self, attempt: Attempt, processes: ProcessesEnded) -> ProcessesEnded:
        """Return how the ranks ended, from how what was started did."""
        return processes


class PyTorchHere(LocalDistribution):
    """Ranks meet at the address of rank 0."""

    variables = (
        Variable("MASTER_ADDR", lambda attempt, rank: NODE_ADDRESS, DISTRIBUTED_DOCS),
        Variable("MASTER_PORT", lambda attempt, rank: attempt.master_port, CHEATSHEET),
        Variable("WORLD_SIZE", lambda attempt, rank: attempt.job.processes, DISTRIBUTED_DOCS),
        Variable("NODE_RANK", lambda attempt, rank: attempt.node_of(rank), DISTRIBUTED_DOCS),
        Variable("RANK", lambda attempt, rank: rank, DISTRIBUTED_DOCS),
        Variable("LOCAL_RANK", lambda attempt, rank: attempt.local_rank(rank), DISTRIBUTED_DOCS),
    )


class TensorFlowHere(LocalDistribution):
    """Tasks know each other's addresses; parameter servers are the last ranks."""

    variables = (Variable("TF_CONFIG", lambda attempt, rank: tf_config(attempt, rank), DISTRIBUTED_DOCS),)


def tf_config(attempt: Attempt, rank: int) -> str:
    """Return TensorFlow's cluster and this task's place in it, as JSON."""
    counts = attempt.job.counts
    workers = counts.training_processes
    hosts = [f"{NODE_ADDRESS}:{port}" for port in attempt.ports]
    cluster = {"worker": hosts[:workers]}
    if counts.parameter_servers:
        cluster["ps"] = hosts[workers:]
    task = {"type": "worker", "index": rank} if rank < workers else {"type": "ps", "index": rank - workers}
    return json.dumps({"cluster": cluster, "task": task, "environment": "cloud"})


class MpiHere(LocalDistribution):
    """A real `mpirun` starts the ranks, where there is Open MPI's: programs that call MPI_Init need one.

    It starts a program for each rank that takes its environment, folder, log and command from a list.
    """

    variables = (
        Variable("OMPI_COMM_WORLD_RANK", lambda attempt, rank: rank, CHEATSHEET),
        Variable("OMPI_COMM_WORLD_SIZE", lambda attempt, rank: attempt.job.processes, CHEATSHEET),
        Variable("OMPI_COMM_WORLD_LOCAL_RANK", lambda attempt, rank: attempt.local_rank(rank), CHEATSHEET),
        # The rank within the node, in spite of its name; `mpirun` takes this machine for one node.
        Variable("OMPI_COMM_WORLD_NODE_RANK", lambda attempt, rank: attempt.local_rank(rank), CHEATSHEET),
        Variable("OMPI_COMM_WORLD_LOCAL_SIZE", lambda attempt, rank: attempt.job.counts.processes_per_node, CHEATSHEET),
        Variable(
            "AZ_BATCH_MASTER_NODE",
            lambda attempt, rank: f"{NODE_ADDRESS}:{attempt.master_port}",
            f"{CHEATSHEET}; DeepSpeed comm.py",
            "several nodes",
        ),
        Variable(
            "AZ_BATCHAI_MPI_MASTER_NODE",
            lambda attempt, rank: NODE_ADDRESS,
            "DeepSpeed comm.py mpi_discovery()",
            "one node",
        ),
    )

    def check(self, job: str, distribution: Distribution, python: Path) -> None:
        """Raise `UsageError` if the `mpirun` that starts jobs starts nothing: it refuses root, or is broken."""
        program = _open_mpi()
        refusal = _refusal(program) if program is not None else None
        if refusal is not None:
            raise UsageError(
                f"jobs with `distribution: type: mpi` cannot start: {program}: {refusal}; find out with `mpirun "
                f"{_OPTIONS[0]} -n 1 true`, or take it from PATH, and jobs have Open MPI's variables only"
            )

    def arranged(
        self, attempt: Attempt, processes: Sequence[Process], stack: ExitStack
    ) -> tuple[Sequence[Process], Sequence[Path]]:
        """Return `mpirun` for all ranks, or the ranks themselves without it."""
        program = self._program(attempt)
        if program is None:
            attempt.note_decision("mpi: no mpirun of Open MPI, its variables only")
            return processes, ()
        attempt.note_decision(f"mpi: started by {program}")
        described = [{**vars(process), "environment": dict(process.environment)} for process in processes]
        file = attempt.job_folder / "data" / "mpi_ranks.json"
        file.write_text(json.dumps(described, default=str), encoding="utf-8")
        ranks = ["-n", str(len(processes)), "python", str(PROGRAMS / "mpi_rank.py"), str(file)]
        line = shlex.join([program, *_OPTIONS, *ranks])
        first = processes[0]
        variables = _without_mpi(first.environment)
        return [Process(0, f"exec {line}", variables, first.working_folder, _mpi_log(attempt))], ()

    def ended(self, attempt: Attempt, processes: ProcessesEnded) -> ProcessesEnded:
        """Return how the ranks ended: `mpirun` exits with the code of the first that failed, and prints its rank.

        Mostly: now and then it ends before it has printed that. Then it is the rank that wrote last, its error.
        """
        if self._program(attempt) is None:
            return processes
        code = processes.exit_codes.get(0, 0)
        if code == 0 and processes.failed_rank is None:
            if processes.exit_codes:
                processes.exit_codes = dict.fromkeys(range(attempt.job.processes), 0)
            return processes
        said = _mpi_log(attempt).read_text(encoding="utf-8", errors="replace")
        logs = attempt.logs
        rank = max(range(len(logs)), key=lambda rank: _written_at(logs[rank]))
        if failed := _FAILED_RANK.search(said):
            rank = int(failed[1])
        elif killed := _KILLED_RANK.search(said):
            rank, code = int(killed[1]), -int(killed[2])
        processes.exit_codes = {rank: code}
        processes.failed_rank = rank if processes.failed_rank is not None else None
        return processes

    @staticmethod
    def _program(attempt: Attempt) -> str | None:
        """Open MPI's program that starts the ranks, in the job's image where it has one."""
        if attempt.image is None:
            return _open_mpi()
        return "mpirun" if attempt.image.has_open_mpi else None


def _written_at(log: Path) -> int:
    """When a log was last written, in nanoseconds; 0 for an empty one, which a slow rank may create last."""
    found = log.stat() if log.exists() else None
    return found.st_mtime_ns if found is not None and found.st_size else 0


def _open_mpi() -> str | None:
    """Return the path of Open MPI's `mpirun`, which is what Azure ML requires of an image; None without one."""
    program = shutil.which("mpirun")
    return program if program is not None and _is_open_mpi(program) else None


@functools.cache
def _is_open_mpi(program: str) -> bool:
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return "Open MPI" in answer.stdout


@functools.cache
def _refusal(program: str) -> str | None:
    """Return the first sentence that `mpirun` says where it cannot start a program; None where it can."""
    tried = subprocess.run(
        [program, *_OPTIONS, "-n", "1", "true"],
        env=_without_mpi(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode == 0:
        return None
    said = " ".join((tried.stderr + tried.stdout).replace("-", " ").split())
    return said.partition(". ")[0].strip(".") or f"exit code {tried.returncode}"


def _without_mpi(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith("OMPI_")}


def _mpi_log(attempt: Attempt) -> Path:
    return attempt.job_folder / "system_logs" / "mpirun.log"


class RayHere(LocalDistribution):
    """A cluster of Ray with the job's nodes, whose head runs the command.

    Azure ML documents no more than the keys (azure-ai-ml 1.35.2, RayDistribution). Here all nodes have one address, so
    the job finds its own cluster by RAY_ADDRESS, and Ray's port is a free one.
    """

    variables = (
        # Several clusters of Ray may run on this machine, and `ray.init()` takes any of them.
        Variable("RAY_ADDRESS", lambda attempt, rank: f"{NODE_ADDRESS}:{attempt.master_port}", LOCAL),
    )

    def __init__(self, start_seconds: float = 300) -> None:
        # How long Ray may take to start on the head, and then to find all nodes: many times what it takes.
        self._start_seconds = f"{start_seconds:g}"

    def arranged(
        self, attempt: Attempt, processes: Sequence[Process], stack: ExitStack
    ) -> tuple[Sequence[Process], Sequence[Path]]:
        """Return the nodes: the head starts Ray, waits for the others and runs its command; they serve it."""
        distribution = attempt.job.distribution
        assert isinstance(distribution, Ray)
        # For Ray's sockets, whose paths must be short.
        temporary = Path(stack.enter_context(TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)))
        log = attempt.job_folder / "system_logs" / "ray_head.log"
        head = self.head_command(distribution, attempt.master_port, len(processes), temporary, log)
        node = self.node_command(distribution, attempt.master_port)
        first, *others = processes
        nodes = [replace(other, command=node) for other in others]
        return [replace(first, command=f"{head}\n{first.command}"), *nodes], [temporary]

    def head_command(self, distribution: Ray, port: int, nodes: int, temporary: Path, log: Path) -> str:
        """Return the line that starts Ray on the head and waits for all nodes; what it prints goes into the log."""
        dashboard = str(distribution.include_dashboard).lower()
        head = ["--head", f"--port={port}", f"--temp-dir={temporary}", f"--include-dashboard={dashboard}"]
        start = f"{self._start(*head)} {distribution.head_arguments}".rstrip()
        wait = shlex.join(["python", "-c", _WAIT_FOR_NODES, f"{NODE_ADDRESS}:{port}", str(nodes), self._start_seconds])
        to_log = f">> {shlex.quote(str(log))} 2>&1"
        failed = f"{{ echo {shlex.quote(f'error: Ray did not start; see {log}')} >&2; exit 1; }}"
        return f"{start} {to_log} && {wait} {to_log} || {failed}"

    def node_command(self, distribution: Ray, port: int) -> str:
        """Return the line that serves the head from another node, until it ends."""
        until_head_listens = shlex.join(["python", "-c", _WAIT_FOR_HEAD, NODE_ADDRESS, str(port), self._start_seconds])
        start = self._start(f"--address={NODE_ADDRESS}:{port}", "--block")
        return f"{until_head_listens} && exec {start} {distribution.worker_arguments}".rstrip()

    @staticmethod
    def _start(*words: str) -> str:
        common = ["ray", "start", "--disable-usage-stats", f"--node-ip-address={NODE_ADDRESS}"]
        return shlex.join([*common, *words])


_HERE: Mapping[DistributionType, LocalDistribution] = {
    "pytorch": PyTorchHere(),
    "mpi": MpiHere(),
    "tensorflow": TensorFlowHere(),
    "ray": RayHere(),
}


def local_distribution(distribution: Distribution | None) -> LocalDistribution:
    """Return what a distribution needs here; without one, processes know nothing of each other."""
    return _HERE[distribution.type] if distribution is not None else LocalDistribution()
