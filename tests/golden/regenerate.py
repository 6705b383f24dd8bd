"""Write again what every profile renders, after a deliberate change of templates, profiles or steps' settings.

    python tests/golden/regenerate.py && git diff tests/golden tests/azure_client/golden

Two profiles have all of their files here; of each other one there is the difference from t4, one file per profile.
What Microsoft's client sends (tests/azure_client/golden) is written again too. Headers are left out. Each file's name
ends in `.golden`, so that `trainyard lint .` does not take these texts, which lie far from the code they name, for
files that are handed in.
"""

from __future__ import annotations

import difflib
import functools
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from trainyard.render.profiles import profile_names
from trainyard.render.project import Project
from trainyard.render.rendered_files import content_of
from trainyard.render.rendering import render

GOLDEN = Path(__file__).resolve().parent
PROJECT = Project(GOLDEN.parents[1])
SUFFIX = ".golden"
BASE = "t4"
WHOLE = (BASE, "local")


def golden_texts(profile: str) -> dict[str, str]:
    """What the golden files of a profile hold: each file's path below this folder, with its text."""
    rendered = _rendered_texts(profile)
    if profile in WHOLE:
        return {f"{profile}/{name}{SUFFIX}": text for name, text in rendered.items()}
    return {f"{profile}.diff{SUFFIX}": "".join(_difference(profile, rendered))}


@functools.cache
def _rendered_texts(profile: str) -> dict[str, str]:
    files = render(PROJECT, profile, {}).files.values()
    return {file.path.relative_to(PROJECT.root).as_posix(): content_of(file.text) for file in files}


def _difference(profile: str, rendered: dict[str, str]) -> Iterator[str]:
    """Yield what a profile renders otherwise than t4, as `diff` writes it, without numbers of lines."""
    base = _rendered_texts(BASE)
    for name in sorted(base.keys() | rendered.keys()):
        if name not in rendered:
            yield f"Only in {BASE}: {name}\n"
        elif name not in base:
            yield f"Only in {profile}: {name}\n{rendered[name]}"
        else:
            before, after = base[name].splitlines(keepends=True), rendered[name].splitlines(keepends=True)
            lines = difflib.unified_diff(before, after, f"{BASE}/{name}", f"{profile}/{name}", n=1)
            yield from ("@@\n" if line.startswith("@@ ") else line for line in lines)


def main() -> None:
    """Replace the golden files of every profile."""
    for old in GOLDEN.rglob(f"*{SUFFIX}"):
        old.unlink()
    for folder in (path for path in GOLDEN.iterdir() if path.is_dir() and path.name != "__pycache__"):
        shutil.rmtree(folder)
    for profile in profile_names(PROJECT):
        for name, text in golden_texts(profile).items():
            file = GOLDEN / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    bodies = PROJECT.root / "tests" / "azure_client" / "helpers" / "golden_bodies.py"
    subprocess.run([sys.executable, str(bodies)], check=True)


if __name__ == "__main__":
    main()
