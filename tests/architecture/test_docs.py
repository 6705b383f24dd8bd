"""The documents are true: generated pages, links, a line for every dependency."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]


def test_the_page_of_the_steps_has_not_drifted() -> None:
    steps_page = runpy.run_path(str(ROOT / "docs" / "generate.py"))["steps_page"]
    assert (ROOT / "docs" / "steps.md").read_text(encoding="utf-8") == steps_page()


def test_the_picture_of_the_packages_has_not_drifted() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "generate_packages.py"))["page"]
    assert (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8") == page()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert not missing


def test_every_dependency_has_its_line_and_its_pin() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    project = pyproject.split("[project]")[1].split("[project.scripts]")[0]
    quoted = re.findall(r'^\s+"([a-zA-Z][\w-]*)(?:[<>=].*)?",', project, flags=re.MULTILINE)
    quoted += re.findall(r'"(azure-[\w-]+)>=', project)
    names = {name.lower() for name in quoted if name != "trainyard"}
    assert {"click", "torch", "pytest", "azure-ai-ml", "hypothesis"} <= names
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8").lower()
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower()
    assert {name for name in names if name not in page} == set()
    assert {name for name in names if f"\n{name}==" not in pins} == set()


def test_the_page_of_estimates_is_current() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "generate_estimates.py"))["page"]
    assert (ROOT / "docs" / "estimates.md").read_text(encoding="utf-8") == page()
