"""What users read (messages, help, docs, comments in what is rendered) is free of phrases that read as translated."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "trainyard"
HELP = (SOURCE / "cli", SOURCE / "settings" / "steps")
"""Where docstrings, and the strings beneath fields, are shown as help."""

RETIRED = {
    r"(?<!there )(?<!There )\b(?:is|are) no (?:whole|valid|known)\b": "not a complete, invalid, unknown",
    r"(?<!there )(?<!There )\b(?:is|are) no (?:profile|file|folder|key|name|number|job|step|rule)\b": "unknown, not a",
    r"\bmend(?:s|ed|ing)?\b": "fix",
    r"\b(?:is|are|was|were) wanted\b": "expected",
    r"\b(?:is|are|was|were) said\b": "reported, logged",
    r"\bno whole (?!number)": "not a complete",
    r"\bpassed over\b": "skipped, ignored",
    r"\banew\b|\bin vain\b|\bfor ever\b": "again, without effect, forever",
    r"\b[Aa]nother \w+ than\b|\b[Ss]omething else than\b": "a different one from, anything but",
    r"\blets? (?:it |them )?pass\b": "accepts",
    r"\bby a slip\b": "by a typo",
    r"\b(?:[Aa]n empty|[Aa] plain|[Aa]nother|only a|[Aa]ny) text\b(?! file| editor)": "string",
    r"\bblanks? (?:around|before|after|behind)\b|\bwithout (?:the )?blanks?\b": "space",
    r"\bsmall letters?\b": "lower-case letters",
    r"(?:;|, and) gives (?:its|the|how|what|whether|an?|back)\b": "returns",
    r"\bone's own\b": "your own, custom",
    r"\bgo(?:es)? on with\b": "continue",
    r"\bbelongs? into\b": "belongs in",
    r"\bfalls? over the\b": "crashes on",
    r"\bwith the (?:same )?bits of\b": "bit-identical to",
}


def texts_for_users() -> Iterator[tuple[str, str]]:
    """Yield what users read, each with where it is."""
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "schemas").rglob("*.json")]
    written_by_people = [*(ROOT / "profiles").glob("*.yaml"), *(ROOT / "settings").glob("*.yaml")]
    templates = [*(ROOT / "templates").rglob("*.j2"), *SOURCE.rglob("*.j2"), *SOURCE.rglob("*.in")]
    for file in (*documents, *written_by_people, *templates):
        if file.name not in ("CONTRIBUTING.md", "lint_comparison.md"):
            yield str(file.relative_to(ROOT)), file.read_text(encoding="utf-8")
    for file in SOURCE.rglob("*.py"):
        for line, text in strings_for_users(file):
            yield f"{file.relative_to(ROOT)}:{line}", text


def strings_for_users(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the strings of a module: messages, and where they are help, documentation."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    is_help = any(file.is_relative_to(folder) for folder in HELP)
    for node in ast.walk(tree):
        is_string = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_string and (is_help or id(node) not in documentation):
            yield node.lineno, node.value


def retired_phrases(text: str) -> list[str]:
    """Return what is found in a text, also where a line ends within a phrase."""
    on_one_line = re.sub(r"\s*\n\s*(?:#\s*)?", " ", text)
    return [
        f"{match[0]!r} (write: {instead})"
        for phrase, instead in RETIRED.items()
        for match in re.finditer(phrase, on_one_line)
    ]


def test_users_read_plain_english() -> None:
    found = [f"{where}: {phrase}" for where, text in texts_for_users() for phrase in retired_phrases(text)]
    assert found == []


@pytest.mark.parametrize(
    ("text", "is_retired"),
    [
        ("'x' is no profile", True),
        ("which is\n    # no whole checkpoint", True),
        ("there are no findings, and it is no longer here", False),
        ("KEY=VALUE is wanted", True),
        ("a recommendation that is amended", False),
        ("Run a pipeline; gives its record.", True),
        ("what Azure ML gives a job", False),
        ("another vocabulary than the dataset", True),
        ("there is no such file", False),
        ("passes an empty text", True),
        ("an empty text file", False),
        ("kernels of one's own", True),
        ("a training can go on with train_ddp", True),
        ("it belongs into the components", True),
        ("it belongs in the components, and falls over time", False),
        ("it ends with the bits of one that was not interrupted", True),
    ],
)
def test_the_patterns_find_the_misuse_alone(text: str, is_retired: bool) -> None:
    assert bool(retired_phrases(text)) == is_retired
