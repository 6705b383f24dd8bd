"""One rank that `mpirun` starts: takes its environment, folder, log and command from the list that the runner wrote.

Started by its path, in the Python of the job's environment: it imports the standard library alone.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main() -> None:
    """Become the rank's shell."""
    starts = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    start = starts[int(os.environ["OMPI_COMM_WORLD_RANK"])]
    of_mpi = {
        name: value for name, value in os.environ.items() if name.startswith(("OMPI_", "PMIX_", "PRTE_", "OPAL_"))
    }
    log = os.open(start["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(start["working_folder"])
    # Where one machine plays several nodes, ranks on a node are what the runner says.
    os.execvpe(start["shell"], [start["shell"], "-c", start["command"]], {**of_mpi, **start["environment"]})


if __name__ == "__main__":
    main()
