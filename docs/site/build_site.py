"""Build the documentation site, which opens without a server or a network: `make site`.

    python docs/site/build_site.py [--repository https://github.com/OWNER/NAME]

Copies the pages of docs/ to build/site/pages, adds a page for each rule of lint, and lets Zensical build
build/site/html; a link to a page that does not exist stops it. Links to files that are not pages lead to the
repository where its address is given.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SITE = Path(__file__).parent
DOCS = SITE.parent
ROOT = DOCS.parent
BUILT = ROOT / "build" / "site"


@dataclass(frozen=True)
class Script:
    """A script of an npm package that the site carries, so that it needs no network."""

    package: str
    sha256: str
    path: str
    name: str


MERMAID = Script(
    "mermaid@11.12.1",
    "3bd65ddefe97fb2e01d976a01d4078f8d773bfc56c6a75a9abf08b564ce0f8b2",
    "dist/mermaid.min.js",
    "mermaid.min.js",
)
"""Draws the diagrams."""

IFRAME_WORKER = Script(
    "iframe-worker@1.0.4",
    "e8c5d12d87829c503afba01d67772ea9f4aba5b7ae57a0c98e1917711030efbb",
    "shim/index.js",
    "iframe-worker.js",
)
"""Lets a page that was opened from a folder search."""
IFRAME_WORKER_ELSEWHERE = "https://unpkg.com/iframe-worker/shim"

_LINK = re.compile(r"\[([^\]\n]+)\]\(([^)\s]+)\)")


def copy_pages(folder: Path, repository: str | None) -> None:
    """Write every page of the site into a folder."""
    shutil.copytree(DOCS / "images", folder / "images")
    for page in [*DOCS.glob("*.md"), *DOCS.glob("*/*.md")]:
        copied = folder / ("index.md" if page.parent == SITE else page.relative_to(DOCS))
        copied.parent.mkdir(parents=True, exist_ok=True)
        home = DOCS if page.parent == SITE else page.parent
        copied.write_text(_with_links_of_the_site(page.read_text(encoding="utf-8"), home, repository), encoding="utf-8")
    write_pages = runpy.run_path(str(DOCS / "generate_rules.py"))["write_pages"]
    write_pages(folder / "rules")


def _with_links_of_the_site(text: str, folder: Path, repository: str | None) -> str:
    """Return a page's text; its links to files that are not pages lead to the repository, or are words only."""

    def replace(link: re.Match[str]) -> str:
        words, target = link.groups()
        file = Path(os.path.normpath(folder / target.partition("#")[0]))
        is_of_the_site = file.suffix in (".md", ".png") and file.is_relative_to(DOCS)
        if "://" in target or target.startswith("#") or is_of_the_site or not file.exists():
            return link[0]
        if repository is None:
            return words
        return f"[{words}]({repository}/blob/main/{file.relative_to(ROOT).as_posix()})"

    return _LINK.sub(replace, text)


def fetch(script: Script, folder: Path) -> None:
    """Write a script into a folder, from the npm registry. Raises ValueError if its package is not the expected one."""
    with tempfile.TemporaryDirectory() as downloads:
        command = ["npm", "pack", script.package, "--silent", "--pack-destination", downloads]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        (package,) = Path(downloads).glob("*.tgz")
        found = hashlib.sha256(package.read_bytes()).hexdigest()
        if found != script.sha256:
            raise ValueError(f"unexpected content of {script.package}: SHA-256 {found}, expected {script.sha256}")
        with tarfile.open(package) as archive:
            content = archive.extractfile(f"package/{script.path}")
            assert content is not None
            (folder / script.name).write_bytes(content.read())


def write_list_for_assistants(html: Path, project: dict[str, Any]) -> None:
    """Write llms.txt (https://llmstxt.org): the site's pages with their titles, and AGENTS.md beside it."""
    lines = [
        "# Trainyard",
        "",
        f"> {project['site_description']}",
        "",
        "- [How to write Azure ML YAML with it](AGENTS.md)",
    ]
    for section in project["nav"]:
        for name, pages in section.items():
            lines += ["", f"## {name}", ""]
            links = [(title, page) for entry in pages for title, page in entry.items()]
            lines += [
                f"- [{title}]({page.replace('README.md', 'index.md').removesuffix('.md')}.html)"
                for title, page in links
            ]
    (html / "llms.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")
    shutil.copy(ROOT / "AGENTS.md", html)


def search_without_network(html: Path) -> None:
    """Let every page load the script that its search needs from the site."""
    for page in html.rglob("*.html"):
        own = "../" * (len(page.relative_to(html).parts) - 1) + IFRAME_WORKER.name
        text = page.read_text(encoding="utf-8")
        page.write_text(text.replace(IFRAME_WORKER_ELSEWHERE, own), encoding="utf-8")


def build(repository: str | None) -> int:
    """Build the site into build/site/html, and return the exit code."""
    shutil.rmtree(BUILT, ignore_errors=True)
    pages = BUILT / "pages"
    pages.mkdir(parents=True)
    copy_pages(pages, repository)
    for script in (MERMAID, IFRAME_WORKER):
        fetch(script, pages)
    shutil.copy(SITE / "zensical.toml", BUILT)
    zensical = Path(sys.executable).with_name("zensical")
    status = subprocess.run([zensical, "build", "--strict", "--clean"], cwd=BUILT, check=False).returncode
    if status == 0:
        search_without_network(BUILT / "html")
        project = tomllib.loads((SITE / "zensical.toml").read_text(encoding="utf-8"))["project"]
        write_list_for_assistants(BUILT / "html", project)
        print(f"the site: {BUILT / 'html' / 'index.html'}")
    return status


def main() -> int:
    """Read the command line and build."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repository", help="the address that links to source files start with")
    return build(parser.parse_args().repository)


if __name__ == "__main__":
    sys.exit(main())
