"""What an editor shows: the real server, over its protocol."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from project import AGAIN, CLUSTER, FIT, PREPARE, TRAIN, line_of, place_of

from editor import TRAINYARD, Editor, apply
from settings_project import SCHEMA, SETTINGS, write_project

FIT_FILE, TRAIN_FILE = "pipelines/fit.yaml", "components/train.yaml"
DEFINITION, REFERENCES, RENAME = "textDocument/definition", "textDocument/references", "textDocument/rename"
WITH_DECLARATION = {"context": {"includeDeclaration": True}}


# Findings --------------------------------------------------------------------------------------------------------


def test_a_finding_appears_while_typing_and_goes_when_it_is_fixed(editor: Editor) -> None:
    editor.open(FIT_FILE)
    assert editor.type(FIT_FILE, FIT.replace("      epochs:", "      epoch:")) == ["19:7 AML302"]
    (shown,) = editor.published[FIT_FILE]["diagnostics"]
    assert shown["message"].endswith("Did you mean 'epochs'?")
    assert shown["range"]["end"] == {"line": 18, "character": 11}
    assert (shown["severity"], shown["source"]) == (1, "trainyard")
    assert editor.type(FIT_FILE, FIT) == []


def test_a_components_change_shows_in_the_pipelines_that_use_it(editor: Editor) -> None:
    editor.open(TRAIN_FILE)
    editor.type(TRAIN_FILE, TRAIN.replace("epochs", "rounds"))
    editor.settle()
    assert editor.findings(FIT_FILE) == ["19:7 AML302"]
    assert editor.findings("pipelines/again.yaml") == ["11:7 AML302"]
    assert editor.findings(TRAIN_FILE) == ["18:43 AML501"]
    editor.close_file(TRAIN_FILE)
    editor.settle()
    assert [editor.findings(name) for name in (FIT_FILE, "pipelines/again.yaml", TRAIN_FILE)] == [[], [], []]


def test_a_finding_names_related_places_in_other_files(editor: Editor) -> None:
    editor.open(FIT_FILE)
    without = FIT.replace("      data: ${{parent.jobs.prepare.outputs.prepared}}\n", "")
    assert editor.type(FIT_FILE, without) == ["15:3 AML301"]
    (shown,) = editor.published[FIT_FILE]["diagnostics"]
    (related,) = shown["relatedInformation"]
    assert related["location"] == {
        "uri": editor.uri(TRAIN_FILE),
        "range": {"start": {"line": 5, "character": 2}, "end": {"line": 5, "character": 6}},
    }


def test_files_on_disk_count_where_none_is_open(editor: Editor) -> None:
    (editor.folder / "src/train.py").write_text("import argparse\np = argparse.ArgumentParser()\np.parse_args()\n")
    (editor.folder / "compute/gpus.yaml").write_text(CLUSTER.replace("size: ", "sise: "))
    editor.changed_on_disk("src/train.py", "compute/gpus.yaml")
    editor.settle()
    assert "18:19 AML501" in editor.findings(TRAIN_FILE)
    assert "4:1 AML101" in editor.findings("compute/gpus.yaml")


def test_lines_and_columns_are_counted_as_the_editor_counts_them(editor: Editor) -> None:
    editor.open(FIT_FILE)
    # A form feed and U+2028 end no line in an editor, and 𝄞 takes two of its units.
    prefix = "description: '\u2028𝄞é'\n"
    job = FIT.replace("  train:\n", "  '𝄞': {component: ../components/train.yaml, inputs: {epoch: 1}}\n  train:\n")
    editor.type(FIT_FILE, prefix + job)
    line = (prefix + job)[: (prefix + job).index("epoch: 1")].count("\n")
    written = (prefix + job).split("\n")[line]
    column = len(written[: written.index("epoch: 1")].encode("utf-16-le")) // 2
    places = [each["range"]["start"] for each in editor.published[FIT_FILE]["diagnostics"] if each["code"] == "AML302"]
    assert places == [{"line": line, "character": column}]


def test_rendered_files_point_to_their_templates(tmp_path: Path) -> None:
    root = tmp_path.resolve() / "mine"
    subprocess.run([TRAINYARD, "init", str(root)], check=True, capture_output=True, timeout=60)
    name = next(path.name for path in sorted((root / "pipelines").glob("*.yaml")))
    editor = Editor(root)
    try:
        text = (root / "pipelines" / name).read_text()
        editor.open(f"pipelines/{name}")
        editor.type(f"pipelines/{name}", text.replace("    component:", "    componen:", 1))
        editor.settle()
        shown = editor.published[f"pipelines/{name}"]["diagnostics"]
        related = [each["location"]["uri"] for finding in shown for each in finding["relatedInformation"]]
        assert any(uri.startswith(editor.uri("templates/pipelines/")) for uri in related)
    finally:
        editor.close()


def test_settings_that_cannot_be_read_are_said_once(editor: Editor) -> None:
    settings = editor.folder / ".trainyard.toml"
    settings.write_text("[lint]\nsevere = true\n")
    editor.settle()
    editor.settle()
    settings.unlink()
    assert sum("unknown key 'severe'" in message for message in editor.messages) == 1


# Edits -----------------------------------------------------------------------------------------------------------


def test_a_fix_is_offered_and_writes_what_lint_would(editor: Editor) -> None:
    editor.open(FIT_FILE)
    wrong = FIT.replace("      epochs:", "      epoch:")
    editor.type(FIT_FILE, wrong)
    fix, accept, every = editor.actions(FIT_FILE, line_of(wrong, "epoch:"))
    assert (fix["title"], fix["kind"], fix["isPreferred"]) == ("Write epochs", "quickfix", True)
    assert editor.edited(fix["edit"], {FIT_FILE: wrong}) == {FIT_FILE: FIT}
    assert (every["kind"], editor.edited(every["edit"], {FIT_FILE: wrong})) == (
        "source.fixAll.trainyard",
        {FIT_FILE: FIT},
    )
    accepted = editor.edited(accept["edit"], {FIT_FILE: wrong})[FIT_FILE]
    assert "      # trainyard: ignore[AML302] \n      epoch:" in accepted
    assert editor.type(FIT_FILE, accepted) == []


def test_what_a_hint_means_is_offered_where_it_is_not_sure(editor: Editor) -> None:
    editor.open(FIT_FILE)
    right = "component: ../components/train.yaml"
    wrong = FIT.replace(right, "component: ../components/train_ddp.yaml")
    editor.type(FIT_FILE, wrong)
    fix, _ = editor.actions(FIT_FILE, line_of(wrong, "train_ddp"))
    assert (fix["title"], fix["isPreferred"]) == ("Write ../components/train.yaml", False)
    assert editor.edited(fix["edit"], {FIT_FILE: wrong}) == {FIT_FILE: FIT}


def test_the_outline_has_jobs_and_ports(editor: Editor) -> None:
    editor.open(FIT_FILE)
    params = {"textDocument": {"uri": editor.uri(FIT_FILE)}}
    symbols = {each["name"]: each for each in editor.request("textDocument/documentSymbol", params)}
    jobs = symbols["jobs"]["children"]
    assert [job["name"] for job in jobs] == ["prepare", "train"]
    train = {each["name"]: each for each in jobs[1]["children"]}
    assert train["component"]["detail"] == "../components/train.yaml"
    assert "epochs" in [port["name"] for port in train["inputs"]["children"]]
    for symbol in (symbols["jobs"], jobs[1]):
        outer, inner = symbol["range"], symbol["selectionRange"]
        assert outer["start"] == inner["start"]
        assert (outer["end"]["line"], outer["end"]["character"]) >= (inner["end"]["line"], inner["end"]["character"])
    editor.type(FIT_FILE, "jobs: [")
    assert editor.request("textDocument/documentSymbol", params) == []


def test_an_input_of_a_component_is_renamed_in_its_command_and_in_every_pipeline(editor: Editor) -> None:
    edit = editor.ask(RENAME, FIT_FILE, *place_of(FIT, "epochs: ${{"), newName="rounds")
    assert editor.edited(edit) == {
        TRAIN_FILE: TRAIN.replace("  epochs:\n", "  rounds:\n").replace("inputs.epochs", "inputs.rounds"),
        FIT_FILE: FIT.replace("      epochs:", "      rounds:"),
        "pipelines/again.yaml": AGAIN.replace("      epochs:", "      rounds:"),
    }


def test_an_input_of_a_pipeline_is_renamed_where_it_is_bound(editor: Editor) -> None:
    edit = editor.ask(RENAME, FIT_FILE, *place_of(FIT, "epochs: 5"), newName="rounds")
    renamed = FIT.replace("  epochs: 5", "  rounds: 5").replace("parent.inputs.epochs", "parent.inputs.rounds")
    assert editor.edited(edit) == {FIT_FILE: renamed}


def test_a_job_and_an_output_are_renamed_where_others_are_bound_to_them(editor: Editor) -> None:
    edit = editor.ask(RENAME, FIT_FILE, *place_of(FIT, "prepare.outputs"), newName="split")
    renamed = FIT.replace("  prepare:\n", "  split:\n").replace("jobs.prepare.", "jobs.split.")
    assert editor.edited(edit) == {FIT_FILE: renamed}
    edit = editor.ask(RENAME, "components/prepare.yaml", *place_of(PREPARE, "prepared: {"), newName="rows")
    assert editor.edited(edit) == {
        "components/prepare.yaml": PREPARE.replace("  prepared:", "  rows:").replace(
            "outputs.prepared", "outputs.rows"
        ),
        FIT_FILE: FIT.replace("outputs.prepared", "outputs.rows"),
    }


@pytest.mark.parametrize(
    ("part", "name", "message"),
    [
        ("epochs: ${{", "data", "there is a 'data' beside 'epochs'"),
        ("epochs: ${{", "two words", "invalid name 'two words'"),
        ("azureml:gpus", "others", "only inputs, outputs and jobs can be renamed here"),
    ],
)
def test_a_rename_that_is_not_safe_is_refused(editor: Editor, part: str, name: str, message: str) -> None:
    assert message in editor.refusal(RENAME, FIT_FILE, *place_of(FIT, part), newName=name)


# Names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "part", "target"),
    [
        (FIT_FILE, FIT, "../components/train.yaml", f"{TRAIN_FILE}:1"),
        (FIT_FILE, FIT, "      epochs", f"{TRAIN_FILE}:7"),
        (FIT_FILE, FIT, "inputs.epochs", f"{FIT_FILE}:5"),
        (FIT_FILE, FIT, "jobs.prepare", f"{FIT_FILE}:11"),
        (FIT_FILE, FIT, "prepared}}", "components/prepare.yaml:6"),
        (FIT_FILE, FIT, "azureml:gpus", "compute/gpus.yaml:4"),
        (TRAIN_FILE, TRAIN, "optimizer}}", f"{TRAIN_FILE}:12"),
        (TRAIN_FILE, TRAIN, "train.py", "src/train.py:1"),
        (TRAIN_FILE, TRAIN, "--optimizer", "src/train.py:6"),
        (TRAIN_FILE, TRAIN, "../src", "src/train.py:1"),
    ],
)
def test_definitions(editor: Editor, name: str, text: str, part: str, target: str) -> None:
    line, column = place_of(text, part)
    assert editor.locations(DEFINITION, name, line, column + len(part) - 2) == [target]


@pytest.mark.parametrize(
    ("name", "text", "part", "places"),
    [
        (TRAIN_FILE, TRAIN, "name: train", [f"{TRAIN_FILE}:3", "pipelines/again.yaml:8", f"{FIT_FILE}:16"]),
        (TRAIN_FILE, TRAIN, "  epochs",
         [f"{TRAIN_FILE}:7", f"{TRAIN_FILE}:18", "pipelines/again.yaml:11", f"{FIT_FILE}:19"]),
        (TRAIN_FILE, TRAIN, "../src", ["components/prepare.yaml:7", f"{TRAIN_FILE}:15"]),
        (TRAIN_FILE, TRAIN, "--epochs", [f"{TRAIN_FILE}:18", "src/train.py:5"]),
        (FIT_FILE, FIT, "  prepare", [f"{FIT_FILE}:11", f"{FIT_FILE}:18"]),
    ],
)  # fmt: skip
def test_references(editor: Editor, name: str, text: str, part: str, places: list[str]) -> None:
    line, column = place_of(text, part)
    found = editor.locations(REFERENCES, name, line, column + len(part) - 2, **WITH_DECLARATION)
    assert sorted(found) == sorted(places)


# Hover and completion --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "part", "expected"),
    [
        (FIT_FILE, FIT, "epochs: ${{", "`epochs`: input of type `integer`, default `3`"),
        (FIT_FILE, FIT, "epochs: ${{", "How often every sample is seen."),
        (FIT_FILE, FIT, "Standard_ND96asr_v4", "8 x NVIDIA A100"),
        (FIT_FILE, FIT, "Standard_ND96asr_v4", "per hour on demand"),
        (FIT_FILE, FIT, "inputs.epochs}}", "- `5` (pipelines/fit.yaml:5)"),
        (FIT_FILE, FIT, "outputs.prepared}}", "- the output `prepared` of the job `prepare`"),
        (FIT_FILE, FIT, "../components/train.yaml", "**Train a model**"),
        (TRAIN_FILE, TRAIN, "inputs.epochs", "- `7` (pipelines/again.yaml:11): the job `again`"),
        (TRAIN_FILE, TRAIN, "--optimizer", "declared in src/train.py:6"),
    ],
)
def test_hover(editor: Editor, name: str, text: str, part: str, expected: str) -> None:
    editor.settle()
    line, column = place_of(text, part)
    assert expected in editor.hover(name, line, column + 2)


def test_hover_over_a_finding_shows_the_page_of_its_rule(editor: Editor) -> None:
    editor.open(FIT_FILE)
    wrong = FIT.replace("      epochs:", "      epoch:")
    editor.type(FIT_FILE, wrong)
    shown = editor.hover(FIT_FILE, *place_of(wrong, "epoch:"))
    assert "# AML302: unknown-input" in shown
    assert "Did you mean 'epochs'?" in shown


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("      epochs: ${{parent.inputs.epochs}}", "      epochs: ${{", ["parent"]),
        ("      epochs: ${{parent.inputs.epochs}}", "      epochs: ${{parent.", ["inputs", "jobs"]),
        ("      epochs: ${{parent.inputs.epochs}}", "      epochs: ${{parent.inputs.", ["source", "epochs"]),
        ("      epochs: ${{parent.inputs.epochs}}", "      epochs: ${{parent.jobs.", ["prepare"]),
        ("      epochs: ${{parent.inputs.epochs}}", "      epochs: ${{parent.jobs.prepare.outputs.", ["prepared"]),
        ("      epochs: ${{parent.inputs.epochs}}", "      optimizer: ", ["adam", "sgd", "${{parent.inputs.epochs}}"]),
        ("      epochs: ${{parent.inputs.epochs}}", "      ", ["epochs", "optimizer"]),
        ("      epochs: ${{parent.inputs.epochs}}", "      op", ["optimizer"]),
        ("      model: ${{parent.outputs.model}}", "      model: ${{parent.outputs.", ["model"]),
        ("../components/train.yaml", "", ["../components/prepare.yaml", "../components/train.yaml"]),
        ("azureml:gpus", "", ["azureml:gpus"]),
        ("Standard_ND96asr_v4", "Standard_ND", ["Standard_ND96asr_v4", "Standard_NC24ads_A100_v4"]),
    ],
)
def test_completion_in_a_pipeline(editor: Editor, before: str, after: str, expected: list[str]) -> None:
    head, _, tail = FIT.partition(before)
    rest = tail if tail.startswith("\n") else "\n" + tail.partition("\n")[2]
    editor.open(FIT_FILE)
    editor.change(FIT_FILE, head + after + rest)
    line = (head + after).count("\n") + 1
    column = len((head + after).rpartition("\n")[2]) + 1
    found = editor.completions(FIT_FILE, line, column)
    assert set(expected) <= set(found)


def test_a_completion_replaces_what_was_typed_of_it(editor: Editor) -> None:
    typed = FIT.replace("${{parent.inputs.epochs}}", "${{parent.inputs.ep")
    editor.open(FIT_FILE)
    editor.change(FIT_FILE, typed)
    line, column = place_of(typed, "${{parent.inputs.ep\n", len("${{parent.inputs.ep"))
    edit = editor.completions(FIT_FILE, line, column)["epochs"]["textEdit"]
    assert apply(typed, [edit]) == FIT


def test_completion_of_a_commands_bindings(editor: Editor) -> None:
    typed = TRAIN.replace("${{inputs.data}}", "${{inputs.")
    editor.open(TRAIN_FILE)
    editor.change(TRAIN_FILE, typed)
    line, column = place_of(typed, "${{inputs. ", len("${{inputs."))
    assert set(editor.completions(TRAIN_FILE, line, column)) == {"data", "epochs", "optimizer"}


def test_completion_of_the_flags_of_the_script_that_a_command_calls(editor: Editor) -> None:
    typed = TRAIN.replace("--epochs ${{inputs.epochs}}", "--epo")
    editor.open(TRAIN_FILE)
    editor.change(TRAIN_FILE, typed)
    found = editor.completions(TRAIN_FILE, *place_of(typed, "--epo\n", len("--epo")))
    assert "--epochs" in found
    assert not {"--data", "--optimizer", "--model"} & set(found), "the command has them"
    assert apply(typed, [found["--epochs"]["textEdit"]]) == typed.replace("--epo\n", "--epochs\n")


def test_completion_of_profiles(editor: Editor) -> None:
    for name in ("base", "large"):
        (editor.folder / "profiles").mkdir(exist_ok=True)
        (editor.folder / "profiles" / f"{name}.yaml").write_text("sku: Standard_ND96asr_v4\n")
    editor.open("profiles/large.yaml", "extends: ")
    found = editor.completions("profiles/large.yaml", 1, 10)
    assert found["base"]["kind"] == 12


# Settings files --------------------------------------------------------------------------------------------------


@pytest.fixture
def settings_editor(tmp_path: Path) -> Iterator[Editor]:
    folder = tmp_path.resolve() / "mine"
    write_project(folder)
    server = Editor(folder)
    yield server
    server.close()


def test_a_settings_file_shows_what_its_step_and_its_pipelines_make_of_it(settings_editor: Editor) -> None:
    editor, name, text = settings_editor, "settings/ddp.yaml", SCHEMA + SETTINGS
    editor.open(name, text)
    assert editor.type(name, text.replace("epochs: 16", "epochs: 0")) == ["6:9 AML341"]
    assert editor.type(name, text.replace("label_", "lable_")) == ["8:1 AML340"]
    editor.type(name, text + "micro_batch_size: 8\n")
    editor.settle()
    assert editor.findings(name) == ["10:1 AML342"], "the pipeline binds it"
    assert "Passes over the training samples." in editor.hover(name, *place_of(text, "epochs"))
    typed = text + "augm\n"
    editor.change(name, typed)
    assert "augmentation" in editor.completions(name, *place_of(typed, "augm\n", 4))
    assert "label_smoothing" not in editor.completions(name, *place_of(typed, "augm\n", 4)), "the file has it"
    typed = text + "optimizer: \n"
    editor.change(name, typed)
    assert {"adamw", "adafactor"} <= set(editor.completions(name, *place_of(typed, "optimizer: ", 11)))


# The process -----------------------------------------------------------------------------------------------------


def test_without_pygls_the_error_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "pygls.py").write_text("raise ModuleNotFoundError(\"No module named 'pygls'\", name='pygls')\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-m", "trainyard", "lsp"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 1
    assert ended.stderr == "error: the language server needs pygls; run: pip install 'trainyard-azureml[lsp]'\n"


def test_the_server_ends_with_the_session(tmp_path: Path) -> None:
    editor = Editor(tmp_path.resolve())
    editor.request("shutdown", None)
    editor.notify("exit", None)
    assert editor.wait() == 0
