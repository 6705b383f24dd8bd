"""The commit of a run, in a real repository."""

from __future__ import annotations

import subprocess
from pathlib import Path

from trainyard.rehearse.run_store import commit_of


def test_the_commit_and_whether_files_have_changed(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=A", "-c", "user.email=a@example.com"]
        command = ["git", *identity, "-C", str(tmp_path), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    assert commit_of(tmp_path) is None  # nothing is committed yet
    (tmp_path / "a.txt").write_text("1")
    git("add", ".")
    git("commit", "-qm", "first")
    head = git("rev-parse", "HEAD")
    (tmp_path / "untracked.txt").write_text("1")
    assert commit_of(tmp_path) == head
    (tmp_path / "a.txt").write_text("2")
    assert commit_of(tmp_path) == f"{head} + changes"


def test_no_commit_outside_a_repository(tmp_path: Path) -> None:
    assert commit_of(tmp_path) is None
