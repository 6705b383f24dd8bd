"""Processes that a real mpirun starts, on this machine as if it were several hosts."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from rank_processes import LIMIT_SECONDS, clean_environment, without_greetings

needs_mpirun = pytest.mark.skipif(
    shutil.which("mpirun") is None, reason="no mpirun: apt-get install openmpi-bin (Debian, Ubuntu)"
)
# In place of ssh: called with a host's name and the command to run there. Each host has its own folder for temporary
# files, as on machines of their own: two of Open MPI's daemons that make one folder at once end with "File exists".
_RUN_HERE = '#!/bin/sh\nexport TMPDIR="{folder}/$1"\nmkdir "$TMPDIR"\nshift\nexec sh -c "$*"\n'


def run_with_mpi(
    command: Sequence[object],
    folder: Path,
    *,
    hosts: int = 1,
    per_host: int = 1,
    environment: Mapping[str, str] | None = None,
    limit_seconds: float = LIMIT_SECONDS,
) -> tuple[int, str]:
    """Run a command `per_host` times on each of so many hosts. Return mpirun's exit code and what all wrote."""
    with tempfile.TemporaryDirectory(prefix="mpi-") as temporary:  # a short path, since sockets lie there
        agent = folder / "run_here.sh"
        agent.write_text(_RUN_HERE.format(folder=temporary))
        agent.chmod(0o755)
        return _run_with_mpi(command, agent, hosts, per_host, environment, limit_seconds)


def _run_with_mpi(
    command: Sequence[object],
    agent: Path,
    hosts: int,
    per_host: int,
    environment: Mapping[str, str] | None,
    limit_seconds: float,
) -> tuple[int, str]:
    names = ",".join(f"host{number}:{per_host}" for number in range(hosts)) if hosts > 1 else f"localhost:{per_host}"
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
    mpirun += ["-np", str(hosts * per_host), "-H", names, "--mca", "plm_rsh_agent", str(agent)]
    variables = clean_environment(environment)
    for name in variables:  # mpirun sends other hosts its own variables only
        if name in ("PATH", "PYTHONPATH", "OMP_NUM_THREADS", *(environment or {})):
            mpirun += ["-x", name]
    process = subprocess.Popen(
        [*mpirun, *map(str, command)],
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=limit_seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
        raise AssertionError(f"mpirun ran for more than {limit_seconds:.0f} seconds:\n{said}") from None
    return process.returncode, without_greetings(said)


def torchrun(python: Path, processes: int, port: int, module: str, *arguments: object) -> list[object]:
    """A command that starts torchrun, as one process per node does that spawns the others.

    They run with the Python that the variable PYTHON_EXEC names.
    """
    flags = ["--nproc-per-node", processes, "--master-addr", "127.0.0.1", "--master-port", port]
    return [python, "-m", "torch.distributed.run", *flags, "-m", module, *arguments]
