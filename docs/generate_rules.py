"""Write the page of every rule of lint for the documentation site: `python docs/generate_rules.py [FOLDER]`.

The pages are not kept in the repository: the rules themselves are the one place, and `trainyard explain` shows them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from trainyard.lint.explanation import as_page, index_page
from trainyard.lint.rules import RULES


def write_pages(folder: Path) -> None:
    """Write README.md, the list of all rules, and a page for each."""
    folder.mkdir(parents=True, exist_ok=True)
    rules = sorted(RULES.values(), key=lambda rule: rule.id)
    (folder / "README.md").write_text(index_page(rules), encoding="utf-8")
    for rule in rules:
        (folder / f"{rule.id}.md").write_text(as_page(rule), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent / "rules")
    write_pages(parser.parse_args().folder)
