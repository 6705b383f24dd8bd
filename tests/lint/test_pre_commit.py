"""The hook in .pre-commit-hooks.yaml, as real pre-commit runs it. `tests/soak` installs it from a clone besides."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
MANIFEST = ROOT / ".pre-commit-hooks.yaml"
PRE_COMMIT = Path(sys.executable).with_name("pre-commit")


def run(*command: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
        "PATH": f"{PRE_COMMIT.parent}{os.pathsep}{os.environ['PATH']}",
        "PRE_COMMIT_HOME": str(folder / ".cache"),
        "NO_COLOR": "1",
    }
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def repository(project: Path) -> Path:
    """The clean project as a repository with our hook, whose program is the one that is tested."""
    (hook,) = yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))
    local = {"repo": "local", "hooks": [{**hook, "language": "system"}]}
    (project / ".pre-commit-config.yaml").write_text(yaml.safe_dump({"repos": [local]}))
    run("git", "init", "-q", folder=project)
    run("git", "add", "-A", ":!.cache", folder=project)
    return project


def test_pre_commit_takes_the_manifest(tmp_path: Path) -> None:
    checked = run(PRE_COMMIT, "validate-manifest", MANIFEST, folder=tmp_path)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_the_hook_passes_when_all_is_well(repository: Path) -> None:
    done = run(PRE_COMMIT, "run", "trainyard-lint", folder=repository)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Passed" in done.stdout


def test_the_hook_stops_a_commit_that_breaks_a_pipeline_elsewhere(repository: Path) -> None:
    train = repository / "components" / "train.yaml"
    train.write_text(train.read_text().replace("  epochs:", "  rounds:").replace("inputs.epochs", "inputs.rounds"))
    run("git", "add", "components/train.yaml", folder=repository)
    done = run(PRE_COMMIT, "run", "trainyard-lint", folder=repository)
    assert done.returncode == 1
    assert "pipelines/digits.yaml" in done.stdout
    assert "error[AML302]" in done.stdout


def test_the_hook_runs_for_a_commit_that_changes_only_a_script(repository: Path) -> None:
    train = repository / "components" / "train.yaml"
    train.write_text(train.read_text().replace("is_deterministic", "is_determinstic"))
    run("git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qam", "all", folder=repository)
    (repository / "train.py").write_text("print()\n")
    run("git", "add", "train.py", folder=repository)
    done = run(PRE_COMMIT, "run", "trainyard-lint", folder=repository)
    assert done.returncode == 1
    assert "error[AML101]" in done.stdout


def test_the_hook_can_fix(repository: Path) -> None:
    config: Any = yaml.safe_load((repository / ".pre-commit-config.yaml").read_text())
    config["repos"][0]["hooks"][0]["args"] = ["--fix"]
    (repository / ".pre-commit-config.yaml").write_text(yaml.safe_dump(config))
    train = repository / "components" / "train.yaml"
    before = train.read_text()
    train.write_text(before.replace("is_deterministic", "is_determinstic"))
    run("git", "add", "-A", ":!.cache", folder=repository)
    done = run(PRE_COMMIT, "run", "trainyard-lint", folder=repository)
    assert done.returncode == 1
    assert "files were modified by this hook" in done.stdout
    assert train.read_text() == before
    run("git", "add", "-A", ":!.cache", folder=repository)
    assert run(PRE_COMMIT, "run", "--all-files", folder=repository).returncode == 0
