"""Every profile renders what the golden files say. After a deliberate change: python tests/golden/regenerate.py"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("regenerate", Path(__file__).with_name("regenerate.py"))
assert _spec is not None
assert _spec.loader is not None
regenerate = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(regenerate)

PROFILES = regenerate.profile_names(regenerate.PROJECT)


def golden_files(profile: str) -> dict[str, str]:
    """The golden files of a profile, by their paths below this folder."""
    files = [
        path
        for path in regenerate.GOLDEN.rglob("*")
        if path.is_file() and path.relative_to(regenerate.GOLDEN).parts[0].partition(".")[0] == profile
    ]
    return {path.relative_to(regenerate.GOLDEN).as_posix(): path.read_text(encoding="utf-8") for path in files}


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_renders_its_golden_files(profile: str) -> None:
    golden, rendered = golden_files(profile), regenerate.golden_texts(profile)
    assert set(rendered) == set(golden)
    for name, text in rendered.items():
        assert text == golden[name], f"{name}: if this is meant, run python tests/golden/regenerate.py"


def test_golden_files_are_those_of_profiles_and_no_files_that_the_linter_takes_for_handed_in() -> None:
    names = {path.relative_to(regenerate.GOLDEN).as_posix() for path in regenerate.GOLDEN.rglob("*") if path.is_file()}
    golden = {name for name in names if "__pycache__" not in name and not name.endswith(".py")}
    assert golden == {name for profile in PROFILES for name in golden_files(profile)}
    assert all(name.endswith(regenerate.SUFFIX) for name in golden)
