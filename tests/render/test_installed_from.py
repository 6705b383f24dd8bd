"""What a new project asks pip for: where this Trainyard is from, if other machines can get it from there."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from trainyard import __version__
from trainyard.render.installed_from import InstalledFrom, from_direct_url, without_password


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.com")
    return subprocess.run(
        ["git", "-C", folder, *identity, *words], capture_output=True, check=True, text=True
    ).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A clone of a repository with one commit, whose remote has an address as at a host."""
    upstream, folder = tmp_path / "upstream", tmp_path / "checkout"
    upstream.mkdir()
    git(upstream, "init", "--quiet")
    (upstream / "pyproject.toml").write_text("[project]\n")
    git(upstream, "add", ".")
    git(upstream, "commit", "--quiet", "-m", "first")
    git(tmp_path, "clone", "--quiet", str(upstream), str(folder))
    git(folder, "config", "remote.origin.url", "git@example.com:team/trainyard.git")
    return folder


def of_checkout(folder: Path) -> InstalledFrom:
    return from_direct_url({"url": folder.as_uri(), "dir_info": {"editable": True}})


def test_of_a_checkout_its_remote_and_commit(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    assert of_checkout(checkout).requirement("train") == (
        f"trainyard-azureml[train] @ git+ssh://git@example.com/team/trainyard.git@{commit}"
    )
    git(checkout, "config", "remote.origin.url", "https://someone:secret@example.com/team/trainyard")
    assert of_checkout(checkout).requirement() == f"trainyard-azureml @ git+https://example.com/team/trainyard@{commit}"


def test_of_a_folder_within_a_checkout(checkout: Path) -> None:
    (checkout / "tools").mkdir()
    assert of_checkout(checkout / "tools").address.endswith("#subdirectory=tools")


def test_a_checkout_that_other_machines_cannot_have(checkout: Path, tmp_path: Path) -> None:
    (checkout / "new.py").write_text("")
    git(checkout, "add", ".")
    assert of_checkout(checkout).problem == f"it was installed from {checkout}, which has changes that are in no commit"
    git(checkout, "commit", "--quiet", "-m", "second")
    assert "was not pushed to 'origin'" in of_checkout(checkout).problem
    git(checkout, "config", "remote.origin.url", str(tmp_path))
    assert "whose remote 'origin' is not an address" in of_checkout(checkout).problem
    plain = tmp_path / "plain"
    plain.mkdir()
    assert of_checkout(plain).problem == f"it was installed from {plain}, which is not a git repository"


@pytest.mark.parametrize(
    ("noted", "requirement"),
    [
        (
            {"url": "https://example.com/t.git", "vcs_info": {"vcs": "git", "commit_id": "0123"}, "subdirectory": "a"},
            "trainyard-azureml[train] @ git+https://example.com/t.git@0123#subdirectory=a",
        ),
        (
            {"url": "https://example.com/t.whl", "archive_info": {}},
            "trainyard-azureml[train] @ https://example.com/t.whl",
        ),
        (
            {"url": "file:///gone/trainyard.whl", "archive_info": {}},
            "trainyard-azureml[train] @ git+https://FILL-IN.invalid/trainyard@COMMIT",
        ),
    ],
)
def test_of_a_repository_and_of_an_archive(noted: dict[str, Any], requirement: str) -> None:
    assert from_direct_url(noted).requirement("train") == requirement


def test_of_a_wheel_a_copy_in_the_project(tmp_path: Path) -> None:
    wheel = tmp_path / "trainyard_azureml-1-py3-none-any.whl"
    wheel.write_bytes(b"")
    source = from_direct_url({"url": wheel.as_uri(), "archive_info": {}})
    assert source.requirement("train") == f"./wheels/{wheel.name}[train]"


def test_of_an_index_its_version() -> None:
    assert InstalledFrom().requirement("train") == f"trainyard-azureml[train]=={__version__}"


def test_no_password_is_kept() -> None:
    assert without_password("https://user:token@example.com/x") == "https://example.com/x"
    assert without_password("ssh://git:word@example.com/x") == "ssh://git@example.com/x"
