"""A folder can be a repository of somebody else: what its configuration names must not run."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainyard.git import ask_git, index_of, repository_top
from trainyard.rehearse.run_store import commit_of

CommandLine = Callable[..., Any]
SOURCE = Path(__file__).resolve().parents[2] / "src" / "trainyard"
PIPELINE = "type: pipeline\njobs:\n  a:\n    type: command\n    command: echo\n    environment: azureml:e:1\n"


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", "-C", str(folder), *who, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """The file that each attack writes when it succeeds."""
    return tmp_path / "mark"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one pipeline."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "job.yaml").write_text(PIPELINE)
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "one")
    return folder


def everything_that_asks_git(trainyard: CommandLine, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for arguments in (("job.yaml",), ()):
        trainyard("plan", *arguments, "--against", "HEAD")
    commit_of(folder)
    index_of(folder)


SETTINGS = {
    "a monitor of files": ("core.fsmonitor", "touch MARK"),
    "a filter": ("filter.evil.clean", "touch MARK; cat"),
    "an external diff": ("diff.external", "touch MARK"),
    "a conversion for diffs": ("diff.evil.textconv", "touch MARK; cat"),
    "an editor": ("core.editor", "touch MARK"),
    "a pager": ("core.pager", "touch MARK"),
    "a command for ssh": ("core.sshCommand", "touch MARK"),
    "a helper for passwords": ("credential.helper", "!touch MARK"),
    "a program for signatures": ("gpg.program", "touch MARK"),
}


@pytest.mark.parametrize(("key", "value"), SETTINGS.values(), ids=SETTINGS)
def test_no_setting_of_a_repository_is_run(
    trainyard: CommandLine, repository: Path, mark: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: str
) -> None:
    git(repository, "config", key, value.replace("MARK", str(mark)))
    git(repository, "config", "log.showSignature", "true")
    (repository / ".gitattributes").write_text("* filter=evil diff=evil\n")
    (repository / "job.yaml").write_text(PIPELINE + "# changed\n")
    everything_that_asks_git(trainyard, repository, monkeypatch)
    assert not mark.exists()


def test_no_hook_is_run(trainyard: CommandLine, repository: Path, mark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("post-index-change", "reference-transaction", "fsmonitor-watchman", "pre-auto-gc"):
        hook = repository / ".git" / "hooks" / name
        hook.write_text(f"#!/bin/sh\ntouch {mark}\n")
        hook.chmod(0o755)
    (repository / "job.yaml").touch()
    everything_that_asks_git(trainyard, repository, monkeypatch)
    assert not mark.exists()


def test_a_bare_repository_among_the_files_is_not_used(
    trainyard: CommandLine, repository: Path, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can be committed like any folder, and git would find it from within."""
    evil = repository / "evil"
    git(repository, "clone", "--quiet", "--bare", str(repository), str(evil))
    (evil / "job.yaml").write_text(PIPELINE)
    git(evil, "--git-dir", str(evil), "config", "core.fsmonitor", f"touch {mark}")
    git(evil, "--git-dir", str(evil), "config", "core.bare", "false")
    git(evil, "--git-dir", str(evil), "config", "core.worktree", str(evil))
    everything_that_asks_git(trainyard, evil, monkeypatch)
    assert not mark.exists()
    assert repository_top(evil) in (None, repository.resolve())


@pytest.mark.parametrize("url", ["ext::sh -c 'touch MARK'", "file://PROJECT", "ssh://-oProxyCommand=touch/x"])
def test_a_missing_object_is_not_fetched(
    trainyard: CommandLine, repository: Path, mark: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    for key, value in {
        "remote.origin.url": url.replace("MARK", str(mark)).replace("PROJECT", str(repository)),
        "remote.origin.promisor": "true",
        "remote.origin.uploadpack": f"touch {mark}; git-upload-pack",
        "remote.origin.partialclonefilter": "blob:none",
        "extensions.partialClone": "origin",
        "core.repositoryformatversion": "1",
        "protocol.ext.allow": "always",
        "protocol.file.allow": "always",
        "core.sshCommand": f"touch {mark}",
    }.items():
        git(repository, "config", key, value)
    blob = git(repository, "rev-parse", "HEAD:job.yaml")
    (repository / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    everything_that_asks_git(trainyard, repository, monkeypatch)
    assert not mark.exists()


def test_a_repository_that_claims_another_folder_is_not_used(repository: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(repository, "config", "core.worktree", str(other))
    assert repository_top(repository) is None
    assert commit_of(repository) is None


def test_variables_of_the_surroundings_lead_to_no_other_repository(
    repository: Path, tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", f"touch {mark}")
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.fsmonitor")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", f"touch {mark}")
    assert repository_top(repository) == repository.resolve()
    assert not mark.exists()


def test_what_git_prints_and_takes_is_limited(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repository / "large").write_bytes(bytes(2 * 2**20))
    git(repository, "add", "large")
    monkeypatch.setattr("trainyard.git.OUTPUT_BYTES", 2**20)
    answer = ask_git(repository, "cat-file", "blob", ":large")
    assert (answer.succeeded, answer.error) == (False, "it printed more than 1 MiB")
    endless = ask_git(repository, "cat-file", "--batch", given=b"HEAD\n" * 10**6, seconds=0.01)
    assert not endless.succeeded


def test_changes_of_a_run_are_noted_as_git_would(repository: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    assert commit_of(repository) == commit
    (repository / "job.yaml").touch()
    assert commit_of(repository) == commit, "touched, and the same"
    (repository / "job.yaml").write_text(PIPELINE + "# more\n")
    assert commit_of(repository) == f"{commit} + changes"
    git(repository, "add", ".")
    assert commit_of(repository) == f"{commit} + changes", "also once it is staged"
    git(repository, "reset", "--quiet", "--hard")
    (repository / "job.yaml").unlink()
    assert commit_of(repository) == f"{commit} + changes", "removed"


def test_git_is_started_in_one_place() -> None:
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.List) and node.elts and isinstance(node.elts[0], ast.Constant):
                assert node.elts[0].value != "git" or file == SOURCE / "git.py", file
