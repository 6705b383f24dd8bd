"""A repository's files as they were at a revision, laid out in a temporary folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trainyard.errors import UsageError, UserError
from trainyard.git import GitAnswer, NoGit, ask_git, repository_top

# What a pipeline reads is text; of anything larger only its name matters.
_LARGEST_BYTES = 1024 * 1024
_SYMBOLIC_LINK, _SUBMODULE = "120000", "160000"
_MISSING = "BAD"
"""What git prints for the size of an object that it does not have."""


@dataclass(frozen=True)
class Revision:
    """A commit's files below `root`, where `top` is the repository's own folder; `commit` is abbreviated by git."""

    ref: str
    commit: str
    top: Path
    root: Path

    def __str__(self) -> str:
        return self.ref if self.ref.startswith(self.commit) else f"{self.ref} ({self.commit})"

    def place_of(self, file: Path) -> Path:
        """Return where a file of the repository is, or would be, in the revision."""
        return self.root / file.resolve().relative_to(self.top)

    def yaml_files(self) -> list[Path]:
        """Return all YAML files, relative to the top: those here that git does not ignore, and the revision's."""
        listed = _git(self.top, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.yml", "*.yaml")
        here = listed.output.decode("utf-8", "surrogateescape").split("\0")
        then = (path.relative_to(self.root) for ending in ("*.yml", "*.yaml") for path in self.root.rglob(ending))
        return sorted({*(Path(name) for name in here if name), *then})


@contextmanager
def revision_of(folder: Path, ref: str) -> Iterator[Revision]:
    """Lay out all files of a revision of the repository that a folder is in.

    Nothing in the repository changes: no checkout, no worktree, no filter runs. UsageError outside a repository and for
    an unknown revision; UserError without git.
    """
    top = _top_of(folder)
    commit = _commit(folder, ref)
    with tempfile.TemporaryDirectory(prefix="trainyard-") as temporary:
        root = Path(temporary).resolve()
        _lay_out(top, commit, root)
        yield Revision(ref, _git(top, "rev-parse", "--short", commit).text, top, root)


def _commit(folder: Path, ref: str) -> str:
    """Return the full name of the commit that a branch, a tag or an expression such as HEAD~1 means."""
    answer = _ask(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    if answer.succeeded:
        return answer.text
    shallow = _ask(folder, "rev-parse", "--is-shallow-repository").text == "true"
    hint = "this clone is shallow: fetch its history, such as `git fetch --unshallow`, or `fetch-depth: 0` in CI"
    raise UsageError(
        f"unknown git revision {ref!r}; {hint if shallow else 'expected a branch, a tag, a commit or HEAD~1'}"
    )


def _lay_out(top: Path, commit: str, root: Path) -> None:
    """Write every file of a commit; those that are too large to be read as YAML are empty."""
    listed = _git(top, "ls-tree", "-r", "-z", "--long", "--full-tree", commit).text
    entries = [_entry(line) for line in listed.split("\0") if line]
    wanted = [each for each in entries if each[0] != _SUBMODULE and each[2] <= _LARGEST_BYTES]
    objects = "".join(f"{name}\n" for _, name, _, _ in wanted).encode()
    contents = _contents(_git(top, "cat-file", "--batch", given=objects).output)
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
    if size == _MISSING:
        raise UserError(f"{path} is missing from this repository, as in a partial clone; run `git fetch --refetch`")
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


def _git(folder: Path, *arguments: str, given: bytes = b"") -> GitAnswer:
    """Return git's answer. UsageError with git's own last line where it fails."""
    answer = _ask(folder, *arguments, given=given)
    if not answer.succeeded:
        raise UsageError(f"git {arguments[0]} failed in {folder}: {answer.error}")
    return answer


def _ask(folder: Path, *arguments: str, given: bytes = b"") -> GitAnswer:
    try:
        return ask_git(folder, *arguments, given=given)
    except NoGit:
        raise UserError("--against needs git, which is not on the PATH") from None


def _top_of(folder: Path) -> Path:
    try:
        top = repository_top(folder)
    except NoGit:
        raise UserError("--against needs git, which is not on the PATH") from None
    if top is None:
        raise UsageError(f"{folder} is not in a git repository; --against compares with a version that git knows")
    return top
