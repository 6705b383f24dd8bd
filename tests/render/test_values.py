from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from trainyard.render.values import wrap, yaml_list, yaml_scalar

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"])),
)


@given(SCALARS)
def test_yaml_reads_every_scalar_back(value: object) -> None:
    again = yaml.safe_load(f"key: {yaml_scalar(value)}\n")["key"]
    assert again == value
    assert type(again) is type(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e-05, "1.0e-05"),
        (0.003, "0.003"),
        (1.0, "1.0"),
        (True, "true"),
        ("true", '"true"'),
        ("no", '"no"'),
        ("16g", "16g"),
        ("0x10", '"0x10"'),
        ("1e5", '"1e5"'),
        ("12:30", '"12:30"'),
        ("azureml:data:1", "azureml:data:1"),
        ("../data/images", "../data/images"),
        ("", '""'),
        ("a: b", '"a: b"'),
        ('{"n_layer": 4}', """'{"n_layer": 4}'"""),
        ("""it's "so\"""", '"it\'s \\"so\\""'),
        (None, "null"),
    ],
)
def test_scalars_are_quoted_only_if_necessary(value: object, text: str) -> None:
    assert yaml_scalar(value) == text


def test_lists_are_on_one_line() -> None:
    assert yaml_list(["fp32", "on", 3]) == '[fp32, "on", 3]'


def test_prose_is_wrapped_without_breaking_words() -> None:
    assert wrap("one two three", 8) == "one two\nthree"
