"""Write docs/rules/ from the rules themselves: `python docs/generate_rules.py [--check]`."""

from __future__ import annotations

import sys
from pathlib import Path

from trainyard.lint.explanation import as_page, index_page
from trainyard.lint.rules import RULES

FOLDER = Path(__file__).parent / "rules"


def pages() -> dict[Path, str]:
    """Return the text of every page, by its path."""
    rules = sorted(RULES.values(), key=lambda rule: rule.id)
    return {FOLDER / "README.md": index_page(rules), **{FOLDER / f"{rule.id}.md": as_page(rule) for rule in rules}}


def drifted() -> list[Path]:
    """Return the pages that differ from what the rules say, and pages of rules that no longer exist."""
    expected = pages()
    wrong = [file for file, text in expected.items() if not file.is_file() or file.read_text(encoding="utf-8") != text]
    return wrong + [file for file in sorted(FOLDER.glob("*.md")) if file not in expected]


def write() -> None:
    """Write the pages, and remove those of rules that no longer exist."""
    FOLDER.mkdir(exist_ok=True)
    expected = pages()
    for file in FOLDER.glob("*.md"):
        if file not in expected:
            file.unlink()
    for file, text in expected.items():
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit("docs/rules has drifted: python docs/generate_rules.py" if drifted() else 0)
    write()
