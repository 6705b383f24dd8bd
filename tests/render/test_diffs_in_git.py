"""What a change of a profile does to the rendered files that are committed; with real git."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from trainyard.lint.linter import lint
from trainyard.render.drift import find_drift
from trainyard.render.installed_from import InstalledFrom
from trainyard.render.limited_rendering import render_limited
from trainyard.render.profiles import profile_names
from trainyard.render.project import Project
from trainyard.render.rendering import render
from trainyard.render.scaffolding import new_project
from trainyard.render.writing import WriteReport, write

RENDERED = ("components", "pipelines", "environments", "compute")


def git(project: Project, *arguments: str) -> str:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "init.defaultBranch=main")
    command = ["git", "-C", str(project.root), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def render_again(project: Project) -> WriteReport:
    return write(project, render(project))


@pytest.fixture(scope="module")
def committed_once(rendered_once: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with its rendered files, committed on the branch main. Not to be changed."""
    root = tmp_path_factory.mktemp("committed") / "project"
    project = Project(Path(shutil.copytree(rendered_once.root, root)))
    git(project, "init", "--quiet")
    git(project, "add", ".")
    git(project, "commit", "--quiet", "-m", "rendered for t4")
    return project


@pytest.fixture
def committed(committed_once: Project, tmp_path: Path) -> Project:
    """Such a project, to change at will."""
    return Project(Path(shutil.copytree(committed_once.root, tmp_path / "project")))


def changed_lines(project: Project) -> dict[str, int]:
    """How many lines of each rendered file are new or changed."""
    rows = git(project, "diff", "--numstat", "--", *RENDERED).splitlines()
    return {name: int(added) for added, _, name in (row.split("\t") for row in rows)}


def set_batch_size(project: Project, pipeline: str, size: int) -> None:
    """Change a pipeline's micro_batch_size in the profile."""
    profile = project.profiles / "t4.yaml"
    above, pipeline_key, below = profile.read_text().partition(f"\n  {pipeline}:\n")
    changed = re.sub(r"(?m)^    micro_batch_size: \d+$", f"    micro_batch_size: {size}", below, count=1)
    profile.write_text(f"{above}{pipeline_key}{changed}")


def test_a_batch_size_changes_only_what_follows_from_it(committed: Project) -> None:
    pipelines = ("ddp", "fsdp", "deepspeed", "lightning", "horovod", "tensorflow", "finetune")
    for pipeline in pipelines:
        set_batch_size(committed, pipeline, 4)
    render_again(committed)
    for pipeline in pipelines:
        git(committed, "commit", "--quiet", "--all", "--allow-empty", "-m", "the batches before")
        set_batch_size(committed, pipeline, 8)
        render_again(committed)
        changed = changed_lines(committed)
        if pipeline == "deepspeed":
            del changed["pipelines/autotune.yaml"]  # all that it measures follows from deepspeed's batch
        assert f"pipelines/{pipeline}.yaml" in changed
        assert len(changed) <= 2
        assert sum(changed.values()) <= 4, git(committed, "diff", "--", *RENDERED)


def test_a_comment_in_a_profile_changes_no_rendered_file(committed: Project) -> None:
    with (committed.profiles / "t4.yaml").open("a") as profile:
        profile.write("# a remark\n")
    assert render_again(committed).written == []
    assert git(committed, "status", "--short") == " M profiles/t4.yaml\n", "nor is the record something to commit"


def test_a_changed_setting_changes_its_line_and_no_rendered_file(committed: Project) -> None:
    settings = committed.root / "settings" / "fsdp.yaml"
    text, changed = re.subn(r"(?m)^learning_rate: .*$", "learning_rate: 1e-4", settings.read_text())
    assert changed == 1
    settings.write_text(text)
    assert render_again(committed).written == []
    assert git(committed, "diff", "--numstat") == "1\t1\tsettings/fsdp.yaml\n"


def test_branches_that_change_different_pipelines_merge(committed: Project) -> None:
    git(committed, "switch", "--quiet", "--create", "other")
    set_batch_size(committed, "deepspeed", 8)
    render_again(committed)
    git(committed, "commit", "--quiet", "--all", "-m", "deepspeed")
    git(committed, "switch", "--quiet", "main")
    set_batch_size(committed, "ddp", 8)
    render_again(committed)
    git(committed, "commit", "--quiet", "--all", "-m", "ddp")
    git(committed, "merge", "--quiet", "--no-edit", "other")
    assert find_drift(render_limited(committed)) == []


def test_files_in_conflict_are_rendered_again(committed: Project) -> None:
    git(committed, "switch", "--quiet", "--create", "other")
    write(committed, render(committed, "nd96"))
    git(committed, "add", ".")
    git(committed, "commit", "--quiet", "-m", "nd96")
    git(committed, "switch", "--quiet", "main")
    write(committed, render(committed, "t4", {"nodes": 3}))
    git(committed, "commit", "--quiet", "--all", "-m", "three nodes")
    with pytest.raises(subprocess.CalledProcessError):
        git(committed, "merge", "--quiet", "other")
    pipeline = committed.root / "pipelines" / "ddp.yaml"
    assert pipeline.read_text().startswith("<<<<<<< HEAD\n# Rendered from")
    assert {drift.reason for drift in find_drift(render_limited(committed)) if drift.path == pipeline} == {
        "holds both sides of a merge's conflict; `trainyard render` writes it again"
    }
    report = render_again(committed)
    assert report.saved == {}
    assert pipeline in report.written
    assert "<<<<<<<" not in pipeline.read_text()
    assert find_drift(render_limited(committed, "t4", {"nodes": 3})) == []


# Hand edits: what git does not have is kept ---------------------------------------------------------------------------


def edit(project: Project) -> Path:
    file = project.root / "pipelines" / "ddp.yaml"
    file.write_text(file.read_text() + "# mine\n")
    return file


@pytest.mark.parametrize("how", [[], ["add", "."], ["commit", "--quiet", "--all", "-m", "by hand"]], ids=str)
@pytest.mark.parametrize("has_record", [True, False])
def test_a_hand_edit_is_kept_unless_git_has_it(committed: Project, how: list[str], has_record: bool) -> None:
    edited = edit(committed)
    if how:
        git(committed, *how)
    if not has_record:
        committed.record.unlink()
    (drift,) = find_drift(render_limited(committed))
    assert drift.reason.startswith("was edited by hand" if not how else "is not what")
    report = write(committed, render(committed, "nd96"))
    assert list(report.saved) == ([] if how else [edited])


def test_in_a_fresh_clone_nothing_counts_as_edited(committed: Project) -> None:
    clone = Project(committed.root.with_name("clone"))
    git(committed, "clone", "--quiet", ".", str(clone.root))
    assert write(clone, render(clone, "nd96")).saved == {}
    git(clone, "add", ".")
    assert write(clone, render(clone, "t4")).saved == {}


def test_without_git_the_record_decides(committed: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    edited = edit(committed)
    assert list(write(committed, render(committed, "nd96")).saved) == [edited]
    assert write(committed, render(committed, "t4")).saved == {}
    committed.record.write_text("{damaged")
    report = write(committed, render(committed, "nd96"))
    assert set(report.saved) == {*report.written, *report.removed} & {*report.saved}
    assert edited in report.saved


# One profile after another --------------------------------------------------------------------------------------------


def test_a_profile_after_another_leaves_nothing_behind(project: Project, repository: Project) -> None:
    project.source.symlink_to(repository.source)
    renderings = [render(project, name) for name in profile_names(project)]
    by_files = {frozenset(rendering.files): rendering for rendering in renderings}
    assert len(by_files) > 1
    for before, after in itertools.permutations(by_files.values(), 2):
        write(project, before)
        write(project, after)
        below = [path for folder in RENDERED for path in (project.root / folder).rglob("*")]
        assert {path for path in below if path.is_file()} == set(after.files)
        assert all(any(path.iterdir()) for path in below if path.is_dir())
    for rendering in by_files.values():
        write(project, rendering)
        # Of the local profile's fine-tuning: what it starts from is made by another pipeline first.
        assert {found.rule for found in lint([project.root]).diagnostics} <= {"AML424"}


def test_rendered_files_are_marked_as_generated(committed: Project, repository: Project) -> None:
    attributes = new_project("mine", "ddp", InstalledFrom())[".gitattributes"]
    marks_here = (repository.root / ".gitattributes").read_text().splitlines()
    assert {f"/{folder}/** linguist-generated" for folder in RENDERED} <= {*attributes.splitlines()} & {*marks_here}
    (committed.root / ".gitattributes").write_text(attributes)
    rendered = git(committed, "ls-files", *RENDERED)
    marks = git(committed, "check-attr", "linguist-generated", *rendered.split())
    assert set(marks.splitlines()) == {f"{file}: linguist-generated: set" for file in rendered.split()}
    assert "unspecified" in git(committed, "check-attr", "linguist-generated", "profiles/t4.yaml")
