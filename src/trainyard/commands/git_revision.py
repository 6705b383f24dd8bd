"""A repository's files as they were at a revision, laid out in a temporary folder."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trainyard.errors import UsageError, UserError

# What a pipeline reads is text; of anything larger only its name matters.
_LARGEST_BYTES = 1024 * 1024
_SYMBOLIC_LINK, _SUBMODULE = "120000", "160000"


@dataclass(frozen=True)
class Revision:
    """A commit's files below `root`. `file` is the one that was asked for; `commit` is abbreviated as git does.

    `top` is the folder of the repository that `root` stands for.
    """

    top: Path
    root: Path
    file: Path
    commit: str


@contextmanager
def file_at(ref: str, file: Path) -> Iterator[Revision]:
    """Lay out all files of a revision of the repository that a file is in, and give the file's path there.

    Nothing in the repository changes: no checkout, no worktree, no filter runs. UsageError outside a repository, for an
    unknown revision, and where the file does not exist there; UserError without git.
    """
    folder = file.resolve().parent
    top = Path(_git_text(folder, "rev-parse", "--show-toplevel", what=f"{file} is not in a git repository"))
    commit = _commit(folder, ref)
    relative = file.resolve().relative_to(top.resolve())
    if not _git_text(top, "ls-tree", "--full-tree", commit, "--", relative.as_posix()):
        raise UsageError(
            f"{relative.as_posix()} does not exist at {ref} ({_short(top, commit)}); "
            "a pipeline that is new has nothing to compare with: run `trainyard plan` without --against"
        )
    with tempfile.TemporaryDirectory(prefix="trainyard-") as temporary:
        root = Path(temporary).resolve()
        _lay_out(top, commit, root)
        yield Revision(top.resolve(), root, root / relative, _short(top, commit))


def _commit(folder: Path, ref: str) -> str:
    """Return the full name of the commit that a branch, a tag or an expression such as HEAD~1 means."""
    done = _run(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    if done.returncode == 0:
        return done.stdout.decode().strip()
    shallow = _run(folder, "rev-parse", "--is-shallow-repository").stdout.strip() == b"true"
    hint = "this clone is shallow: fetch its history, such as `git fetch --unshallow`, or `fetch-depth: 0` in CI"
    raise UsageError(
        f"unknown git revision {ref!r}; {hint if shallow else 'expected a branch, a tag, a commit or HEAD~1'}"
    )


def _short(folder: Path, commit: str) -> str:
    return _git_text(folder, "rev-parse", "--short", commit)


def _lay_out(top: Path, commit: str, root: Path) -> None:
    """Write every file of a commit; those that are too large to be read as YAML are empty."""
    listed = _git(top, "ls-tree", "-r", "-z", "--long", "--full-tree", commit).decode("utf-8", "surrogateescape")
    entries = [_entry(line) for line in listed.split("\0") if line]
    wanted = [each for each in entries if each[0] != _SUBMODULE and each[2] <= _LARGEST_BYTES]
    objects = "".join(f"{name}\n" for _, name, _, _ in wanted).encode()
    contents = _contents(_git(top, "cat-file", "--batch", given=objects))
    for mode, name, size, path in entries:
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if mode == _SUBMODULE:
            target.mkdir(exist_ok=True)
        elif mode == _SYMBOLIC_LINK:
            _link(target, contents[name].decode("utf-8", "surrogateescape"), root)
        else:
            target.write_bytes(contents[name] if size <= _LARGEST_BYTES else b"")


def _link(link: Path, aim: str, root: Path) -> None:
    """Make a symbolic link, unless it would lead out of the folder: a revision is read, not followed elsewhere."""
    if Path(aim).is_absolute() or not (link.parent / aim).resolve().is_relative_to(root):
        return
    link.symlink_to(aim)


def _entry(line: str) -> tuple[str, str, int, str]:
    """Return mode, object, size and path of `<mode> <type> <object> <size>\\t<path>`."""
    facts, _, path = line.partition("\t")
    mode, _, name, size = facts.split()
    return mode, name, 0 if size == "-" else int(size), path


def _contents(batch: bytes) -> dict[str, bytes]:
    """Return the contents by object of what `git cat-file --batch` prints: `<object> <type> <size>\\n<content>\\n`."""
    found: dict[str, bytes] = {}
    place = 0
    while place < len(batch):
        end = batch.index(b"\n", place)
        name, _, size = batch[place:end].decode().split()
        found[name] = batch[end + 1 : end + 1 + int(size)]
        place = end + 2 + int(size)
    return found


def _git_text(folder: Path, *arguments: str, what: str = "") -> str:
    return _git(folder, *arguments, what=what).decode("utf-8", "surrogateescape").strip()


def _git(folder: Path, *arguments: str, given: bytes = b"", what: str = "") -> bytes:
    """Return what git prints. UsageError with git's own last line where it fails."""
    done = _run(folder, *arguments, given=given)
    if done.returncode == 0:
        return done.stdout
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    if what and said and "not a git repository" in said[-1]:
        raise UsageError(f"{what}; --against compares with a version that git knows")
    raise UsageError(f"git {arguments[0]} failed in {folder}: {said[-1] if said else f'exit code {done.returncode}'}")


def _run(folder: Path, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        return subprocess.run(command, input=given, capture_output=True, check=False)
    except FileNotFoundError:
        raise UserError("--against needs git, which is not on the PATH") from None
