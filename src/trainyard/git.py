"""Git, asked for facts: the only place that starts it. Nothing that a repository's configuration names is run."""

from __future__ import annotations

import hashlib
import os
import subprocess
import threading
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

SECONDS = 60
OUTPUT_BYTES = 256 * 2**20

_SETTINGS = (
    # A bare repository can be committed as a folder like any other, and git would use its configuration.
    *("-c", "safe.bareRepository=explicit"),
    *("-c", "core.fsmonitor="),
    *("-c", "core.hooksPath=/dev/null"),
    *("-c", "protocol.ext.allow=never"),
    "--no-optional-locks",
    "--no-pager",
)
_KEPT_VARIABLES = ("GIT_CEILING_DIRECTORIES", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM", "GIT_CONFIG_SYSTEM")
_OWN_VARIABLES = {
    # Overrides what any configuration allows: a missing object is never fetched, by whatever command it names.
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",  # since git 2.44
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
_SHA1_HEX_DIGITS = 40


class NoGit(OSError):
    """Git is not on the PATH."""


class GitAnswer(NamedTuple):
    """What git printed, the last line that it said about a failure, and whether it succeeded."""

    output: bytes
    error: str
    succeeded: bool

    @property
    def text(self) -> str:
        """The output as text, without the line's end."""
        return self.output.decode("utf-8", "surrogateescape").strip()


def ask_git(folder: Path, *arguments: str, given: bytes = b"", seconds: float = SECONDS) -> GitAnswer:
    """Return git's answer to a command that reads. NoGit where it is not installed.

    A command that takes too long, or prints too much, has failed.
    """
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    variables |= {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    with TemporaryFile() as questions, TemporaryFile() as errors:
        questions.write(given)
        questions.seek(0)
        try:
            process = subprocess.Popen(
                ["git", *_SETTINGS, "-C", str(folder), *arguments],
                stdin=questions,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=variables | _OWN_VARIABLES,
            )
        except FileNotFoundError:
            raise NoGit("git is not on the PATH") from None
        assert process.stdout is not None
        output = b""
        guard = threading.Timer(seconds, process.kill)
        guard.daemon = True  # Ctrl-C while it starts leaves it running; the end does not wait for it
        guard.start()
        try:
            output = process.stdout.read(OUTPUT_BYTES + 1)
        finally:
            guard.cancel()
            process.stdout.close()
            if len(output) > OUTPUT_BYTES:
                process.kill()
            exit_code = process.wait()
        errors.seek(0)
        said = errors.read(OUTPUT_BYTES).decode("utf-8", "replace").strip().splitlines()
    if len(output) > OUTPUT_BYTES:
        return GitAnswer(b"", f"it printed more than {OUTPUT_BYTES // 2**20} MiB", succeeded=False)
    if exit_code < 0:
        return GitAnswer(b"", f"it took more than {seconds:g} seconds", succeeded=False)
    return GitAnswer(output, said[-1] if said else f"exit code {exit_code}", succeeded=exit_code == 0)


def repository_top(folder: Path) -> Path | None:
    """Return the top folder of the repository that a folder is in; None without one. NoGit without git.

    A repository that claims another folder (`core.worktree`) is not one.
    """
    answer = ask_git(folder, "rev-parse", "--show-toplevel")
    top = Path(answer.text).resolve()
    return top if answer.succeeded and folder.resolve().is_relative_to(top) else None


def index_of(folder: Path, *paths: str) -> dict[Path, str]:
    """Return the name of the object that git tracks for each file below a folder, or for some of them."""
    top = repository_top(folder)
    if top is None:
        return {}
    listed = ask_git(folder, "ls-files", "--stage", "-z", "--full-name", "--", *paths)
    entries = (line.partition("\t") for line in listed.output.decode("utf-8", "surrogateescape").split("\0") if line)
    return {top / name: facts.split()[1] for facts, _, name in entries}


def is_object(name: str, content: bytes) -> bool:
    """Return whether a content is that of an object, by the digest that is its name. No filter is run for this."""
    new_digest = hashlib.sha1 if len(name) == _SHA1_HEX_DIGITS else hashlib.sha256
    return new_digest(b"blob %d\0" % len(content) + content).hexdigest() == name
