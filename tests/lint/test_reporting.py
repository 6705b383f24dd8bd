"""Findings as text, SARIF and GitHub annotations; JSON and the plain text are in test_linter.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from trainyard.cli.lint import summarise
from trainyard.lint.linter import lint
from trainyard.lint.machine_output import as_github, as_json, as_sarif, checkout_folder
from trainyard.lint.rules import RULES
from trainyard.lint.text_output import as_text
from trainyard.spec.diagnostic import Diagnostic, Related, Span
from trainyard.spec.secrets import redacted

TOKEN = f"hf_{'abcdefgh' * 4}ab"
SARIF_SCHEMA = json.loads((Path(__file__).parent / "data" / "sarif-schema-2.1.0.json").read_text(encoding="utf-8"))


def put(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8", errors="surrogateescape")
    return file


# Text


def excerpt_of(folder: Path, line: str, column: int, end: int) -> list[str]:
    """The source line and the carets beneath it, without the gutter."""
    file = put(folder, "a.yaml", line + "\n")
    text = as_text([Diagnostic(Span(file, 1, column, 1, end), "AML001", "message")], colour=False, relative_to=folder)
    return [line[4:] for line in text.split("\n")[1:3]]


def test_carets_stand_beneath_wide_characters(tmp_path: Path) -> None:
    assert excerpt_of(tmp_path, "名前: 値", 5, 6) == ["名前: 値", "      ^^"]
    assert excerpt_of(tmp_path, "cafe\u0301: x", 8, 9) == ["cafe\u0301: x", "      ^"]


def test_the_whole_span_is_underlined(tmp_path: Path) -> None:
    assert excerpt_of(tmp_path, "shm-size: 16g", 1, 9) == ["shm-size: 16g", "^^^^^^^^"]


def test_nothing_in_a_file_steers_the_terminal(tmp_path: Path) -> None:
    file = put(tmp_path, "\x1b[2Ja.yaml", "key: \x1b[31mred\u202e\n")
    related = (Related(Span(file), "declared\x07 here"),)
    found = [Diagnostic(Span(file, 1, 6, 1, 7), "AML001", "'\x1b]0;title\x07'\nmore", hint="a\rb", related=related)]
    text = as_text(found, colour=False, relative_to=tmp_path)
    assert not set(text) & set("\x1b\x07\r\u202e")
    assert "\\x1b[31mred\\u202e" in text
    assert text.count("\n") == 4


def test_secrets_are_not_quoted(tmp_path: Path) -> None:
    """Neither the one that is found, nor one on the line of another finding; carets stay below what they mark."""
    variables = f'{{HF_TOKEN: {TOKEN}, WANDB_API_KEY: "hunter2hunter2"}}'
    file = put(tmp_path, "job.yaml", f"type: command\ncommand: echo\nenvironment_variables: {variables}\n")
    put(tmp_path, "other.yaml", f"type: command\ncommand: echo\ndescriptoin: {TOKEN}\n")
    found = lint([tmp_path]).diagnostics
    text = as_text([*found, Diagnostic(Span(file, 3, 36, 3, 72), "AML552", "")], colour=False, relative_to=tmp_path)
    assert {each.rule for each in found} >= {"AML552", "AML101"}
    assert "environment_variables: {HF_TOKEN: ***" in text
    assert "descriptoin: ***" in text
    assert TOKEN not in text
    second = next(each for each in found if each.rule == "AML552" and "WANDB" in each.message)
    _, source, carets, *_ = as_text([second], colour=False, relative_to=tmp_path).split("\n")
    assert "hunter2" not in source
    assert source[carets.index("^") :].startswith("***")


def test_what_follows_a_secret_stays_above_its_carets(tmp_path: Path) -> None:
    line = f"command: train --token {TOKEN} --out ${{{{outputs.modle}}}}"
    start = line.index("outputs.modle") + 1
    source, carets = excerpt_of(tmp_path, line, start, start + len("outputs.modle"))
    assert source == f"command: train --token {'***'.ljust(len(TOKEN))} --out ${{{{outputs.modle}}}}"
    assert source[carets.index("^") :].startswith("outputs.modle}}")


def test_a_secret_that_is_cut_by_the_terminal_is_hidden(tmp_path: Path) -> None:
    file = put(tmp_path, "a.yaml", f"key: {TOKEN} wrong {TOKEN}\n")
    found = [Diagnostic(Span(file, 1, 43, 1, 48), "AML001", "message")]
    text = as_text(found, colour=False, relative_to=tmp_path, widest=40)
    assert "wrong ***" in text
    assert "abcd" not in text


def test_a_secret_that_only_its_key_tells_is_hidden_below_other_findings(tmp_path: Path) -> None:
    file = put(tmp_path, "a.yaml", "{password: hunter2secret, nmae: x}\n")
    found = [
        Diagnostic(Span(file, 1, 27, 1, 31), "AML101", "unknown key"),
        Diagnostic(Span(file, 1, 12, 1, 25), "AML552", "'password' is set to a secret in plain text"),
    ]
    text = as_text(found, colour=False, relative_to=tmp_path)
    assert text.count("{password: ***          , nmae: x}") == 2
    assert "hunter2" not in text


@pytest.mark.parametrize(
    ("argument", "is_secret"),
    [
        ("./sk-learn-random-forest-training", False),
        ("https://USER:PASSWORD@pypi.example.com/simple", False),
        ("https://user:<password>@pypi.example.com/simple", False),
        ("https://user:your_password@pypi.example.com/simple", False),
        ("hf_xxxxxxxxxxxxxxxxxxxxxxxxxxxx", False),
        ("https://ci:hunter2hunter2@pypi.example.com/simple", True),
        ("sk-proj-abcd_efgh-ijkl-mnop-qrst", True),
        ("sk-abcdefghijklmnopqrstuvwx1234", True),
    ],
)
def test_names_and_placeholders_are_no_secrets(tmp_path: Path, argument: str, is_secret: bool) -> None:
    """What lint reports as a secret is what is hidden wherever text is printed."""
    put(tmp_path, "job.yaml", f"type: command\ncommand: run {argument}\nenvironment: azureml:a:1\n")
    assert ("AML552" in {each.rule for each in lint([tmp_path]).diagnostics}) == is_secret
    assert ("***" in redacted(argument)) == is_secret


@pytest.mark.parametrize(
    ("arguments", "secrets"),
    [
        ("--api-key your_key --api-key Zx81qwLm7aa0", ["Zx81qwLm7aa0"]),
        ("--api-key your_key && WANDB_API_KEY=Zx81qwLm7aa0 run", ["Zx81qwLm7aa0"]),
        ("--password hunter2hunter2 --api-key Zx81qwLm7aa0", ["hunter2hunter2", "Zx81qwLm7aa0"]),
        ("hf_xxxxxxxxxxxxxxxxxxxxxxxxxxxx sk-abcdefghijklmnopqrstuvwx1234", ["sk-abcdefghijklmnopqrstuvwx1234"]),
        ("hf_xxxxxxxxxxxxxxxxxxxxxxxxxxxx hf_AbCdEfGhIjKlMnOpQrStUvWx1234", ["hf_AbCdEfGhIjKlMnOpQrStUvWx1234"]),
        ("--token sk-abcdefghijklmnopqrstuvwx1234", ["sk-abcdefghijklmnopqrstuvwx1234"]),
        (
            "--token aaaabbbb.sk-abcdefghijklmnopqrstuvwx1234.ccccddddSECRET9",
            ["aaaabbbb.sk-abcdefghijklmnopqrstuvwx1234.ccccddddSECRET9"],
        ),
        ("MY_TOKEN=https://u:Sup3rSecret99@other/x-REALSECRET1", ["https://u:Sup3rSecret99@other/x-REALSECRET1"]),
    ],
)
def test_every_secret_of_a_value_is_reported_once_and_hidden(
    tmp_path: Path, arguments: str, secrets: list[str]
) -> None:
    """Also one that follows a placeholder or another secret, and the rest of one in which another begins or ends."""
    line = f"command: run {arguments}"
    put(tmp_path, "job.yaml", f"type: command\n{line}\nenvironment: azureml:a:1\n")
    found = [each for each in lint([tmp_path]).diagnostics if each.rule == "AML552"]
    assert [line[each.span.column - 1 : each.span.end_column - 1] for each in found] == secrets
    shown = as_text(found, colour=False, relative_to=tmp_path)
    assert not any(secret in shown for secret in secrets)


def test_a_long_token_with_the_letters_of_a_placeholder_is_a_secret() -> None:
    token = f"eyJ{'a1b2' * 20}xxx{'c3d4' * 20}.eyJ{'e5f6' * 20}.{'g7h8' * 10}"
    assert redacted(f"--token {token}") == "--token ***"


def test_a_long_span_is_cut_with_its_line(tmp_path: Path) -> None:
    source, carets = excerpt_of(tmp_path, "x" * 1000, 1, 1001)
    # 160 cells with the number before it.
    assert len(source) == len(carets) == 156
    assert source.endswith("x…")


def test_a_line_is_cut_to_the_terminal_around_what_is_wrong(tmp_path: Path) -> None:
    file = put(tmp_path, "a.yaml", "key: " + "名" * 30 + " wrong " + "x" * 60 + "\n")
    found = [Diagnostic(Span(file, 1, 37, 1, 42), "AML001", "message")]
    _, source, carets = as_text(found, colour=False, relative_to=tmp_path, widest=40).split("\n")
    assert source == "1 | …名名名名名名 wrong xxxxxxxxxxxxxxx…"
    assert carets == "  | " + " " * 14 + "^^^^^"


def test_repeated_warnings_of_a_file_are_shown_once_with_their_lines(tmp_path: Path) -> None:
    file, other = put(tmp_path, "a.yaml", "a: 1\n" * 30), put(tmp_path, "b.yaml", "b: 2\n")

    def finding(line: int, severity: Any, rule: str = "AML551", where: Path = file) -> Diagnostic:
        return Diagnostic(Span(where, line, 1, line, 2), rule, f"{severity} in line {line}", severity)

    found = [finding(line, "warning") for line in (2, 5, 5, 9)]
    found += [finding(3, "error", "AML101"), finding(4, "error", "AML101"), finding(1, "warning", where=other)]
    text = as_text(found, colour=False, relative_to=tmp_path)
    assert "a.yaml:2:1: warning[AML551] warning in line 2" in text
    assert "  and 3 more of these, in lines 5 and 9" in text
    assert "warning in line 5" not in text
    assert all(f"error in line {line}" in text for line in (3, 4)), "each error has to be fixed"
    assert "b.yaml:1:1: warning[AML551]" in text
    many = as_text([finding(line, "info") for line in range(1, 31)], colour=False, relative_to=tmp_path)
    assert many.endswith("and 29 more of these, in lines 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, …")


def test_the_summary_suggests_what_to_do_next() -> None:
    def finding(severity: Any) -> Diagnostic:
        return Diagnostic(Span(Path("a")), "AML001", "message", severity)

    assert summarise([], 1) == "no findings in 1 file"
    assert summarise([], 0) == "no Azure ML files found: nothing was checked"
    assert summarise([], 2, known=3) == "no findings in 2 files; 3 more in the baseline"
    found = [finding("error"), finding("error"), finding("info")]
    counts, hints = "2 errors, 0 warnings, 1 note in 4 files", "--fix can fix 1 of them; `trainyard explain AML001`"
    assert summarise(found, 4, fixable=1) == f"{counts}; {hints} explains the first"
    assert summarise([finding("info"), finding("error")], 1).endswith("explains the first error")


# SARIF


def sarif_of(found: list[Diagnostic], folder: Path) -> Any:
    document = json.loads(as_sarif(found, relative_to=folder))
    jsonschema_rs.validator_for(SARIF_SCHEMA, validate_formats=True).validate(document)
    return document["runs"][0]


def test_findings_of_all_kinds_are_valid_sarif(tmp_path: Path) -> None:
    examples = {rule.id: rule.example for rule in RULES.values() if rule.example is not None}
    for rule, example in examples.items():
        for name, text in example.wrong.items():
            put(tmp_path, f"{rule}/{name}", text)
    found = list(lint([tmp_path]).diagnostics)
    run = sarif_of(found, tmp_path)
    assert [result["ruleId"] for result in run["results"]] == [diagnostic.rule for diagnostic in found]
    assert len({diagnostic.rule for diagnostic in found}) > len(examples) / 2


def test_the_schema_of_sarif_refuses_what_is_none(tmp_path: Path) -> None:
    document = json.loads(as_sarif([Diagnostic(Span(tmp_path / "a.yaml"), "AML001", "message")], relative_to=tmp_path))
    document["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["region"]["startLine"] = 0
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validator_for(SARIF_SCHEMA).validate(document)


def test_sarif_has_place_level_rule_and_related_places(project: Path) -> None:
    pipeline = project / "pipelines" / "digits.yaml"
    pipeline.write_text(pipeline.read_text().replace("precision: fp32", "precision: fp8"))
    (found,) = lint([pipeline]).diagnostics
    run = sarif_of([found], project)
    (result,) = run["results"]
    assert result["message"]["text"].startswith(found.message)
    assert result["level"] == "error"
    region = {
        "startLine": found.span.line,
        "startColumn": found.span.column,
        "endLine": found.span.end_line,
        "endColumn": found.span.end_column,
    }
    place = result["locations"][0]["physicalLocation"]
    artifact = {"uri": "pipelines/digits.yaml", "uriBaseId": "%SRCROOT%"}
    assert place == {"artifactLocation": artifact, "region": region}
    (related,) = result["relatedLocations"]
    assert related["message"]["text"] == "'precision' is declared here"
    assert related["physicalLocation"]["artifactLocation"]["uri"] == "components/train.yaml"
    driver = run["tool"]["driver"]
    assert driver["rules"][result["ruleIndex"]]["id"] == found.rule
    assert [rule["id"] for rule in driver["rules"]] == [found.rule]
    assert driver["informationUri"].startswith("https://")
    assert run["originalUriBaseIds"]["%SRCROOT%"]["uri"] == project.as_uri() + "/"


def test_a_finding_is_the_same_to_sarif_when_lines_move(project: Path) -> None:
    train = project / "components" / "train.yaml"
    mistaken = train.read_text().replace("is_deterministic", "is_determinstic").replace("shm_size", "shm-size")
    train.write_text(mistaken)
    before = sarif_of(list(lint([train]).diagnostics), project)["results"]
    train.write_text("# One line more\n\n" + mistaken)
    after = sarif_of(list(lint([train]).diagnostics), project)["results"]
    assert [each["partialFingerprints"] for each in before] == [each["partialFingerprints"] for each in after]
    assert before[0]["partialFingerprints"] != before[1]["partialFingerprints"]


def test_sarif_of_names_that_addresses_do_not_hold(tmp_path: Path) -> None:
    odd = put(tmp_path, "a b#ü%.yaml", "x\n")
    found = [
        Diagnostic(Span(odd, 3, 4, 2, 1), "AML001", "What?", "warning"),
        Diagnostic(Span(Path("/elsewhere/a.yaml")), "TY101", "message", "info"),
    ]
    run = sarif_of(found, tmp_path)
    first, second = (result["locations"][0]["physicalLocation"] for result in run["results"])
    assert first["artifactLocation"]["uri"] == "a%20b%23%C3%BC%25.yaml"
    assert second["artifactLocation"] == {"uri": "file:///elsewhere/a.yaml"}
    assert run["tool"]["driver"]["rules"][-1]["id"] == "TY101"
    assert [result["level"] for result in run["results"]] == ["warning", "note"]


def test_sarif_carries_the_fix_that_would_be_written(tmp_path: Path) -> None:
    file = put(
        tmp_path, "c.yaml", "{type: command, description: 😀, 'comand': run, name: c, environment: azureml:e:1}\n"
    )
    (found,) = [each for each in lint([file]).diagnostics if each.replacement is not None]
    (result,) = sarif_of([found], tmp_path)["results"]
    # The smiling face takes two units of UTF-16, which is how editors count.
    region = {"startLine": 1, "startColumn": 34, "endLine": 1, "endColumn": 42}
    assert result["locations"][0]["physicalLocation"]["region"] == region
    (fix,) = result["fixes"]
    (change,) = fix["artifactChanges"]
    assert change["artifactLocation"]["uri"] == "c.yaml"
    assert change["replacements"] == [{"deletedRegion": region, "insertedContent": {"text": "'command'"}}]
    rendered = json.loads(as_sarif([found], relative_to=tmp_path, is_fixable=lambda _: False))
    assert "fixes" not in rendered["runs"][0]["results"][0]


def test_no_findings_are_valid_sarif(tmp_path: Path) -> None:
    assert sarif_of([], tmp_path)["results"] == []


# GitHub


def test_github_has_a_command_per_finding(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    found = [
        Diagnostic(Span(file, 2, 3, 2, 7), "AML101", "message", hint="hint", related=(Related(Span(file, 9), "here"),)),
        Diagnostic(Span(file, 2, 3, 4, 1), "AML102", "message", "warning"),
        Diagnostic(Span(file), "AML103", "message", "info"),
    ]
    assert as_github(found, relative_to=tmp_path).split("\n") == [
        "::error file=a.yaml,line=2,col=3,endColumn=7,title=AML101 (Trainyard)::message%0Ahint%0Aa.yaml:9: here",
        "::warning file=a.yaml,line=2,endLine=4,title=AML102 (Trainyard)::message",
        "::notice file=a.yaml,line=1,col=1,endColumn=1,title=AML103 (Trainyard)::message",
    ]


def test_github_commands_cannot_be_broken_out_of(tmp_path: Path) -> None:
    file = tmp_path / "a,b:c%d\ne.yaml"
    found = [Diagnostic(Span(file), "AML101", "100 %\r\n::set-output name=x::y \udc80")]
    (line,) = as_github(found, relative_to=tmp_path).splitlines()
    assert "file=a%2Cb%3Ac%25d%0Ae.yaml," in line
    assert line.endswith("::100 %25%0D%0A::set-output name=x::y \\udc80")


def test_files_are_named_from_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    assert checkout_folder() == tmp_path
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path / "other"))
    assert checkout_folder() == tmp_path / "sub"
    monkeypatch.delenv("GITHUB_WORKSPACE")
    assert checkout_folder() == tmp_path / "sub"


def test_names_that_are_no_utf8_are_written_all_the_same(tmp_path: Path) -> None:
    found = [Diagnostic(Span(tmp_path / "a\udcff.yaml"), "AML001", "message")]
    assert json.loads(as_json(found, relative_to=tmp_path))[0]["file"] == "a\udcff.yaml"
    assert "a\\udcff.yaml" in as_text(found, colour=False, relative_to=tmp_path)
    assert sarif_of(found, tmp_path)["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == (
        "a%FF.yaml"
    )
