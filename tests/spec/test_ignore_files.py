"""What an ignore file leaves out of a snapshot, and that the short cut before pathspec decides as pathspec does."""

from __future__ import annotations

import random
from pathlib import Path

from pathspec import PathSpec
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from trainyard.spec.uploads import ignore_rule

NAMES = ("a", "b", "c.py", "dd", "__pycache__", "x.pyc", "a.b")
PATTERN_NAMES = (*NAMES, "*", "*.py", "*.py[cod]", "?", "a*", "[ab]", "[!a]", "**", "d?")


def test_random_patterns_are_decided_as_pathspec_does(tmp_path: Path) -> None:
    chosen = random.Random(5)
    ignored = 0
    for _ in range(400):
        patterns = [
            chosen.choice(["", "", "!"])
            + chosen.choice(["", "/"])
            + "/".join(chosen.choices(PATTERN_NAMES, k=chosen.randint(1, 3)))
            + chosen.choice(["", "", "/"])
            for _ in range(chosen.randint(1, 4))
        ]
        (tmp_path / ".amlignore").write_text("\n".join(patterns), encoding="utf-8")
        is_ignored, _ = ignore_rule(tmp_path)
        expected = PathSpec.from_lines(GitIgnoreSpecPattern, patterns)
        for _ in range(8):
            path = "/".join(chosen.choices(NAMES, k=chosen.randint(1, 3))) + chosen.choice(["", "", "/"])
            assert is_ignored(path) == expected.match_file(path), (patterns, path)
            ignored += expected.match_file(path)
    assert 400 < ignored < 2000


def test_a_folder_without_an_ignore_file_leaves_nothing_out(tmp_path: Path) -> None:
    is_ignored, can_prune = ignore_rule(tmp_path)
    assert not is_ignored("a.py")
    assert can_prune
