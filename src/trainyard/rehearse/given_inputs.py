"""The inputs of a job as it sees them: under `INPUT_<name>` of its own data folder.

Links to where the data lies would not do: libraries that resolve paths refuse a link out of the folder (MLflow), and
tools copy the link instead of the data (`cp -r`). Nor may a job change data that others read. So an input is copied; a
large one is linked file by file, and whether the job wrote to it is found out afterwards. Files are read-only, folders
are not: a job that copies a folder goes on to write to its copy, as root can on Azure ML.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trainyard.settings.files import files_beneath

# Copying this much takes a second or two.
_LARGEST_COPY_BYTES = 1 << 30
_WRITE_BITS = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True)
class GivenInput:
    """One input in place, and how it got there; `linked` are the files that are the original ones, with their state."""

    name: str
    how: str
    linked: tuple[tuple[Path, int, int], ...] = ()

    def changed(self) -> Path | None:
        """Return a file of the original data that was written to since; None if there is none."""
        for file, size, modified_ns in self.linked:
            status = file.stat() if file.exists() else None
            if status is None or (status.st_size, status.st_mtime_ns) != (size, modified_ns):
                return file
        return None


def place_of_input(data_folder: Path, name: str, source: Path) -> Path:
    """Return `INPUT_<name>`, or for a file its own name within that folder, which keeps its extension."""
    place = data_folder / f"INPUT_{name}"
    return place / source.name if source.is_file() else place


def give_input(name: str, source: Path, place: Path) -> GivenInput:
    """Put a file or folder in place, its files read-only; links in it are followed. Raise OSError when that fails."""
    files = [(source, "")] if source.is_file() else list(files_beneath(source))
    statuses = [file.stat() for file, _ in files]
    size_bytes = sum(status.st_size for status in statuses)
    (place.parent if source.is_file() else place).mkdir(parents=True, exist_ok=True)
    targets = [place / relative if relative else place for _, relative in files]
    for target in targets:
        target.parent.mkdir(parents=True, exist_ok=True)
    linked = size_bytes > _LARGEST_COPY_BYTES and _linked((file for file, _ in files), targets)
    if not linked:
        for (file, _), target in zip(files, targets, strict=True):
            shutil.copy2(file, target)
            target.chmod(target.stat().st_mode & ~_WRITE_BITS)
        return GivenInput(name, f"{len(files)} files, {size_bytes} bytes, copied")
    states = tuple((file, s.st_size, s.st_mtime_ns) for (file, _), s in zip(files, statuses, strict=True))
    return GivenInput(name, f"{len(files)} files, {size_bytes} bytes, hard-linked", states)


def take_back_inputs(data_folder: Path) -> None:
    """Remove what was given; the originals stay. Copies of data would double the size of a run."""
    for place in data_folder.glob("INPUT_*"):
        shutil.rmtree(place, ignore_errors=True)


def _linked(files: Iterable[Path], targets: Iterable[Path]) -> bool:
    """Hard-link files; False, with nothing in place, where the system cannot (another file system)."""
    done: list[Path] = []
    try:
        for file, target in zip(files, targets, strict=True):
            os.link(os.path.realpath(file), target)
            done.append(target)
    except OSError:
        for target in done:
            target.unlink()
        return False
    return True
