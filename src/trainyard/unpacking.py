"""Code that was imported from an archive, unpacked beside it once: from files Python starts faster, with its bytecode.

Like the bytecode it is a cache in `__pycache__`, made again when the archive changes. Where nothing can be written
there, the code is imported from the archive itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableSequence
from types import TracebackType


def run_from_archive(package_path: MutableSequence[str], archive: str) -> None:
    """Let the package `trainyard`, found in an archive, import its modules from where the archive is unpacked."""
    folder = _unpacked(archive)
    if folder is None:
        sys.excepthook = _show_with_source
    else:
        package_path[:] = [os.path.join(folder, "trainyard")]


def _unpacked(archive: str) -> str | None:
    """Return where the archive is unpacked, after doing that if need be; None where nothing can be written."""
    try:
        status = os.stat(archive)
        cache = os.path.join(os.path.dirname(archive), "__pycache__")
        folder = os.path.join(cache, f"trainyard-{status.st_size:x}-{status.st_mtime_ns:x}")
        if not os.path.isdir(folder):
            _unpack(archive, cache, folder)
    except OSError:
        return None
    return folder


def _unpack(archive: str, cache: str, folder: str) -> None:
    """Unpack the archive into a new folder that appears with all its files, and remove those of other archives.

    Raise OSError where that fails. Of several processes that do so at once, the first one's files stay.
    """
    from shutil import rmtree
    from time import time_ns
    from zipfile import ZipFile

    os.makedirs(cache, exist_ok=True)
    earlier = [entry.path for entry in os.scandir(cache) if entry.name.startswith("trainyard-") and entry.is_dir()]
    scratch = os.path.join(cache, f".trainyard-{os.getpid()}-{time_ns()}")
    os.mkdir(scratch)
    try:
        with ZipFile(archive) as files:
            files.extractall(scratch)
        os.rename(scratch, folder)
    except OSError:
        rmtree(scratch, ignore_errors=True)
        if not os.path.isdir(folder):
            raise
    for path in earlier:
        if path != folder:
            rmtree(path, ignore_errors=True)


def _show_with_source(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an uncaught exception with its source lines, which Python up to 3.12 prints of files only."""
    import traceback

    traceback.print_exception(kind, error, trace)
