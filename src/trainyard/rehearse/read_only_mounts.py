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

# A mount that fails leaves the input as it is: what the job wrote to it is looked for when it has ended.
_MOUNT_AND_RUN = (
    'mount=$1; shift; for place; do shift; [ "$place" = -- ] && break; '
    '"$mount" -o bind,ro "$place" "$place" 2>/dev/null; done; exec "$@"'
)


def read_only_prefix(places: Sequence[str]) -> tuple[str, ...]:
    """Return the words before a command that runs it with these files and folders read-only; none where it cannot.

    The command keeps the process id, and its mounts end with the last process that it leaves. Others than root need no
    mounts: they cannot write to the files, and what they add to a folder is found when the job has ended.
    """
    unshare, shell, mount = (shutil.which(program) or "" for program in ("unshare", "sh", "mount"))
    words = (unshare, "--mount", "--", shell, "-c", _MOUNT_AND_RUN, shell, mount)
    can_mount = places and os.geteuid() == 0 and unshare and mount and _works(words)
    return (*words, *places, "--") if can_mount else ()


@functools.cache
def _works(words: tuple[str, ...]) -> bool:
    """Whether root may mount here, as most containers do not allow, and this mount(8) knows how."""
    with tempfile.TemporaryDirectory() as folder:
        writing = [*words, folder, "--", "sh", "-c", 'touch "$0/file" || echo refused', folder]
        tried = subprocess.run(writing, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
        return tried.stdout == "refused\n"
