"""Links that a job leaves in what it wrote and that lead out of its folder: data that only this machine has.

Azure ML's storage has no links. Here, one would bring a file that the run does not hold (or the job's input, which is
removed when it ends) into later jobs, the cache and the folders of datastores.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def outward_link(written: Path, job_folder: Path) -> Path | None:
    """Return the first link, at or beneath a path, that leads out of the job's folder or to its inputs, or None."""
    home = os.path.realpath(job_folder)
    inputs = os.path.join(home, "data", "INPUT_")
    for link in _links(written):
        target = os.path.realpath(link)
        if not target.startswith(home + os.sep) or target.startswith(inputs):
            return link
    return None


def _links(path: Path) -> Iterator[Path]:
    if path.is_symlink():
        yield path
        return
    for folder, folders, files in os.walk(path):
        yield from (link for name in sorted([*folders, *files]) if (link := Path(folder, name)).is_symlink())
