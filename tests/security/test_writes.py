"""Whatever a repository holds, commands write within it: not through its links, and not where its files refer to."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CommandLine = Callable[..., Any]
MISTAKEN = "type: command\nname: c\nenvironment: azureml:e:1\nis_determinstic: false\ncommand: run\n"
PIPELINE = "type: pipeline\njobs:\n  a:\n    type: command\n    compute: azureml:c\n    component: COMPONENT\n"
PROFILE = (
    "description: mine\ncluster: gpu\nnodes: 1\nprocesses_per_node: 1\nprecision: fp32\nshm_size: 2g\n"
    "environment: azureml:env:1\n"
)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder that belongs to somebody else."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "component.yaml").write_text(MISTAKEN)
    return folder


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one profile and one template, in a repository."""
    folder = tmp_path / "project"
    for name in (".git", "profiles", "templates/pipelines"):
        (folder / name).mkdir(parents=True)
    (folder / "profiles" / "mine.yaml").write_text(PROFILE)
    (folder / "templates" / "pipelines" / "x.yaml.j2").write_text("a: 1\n")
    monkeypatch.chdir(folder)
    return folder


def state(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("how", ["a reference", "a link", "a linked folder"])
def test_fixes_stay_within_the_repository(trainyard: CommandLine, project: Path, outside: Path, how: str) -> None:
    before = state(outside)
    if how == "a reference":
        (project / "job.yaml").write_text(PIPELINE.replace("COMPONENT", "../outside/component.yaml"))
    elif how == "a link":
        (project / "component.yaml").symlink_to(outside / "component.yaml")
    else:
        (project / "components").symlink_to(outside)
        (project / "job.yaml").write_text(PIPELINE.replace("COMPONENT", "components/component.yaml"))
    for arguments in (["."], ["components/component.yaml"] if how == "a linked folder" else []):
        trainyard("lint", "--fix", *arguments)
    assert state(outside) == before
    trainyard("lint", "--fix", ".", "--root", "components" if how == "a linked folder" else ".")
    assert state(outside) == before or how == "a linked folder", "unless the root is there"


def test_a_link_within_the_repository_is_fixed_where_it_leads(trainyard: CommandLine, project: Path) -> None:
    (project / "real.yaml").write_text(MISTAKEN)
    (project / "link.yaml").symlink_to("real.yaml")
    trainyard("lint", "--fix", "link.yaml")
    assert (project / "link.yaml").is_symlink()
    assert "is_deterministic" in (project / "real.yaml").read_text()


@pytest.mark.parametrize("linked", ["pipelines", ".trainyard"])
def test_render_writes_into_no_linked_folder(trainyard: CommandLine, project: Path, outside: Path, linked: str) -> None:
    if linked == ".trainyard":
        assert trainyard("render", "mine").exit_code == 0
        (project / "pipelines" / "x.yaml").write_text((project / "pipelines" / "x.yaml").read_text() + "mine: 1\n")
        shutil.rmtree(project / ".trainyard")
    before = state(outside)
    (project / linked).symlink_to(outside)
    outcome = trainyard("render", "mine")
    assert outcome.exit_code == 1
    assert "outside of" in outcome.stderr
    assert state(outside) == before


def test_render_removes_nothing_in_a_linked_folder(trainyard: CommandLine, project: Path, outside: Path) -> None:
    assert trainyard("render", "mine").exit_code == 0
    (project / "pipelines" / "x.yaml").rename(outside / "x.yaml")
    (project / "pipelines").rmdir()
    (project / "pipelines").symlink_to(outside)
    (project / "templates" / "pipelines" / "x.yaml.j2").rename(project / "templates" / "pipelines" / "y.txt.j2")
    trainyard("render", "mine")
    assert (outside / "x.yaml").exists()


@pytest.mark.parametrize("name", [".vscode", ".github"])
def test_init_writes_into_no_linked_folder(trainyard: CommandLine, project: Path, outside: Path, name: str) -> None:
    before = state(outside)
    shutil.rmtree(project / "profiles")
    (project / "c.yaml").write_text(MISTAKEN)
    (project / name).symlink_to(outside)
    outcome = trainyard("init", "--existing", ".")
    assert outcome.exit_code == 1
    assert "outside of" in outcome.stderr
    assert state(outside) == before


def test_the_settings_name_no_baseline_elsewhere(trainyard: CommandLine, project: Path, outside: Path) -> None:
    (project / ".trainyard.toml").write_text('[lint]\nbaseline = "../outside/baseline.json"\n')
    (project / "c.yaml").write_text(MISTAKEN)
    before = state(outside)
    outcome = trainyard("lint", "--write-baseline")
    assert outcome.exit_code == 1
    assert state(outside) == before
    assert trainyard("lint", "--write-baseline", "--baseline", "../outside/baseline.json").exit_code == 0
    assert state(outside) != before, "the command line may name any file"


WRITERS = {
    "azure/recorder.py": "the recording, to stdout",
    "cli/plan_difference.py": "a revision is laid out in a temporary folder of its own",
    "cli/rendering_difference.py": "a rendering is written into a temporary folder of its own",
    "lint/processors.py": "pipes between copies of this process",
    "project_files.py": "the one function",
    "report/comparison.py": "the page that --out names",
    "report/run_report.py": "the page in the folder of a run, whose record is checked",
}


def test_nothing_else_opens_a_file_for_writing_on_the_authors_side() -> None:
    source = Path(__file__).resolve().parents[2] / "src" / "trainyard"
    folders = ("render", "azure", "cli", "editor", "lint", "plan", "report", "spec")
    files = [source / "project_files.py", *(file for each in folders for file in (source / each).rglob("*.py"))]
    found = {
        str(file.relative_to(source)) for file in files if any(map(_writes, ast.walk(ast.parse(file.read_text()))))
    }
    assert found == set(WRITERS)


def _writes(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in ("write_text", "write_bytes"):
        return isinstance(node.func, ast.Attribute)
    modes = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    opens = name in ("open", "fdopen") and any("w" in mode or "a" in mode for mode in modes)
    return opens or name in ("replace_text", "replace_bytes")
