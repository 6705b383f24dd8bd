"""Write the page of every rule of lint for the documentation site: `python docs/generate_rules.py [FOLDER]`.

The pages are not kept in the repository: the rules themselves are the one place, and `trainyard explain` shows them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from trainyard.lint.explanation import as_page, severity_word
from trainyard.lint.rules import RULES
from trainyard.spec.rule import Rule


def write_pages(folder: Path) -> None:
    """Write README.md, the list of all rules, and a page for each."""
    folder.mkdir(parents=True, exist_ok=True)
    rules = sorted(RULES.values(), key=lambda rule: rule.id)
    (folder / "README.md").write_text(index_page(rules), encoding="utf-8")
    for rule in rules:
        (folder / f"{rule.id}.md").write_text(as_page(rule), encoding="utf-8")


def index_page(rules: Iterable[Rule]) -> str:
    """Return the list of all rules in Markdown."""
    lines = [
        "# The rules of `trainyard lint`",
        "",
        "Written by `docs/generate_rules.py` from `src/trainyard/lint/rules/` and `src/trainyard/spec/`;",
        "the tests run every example: the wrong one has exactly this finding, on its line, and the right one has none.",
        "`trainyard explain AML101` prints the same text.",
        "",
        "An *error* makes a job fail, or do something other than what was written. Azure ML accepts a *warning*, but",
        "it is probably a mistake. *Pedantic* rules need `--pedantic`; *local* rules apply to `trainyard run` only.",
        "",
        "| rule | | |",
        "|---|---|---|",
    ]
    lines += [f"| [{rule.id}]({rule.id}.md) | {severity_word(rule)} | {rule.summary} |" for rule in rules]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent / "rules")
    write_pages(parser.parse_args().folder)
