"""An MPI job under a real `mpirun`, where this machine has Open MPI's: programs that call MPI_Init need one."""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from trainyard.rehearse.errors import UsageError
from trainyard.rehearse.kinds import mpi_rank
from trainyard.rehearse.processes import ProcessesEnded, ProcessStart

_OPTIONS = ("--allow-run-as-root", "--oversubscribe", "--bind-to", "none")
_FAILED_RANK = re.compile(r"Process name: \[\S+,(\d+)\]")
_KILLED_RANK = re.compile(r"process rank (\d+) with PID \d+ on node \S+ exited on signal (\d+)")


@functools.cache
def open_mpi() -> str | None:
    """Return the path of Open MPI's `mpirun`, which is what Azure ML requires of an image; None without one."""
    program = shutil.which("mpirun")
    if program is None:
        return None
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return program if "Open MPI" in answer.stdout else None


def check_open_mpi() -> None:
    """Raise `UsageError` if the `mpirun` that jobs are started with starts nothing: it refuses root, or is broken."""
    program = open_mpi()
    refusal = None if program is None else _refusal(program)
    if refusal is not None:
        raise UsageError(
            f"jobs with `distribution: type: mpi` cannot start: {program}: {refusal}; find out with `mpirun "
            f"{_OPTIONS[0]} -n 1 true`, or take it from PATH, and jobs have Open MPI's variables only"
        )


@functools.cache
def _refusal(program: str) -> str | None:
    """Return the first sentence that `mpirun` says where it cannot start a program; None where it can."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("OMPI_")}
    tried = subprocess.run(
        [program, *_OPTIONS, "-n", "1", "true"], env=variables, capture_output=True, text=True, check=False
    )
    if tried.returncode == 0:
        return None
    said = " ".join((tried.stderr + tried.stdout).replace("-", " ").split())
    return said.partition(". ")[0].strip(".") or f"exit code {tried.returncode}"


def under_mpirun(program: str, starts: Sequence[ProcessStart], data_folder: Path, log: Path) -> ProcessStart:
    """Return the one process that starts all ranks; raise OSError if their list cannot be written."""
    described = [
        {
            "command": start.command,
            "environment": dict(start.environment),
            "working_folder": str(start.working_folder),
            "log": str(start.log),
            "shell": start.shell,
        }
        for start in starts
    ]
    file = data_folder / "mpi_ranks.json"
    file.write_text(json.dumps(described), encoding="utf-8")
    rank_program = str(Path(mpi_rank.__file__).resolve())
    line = shlex.join([program, *_OPTIONS, "-n", str(len(starts)), "python", rank_program, str(file)])
    first = starts[0]
    variables = {name: value for name, value in first.environment.items() if not name.startswith("OMPI_")}
    return ProcessStart(0, f"exec {line}", variables, first.working_folder, log)


def by_rank(ended: ProcessesEnded, log: Path, processes: int) -> ProcessesEnded:
    """Return how the ranks ended, from how `mpirun` did: it exits with the code of the first that failed."""
    code = ended.exit_codes.get(0, 0)
    if code == 0 and ended.failed_rank is None:
        ended.exit_codes = dict.fromkeys(range(processes), 0) if ended.exit_codes else {}
        return ended
    said = log.read_text(encoding="utf-8", errors="replace")
    rank = 0
    if failed := _FAILED_RANK.search(said):
        rank = int(failed[1])
    elif killed := _KILLED_RANK.search(said):
        rank, code = int(killed[1]), -int(killed[2])
    ended.exit_codes = {rank: code}
    ended.failed_rank = rank if ended.failed_rank is not None else None
    return ended
