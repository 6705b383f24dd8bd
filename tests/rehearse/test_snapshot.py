"""Which files a job's working folder holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainyard.rehearse.digests import ContentDigests
from trainyard.rehearse.snapshots import snapshot_of
from trainyard.spec.diagnostic import SpecError
from trainyard.spec.loading import load_component


def make(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)


@pytest.fixture
def code(workspace: Any) -> Path:
    import shutil

    shutil.rmtree(workspace.code)
    make(
        workspace.code,
        "train.py",
        "notes.txt",
        "lib/a.py",
        "lib/a.log",
        "lib/deep/b.log",
        "data/big.bin",
        "data/keep.bin",
        "lib/__pycache__/a.pyc",
        ".trainyard/runs/x/run.json",
        "build/out.txt",
        "lib/build/out.txt",
    )
    return Path(workspace.code)


def places(workspace: Any, **fields: Any) -> list[str]:
    workspace.component("worker", "true", **fields)
    component = load_component(workspace.root / "components" / "worker.yaml")
    return [place for _, place in snapshot_of(component).files]


EVERYTHING = [
    "build/out.txt",
    "data/big.bin",
    "data/keep.bin",
    "lib/a.log",
    "lib/a.py",
    "lib/build/out.txt",
    "lib/deep/b.log",
    "notes.txt",
    "train.py",
]


def test_everything_but_caches_and_runs(workspace: Any, code: Path) -> None:
    assert places(workspace) == EVERYTHING


@pytest.mark.parametrize(
    ("patterns", "dropped"),
    [
        ("*.log", ["lib/a.log", "lib/deep/b.log"]),
        ("/build/", ["build/out.txt"]),
        ("build/", ["build/out.txt", "lib/build/out.txt"]),
        ("lib/**/*.log", ["lib/a.log", "lib/deep/b.log"]),
        ("data/*\n!data/keep.bin", ["data/big.bin"]),
        ("/lib/*\n!/lib/a.log", ["lib/a.py", "lib/build/out.txt", "lib/deep/b.log"]),
        ("# a comment\n\nnotes.txt  ", ["notes.txt"]),
    ],
)
def test_patterns_work_as_in_git(workspace: Any, code: Path, patterns: str, dropped: list[str]) -> None:
    (code / ".amlignore").write_text(patterns)

    assert places(workspace) == sorted([".amlignore", *set(EVERYTHING) - set(dropped)])


def test_amlignore_replaces_gitignore_and_only_at_the_root(workspace: Any, code: Path) -> None:
    (code / ".gitignore").write_text("*.py\n.gitignore")
    assert places(workspace) == [place for place in EVERYTHING if not place.endswith(".py")]

    (code / ".amlignore").write_text(".*ignore")
    (code / "lib" / ".amlignore").write_text("*")
    assert places(workspace) == EVERYTHING


def test_additional_includes_lie_beside_the_code(workspace: Any, code: Path) -> None:
    make(workspace.root, "shared/util.py", "shared/deep/more.py", "settings.json")

    found = places(workspace, additional_includes=["../shared", "../settings.json"])

    assert found == sorted([*EVERYTHING, "settings.json", "shared/deep/more.py", "shared/util.py"])


def test_without_code_the_folder_is_empty(workspace: Any) -> None:
    assert places(workspace, code=None) == []


def test_a_missing_include_is_named(workspace: Any, code: Path) -> None:
    with pytest.raises(SpecError, match="nowhere"):
        places(workspace, additional_includes=["../nowhere"])


def test_the_digest_follows_content_names_and_the_executable_bit(workspace: Any, code: Path, tmp_path: Path) -> None:
    workspace.component("worker", "true")
    component = load_component(workspace.root / "components" / "worker.yaml")
    digests = ContentDigests(tmp_path / "index.json")
    seen = {snapshot_of(component).digest(digests)}

    (code / "lib" / "__pycache__" / "a.pyc").write_text("compiled again")
    assert {snapshot_of(component).digest(digests)} == seen
    for change in (
        lambda: (code / "train.py").write_text("changed"),
        lambda: (code / "train.py").rename(code / "renamed.py"),
        lambda: (code / "renamed.py").chmod(0o755),
    ):
        change()
        seen.add(snapshot_of(component).digest(digests))
    assert len(seen) == 4


def test_each_node_works_in_its_own_copy(workspace: Any) -> None:
    file = workspace.one_job(
        "echo mine > scratch.txt; pwd; ls __pycache__ 2>/dev/null; true", resources={"instance_count": 2}
    )

    record = workspace.run(file)

    folders = [(record.folder / log).read_text().split() for log in record.jobs["work"].logs]
    assert folders == [[str(record.folder / f"jobs/work/nodes/{node}")] for node in (0, 1)]
    assert not (workspace.code / "scratch.txt").exists()


def test_links_are_followed_but_not_in_circles(workspace: Any, code: Path, tmp_path: Path) -> None:
    make(tmp_path / "elsewhere", "more.py")
    (code / "linked").symlink_to(tmp_path / "elsewhere")
    (code / "lib" / "up").symlink_to(code)
    (code / "lost").symlink_to(tmp_path / "nowhere")

    assert places(workspace) == sorted([*EVERYTHING, "linked/more.py"])
