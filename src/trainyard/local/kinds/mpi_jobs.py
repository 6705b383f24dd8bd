"""An MPI job under a real `mpirun`, where this machine has Open MPI's: programs that call MPI_Init need one."""

from __future__ import annotations

import functools
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from trainyard.local.kinds import mpi_rank
from trainyard.local.processes import ProcessesEnded, ProcessStart

_FAILED_RANK = re.compile(r"Process name: \[\S+,(\d+)\]")


@functools.cache
def open_mpi() -> str | None:
    """Return the path of Open MPI's `mpirun`, which is what Azure ML requires of an image; None without one."""
    program = shutil.which("mpirun")
    if program is None:
        return None
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return program if "Open MPI" in answer.stdout else None


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
    options = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(len(starts))]
    line = shlex.join([program, *options, "python", rank_program, str(file)])
    first = starts[0]
    variables = {name: value for name, value in first.environment.items() if not name.startswith("OMPI_")}
    return ProcessStart(0, f"exec {line}", variables, first.working_folder, log)


def by_rank(ended: ProcessesEnded, log: Path, processes: int) -> ProcessesEnded:
    """Return how the ranks ended, from how `mpirun` did: it exits with the code of the first that failed."""
    code = ended.exit_codes.get(0, 0)
    if code == 0 and ended.failed_rank is None:
        ended.exit_codes = dict.fromkeys(range(processes), 0) if ended.exit_codes else {}
        return ended
    named = _FAILED_RANK.search(log.read_text(encoding="utf-8", errors="replace"))
    rank = int(named[1]) if named else 0
    ended.exit_codes = {rank: code}
    ended.failed_rank = rank if ended.failed_rank is not None else None
    return ended
