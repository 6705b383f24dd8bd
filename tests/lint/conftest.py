from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

HERE = Path(__file__).parent
CLEAN_PROJECT = HERE.parent / "spec" / "data" / "project"
MARK = "‸"


@dataclass(frozen=True)
class Mistake:
    """One mistake: what becomes of which text, and where and how it is to be reported."""

    name: str
    file: str
    old: str | None
    new: str
    rule: str
    hint: str = ""
    message: str = ""
    mark: str = ""
    at: tuple[int, int] | None = None
    at_related: bool = False
    others: list[str] = field(default_factory=list)

    def plant(self, project: Path) -> tuple[Path, int, int]:
        """Write it into a project; the file, line and column where it is."""
        file = project / self.file
        text = file.read_text(encoding="utf-8")
        if self.mark:
            text = self._replaced(text, self.mark.replace(MARK, ""), self.mark)
        if self.old is None:
            text += self.new
        else:
            text = self._replaced(text, self.old, self.new)
        place = text.find(MARK)
        text = text.replace(MARK, "")
        file.write_text(text, encoding="utf-8")
        if self.at is not None:
            return file, *self.at
        assert place >= 0, f"{self.name}: no mark"
        before = text[:place]
        return file, before.count("\n") + 1, place - (before.rfind("\n") + 1) + 1

    def _replaced(self, text: str, old: str, new: str) -> str:
        assert text.count(old) == 1, f"{self.name}: {old!r} stands {text.count(old)} times in {self.file}"
        return text.replace(old, new)


def mistakes() -> list[Mistake]:
    entries = yaml.safe_load((HERE / "mistakes.yaml").read_text(encoding="utf-8"))
    return [Mistake(**{**entry, "at": tuple(entry["at"]) if "at" in entry else None}) for entry in entries]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the clean project, to be spoilt."""
    copy = tmp_path / "project"
    shutil.copytree(CLEAN_PROJECT, copy)
    return copy


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "mistake" in metafunc.fixturenames:
        metafunc.parametrize("mistake", mistakes(), ids=lambda mistake: mistake.name)
