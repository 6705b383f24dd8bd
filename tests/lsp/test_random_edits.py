"""Whatever is typed, the server goes on, and shows what lint would find."""

from __future__ import annotations

from pathlib import Path

import pytest
from random_edits import run


@pytest.mark.slow
def test_after_random_edits_the_findings_are_those_of_a_fresh_lint(tmp_path: Path) -> None:
    run(tmp_path.resolve(), edits=200, seed=0)
