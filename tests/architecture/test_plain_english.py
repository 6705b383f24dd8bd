"""Phrases and names that were retired because they read as translated do not return."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (
    ".ci", ".github", "benchmarks", "components", "compute", "docs", "environments", "pipelines", "profiles",
    "schemas", "settings", "src", "templates", "tests",
)  # fmt: skip
SUFFIXES = {".css", ".csv", ".html", ".j2", ".js", ".json", ".md", ".py", ".toml", ".txt", ".yaml", ".yml"}
OTHERS_WROTE = ("tests/lint/data/", "docs/lint_comparison")

RETIRED = {
    r"(?<!there)(?<!There) (?:is|are) no (?!longer\b|more than\b|(?:\w+er|less|worse) than\b|different\b|exception\b)":
        "'x' is no profile -> unknown profile 'x'; is no checkpoint -> is not a checkpoint",
    r"\bmend(?:s|ed|ing)?\b": "fix",
    r"\b(?:is|are|was|were) wanted\b": "KEY=VALUE is wanted -> expected KEY=VALUE",
    r"\b(?:is|are|was|were) said\b|\bsaid (?:once|only)\b": "reported, logged, printed",
    r"\bno whole (?!number)": "no whole checkpoint -> not a complete checkpoint",
    r"\bgoes? on so\b": "continues like this",
    r"\bcame by it\b|\bof one's own\b|\bin vain\b|\bto be had\b": "plain words",
    r"\bsurely meant\b": "safe to fix",
    r"(?:;|, and) gives (?:its|the|how|what|whether|an?|back)\b": "returns",
    r"(?:^|\. |\"\"\")Gives (?:its|the|how|what|whether|an?)\b": "Return",
    r"\bpassed over\b": "skipped, ignored",
    r"\b(?:told already|been told|told as|told twice|tells more)\b": "reported, explained",
    r"\bspeaks? of\b|\bspeaks? to (?:us|Trainyard)\b": "concerns",
    r"\banew\b": "again",
    r"\bfor nothing (?:has|have|is|are|was)\b|\bWho you are comes\b": "for free; credentials",
    r"\bis to be hit\b|\bcosts nothing to find out\b|\bwhatever the end\b": "plain words",
    r"\b[Ee]ach word once\b|\blibrary that starts\b|\bIn the way are\b": "plain words",
    r"\btells what it cost\b|\btells what would\b": "reports, shows",
    r"\b(?:FROM|what|texts?|values?|launchers?|which|that) stands? (?:in|under|within|above) (?!for\b|place\b)":
        "is in, is under, is above",
    r"\bstands? alone\b": "a standalone job",
    r"\b[Aa]nother \w+ than\b|\bsomething else than\b|\bother \w+ than the\b":
        "a different one from, one other than, anything but",
    r"\bin the place of\b": "in place of",
    r"\bas (?:an? |the )?[\w'.]+(?: of \w+)? has it\b": "as in, as it says",
    r"\blets? (?:it |them )?pass\b": "accepts",
    r"\bby a slip\b": "by a typo",
    r"\bfor ever\b": "forever",
    r"\bNot reported (?:is|are)\b|\bChecked are\b": "x is not reported",
    r"\b(?:that|than) there (?:is|are) not\b": "unknown",
    r"\bSurroundings\b|\blint\.surroundings\b": "lint context",
    r"\bComponentShelf\b": "components that were read",
    r"\b(?:lending|[Ll]ent|find_lent)\b": "reuse, reused",
    r"\bown_part\b|\blocated\.mistake\b": "names that say what they stand for",
}  # fmt: skip


def text_files() -> Iterator[str]:
    yield from (file.name for file in ROOT.glob("*.md"))
    yield from ("Makefile", "pyproject.toml", "constraints.txt", ".pre-commit-hooks.yaml", ".ci/run")
    for folder in FOLDERS:
        for file in (ROOT / folder).rglob("*"):
            name = file.relative_to(ROOT).as_posix()
            is_ours = not name.startswith(OTHERS_WROTE) and "node_modules" not in file.parts
            if is_ours and file.suffix in SUFFIXES and file.is_file():
                yield name


def compiled(phrase: str) -> re.Pattern[str]:
    """The pattern, such that a phrase is also found where a line ends within it."""
    return re.compile(phrase.replace(" ", r"\s+(?:#\s*)?"), re.MULTILINE)


def retired_phrases(text: str) -> list[str]:
    found = []
    for phrase, instead in RETIRED.items():
        for match in compiled(phrase).finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(f"{line}: {match[0]!r} (write: {instead})")
    return found


def test_retired_phrases_do_not_return() -> None:
    here = Path(__file__).relative_to(ROOT).as_posix()
    found = [
        f"{name}:{phrase}"
        for name in text_files()
        if name not in (here, "CONTRIBUTING.md")
        for phrase in retired_phrases((ROOT / name).read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "is_retired"),
    [
        ("'x' is no profile", True),
        ("which is\n    # no whole checkpoint", True),
        ("there is no such file, and it is no longer here", False),
        ("KEY=VALUE is wanted", True),
        ("a recommendation that is amended", False),
        ("Run a pipeline; gives its record.", True),
        ("what Azure ML gives a job", False),
        ("another vocabulary than the dataset", True),
        ("what stands in the file", True),
        ("for every job; it stands in for the file", False),
    ],
)
def test_the_patterns_find_the_misuse_alone(text: str, is_retired: bool) -> None:
    assert bool(retired_phrases(text)) == is_retired
