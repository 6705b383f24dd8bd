"""What `trainyard lint` reports in a folder of repositories: the counts of docs/lint_public_files.md.

    python benchmarks/lint_public_files.py FOLDER [--each]

FOLDER holds one folder per repository, OWNER/NAME, with the YAML and the scripts around it. Nobody's files are kept in
this repository: fetch them first. `--each` lists every error and warning, to be judged one by one. Each repository is
linted with the default settings, as `trainyard lint` in its root does.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from trainyard.lint.linter import LintResult, lint


def repositories(folder: Path) -> list[Path]:
    """The folders OWNER/NAME with YAML anywhere beneath them."""
    found = [path for path in sorted(folder.glob("*/*")) if path.is_dir()]
    return [path for path in found if any(path.rglob("*.y*ml"))]


def counts(result: LintResult) -> Counter[str]:
    """The findings of each severity, and the Azure ML files that were checked."""
    return Counter({"files": len(result.files)}) + Counter(found.severity for found in result.diagnostics)


def main() -> None:
    """Print a line per repository, their sum, and how often each rule reports something."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--each", action="store_true", help="list every error and warning")
    arguments = parser.parse_args()
    total: Counter[str] = Counter()
    rules: Counter[tuple[str, str]] = Counter()
    print("| repository | files | errors | warnings | notes |\n|---|--:|--:|--:|--:|")
    for repository in repositories(arguments.folder):
        result = lint([repository])
        of_one = counts(result)
        total += of_one
        rules.update((found.severity, found.rule) for found in result.diagnostics)
        name = repository.relative_to(arguments.folder).as_posix()
        print(f"| {name} | {of_one['files']} | {of_one['error']} | {of_one['warning']} | {of_one['info']} |")
        for found in result.diagnostics if arguments.each else ():
            if found.severity != "info":
                place = f"{found.span.file.relative_to(repository)}:{found.span.line}"
                print(f"    {place} {found.severity} {found.rule} {found.message}")
    print(f"| all | {total['files']} | {total['error']} | {total['warning']} | {total['info']} |")
    print(f"\n{total['warning'] / max(total['files'], 1):.2f} warnings a file")
    for (severity, rule), number in sorted(rules.items()):
        print(f"{severity:8} {rule} {number}")


if __name__ == "__main__":
    main()
