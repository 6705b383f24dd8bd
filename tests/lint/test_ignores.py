"""`# trainyard: ignore[…]`: where it speaks, what it silences, and that it never outlives what it was for."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard.lint.ignores import read_ignores
from trainyard.lint.linter import lint
from trainyard.lint.rules import RULES

COMPONENT = """\
type: command
name: train
{above}is_determinstic: false{beside}
command: python train.py
environment: azureml:torch:3
"""


def found_in(folder: Path, text: str) -> list[tuple[str, int, int]]:
    file = folder / "c.yaml"
    file.write_text(text, encoding="utf-8", newline="")
    return [(d.rule, d.span.line, d.span.column) for d in lint([file]).diagnostics]


@pytest.mark.parametrize(
    ("above", "beside"),
    [
        ("", "  # trainyard: ignore[AML101] set by the scheduler"),
        ("", " #trainyard:ignore[AML101]"),
        ("", "  # noqa # trainyard: ignore[AML101]"),
        ("", "  # Trainyard Ignore [AML101] without a colon"),
        ("# trainyard: ignore[AML101] set by the scheduler\n", ""),
        ("# trainyard: ignore[AML101]\n# More about it.\n", ""),
        ("# trainyard: ignore-file[AML101]\n", ""),
    ],
)
def test_a_finding_is_silenced_beside_it_and_above(tmp_path: Path, above: str, beside: str) -> None:
    text = COMPONENT.format(above=above, beside=beside)
    assert found_in(tmp_path, text) == []
    assert found_in(tmp_path, text.replace("\n", "\r\n")) == []
    assert found_in(tmp_path, "\ufeff" + text) == []


def test_without_a_comment_it_is_found(tmp_path: Path) -> None:
    assert found_in(tmp_path, COMPONENT.format(above="", beside="")) == [("AML101", 3, 1)]


def test_several_rules_in_one_comment(tmp_path: Path) -> None:
    text = COMPONENT.format(above="# trainyard: ignore[AML101,AML104]\n", beside="")
    assert found_in(tmp_path, text) == [("AML801", 3, 28)]
    assert found_in(tmp_path, text.replace(",AML104", "")) == []
    for apart in ("][", "] [", "], [", "]  # trainyard: ignore["):
        assert [rule for rule, _, _ in found_in(tmp_path, text.replace(",", apart))] == ["AML801"]


def test_a_comment_speaks_of_its_line_alone(tmp_path: Path) -> None:
    text = COMPONENT.format(above="", beside="").replace("name: train", "name: train  # trainyard: ignore[AML101]")
    assert found_in(tmp_path, text) == [("AML801", 2, 34), ("AML101", 3, 1)]
    text = COMPONENT.format(above="# trainyard: ignore[AML101]\n\n", beside="")
    assert found_in(tmp_path, text) == [("AML801", 3, 21), ("AML101", 5, 1)]


@pytest.mark.parametrize("style", ["|", ">-", "|2+"])
def test_what_a_block_of_text_holds_is_silenced_at_its_first_line(tmp_path: Path, style: str) -> None:
    block = f"{style}  # trainyard: ignore[AML206] filled in later\n  python --epochs ${{{{inputs.epochs}}}}"
    assert found_in(tmp_path, COMPONENT.format(above="", beside="").replace("python train.py", block)) == [
        ("AML101", 3, 1)
    ]


def test_a_value_of_several_lines_belongs_to_its_first(tmp_path: Path) -> None:
    text = COMPONENT.format(above="# trainyard: ignore[AML101]\n", beside="").replace(
        "command: python train.py",
        "# trainyard: ignore[AML206]\ncommand: python train.py\n  --epochs ${{inputs.epochs}}",
    )
    assert found_in(tmp_path, text) == []


@pytest.mark.parametrize(
    "text",
    [
        "description: 'is # trainyard: ignore[AML101]'",
        'description: "is\n  # trainyard: ignore[AML101]"',
        "description: |\n  # trainyard: ignore[AML101]\n  text",
        "description: >\n  text\n\n  # trainyard: ignore[AML101]",
        "description: is#trainyard:ignore[AML101]",
        "? 'x # trainyard: ignore[AML101]'\n: 3",
    ],
)
def test_text_is_no_comment(tmp_path: Path, text: str) -> None:
    read = read_ignores(tmp_path / "a.yaml", text + "\n", RULES)
    assert read is not None
    assert (read.entries, read.problems) == ((), ())


def test_a_comment_behind_a_block_of_text_is_one(tmp_path: Path) -> None:
    text = "a: |\n  text\n# trainyard: ignore[AML101]\nb: 3\n"
    read = read_ignores(tmp_path / "a.yaml", text, RULES)
    assert read is not None
    (entry,) = read.entries
    assert (entry.first_line, entry.last_line) == (4, 4)


@pytest.mark.parametrize(
    ("comment", "column", "hint"),
    [
        ("# trainyard: ignore", 14, "Write `# trainyard: ignore[AML101] reason`."),
        ("# trainyard: ignore[]", 14, "Write `# trainyard: ignore[AML101] reason`."),
        ("# trainyard: ignore[AML101", 14, "Write `# trainyard: ignore[AML101] reason`."),
        ("# trainyard: ignore-file all of it", 14, "Write `# trainyard: ignore-file[AML101] reason`."),
        ("# trainyard: ignroe[AML101]", 14, "Did you mean 'ignore'?"),
        ("# trainyard: ignore-line[AML101]", 14, "Write `# trainyard: ignore[AML101] reason`."),
        ("# trainyard: noqa", 14, "Write `# trainyard: ignore[AML101] reason`."),
        ("# trainyard: ignore[*]", 21, "`trainyard explain` lists all rules."),
        ("# trainyard: ignore[AML1O1]", 21, "Did you mean AML101?"),
        ("# trainyard: ignore[unknown-key]", 21, "Its id is AML101."),
        ("# trainyard: ignore[unknown-keys]", 21, "Did you mean 'unknown-key'?"),
    ],
)
def test_a_malformed_comment_is_reported(tmp_path: Path, comment: str, column: int, hint: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(COMPONENT.format(above=comment + "\n", beside=""))
    problem, unknown_key = lint([file]).diagnostics
    assert (problem.rule, problem.severity) == ("AML802", "warning")
    assert (problem.span.line, problem.span.column, problem.hint) == (3, column, hint)
    assert unknown_key.rule == "AML101"


def test_the_header_of_a_rendered_file_is_no_such_comment(tmp_path: Path) -> None:
    header = "# Rendered from templates/c.yaml.j2 and profiles/t4.yaml: edit those, then run `trainyard render t4`.\n"
    assert found_in(tmp_path, header + COMPONENT.format(above="", beside="")) == [("AML101", 4, 1)]


def test_a_file_that_is_no_yaml_has_no_comments(tmp_path: Path) -> None:
    read = read_ignores(tmp_path / "a.yaml", "a: [\n# trainyard: ignore[AML101]\n\x01", RULES)
    assert read is not None
    assert found_in(tmp_path, "a: [\n# trainyard: ignore[AML002]\n") == [("AML002", 3, 1)]


def test_a_component_is_silenced_in_its_own_file(project: Path) -> None:
    train = project / "components" / "train.yaml"
    train.write_text(train.read_text().replace("is_deterministic", "# trainyard: ignore[AML101]\nis_determinstic"))
    result = lint([project / "pipelines" / "digits.yaml"])
    assert result.diagnostics == ()
    assert list(result.ignores) == [train]
