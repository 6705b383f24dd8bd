from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from trainyard.spec.diagnostic import Span, SpecError
from trainyard.spec.documents import (
    describe,
    parse_document,
    read_document,
    require_mapping,
)
from trainyard.spec.rules import (
    KEY_NOT_TEXT,
    NOT_ONE_DOCUMENT,
    TOO_LARGE,
    UNKNOWN_TAG,
    UNREADABLE_FILE,
    WRONG_ENCODING,
    YAML_SYNTAX,
)
from trainyard.spec.yaml_parsing import LARGEST_FILE_BYTES, source_lines

FILE = Path("file.yaml")
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(st.characters(codec="utf-8"))
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=8), inner, max_size=4),
    ),
    max_leaves=12,
)


@given(values, st.booleans(), st.booleans())
def test_data_is_what_pyyaml_reads(value: object, flow: bool, unicode: bool) -> None:
    text = yaml.safe_dump(value, default_flow_style=flow, allow_unicode=unicode)
    assert parse_document(FILE, text).data == yaml.safe_load(text)


@given(
    st.dictionaries(st.from_regex(r"[a-z]{1,6}", fullmatch=True), st.from_regex(r"[a-z é]{1,9}[a-z]", fullmatch=True))
)
def test_spans_cut_keys_and_values_out_of_the_text(mapping: dict[str, str]) -> None:
    text = yaml.safe_dump({"top": mapping}, allow_unicode=True, default_style='"')
    document = parse_document(FILE, text)
    for key, value in mapping.items():
        for span, written in (
            (document.key_span(["top", key]), key),
            (document.node_at(["top", key]).span, value),
        ):
            assert span.line == span.end_line
            cut = document.lines[span.line - 1][span.column - 1 : span.end_column - 1]
            assert yaml.safe_load(cut) == written


@given(
    st.lists(
        st.sampled_from(["python", "train.py", "--data", "${{inputs.x}}", "${{inputs.long_name}}", "é"]), min_size=1
    )
)
def test_a_binding_is_found_within_any_kind_of_string(words: list[str]) -> None:
    command = " ".join(words)
    folded = "\n".join(f"  {word}" for word in words)
    quoted = command.replace("é", "\\u00e9")
    for text in (
        f"command: >-\n{folded}\n",
        f"command: {command}\n",
        f'command: "{quoted}"\n',
        f"command: '{command}'\n",
    ):
        document = parse_document(FILE, text)
        node = document.node_at(["command"])
        assert node.text == command
        place = 0
        for word in words:
            place = command.index(word, place)
            if word.startswith("$"):
                span = document.span_within(node, place, place + len(word))
                assert document.lines[span.line - 1][span.column - 1 : span.end_column - 1] == word
            place += len(word)


def test_a_part_that_folding_split_is_found_across_the_line_end() -> None:
    document = parse_document(FILE, "a: >-\n  x ${{b\n  + c}}\n")
    span = document.span_within(document.node_at(["a"]), 2, 12)
    assert (span.line, span.column, span.end_line, span.end_column) == (2, 5, 3, 8)


def test_a_part_that_is_spelt_with_escapes_is_found_all_the_same() -> None:
    document = parse_document(FILE, 'a: "x\\u00e9y"\n')
    assert document.span_within(document.node_at(["a"]), 0, 2) == Span(FILE, 1, 5, 1, 12)


def test_scalars_are_read_as_yaml_1_1_and_kept_as_typed() -> None:
    document = parse_document(FILE, "a: no\nb: 3e-4\nc: 1.10\nd: 010\ne: 2020-01-01\nf: 1_000\ng: ~\nh: 0.5\n")
    assert document.data == {
        "a": False, "b": "3e-4", "c": 1.1, "d": 8, "e": "2020-01-01", "f": 1000, "g": None, "h": 0.5,
    }  # fmt: skip
    assert document.node_at(["c"]).value.text == "1.10"
    assert document.node_at(["a"]).value.text == "no"


def test_keys_are_texts_even_where_yaml_reads_something_else() -> None:
    document = parse_document(FILE, "on: 1\n2: two\n")
    assert document.data == {"on": 1, "2": "two"}


def test_merge_keys_give_what_is_not_written() -> None:
    document = parse_document(FILE, "a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  y: 3\nc:\n  <<: [*a, {z: 9}]\n")
    assert document.data["b"] == {"y": 3, "x": 1}
    assert document.data["c"] == {"x": 1, "y": 2, "z": 9}
    assert document.key_span(["b", "x"]).line == 1


def test_duplicate_keys_are_kept_and_reported() -> None:
    document = parse_document(FILE, "a: 1\nb:\n  c: 1\n  c: 2\na: 3\n")
    assert document.data == {"a": 3, "b": {"c": 2}}
    found = [(p.rule, p.span.line, p.related[0].span.line) for p in document.problems]
    assert sorted(found) == [("AML007", 4, 3), ("AML007", 5, 1)]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("a: !Ref b", UNKNOWN_TAG.id),
        ("a: !!python/object:os.system {}", UNKNOWN_TAG.id),
        ("a: !!set {b}", UNKNOWN_TAG.id),
        ("a: !!int twelve", UNKNOWN_TAG.id),
        ("{a: b}: c", KEY_NOT_TEXT.id),
        ("a: 1\n---\nb: 2", NOT_ONE_DOCUMENT.id),
        ("a: " + "9" * 5000, UNKNOWN_TAG.id),
    ],
)
def test_what_can_be_lived_with_is_noted(text: str, rule: str) -> None:
    assert [problem.rule for problem in parse_document(FILE, text).problems] == [rule]


@pytest.mark.parametrize(
    ("text", "rule", "line", "column"),
    [
        ("a:\n\tb: 1", YAML_SYNTAX.id, 2, 1),
        ("a: b: c", YAML_SYNTAX.id, 1, 5),
        ("a: @x", YAML_SYNTAX.id, 1, 4),
        ("é: 'x", YAML_SYNTAX.id, 1, 4),
        ("é: \x01", YAML_SYNTAX.id, 1, 4),
        ("", NOT_ONE_DOCUMENT.id, 1, 1),
        ("# nothing\n", NOT_ONE_DOCUMENT.id, 1, 1),
        ("[" * 100_000, TOO_LARGE.id, 1, 101),
        ("- " * 500, TOO_LARGE.id, 1, 201),
        ("\n".join(" " * depth + "a:" for depth in range(300)), TOO_LARGE.id, 101, 101),
        ("[" * 90 + "'" + "{" * 90, YAML_SYNTAX.id, 1, 91),
        ("[&a [*a]]", TOO_LARGE.id, 1, 2),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_diagnostic(text: str, rule: str, line: int, column: int) -> None:
    with pytest.raises(SpecError) as caught:
        parse_document(FILE, text)
    (problem,) = caught.value.diagnostics
    assert (problem.rule, problem.span.line, problem.span.column) == (rule, line, column)


def test_a_bomb_of_aliases_is_refused_at_once() -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 30)]
    with pytest.raises(SpecError, match="aliases expand this value to") as caught:
        parse_document(FILE, "\n".join(lines))
    assert caught.value.diagnostics[0].rule == TOO_LARGE.id


def test_many_brackets_side_by_side_are_not_deep() -> None:
    assert len(parse_document(FILE, f"a: [{'[], ' * 500}]").data["a"]) == 500


def test_a_byte_order_mark_does_not_shift_positions(tmp_path: Path) -> None:
    file = tmp_path / "bom.yaml"
    file.write_bytes(b"\xef\xbb\xbfa: 1\n")
    document = read_document(file)
    assert document.data == {"a": 1}
    assert document.key_span(["a"]).column == 1


def test_windows_line_ends_do_not_shift_lines(tmp_path: Path) -> None:
    file = tmp_path / "crlf.yaml"
    file.write_bytes(b"a: 1\r\nb: >-\r\n  x\r\n  ${{y}}\r\n")
    document = read_document(file)
    assert document.lines[1] == "b: >-"
    span = document.span_within(document.node_at(["b"]), 2, 8)
    assert (span.line, span.column) == (4, 3)


@pytest.mark.parametrize(
    ("content", "rule", "line", "column"),
    [
        (b"a: 1\nb: \xff\n", WRONG_ENCODING.id, 2, 4),
        ("a: é".encode("utf-16"), WRONG_ENCODING.id, 1, 1),
        (b"a: \x00", WRONG_ENCODING.id, 1, 4),
        (b"#" * (LARGEST_FILE_BYTES + 1), TOO_LARGE.id, 1, 1),
    ],
)
def test_files_that_are_no_text(tmp_path: Path, content: bytes, rule: str, line: int, column: int) -> None:
    file = tmp_path / "file.yaml"
    file.write_bytes(content)
    with pytest.raises(SpecError) as caught:
        read_document(file)
    (problem,) = caught.value.diagnostics
    assert (problem.rule, problem.span.line, problem.span.column) == (rule, line, column)


def test_files_that_are_not_there_or_are_no_files(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path, tmp_path / "a\x00b"):
        with pytest.raises(SpecError) as caught:
            read_document(path)
        assert caught.value.diagnostics[0].rule == UNREADABLE_FILE.id
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SpecError, match="not a regular file"):
        read_document(tmp_path / "pipe")


def test_a_mapping_is_asked_for(write: Callable[[str, str], Path]) -> None:
    with pytest.raises(SpecError, match="expected a mapping, found a list"):
        require_mapping(read_document(write("a.yaml", "- 1\n")))


def test_paths_lead_to_values() -> None:
    document = parse_document(FILE, "a:\n  - b: 1\n  - c\n")
    assert document.node_at(["a", 0, "b"]).data == 1
    assert document.node_at(["a", 1]).span.line == 3
    assert document.key_span(["a", 1]) == document.node_at(["a", 1]).span
    assert document.key_span([]) == document.root.span
    with pytest.raises(KeyError):
        document.node_at(["x"])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, "nothing"),
        ({}, "a mapping"),
        ([], "a list"),
        (True, "the boolean true"),
        (3, "the number 3"),
        ("x", "the text 'x'"),
    ],
)
def test_values_in_words(data: object, words: str) -> None:
    assert describe(data) == words


def test_lines_end_where_yaml_ends_them() -> None:
    assert source_lines("a\r\nb\rc\nd\u2028e") == ["a", "b", "c", "d", "e"]
