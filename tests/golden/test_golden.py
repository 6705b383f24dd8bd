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


@pytest.mark.parametrize("profile", regenerate.profile_names(regenerate.PROJECT))
def test_a_profile_renders_its_golden_files(profile: str) -> None:
    folder = regenerate.GOLDEN / profile
    golden = {
        path.relative_to(folder).as_posix().removesuffix(regenerate.SUFFIX): path.read_text(encoding="utf-8")
        for path in folder.rglob("*")
        if path.is_file()
    }
    rendered = regenerate.rendered_texts(profile)
    assert set(rendered) == set(golden)
    for name, text in rendered.items():
        assert text == golden[name], f"{profile}/{name}: if this is meant, run python tests/golden/regenerate.py"


def test_no_golden_files_are_left_of_profiles_that_are_gone() -> None:
    folders = {path.name for path in regenerate.GOLDEN.iterdir() if path.is_dir()} - {"__pycache__"}
    assert folders == set(regenerate.profile_names(regenerate.PROJECT))


def test_the_linter_takes_no_golden_file_for_a_file_that_is_handed_in() -> None:
    names = {
        path.suffix for path in regenerate.GOLDEN.rglob("*/*") if path.is_file() and "__pycache__" not in path.parts
    }
    assert names == {regenerate.SUFFIX}
