"""Write again what every profile renders, after a deliberate change of templates, profiles or steps' settings.

    python tests/golden/regenerate.py && git diff tests/golden tests/azure_client/golden

What Microsoft's client sends for them (tests/azure_client/golden) is written again too.
Headers are left out: they only say where a file comes from. Each file's name ends in `.golden`, so that
`trainyard lint .` does not take these texts, which lie far from the code they name, for files that are handed in.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from trainyard.render.header import content_of
from trainyard.render.profiles import profile_names
from trainyard.render.project import Project
from trainyard.render.rendering import render

GOLDEN = Path(__file__).resolve().parent
PROJECT = Project(GOLDEN.parents[1])
SUFFIX = ".golden"


def rendered_texts(profile: str) -> dict[str, str]:
    """What a profile renders: each file's path from the project's root, with its text beneath the header."""
    files = render(PROJECT, profile, {}).files.values()
    return {file.path.relative_to(PROJECT.root).as_posix(): content_of(file.text) for file in files}


def main() -> None:
    """Replace the golden files of every profile."""
    for old in (path for path in GOLDEN.iterdir() if path.is_dir() and path.name != "__pycache__"):
        shutil.rmtree(old)
    for profile in profile_names(PROJECT):
        for name, text in rendered_texts(profile).items():
            file = GOLDEN / profile / (name + SUFFIX)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    bodies = PROJECT.root / "tests" / "azure_client" / "helpers" / "golden_bodies.py"
    subprocess.run([sys.executable, str(bodies)], check=True)


if __name__ == "__main__":
    main()
