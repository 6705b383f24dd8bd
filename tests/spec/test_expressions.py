from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.spec.expressions import (
    Binding,
    ExpressionError,
    Literal,
    OptionalPart,
    bindings_in,
    only_binding,
    parse_expressions,
    written,
)

names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]{0,8}", fullmatch=True)
blanks = st.sampled_from(["", " ", "  "])
plain = st.text(alphabet="abc $[]{}-'é\n", max_size=12).filter(
    # Nor does it end in what the piece behind it could make into an opening.
    lambda t: "${{" not in t and "$[[" not in t and not t.endswith(("$", "${", "$["))
)
inside = plain.filter(lambda t: "]]" not in t and not t.endswith("]"))


@st.composite
def bindings(draw: st.DrawFn) -> str:
    path = ".".join(draw(st.lists(names, min_size=1, max_size=5)))
    return f"${{{{{draw(blanks)}{path}{draw(blanks)}}}}}"


@st.composite
def optional_parts(draw: st.DrawFn) -> str:
    return f"$[[{''.join(draw(st.lists(st.one_of(inside, bindings()), max_size=4)))}]]"


texts = st.lists(st.one_of(plain, bindings(), optional_parts()), max_size=6).map("".join)


@given(texts)
def test_segments_written_out_are_the_text(text: str) -> None:
    assert written(parse_expressions(text)) == text


@given(texts)
def test_offsets_are_those_of_the_text(text: str) -> None:
    for segment in parse_expressions(text):
        if isinstance(segment, OptionalPart):
            assert text[segment.start : segment.end] == written([segment])
    for binding in bindings_in(text):
        assert text[binding.start : binding.end] == binding.text
        for index, name in enumerate(binding.path):
            start, end = binding.part_offsets(index)
            assert text[start:end] == name


@given(st.text(alphabet="a.${}[] \n", max_size=30))
def test_any_text_parses_or_says_where_it_is_broken(text: str) -> None:
    broken_at = (0, 1)
    try:
        assert written(parse_expressions(text)) == text
    except ExpressionError as error:
        broken_at = (error.start, error.end)
    assert 0 <= broken_at[0] < broken_at[1] <= max(1, len(text))


def test_a_command_is_split_into_what_is_filled_in_and_what_is_not() -> None:
    assert parse_expressions("a ${{ inputs.x }} $[[ --n ${{inputs.n}} ]]b") == (
        Literal("a "),
        Binding(("inputs", "x"), "${{ inputs.x }}", 2, 17),
        Literal(" "),
        OptionalPart((Literal(" --n "), Binding(("inputs", "n"), "${{inputs.n}}", 26, 39), Literal(" ")), 18, 42),
        Literal("b"),
    )


def test_dots_of_a_port_belong_to_the_path() -> None:
    (binding,) = bindings_in("${{parent.inputs.group.rate}}")
    assert binding.path == ("parent", "inputs", "group", "rate")
    assert binding.part_offsets(2, to_end=True) == (17, 27)


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("ab ${{x", 3, 6),
        ("${{a.${{b}}", 0, 3),
        ("a $[[ b", 2, 5),
        ("$[[ a $[[ b ]] ]]", 6, 9),
        ("x ${{}}", 2, 7),
        ("${{a b}}", 0, 8),
        ("${{a..b}}", 0, 9),
        ("${{inputs['x']}}", 0, 16),
        ("$[[ ${{x ]]", 4, 7),
    ],
)
def test_what_is_broken_is_pointed_at(text: str, start: int, end: int) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse_expressions(text)
    assert (caught.value.start, caught.value.end) == (start, end)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (" ${{a.b}} ", ("a", "b")),
        ("x${{a}}", None),
        ("${{a}}${{b}}", None),
        ("${{a", None),
        ("$[[${{a}}]]", None),
        ("", None),
    ],
)
def test_a_text_of_one_binding_only(text: str, path: tuple[str, ...] | None) -> None:
    binding = only_binding(text)
    assert (binding.path if binding else None) == path
