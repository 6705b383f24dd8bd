"""What `--set` gives: read from the command line, and printed so that a shell gives the same again."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.errors import UsageError, UserError
from trainyard.render.settings import as_argument, as_arguments, read_applied, read_settings
from trainyard.spec.diagnostic import SpecError


def test_values_are_read_as_yaml() -> None:
    rate = "pipelines.ddp.learning_rate=0.01"
    assert read_settings(["nodes=4", "spot=true", "shm_size=64g", rate, "cluster=", "environment={a: b}"]) == {
        "nodes": 4,
        "spot": True,
        "shm_size": "64g",
        "pipelines.ddp.learning_rate": 0.01,
        "cluster": None,
        "environment": {"a": "b"},
    }


def test_the_value_begins_at_the_first_equals_sign() -> None:
    assert read_settings(["description=a=b"]) == {"description": "a=b"}


def test_of_a_key_given_twice_the_last_counts() -> None:
    assert read_settings(["nodes=4", "nodes=2"]) == {"nodes": 2}


@pytest.mark.parametrize("text", ["2026-01-31", "2026-13-45", "2026-01-31 25:61:61"])
def test_dates_stay_text_even_those_of_no_calendar(text: str) -> None:
    assert read_settings([f"description={text}"]) == {"description": text}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes", "--set nodes: expected KEY=VALUE, such as nodes=4."),
        ("=4", "--set =4: expected KEY=VALUE"),
        (" =4", "--set  =4: expected KEY=VALUE"),
        ("nodes=[4", r"--set nodes=\[4: not YAML: .* quote it: --set 'nodes=\"\[4\"'"),
        ("cluster=@home", "a value cannot begin with '@'"),
        ("cluster=*home", "undefined alias"),
        ("cluster=!secret x", "does not understand the tag !secret"),
        ("environment={a: b, a: c}", "the key 'a' is written twice"),
        ("description=# nothing", "there is no value, only spaces or comments"),
        ("description=a\nb", r"--set description: the value holds '\\n'"),
        ('description="a\\tb"', r"--set description: the value holds '\\t'"),
        ('environment={default: "\\u2028"}', r"--set environment: the value holds '\\u2028'"),
        ("description=\udcff", r"--set description: the value holds '\\udcff'"),
        ("a\nb=1", r"--set 'a\\nb': the value holds '\\n'"),
    ],
)
def test_anything_but_a_setting_is_wrong_usage(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_settings([text])


def test_a_file_of_settings_is_read_as_so_many_arguments(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("nodes: 4\npipelines:\n  ddp: {epochs: 3}\n  deepspeed:\n    config: zero2\n")
    assert read_applied(file) == {"nodes": 4, "pipelines.ddp.epochs": 3, "pipelines.deepspeed.config": "zero2"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- nodes: 4", "mapping"),
        ("{}", "no settings; expected keys of a profile"),
        ("pipelines: {ddp: {}}", "no settings; expected keys of a profile"),
        ("nodes: [4", "not YAML"),
        ('description: "a\\tb"', "the value holds"),
    ],
)
def test_a_file_without_settings_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises((UserError, SpecError), match=message):
        read_applied(file)


@pytest.mark.parametrize(
    ("value", "argument"),
    [
        (4, "key=4"),
        (True, "key=true"),
        (None, "key=null"),
        (0.00001, "key=1.0e-05"),
        ("64g", "key=64g"),
        ("my own machines", "'key=my own machines'"),
        ("it's mine", """'key=it'"'"'s mine'"""),
        ("$(id)", "'key=$(id)'"),
        ("4", """'key="4"'"""),
        ("", """'key=""'"""),
        ({"default": "a b", "train_ddp": 1}, """'key={default: "a b", train_ddp: 1}'"""),
        ([1, "no"], """'key=[1, "no"]'"""),
    ],
)
def test_a_setting_is_printed_as_a_shell_takes_it(value: object, argument: str) -> None:
    assert as_argument("key", value) == argument


_LINES = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]))
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False) | _LINES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_LINES, inner, max_size=3),
    max_leaves=6,
)


@given(_VALUES)
def test_what_is_printed_reads_as_the_same_settings(value: object) -> None:
    words = shlex.split(as_arguments({"key": value, "other": value}))
    assert words[::2] == ["--set", "--set"]
    assert read_settings(words[1::2]) == {"key": value, "other": value}
