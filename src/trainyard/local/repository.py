"""The commit that a run's files are at, as git knows it."""

from __future__ import annotations

import subprocess
from pathlib import Path

_TIMEOUT_SECONDS = 10
"""In a huge repository on slow storage, a run is not delayed for its commit."""


def commit_of(folder: Path) -> str | None:
    """Return the commit of the repository that a folder is in, followed by ` + changes` where files have been changed.

    None outside a repository, without git, and where git does not answer in time.
    """
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return f"{commit} + changes" if changed else commit


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
