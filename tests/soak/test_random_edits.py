"""The long run of random edits through the language server: `make soak EDITS=10000`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "lsp"))

from random_edits import run  # noqa: E402

EDITS = int(os.environ.get("EDITS", "10000"))

pytestmark = pytest.mark.soak


def test_after_random_edits_the_findings_are_those_of_a_fresh_lint(tmp_path: Path) -> None:
    run(tmp_path.resolve(), edits=EDITS, seed=1_000_000)
