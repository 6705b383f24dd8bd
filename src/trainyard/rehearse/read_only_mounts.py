"""Read-only inputs for root: mounted over themselves, where only the processes of the job see it.

Azure ML mounts inputs so: https://learn.microsoft.com/azure/machine-learning/how-to-read-write-data-v2#modes
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

# A mount that fails leaves the input as it is: what the job wrote to it is looked for when it has ended.
_MOUNT_AND_RUN = (
    'mount=$1; shift; for place; do shift; [ "$place" = -- ] && break; '
    '"$mount" -o bind,ro "$place" "$place" 2>/dev/null; done; exec "$@"'
)


def read_only_prefix(places: Sequence[Path]) -> tuple[str, ...]:
    """Return the words before a command that runs it with these files and folders read-only; none where it cannot.

    The command keeps the process id, and its mounts end with the last process that it leaves. Others than root need no
    mounts: they cannot write to the files, and what they add to a folder is found when the job has ended.
    """
    programs = tuple(shutil.which(program) for program in ("unshare", "sh", "mount"))
    if not places or os.geteuid() != 0 or None in programs:
        return ()
    prefix = tuple(map(str, programs))
    return _prefix(prefix, places) if _can_mount(prefix) else ()


def _prefix(programs: tuple[str, ...], places: Sequence[Path]) -> tuple[str, ...]:
    unshare, shell, mount = programs
    return (unshare, "--mount", "--", shell, "-c", _MOUNT_AND_RUN, shell, mount, *map(str, places), "--")


@functools.cache
def _can_mount(programs: tuple[str, ...]) -> bool:
    """Whether root may mount here, as most containers do not allow, and this mount(8) knows how."""
    with tempfile.TemporaryDirectory() as folder:
        writing = [*_prefix(programs, [Path(folder)]), "touch", f"{folder}/file"]
        tried = subprocess.run(writing, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}, check=False)
    return "Read-only file system" in tried.stderr
