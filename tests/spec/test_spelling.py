"""Where each character of a string is in its file, whatever style it is written in."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from trainyard.spec.documents import Node, parse_document
from trainyard.spec.yaml_parsing import spelling_of


def value_of(text: str) -> tuple[str, Node]:
    node = parse_document(Path("a.yaml"), text).root.get("a")
    assert node is not None
    return text, node


@pytest.mark.parametrize(
    "source",
    [
        "a: one two",
        "a: one\n  two",
        "a: 'one two'",
        "a: 'it''s one\n\n  two'",
        'a: "one two"',
        'a: "\\"\\u006fne\\ttwo\\x21"',
        'a: "one \\\n   two"',
        "a: |\n  one\n  two\n",
        "a: >-  # a comment: one\n  one\n\n    two\n",
        "a: &anchor !!str one two",
        "a: |2-\n    one\n   two",
    ],
)
def test_words_are_found_where_they_stand(source: str) -> None:
    text, node = value_of(source + "\n")
    spelling = spelling_of(node.text, text, *node.offsets)
    assert spelling is not None
    start = node.text.index("two")
    place = spelling.part(start - 1, start + 3)
    assert place is not None
    assert text[slice(*place)] == "two"


def test_blanks_have_no_place() -> None:
    spelling = spelling_of("a b", "a b", 0, 3)
    assert spelling is not None
    assert (spelling.part(1, 2), spelling.part(0, 9)) == (None, (0, 3))


def test_what_does_not_agree_is_nowhere() -> None:
    assert spelling_of("abd", "abc", 0, 3) is None
    assert spelling_of("abc", "ab", 0, 2) is None


@given(st.text(st.sampled_from("ab'\"\\ \n\té😀:#"), min_size=1), st.sampled_from(["'", '"', "|", ">", None]))
def test_every_character_is_found_in_every_style(value: str, style: str | None) -> None:
    text, node = value_of(yaml.safe_dump({"a": value}, default_style=style, allow_unicode=True))
    assert node.text == value or not isinstance(node.data, str)
    spelling = spelling_of(node.text, text, *node.offsets)
    assert spelling is not None
    for index, character in enumerate(node.text):
        if not character.isspace():
            written = text[spelling.begins[index] : spelling.ends[index]]
            assert written in (character, "''") or yaml.safe_load(f'"{written}"') == character
