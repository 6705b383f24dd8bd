"""Write what the first command of README.md prints: `python docs/generate_readme.py [--check]`.

Runs the commands of its first console block in a copy of their folder, and puts what `trainyard lint` prints below it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
FIRST_BLOCK = re.compile(r"(```console\n(?:\$ [^\n]*\n)+)(.*?)(```)", re.DOTALL)


def page() -> str:
    """Return the text of README.md with what its first commands print today."""
    text = README.read_text(encoding="utf-8")
    block = FIRST_BLOCK.search(text)
    assert block is not None, "README.md begins with a console block"
    enter, *commands = [line.removeprefix("$ ") for line in block[1].splitlines()[1:]]
    with tempfile.TemporaryDirectory() as folder:
        copied = shutil.copytree(ROOT / enter.removeprefix("cd "), Path(folder) / "copy")
        trainyard = Path(sys.executable).with_name("trainyard")
        script = "\n".join(commands).replace("trainyard ", f"{trainyard} ")
        run = subprocess.run(["bash", "-c", script], cwd=copied, capture_output=True, text=True, check=False)
    printed = (run.stdout + run.stderr).strip()
    return text[: block.start(2)] + f"{printed}\n" + text[block.end(2) :]


def main() -> int:
    """Write README.md, or say whether it would change."""
    text = page()
    if "--check" not in sys.argv:
        README.write_text(text, encoding="utf-8")
    elif text != README.read_text(encoding="utf-8"):
        print("README.md does not show what its first command prints: run `python docs/generate_readme.py`")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
