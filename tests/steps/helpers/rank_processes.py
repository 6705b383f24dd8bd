"""Steps as real processes, with the variables that Azure ML gives them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

TESTS = Path(__file__).parent
SOURCE = TESTS.parents[2] / "src"
LIMIT_SECONDS = 400


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@dataclass
class Ranks:
    """The processes of one distributed step, one output each."""

    processes: list[subprocess.Popen[str]] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)

    def wait(self, limit_seconds: float = LIMIT_SECONDS) -> list[int]:
        """Exit codes by rank; no process outlives the limit."""
        end = time.monotonic() + limit_seconds
        try:
            said = [process.communicate(timeout=end - time.monotonic())[0] for process in self.processes]
        finally:
            self.kill()
        self.outputs = [without_greetings(output) for output in said]
        return [process.returncode for process in self.processes]

    def kill(self) -> None:
        """End whatever still runs."""
        for process in self.processes:
            process.kill()
            process.wait()

    def signal(self, rank: int, number: signal.Signals) -> None:
        """Send a signal to one rank."""
        self.processes[rank].send_signal(number)


def without_greetings(output: str) -> str:
    """The output of a step, without the lines that Gloo prints about each new group (seen in torch 2.8)."""
    return "".join(line for line in output.splitlines(keepends=True) if not line.startswith("[Gloo] Rank "))


def rank_variables(rank: int, world_size: int, port: int, nodes: int = 1) -> dict[str, str]:
    """What Azure ML sets for `distribution: type: pytorch`, on nodes that are all this machine."""
    node, local_rank = divmod(rank, world_size // nodes)
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(world_size),
        "NODE_RANK": str(node),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "AZUREML_NODE_COUNT": str(nodes),
    }


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This environment without variables that affect a step, with the source and the tests' tasks on the path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "COV"))}
    return {**kept, "PYTHONPATH": f"{SOURCE}{os.pathsep}{TESTS}", "OMP_NUM_THREADS": "1", **(extra or {})}


def start_ranks(
    step: str,
    arguments: Sequence[object],
    world_size: int,
    *,
    environment: Mapping[str, str] | None = None,
    delayed_rank: int | None = None,
    nodes: int = 1,
    python: Path = Path(sys.executable),
) -> Ranks:
    """Start a step, or a script of the tests, as so many processes; `delayed_rank` comes two seconds after.

    Where nothing depends on how a process begins, the fixture `forked_python` spares them their imports.
    """
    ranks = Ranks()
    port = free_port()
    module = step if (TESTS / f"{step}.py").is_file() else f"trainyard.steps.{step}"
    command = [python, "-m", module, *[str(argument) for argument in arguments]]
    order = sorted(range(world_size), key=lambda rank: rank == delayed_rank)
    by_rank = {}
    for rank in order:
        if rank == delayed_rank:
            time.sleep(2)
        by_rank[rank] = subprocess.Popen(
            command,
            env={**clean_environment(), **rank_variables(rank, world_size, port, nodes), **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    ranks.processes = [by_rank[rank] for rank in range(world_size)]
    return ranks


def training_arguments(data: Path, out: Path, task: str = "tiny_task:TinyTask", *more: object) -> list[object]:
    """The flags of a small training into a folder."""
    return [
        *("--data", data, "--model", out / "model", "--checkpoints", out / "checkpoints", "--metrics", out / "metrics"),
        *("--task", task, "--epochs", 1, *more),
    ]
