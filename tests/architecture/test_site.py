"""The documentation site is built without a warning, and works from a folder without a network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of a copy of docs/, as `make site` builds it."""
    project = tmp_path_factory.mktemp("project")
    shutil.copytree(ROOT / "docs", project / "docs")
    for name in ("src", "tests", "schemas", "constraints.txt", "AGENTS.md", "SECURITY.md"):
        (project / name).symlink_to(ROOT / name)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = [
        sys.executable,
        project / "docs" / "site" / "build_site.py",
        "--repository",
        "https://example.com/us/trainyard",
    ]
    subprocess.run(command, env=environment, check=True)
    return project / "build" / "site" / "html"


@pytest.fixture
def page(browser: Any) -> Iterator[Page]:
    context = browser.new_context()
    yield context.new_page()
    context.close()


def test_the_site_needs_no_network(site: Path, page: Page) -> None:
    """A diagram is drawn, and search finds a page."""
    elsewhere: list[str] = []
    page.on("request", lambda request: None if request.url.startswith("file:") else elsewhere.append(request.url))
    page.goto((site / "concepts.html").as_uri())
    page.wait_for_selector("div.mermaid")
    page.goto((site / "index.html").as_uri())
    page.keyboard.press("/")
    page.keyboard.type("AML601")
    page.get_by_text("AML601").first.wait_for()
    assert not elsewhere


def test_every_rule_has_a_page_and_source_files_lead_to_the_repository(site: Path) -> None:
    assert "process" in (site / "rules" / "AML601.html").read_text(encoding="utf-8")
    assert "https://example.com/us/trainyard/blob/main/constraints.txt" in (site / "dependencies.html").read_text(
        encoding="utf-8"
    )


def test_the_list_for_assistants_names_pages_that_exist(site: Path) -> None:
    links = re.findall(r"\]\((\S+)\)", (site / "llms.txt").read_text(encoding="utf-8"))
    assert len(links) > 30
    assert [link for link in links if not (site / link).is_file()] == []


def test_every_page_is_in_the_navigation() -> None:
    config = (ROOT / "docs" / "site" / "zensical.toml").read_text(encoding="utf-8")
    pages = [
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs").glob("coming-from/*.md"),
        *(ROOT / "docs").glob("guides/*.md"),
    ]
    missing = [name for page in pages if f'"{(name := page.relative_to(ROOT / "docs").as_posix())}"' not in config]
    assert not missing
