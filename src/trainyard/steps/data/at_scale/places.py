"""Folders as a Spark job gets them: paths, or addresses such as azureml://… that every machine can open."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from trainyard.settings.files import os_errors_name
from trainyard.steps.data.text.source_files import RemoteFile, SourcePath, filesystem_of
from trainyard.steps.runtime.errors import StepError

_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+):/+(.+)")


def address_of(path: Path) -> str | None:
    """Return the address that a setting gives as a path, which folds its slashes; None for a path."""
    found = _ADDRESS.fullmatch(str(path))
    if found is None:
        return None
    scheme, rest = found.groups()
    return f"{scheme}:///{rest}" if scheme == "file" else f"{scheme}://{rest}"


def remote_files(address: str) -> Iterator[tuple[PurePosixPath, SourcePath]]:
    """Yield the files below an address, with their paths relative to it. StepError if there is no such folder."""
    filesystem, root = filesystem_of(address)
    if not filesystem.isdir(root):
        raise StepError(f"--source {address}: no such folder")
    scheme = address.partition("://")[0]
    for path, found in filesystem.find(root, detail=True).items():
        relative = PurePosixPath(path.lstrip("/")).relative_to(root.strip("/"))
        if not any(part.startswith(".") for part in relative.parent.parts):
            yield relative, RemoteFile(f"{scheme}://{path}", found["size"] or 0)


def fetch(folder: Path, names: tuple[str, ...], into: Path) -> Path:
    """Return a folder on this machine's disk with those of the named files that the given one has."""
    address = address_of(folder)
    if address is None:
        return folder
    for relative, file in remote_files(address):
        if str(relative) in names:
            with file.open("rb") as reading, (into / str(relative)).open("wb") as writing:
                shutil.copyfileobj(reading, writing)
    return into


def put(file: Path, folder: Path) -> None:
    """Copy a file into a folder under its name. A task that runs twice replaces its file by an equal one."""
    address = address_of(folder)
    if address is None:
        partial = folder / f".{file.name}.{os.getpid()}"
        with os_errors_name(partial):
            shutil.copyfile(file, partial)
            partial.replace(folder / file.name)
    else:
        filesystem, path = filesystem_of(address)
        filesystem.makedirs(path, exist_ok=True)
        # Azure ML's file system refuses to replace a file unless it is told to.
        filesystem.put(str(file), f"{path.rstrip('/')}/", overwrite="MERGE_WITH_OVERWRITE")
