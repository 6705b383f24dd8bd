"""Two thousand spoilt files end in diagnostics; `make soak FUZZ=100000` tries more (tests/soak/test_lint_fuzz.py)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

import fuzzing

CASES = 2000
PARTS = 8


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> fuzzing.Seeds:
    return fuzzing.plant(tmp_path_factory.mktemp("seeds"))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_spoilt_files_end_in_diagnostics(seeds: fuzzing.Seeds, part: int) -> None:
    for number in range(part, CASES, PARTS):
        fuzzing.check(seeds, number)


def test_a_spoilt_file_can_be_made_again(seeds: fuzzing.Seeds) -> None:
    assert fuzzing.spoilt(seeds, 7) == fuzzing.spoilt(seeds, 7)
    assert len({fuzzing.spoilt(seeds, number)[1] for number in range(100)}) > 90


def test_what_takes_too_long_is_told(seeds: fuzzing.Seeds, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object, **__: object) -> None:
        while True:
            pass

    monkeypatch.setattr(fuzzing, "LIMIT_SECONDS", 0.05)
    monkeypatch.setattr(fuzzing, "lint", hang)
    with pytest.raises(fuzzing.TookTooLong, match="SIGPROF"):
        fuzzing.check(seeds, 0)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200))
def test_bytes_of_any_kind_end_in_diagnostics(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "any.yaml"
    file.write_bytes(content)
    fuzzing.lint([file])
