"""The long fuzzing of the linter: `make soak FUZZ=100000`. Other files than those of `make test`, by their numbers."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "lint"))

import fuzzing  # noqa: E402

FIRST = 1_000_000
CASES = int(os.environ.get("FUZZ", "10000"))
SHOWN_AT_MOST = 20

pytestmark = pytest.mark.soak


def test_spoilt_files_end_in_diagnostics(tmp_path: Path) -> None:
    seeds = fuzzing.plant(tmp_path)
    failures = []
    for number in range(FIRST, FIRST + CASES):
        try:
            fuzzing.check(seeds, number)
        except Exception as error:
            failures.append(f"{number}: {type(error).__name__}: {error}")
            if len(failures) == SHOWN_AT_MOST:
                break
    assert not failures, "\n".join(failures)
