"""pre-commit clones this repository, installs it into an environment of its own, and runs the hook. Needs PyPI."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRE_COMMIT = Path(sys.executable).with_name("pre-commit")
SHIPPED = ("src", "schemas", "pyproject.toml", "README.md", "LICENSE", ".pre-commit-hooks.yaml", ".gitignore")

pytestmark = pytest.mark.soak


def git(folder: Path, *arguments: str) -> str:
    names = ("-c", "user.name=Tester", "-c", "user.email=tester@example.com")
    command = ["git", *names, *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def commit_all(folder: Path) -> str:
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "All")
    return git(folder, "rev-parse", "HEAD")


def test_the_hook_installs_from_a_clone_and_finds_a_mistake(tmp_path: Path) -> None:
    hooks = tmp_path / "trainyard"
    hooks.mkdir()
    for name in SHIPPED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, hooks / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, hooks / name)
    revision = commit_all(hooks)

    user = tmp_path / "user"
    shutil.copytree(ROOT / "tests" / "spec" / "data" / "project", user)
    config = f"repos:\n- repo: {hooks.as_uri()}\n  rev: {revision}\n  hooks: [{{id: trainyard-lint}}]\n"
    (user / ".pre-commit-config.yaml").write_text(config)
    train = user / "components" / "train.yaml"
    commit_all(user)

    def run_hook() -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PRE_COMMIT_HOME": str(tmp_path / "cache"), "NO_COLOR": "1"}
        environment.pop("PYTHONPATH", None)
        command = [str(PRE_COMMIT), "run", "--all-files"]
        return subprocess.run(
            command, cwd=user, env=environment, capture_output=True, text=True, timeout=600, check=False
        )

    passed = run_hook()
    assert passed.returncode == 0, passed.stdout + passed.stderr
    train.write_text(train.read_text().replace("is_deterministic", "is_determinstic"))
    failed = run_hook()
    assert failed.returncode == 1
    assert "components/train.yaml:6:1: error[AML101]" in failed.stdout
