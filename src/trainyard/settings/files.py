"""Files for both sides: replaced atomically, digested, and what the operating system refuses in words."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

_READ_BYTES = 1 << 20


def describe_os_error(error: OSError) -> str:
    """Return one line: the file, where it is known, and the reason."""
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{os_error_reason(error)}"


def os_error_reason(error: OSError) -> str:
    """Return the reason in lower case, to stand within a message: `no space left on device`."""
    return (error.strerror or str(error)).lower()


@contextmanager
def os_errors_name(file: Path) -> Iterator[None]:
    """Put the file's name into an OSError without one: a failed write does not say where there was no space left."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(file)
        raise


class TooLarge(OSError):
    """A file that is larger than its reader takes."""


def read_regular(file: str | os.PathLike[str], limit_bytes: int) -> bytes:
    """Return the content of a regular file, through symbolic links.

    A repository can hold a pipe, or a link to a device, that never ends: neither is waited for. Raise OSError that
    names the file: TooLarge above the limit, IsADirectoryError for a folder, ENOTSUP for whatever else is not regular.
    """
    content = read_beginning(file, limit_bytes + 1)
    if len(content) > limit_bytes:
        raise TooLarge(errno.EFBIG, f"larger than {limit_bytes:,} bytes", os.fspath(file))
    return content


def read_beginning(file: str | os.PathLike[str], count_bytes: int) -> bytes:
    """Return the first bytes of a regular file, however large it is. Raise OSError as `read_regular`."""
    name = os.fspath(file)
    descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.ENOTSUP, "not a regular file", name)
        parts, left_bytes = [], count_bytes
        while left_bytes and (part := os.read(descriptor, min(left_bytes, _READ_BYTES))):
            parts.append(part)
            left_bytes -= len(part)
    finally:
        os.close(descriptor)
    return b"".join(parts)


def files_beneath(folder: Path, enters: Callable[[str], bool] = lambda _: True) -> Iterator[tuple[Path, str]]:
    """Yield every file beneath a folder with its relative name, in a stable order.

    `enters` decides by a subfolder's relative name whether to look into it. Links are followed, except to a folder that
    they lie in or to nothing.
    """
    yield from _walk(folder, "", (os.path.realpath(folder),), enters)


def _walk(
    folder: Path, prefix: str, above: tuple[str, ...], enters: Callable[[str], bool]
) -> Iterator[tuple[Path, str]]:
    with os.scandir(folder) as entries:
        ordered = sorted(entries, key=lambda entry: entry.name)
    for entry in ordered:
        name = prefix + entry.name
        if entry.is_file():
            yield folder / entry.name, name
        elif entry.is_dir() and enters(name):
            place = os.path.realpath(entry.path) if entry.is_symlink() else os.path.join(above[-1], entry.name)
            if place not in above:
                yield from _walk(folder / entry.name, name + "/", (*above, place), enters)


def is_file_within(file: Path, folder: Path) -> bool:
    """Return whether this is a regular file, and inside of a folder also where links lead."""
    return file.is_file() and file.resolve().is_relative_to(folder.resolve())


def is_private_folder(folder: Path) -> bool:
    """Return whether this is a folder, no link, of this user, which nobody else can write to."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    others = stat.S_IWGRP | stat.S_IWOTH
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & others


def open_lock_file(file: Path) -> TextIO:
    """Return a file to lock, made for its owner only if there is none. It is never emptied; OSError for a link."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    return os.fdopen(descriptor, "r+", encoding="utf-8")


def replace_text(file: Path, text: str, *, is_durable: bool = True) -> None:
    """Replace a file's text, as `replace_bytes` does."""
    replace_bytes(file, text.encode("utf-8"), is_durable=is_durable)


def replace_bytes(file: Path, content: bytes, *, is_durable: bool = True) -> None:
    """Replace a file's content, keeping its mode and owner. If that fails, it stays as it was; OSError names it.

    A file that is not durable may be damaged when the machine, not just the process, stops soon after.
    """
    # Threads and processes that write the same file must not share a temporary one. `open` applies the umask.
    temporary = file.with_name(f".{file.name}.{os.urandom(16).hex()}")
    try:
        with temporary.open("wb") as stream:
            stream.write(content)
            if is_durable:
                stream.flush()
                os.fsync(stream.fileno())
        with suppress(FileNotFoundError):  # also where another writer has just removed it
            status = file.stat()
            # Otherwise root, as in a container, would become the owner.
            if sys.platform != "win32" and status.st_uid != os.geteuid():
                with suppress(PermissionError):
                    os.chown(temporary, status.st_uid, status.st_gid)
            temporary.chmod(status.st_mode & 0o777)
        os.replace(temporary, file)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(file)  # not the temporary one, which nobody knows
        raise


def file_sha256(file: Path, on_read: Callable[[int], None] | None = None) -> str:
    """Return the SHA-256 of a file in hexadecimal, read in pieces; `on_read` is called with the bytes of each."""
    import hashlib  # OpenSSL takes milliseconds to load, which `trainyard --help` can do without

    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while piece := stream.read(_READ_BYTES):
            digest.update(piece)
            if on_read is not None:
                on_read(len(piece))
    return digest.hexdigest()
