"""`--fix`: what is safe to fix is fixed in place, every other byte stays, and no fix does harm."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from trainyard.errors import UserError
from trainyard.lint.fixes import Fixed, apply, fix
from trainyard.lint.linter import LintResult, lint
from trainyard.settings.suggestions import only_close
from trainyard.spec.diagnostic import Diagnostic, Span
from trainyard.spec.findings import DocumentStore


def fix_in(*paths: Path, is_writable: bool = True) -> Fixed:
    def relint(texts: Mapping[Path, str]) -> LintResult:
        return lint(paths, store=DocumentStore(texts))

    return fix(relint({}), relint, lambda _: is_writable)


def spoil(file: Path, *changes: tuple[str, str]) -> bytes:
    """Change a file; what it was before."""
    before = file.read_bytes()
    spoilt = before
    for right, wrong in changes:
        assert right.encode() in spoilt
        spoilt = spoilt.replace(right.encode(), wrong.encode(), 1)
    file.write_bytes(spoilt)
    return before


TYPOS = (
    ("is_deterministic", "is_determinstic"),
    ("shm_size", "'shm-size'"),
    ("${{inputs.epochs}}", "${{inputs.epoch}}"),
    ("--checkpoints ${{outputs.checkpoints}}", "--checkpoints ${{outputs.chekpoints}}"),
)


def test_typos_are_fixed_and_every_other_byte_stays(project: Path) -> None:
    train = project / "components" / "train.yaml"
    before = spoil(train, *(typo for typo in TYPOS if typo[0] in train.read_text()))
    fixed = fix_in(project)
    assert len(fixed.fixed) >= 3
    assert fixed.result.diagnostics == ()
    assert train.read_bytes() == before.replace(b"shm_size", b"'shm_size'")
    assert fix_in(project).fixed == ()


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_comments_layout_line_ends_and_marks_stay(tmp_path: Path, line_end: bytes, bom: bytes) -> None:
    file = tmp_path / "c.yaml"
    text = (
        "type:   command   # caf\u00e9 \U0001f600\n\n"
        "name:    c\n"
        '{key} :   "run  --x"  \n'
        "environment: azureml:e:1\n"
        "# last\n\n   "
    )
    wrong, right = text.format(key="comand"), text.format(key="command")
    file.write_bytes(bom + wrong.encode().replace(b"\n", line_end))
    assert [each.replacement for each in fix_in(file).fixed] == ["command"]
    assert file.read_bytes() == bom + right.encode().replace(b"\n", line_end)


def test_a_fix_on_the_first_line_after_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_bytes(b"\xef\xbb\xbfcomand: run\ntype: command\nname: c\nenvironment: azureml:e:1\n")
    assert len(fix_in(file).fixed) == 1
    assert file.read_bytes().startswith(b"\xef\xbb\xbfcommand: run\n")


def test_what_a_fix_reveals_is_fixed_too(project: Path) -> None:
    pipeline = project / "pipelines" / "digits.yaml"
    text = pipeline.read_text()
    line = next(line for line in text.splitlines() if "run_label:" in line)
    indent = line[: len(line) - len(line.lstrip())]
    # Under its mistyped name nobody knows that the input is a string.
    pipeline.write_text(text.replace(line, f"{indent}run_lable: no"))
    assert [each.replacement for each in fix_in(project).fixed] == ["run_label", '"no"']
    assert pipeline.read_text() == text.replace(line, f'{indent}run_label: "no"')


def test_misread_values_are_quoted(project: Path) -> None:
    pipeline = project / "pipelines" / "digits.yaml"
    text = pipeline.read_text()
    line = next(line for line in text.splitlines() if "run_label:" in line)
    pipeline.write_text(text.replace(line, line.split(":")[0] + ": no  # not yes"))
    fixed = fix_in(project)
    assert [each.rule for each in fixed.fixed] == ["AML010"]
    assert line.split(":")[0] + ': "no"  # not yes' in pipeline.read_text()
    assert fixed.result.diagnostics == ()


def test_numbers_that_must_be_strings_are_quoted(project: Path) -> None:
    pipeline = project / "pipelines" / "digits.yaml"
    right = spoil(pipeline, ("experiment_name: digits", "experiment_name: 012"))
    assert [each.rule for each in fix_in(project).fixed] == ["AML103"]
    assert pipeline.read_bytes() == right.replace(b"experiment_name: digits", b'experiment_name: "012"')


def test_files_that_are_rendered_are_left_alone(project: Path) -> None:
    train = project / "components" / "train.yaml"
    spoil(train, TYPOS[0])
    spoilt = train.read_bytes()
    fixed = fix_in(project, is_writable=False)
    assert (fixed.fixed, train.read_bytes()) == ((), spoilt)
    assert [each.rule for each in fixed.result.diagnostics] == ["AML101"]


@pytest.mark.parametrize("typo", ["experiment: digits", "setings_of_mine: {}"])
def test_uncertain_fixes_are_not_made(project: Path, typo: str) -> None:
    pipeline = project / "pipelines" / "digits.yaml"
    spoil(pipeline, ("experiment_name: digits", typo))
    assert fix_in(project).fixed == ()


def test_a_fix_never_duplicates_a_key(project: Path) -> None:
    train = project / "components" / "train.yaml"
    spoil(train, ("is_deterministic: false", "is_deterministic: false\nis_determinstic: true"))
    assert fix_in(project).fixed == ()


def test_two_typos_of_one_key_are_not_both_fixed(project: Path) -> None:
    train = project / "components" / "train.yaml"
    spoil(train, ("is_deterministic: false", "is_determinstic: false\nis_deterministc: true"))
    fixed = fix_in(project)
    assert len(fixed.fixed) == 1
    assert [each.rule for each in fixed.result.diagnostics] == ["AML101"]


def test_a_fix_that_uncovers_an_older_mistake_is_made_and_said(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    # As `command`, the text is looked into, and what it uses is not declared.
    text = "type: command\nname: c\nenvironment: azureml:e:1\n"
    file.write_text(text + "comand: run ${{inputs.nothing}}\n")
    fixed = fix_in(tmp_path)
    assert [each.replacement for each in fixed.fixed] == ["command"]
    assert [each.rule for each in fixed.uncovered] == ["AML206"]
    assert file.read_text() == text + "command: run ${{inputs.nothing}}\n"


DECLARED = "inputs:\n  epochs: {type: integer, default: 3}\n"
JOB = "type: command\nname: c\ncode: ./src\nenvironment: azureml:e:1\nis_deterministic: false\n"
SCRIPT = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--epochs')\np.parse_args()\n"
RUNS = "command: python train.py --epochs ${{inputs.epochs}}\n" + DECLARED


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("type: integer", "type: integr"),
        ("type: integer", "type: int"),
        ("type: integer", "typ: integer"),
        ("--epochs", "--epocs"),
        ("train.py", "tran.py"),
        ("code: ./src", "code: ./scr"),
        ("${{inputs.epochs}}", "${{input.epochs}}"),
        ("type: command", "type: comand"),
    ],
)
def test_what_is_meant_is_written(right: str, wrong: str, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text(SCRIPT)
    file = tmp_path / "c.yaml"
    file.write_text(JOB + RUNS)
    assert right in file.read_text()
    assert lint([file]).diagnostics == ()
    file.write_text((JOB + RUNS).replace(right, wrong, 1))
    fixed = fix_in(file)
    assert len(fixed.fixed) == 1
    assert file.read_text() == JOB + RUNS


@pytest.mark.parametrize(
    "name",
    [
        *("trian.yaml", "Train.yaml", "tran.yaml", "components/train.yml", "component/train.yaml", "trains.yaml"),
        *("train_a.yaml", "rain.yaml", "trainn.yaml"),
    ],
)
def test_a_path_is_corrected_in_its_last_name(name: str, tmp_path: Path) -> None:
    (tmp_path / "components").mkdir()
    for folder in (tmp_path, tmp_path / "components"):
        (folder / "train.yaml").write_text("type: command\nname: c\nenvironment: azureml:e:1\ncommand: run\n")
    file = tmp_path / "p.yaml"
    text = "type: pipeline\nsettings: {default_compute: azureml:cpus}\njobs:\n  a: {component: ./NAME}\n"
    file.write_text(text.replace("NAME", name))
    fix_in(file)
    right = dict.fromkeys(("trian.yaml", "Train.yaml", "tran.yaml"), "train.yaml") | {
        "components/train.yml": "components/train.yaml"
    }
    assert file.read_text() == text.replace("NAME", right.get(name, name))


def test_of_two_names_as_near_neither_is_written(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    used = "run ${{inputs.train_dat}} ${{inputs.train_data}} ${{inputs.train_date}}"
    ports = "inputs:\n  train_data: {type: string}\n  train_date: {type: string}\n"
    file.write_text(f"type: command\nname: c\nenvironment: azureml:e:1\ncommand: {used}\n{ports}")
    fixed = fix_in(file)
    assert fixed.fixed == ()
    (found,) = [each for each in fixed.result.diagnostics if each.rule == "AML206"]
    assert sorted(found.hint.split("'")[1::2]) == ["train_data", "train_date"]
    assert " or " in found.hint


def test_a_file_keeps_its_permissions_and_its_link(tmp_path: Path) -> None:
    real = tmp_path / "real.yaml"
    real.write_text("comand: run\ntype: command\nname: c\nenvironment: azureml:e:1\n")
    real.chmod(0o640)
    (tmp_path / "sub").mkdir()
    link = tmp_path / "sub" / "link.yaml"
    link.symlink_to(real)
    assert len(fix_in(link).fixed) == 1
    assert link.is_symlink()
    assert real.read_text().startswith("command:")
    assert real.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_an_unwritable_file_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("comand: run\ntype: command\nname: c\nenvironment: azureml:e:1\n")
    # The superuser may write everywhere.
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(UserError, match=r"cannot write the fixes of .*c\.yaml: permission denied. Nothing was changed"):
        fix_in(file)
    assert "comand" in file.read_text()


def test_concurrent_changes_are_not_lost(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text("comand: run\ntype: command\nname: c\nenvironment: azureml:e:1\n")

    def relint(texts: Mapping[Path, str]) -> LintResult:
        with (tmp_path / "b.yaml").open("a") as edited:
            edited.write("# a line more\n")
        return lint([tmp_path], store=DocumentStore(texts))

    with pytest.raises(UserError, match=r"b\.yaml was changed while lint was running. Nothing was fixed"):
        fix(lint([tmp_path]), relint)
    assert (tmp_path / "a.yaml").read_text().startswith("comand")


@pytest.mark.parametrize(
    ("text", "column", "end", "replacement", "expected"),
    [
        ("'abd': 1", 1, 6, "abc", "'abc': 1"),
        ('"abd": 1', 1, 6, "abc", '"abc": 1'),
        ("key: no", 6, 8, '"no"', 'key: "no"'),
        ('"it\'s": 1', 1, 7, "it\\s", None),
        ("&a abd: 1", 1, 7, "abc", None),
        ("!!str abd: 1", 1, 10, "abc", None),
        ("x", 1, 1, "abc", None),
        ("x", 9, 12, "abc", None),
    ],
)
def test_a_replacement_keeps_quotes_and_minds_what_it_cannot_tell(
    text: str, column: int, end: int, replacement: str, expected: str | None
) -> None:
    span = Span(Path("a.yaml"), 1, column, 1, end)
    written, done = apply(text, [Diagnostic(span, "AML101", "message", replacement=replacement)])
    assert written == (expected or text)
    assert len(done) == (expected is not None)


def test_of_two_that_overlap_the_first_is_written() -> None:
    def replace(column: int, end: int, text: str, line: int = 1) -> Diagnostic:
        return Diagnostic(Span(Path("a.yaml"), line, column, line, end), "AML101", "message", replacement=text)

    written, done = apply("abcdef", [replace(3, 6, "Y"), replace(1, 4, "X"), replace(1, 2, "Z", line=7)])
    assert (written, len(done)) == ("Xdef", 1)


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("is_determinstic", ["is_deterministic", "inputs"], "is_deterministic"),
        ("shm-size", ["shm_size", "size"], "shm_size"),
        ("Environment", ["environment", "environments"], None),
        ("epoch", ["epochs", "batch"], "epochs"),
        ("comand", ["command", "comment"], "command"),
        ("train_1", ["train_2"], None),
        ("a", ["b"], None),
        ("nodes", ["modes", "codes"], None),
        ("tihs_name", ["this_name"], "this_name"),
        ("minimum", ["min", "max"], None),
    ],
)
def test_only_what_can_be_meant_alone_is_meant(name: str, known: list[str], meant: str | None) -> None:
    assert only_close(name, known) == meant


def test_a_fix_that_would_break_the_yaml_is_not_made(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("comand: run\n")
    wrong = Diagnostic(Span(file, 1, 1, 1, 7), "AML101", "message", replacement="[")
    binary = Diagnostic(Span(tmp_path / "binary.yaml", 1, 1, 1, 2), "AML101", "message", replacement="a")
    (tmp_path / "binary.yaml").write_bytes(b"\xff")
    result = LintResult((wrong, binary), (file,))
    assert fix(result, lambda _: LintResult((), (file,))).fixed == ()
    assert file.read_text() == "comand: run\n"
