from __future__ import annotations

import functools
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

HERE = Path(__file__).parent
CLEAN_PROJECT = HERE.parent / "spec" / "data" / "project"
MARK = "‸"
# Each file of mistakes has the name of the project that they are planted into.
PROJECTS = {"digits": CLEAN_PROJECT, **{folder.name: folder for folder in sorted((HERE / "projects").iterdir())}}


@dataclass(frozen=True)
class Mistake:
    """One mistake: what becomes of which text, and where and how it is to be reported.

    `mark` is the place when that is elsewhere than in `new`, in `mark_file` when that is another file. `and_` are
    further changes of the file, `also` those of other files, `add` new files: what a mistake takes along.
    """

    name: str
    file: str
    old: str | None
    new: str
    rule: str
    project: str = "digits"
    hint: str = ""
    message: str = ""
    mark: str = ""
    mark_file: str = ""
    at: tuple[int, int] | None = None
    at_column: str = ""
    count: int = 1
    others: list[str] = field(default_factory=list)
    and_: list[tuple[str, str]] = field(default_factory=list)
    also: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    add: dict[str, str] = field(default_factory=dict)

    def copy_project(self, folder: Path) -> Path:
        """A clean copy of its project, to be spoilt."""
        copy = folder / "project"
        shutil.copytree(PROJECTS[self.project], copy)
        return copy

    def plant(self, project: Path) -> tuple[Path, int, int]:
        """Write it into a project; the file, line and column where it is."""
        for name, text in self.texts().items():
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            (project / name).write_text(text, encoding="utf-8")
        return self.place(project)

    def texts(self) -> dict[str, str]:
        """What the files that it changes become."""
        return {name: text.replace(MARK, "") for name, text in self._marked_texts().items()}

    def place(self, project: Path) -> tuple[Path, int, int]:
        """The file, line and column where it is to be reported."""
        if self.at is not None:
            return project / self.file, *self.at
        marked = self.mark_file or self.file
        before, mark, _ = self._marked_texts()[marked].partition(MARK)
        assert mark, f"{self.name}: no mark"
        return project / marked, before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1

    def _marked_texts(self) -> dict[str, str]:
        project = PROJECTS[self.project]
        texts: dict[str, str] = dict(self.add)

        def change(name: str, old: str, new: str) -> None:
            text = texts.get(name) or (project / name).read_text(encoding="utf-8")
            assert text.count(old) == 1, f"{self.name}: {old!r} stands {text.count(old)} times in {name}"
            texts[name] = text.replace(old, new)

        if self.mark:
            change(self.mark_file or self.file, self.mark.replace(MARK, ""), self.mark)
        if self.old is None:
            texts[self.file] = (project / self.file).read_text(encoding="utf-8") + self.new
        else:
            change(self.file, self.old, self.new)
        for old, new in self.and_:
            change(self.file, old, new)
        for name, changes in self.also.items():
            for old, new in changes:
                change(name, old, new)
        return texts


@functools.cache
def mistakes() -> list[Mistake]:
    """Every planted mistake of every project."""
    return [
        Mistake(
            **{
                **{("and_" if key == "and" else key): value for key, value in entry.items()},
                "at": tuple(entry["at"]) if "at" in entry else None,
            },
            project=file.stem,
        )
        for file in sorted((HERE / "mistakes").glob("*.yaml"))
        for entry in yaml.load(file.read_text(encoding="utf-8"), yaml.CSafeLoader)  # ten times as fast as in Python
    ]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the clean project of digits, to be spoilt."""
    copy = tmp_path / "project"
    shutil.copytree(CLEAN_PROJECT, copy)
    return copy


@pytest.fixture(scope="session")
def all_mistakes() -> list[Mistake]:
    """Every planted mistake."""
    return mistakes()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "clean_project" in metafunc.fixturenames:
        metafunc.parametrize("clean_project", PROJECTS.values(), ids=PROJECTS)
    if "mistake" in metafunc.fixturenames:
        metafunc.parametrize("mistake", mistakes(), ids=lambda mistake: f"{mistake.project}: {mistake.name}")
