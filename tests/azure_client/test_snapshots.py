"""A snapshot here holds the files that Microsoft's client uploads, whatever the ignore file says."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainyard.rehearse.snapshots import snapshot_of
from trainyard.spec.loading import load_job
from trainyard.spec.model import Component
from trainyard.spec.uploads import ignore_rule

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # The client warns of its own dealings with marshmallow.
    from azure.ai.ml._utils._asset_utils import get_ignore_file, get_upload_files_from_folder

ROOT = Path(__file__).parents[2]
FILES = ("train.py", "notes.txt", "lib/a.log", "lib/deep/b.log", "lib/deep/keep.py", "build/out.txt", "data/big.bin")


def uploaded(folder: Path) -> set[str]:
    pairs = get_upload_files_from_folder(folder, prefix="", ignore_file=get_ignore_file(folder))
    return {Path(local).relative_to(folder).as_posix() for local, _ in pairs}


def kept(folder: Path) -> set[str]:
    is_ignored, _ = ignore_rule(folder)
    files = (file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
    return {file for file in files if "__pycache__" not in file and not is_ignored(file)}


@pytest.mark.parametrize("name", [".amlignore", ".gitignore"])
@pytest.mark.parametrize(
    "patterns",
    [
        "*.log", "/build/", "build/", "build", "lib/**/*.log", "data/*\n!data/keep.bin", "lib/*\n!lib/deep/", "lib/*",
        "lib\n!lib/deep/keep.py", "lib/deep/", "# a comment\n\nnotes.txt  ", "**/deep", "*\n!*.py", "!train.py",
        "de?p/",
    ],
)  # fmt: skip
def test_the_same_files_are_left_out(tmp_path: Path, name: str, patterns: str) -> None:
    for file in FILES:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    (tmp_path / name).write_text(patterns)
    assert kept(tmp_path) == uploaded(tmp_path)


def test_after_a_run_the_client_uploads_what_the_local_snapshot_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trainyard: Callable[..., Any]
) -> None:
    """The code is the folder that the runs lie in: the client would upload them all."""
    monkeypatch.chdir(tmp_path)
    Path("hello.py").write_text("print('hello')\n")
    Path("hello.yml").write_text(
        "type: pipeline\nsettings:\n  default_compute: azureml:cpu\njobs:\n  hello:\n    command: python hello.py\n"
        "    code: .\n    environment: azureml:python:1\n"
    )
    outcome = trainyard("run", "hello.yml", "--quiet")
    assert outcome.exit_code == 0, outcome.stderr
    assert (tmp_path / ".trainyard" / "runs").is_dir()
    component = load_job(tmp_path / "hello.yml", strict=True).jobs["hello"].component
    assert isinstance(component, Component)
    assert {place for _, place in snapshot_of(component).files} == uploaded(tmp_path)
    assert uploaded(tmp_path) == {".amlignore", "hello.py", "hello.yml"}


def test_this_repositorys_own_snapshot_is_the_same_for_both() -> None:
    assert kept(ROOT / "src") == uploaded(ROOT / "src")
