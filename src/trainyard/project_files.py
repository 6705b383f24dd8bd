"""The files of a project, which may be a stranger's: what is read of them, and where they are written.

A pull request can bring a pipe, a link to a device or to somebody's keys, and names of files anywhere on the machine.
Read are regular files of a bounded size. Commands that check such files set a root; what is outside of it, also by a
link, is not read. Whatever is written is within a root that the writer names.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from pathlib import Path

from trainyard.settings.files import read_beginning, read_regular, replace_bytes

LARGEST_BYTES = 64 * 2**20
_MARKS_OF_A_ROOT = (".git", ".trainyard.toml", "trainyard.lock")

_YAML_SUFFIXES = frozenset({".yaml", ".yml"})
# Tools keep these, not people; `.github` and the like are excluded because of their dot.
_SKIPPED_FOLDERS = frozenset({"node_modules", "__pycache__", "venv"})
_OF_AZURE_ML = ".azureml"

_roots: tuple[str, ...] = ()


class OutsideRoot(OSError):
    """A file that is neither read nor written, because it is outside the root."""


def limit_reading(*roots: Path) -> None:
    """Read nothing outside of these folders and our own from now on, until the command has printed its last finding."""
    global _roots
    own = [Path(__file__).parent] if roots else []
    _roots = tuple(os.path.realpath(root) for root in (*roots, *own))
    _real_folder.cache_clear()


@contextmanager
def without_limit(roots: tuple[str, ...] = ()) -> Iterator[None]:
    """Begin limited to `roots`, if there are any, and end what the block sets: a process may run several commands."""
    global _roots
    before, _roots = _roots, roots
    try:
        yield
    finally:
        _roots = before


def reading_also(folder: Path) -> AbstractContextManager[None]:
    """Read a folder of our own too, where reading is limited."""
    return without_limit((*_roots, os.path.realpath(folder)) if _roots else ())


def root_of(paths: Sequence[Path]) -> Path:
    """Return the folder that a command may read which checks these paths: the repository's, else the project's.

    Outside of both it is the folder that holds the paths and the working directory.
    """
    folders = [os.path.abspath(path) for path in paths] or [os.getcwd()]
    return repository_of(Path(os.path.commonpath(folders))) or Path(os.path.commonpath([*folders, os.getcwd()]))


def repository_of(start: Path) -> Path | None:
    """Return the folder of the repository that a path is in, else of the project; None outside of both."""
    for mark in _MARKS_OF_A_ROOT:
        for folder in (start, *start.parents):
            if (folder / mark).exists():
                return folder
    return None


@lru_cache(maxsize=4096)
def _real_folder(folder: str) -> str:
    return os.path.realpath(folder)


def is_within_root(path: str | os.PathLike[str]) -> bool:
    """Return whether a path may be read, by where its links lead."""
    if not _roots:
        return True
    folder, name = os.path.split(path)
    # Few files are links, and most share their folder with others.
    is_plain = name not in ("", os.curdir, os.pardir) and not os.path.islink(path)
    place = os.path.join(_real_folder(folder), name) if is_plain else os.path.realpath(path)
    return any(place == root or place.startswith(root.rstrip(os.sep) + os.sep) for root in _roots)


def read_bytes(file: Path, limit_bytes: int = LARGEST_BYTES) -> bytes:
    """Return what a file contains. OSError if it cannot be read, is not a regular file, or is outside the root."""
    if not is_within_root(file):
        raise _outside(file)
    return read_regular(file, limit_bytes)


def beginning_of(file: Path, count_bytes: int) -> bytes:
    """Return the first bytes of a file, however large it is. OSError as `read_bytes`."""
    if not is_within_root(file):
        raise _outside(file)
    return read_beginning(file, count_bytes)


def _outside(file: Path) -> OutsideRoot:
    reason = f"outside of {_roots[0]}, so it is not read (--root sets that folder)"
    return OutsideRoot(errno.EACCES, reason, str(file))


def read_text(file: Path, *, encoding: str = "utf-8", errors: str = "strict", limit_bytes: int = LARGEST_BYTES) -> str:
    """Return the text of a file. OSError as `read_bytes`, UnicodeDecodeError for another encoding."""
    return read_bytes(file, limit_bytes).decode(encoding, errors)


def text_or_empty(file: Path) -> str:
    """Return the text of a file, whatever its encoding; an empty one for a file that cannot be read."""
    try:
        return read_text(file, errors="replace")
    except OSError:
        return ""


def names_in(folder: str | os.PathLike[str]) -> list[str]:
    """Return the sorted names in a folder; none of one that cannot be read, or is outside the root."""
    try:
        return sorted(os.listdir(folder)) if is_within_root(folder) else []
    except OSError:
        return []


def modules_in(folders: Iterable[str | os.PathLike[str]]) -> list[str]:
    """Return what Python can import by name from folders: modules, and folders as packages."""
    found = set()
    for folder in folders:
        for name in names_in(folder):
            if name.endswith(".py") or os.path.isdir(os.path.join(folder, name)):
                found.add(name.removesuffix(".py"))
    return sorted(filter(str.isidentifier, found))


def is_yaml(name: str) -> bool:
    """Whether a file has the name of a YAML file."""
    return os.path.splitext(name)[1].lower() in _YAML_SUFFIXES


def yaml_files(folder: Path) -> Iterator[Path]:
    """Yield all YAML files in a folder and its subfolders. Linked folders are not followed, since they may loop."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(n for n in folders if n == _OF_AZURE_ML or (n[0] != "." and n not in _SKIPPED_FOLDERS))
        yield from (Path(parent, name) for name in sorted(names) if is_yaml(name))


def require_within(file: Path, root: Path) -> None:
    """Raise OutsideRoot for a file that is not in a root, or only by the name of a folder that is a link out of it."""
    folder, top = os.path.realpath(file.parent), os.path.realpath(root)
    if folder != top and not folder.startswith(top.rstrip(os.sep) + os.sep):
        raise OutsideRoot(errno.EACCES, f"it is in {folder}, outside of {top}", str(file))


def keep_out_of_git(folder: Path) -> None:
    """Make a folder ignore itself, so that git takes nothing of it, whatever the repository ignores."""
    if not (folder / ".gitignore").exists():
        write_text(folder / ".gitignore", "*\n", folder.parent)


def write_text(file: Path, text: str, root: Path) -> None:
    """Make a file's folders, and replace its text, as `write_bytes` does."""
    write_bytes(file, text.encode("utf-8"), root)


def write_bytes(file: Path, content: bytes, root: Path) -> None:
    """Make a file's folders, and replace its content. OSError if that fails; OutsideRoot as `require_within`.

    A link in the file's own place is replaced, and not written through.
    """
    require_within(file, root)
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_bytes(file, content)
