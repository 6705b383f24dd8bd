"""`trainyard lint` as a person, a hook and a workflow call it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from settings_project import write_project

Run = Callable[..., Any]
ROOT = Path(__file__).parents[2]
COMPONENT = "type: command\nname: c\nenvironment: azureml:e:1\nis_deterministic: false\ncommand: run\n"
MISTAKEN = COMPONENT.replace("is_deterministic", "is_determinstic")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, worked in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_findings_go_to_stderr_with_a_summary(trainyard: Run, here: Path) -> None:
    (here / "c.yaml").write_text(MISTAKEN)
    outcome = trainyard("lint", "c.yaml")
    assert (outcome.exit_code, outcome.stdout) == (1, "")
    assert outcome.stderr.startswith("c.yaml:4:1: error[AML101] unknown key 'is_determinstic'")
    assert outcome.stderr.endswith(
        "\n\n1 error, 0 warnings in 1 file; --fix can fix 1 of them; `trainyard explain AML101` explains the first\n"
    )


def test_sarif_and_github_go_to_stdout(trainyard: Run, here: Path) -> None:
    (here / "c.yaml").write_text(MISTAKEN)
    sarif = trainyard("lint", "c.yaml", "--format", "sarif")
    assert (sarif.exit_code, sarif.stderr) == (1, "")
    assert json.loads(sarif.stdout)["runs"][0]["results"][0]["ruleId"] == "AML101"
    github = trainyard("lint", "c.yaml", "--format", "github")
    assert github.exit_code == 1
    assert github.stdout.startswith("::error file=c.yaml,line=4,col=1,endColumn=16,title=AML101 (Trainyard)::unknown")
    (here / "c.yaml").write_text(COMPONENT)
    assert trainyard("lint", "c.yaml", "--format", "github").stdout == ""


@pytest.mark.parametrize("output_format", ["text", "json", "sarif", "github"])
def test_exit_1_is_for_errors_alone(trainyard: Run, here: Path, output_format: str) -> None:
    (here / "c.yaml").write_text(COMPONENT + "# trainyard: ignore[AML101]\n")
    assert trainyard("lint", "c.yaml", "--format", output_format).exit_code == 0
    (here / ".trainyard.toml").write_text("[lint.severity]\nAML801 = 'error'\n")
    assert trainyard("lint", "c.yaml", "--format", output_format).exit_code == 1


def test_fix_says_what_it_did_and_what_remains(trainyard: Run, here: Path) -> None:
    (here / "c.yaml").write_text(MISTAKEN + "outputs: {}\ninputs: 3\n")
    outcome = trainyard("lint", "--fix", "c.yaml")
    assert outcome.exit_code == 1
    assert "fixed c.yaml:4: unknown key 'is_determinstic'" in outcome.stderr
    assert "c.yaml:7:9: error[AML103]" in outcome.stderr
    assert (here / "c.yaml").read_text() == COMPONENT + "outputs: {}\ninputs: 3\n"
    (here / "c.yaml").write_text(MISTAKEN)
    assert trainyard("lint", "--fix", "c.yaml").exit_code == 0


def test_fix_leaves_rendered_files_to_their_templates(trainyard: Run, tmp_path: Path) -> None:
    rendered = tmp_path / "components" / "train_ddp.yaml"
    rendered.parent.mkdir()
    shutil.copy(ROOT / "components" / "train_ddp.yaml", rendered)
    mistaken = rendered.read_text().replace("is_deterministic", "is_determinstic")
    rendered.write_text(mistaken)
    outcome = trainyard("lint", "--fix", str(rendered))
    assert outcome.exit_code == 1
    assert f"not fixed: {rendered} is rendered" in outcome.stderr
    assert "templates/components/_step.j2:" in outcome.stderr
    assert rendered.read_text() == mistaken


def test_a_baseline_from_the_first_day_to_the_last(trainyard: Run, here: Path) -> None:
    (here / "pyproject.toml").write_text("[tool.trainyard.lint]\nbaseline = 'known.json'\n")
    (here / "c.yaml").write_text(MISTAKEN)
    assert "known.json: no such file" in trainyard("lint", "c.yaml").stderr
    written = trainyard("lint", "c.yaml", "--write-baseline")
    assert (written.exit_code, written.stderr) == (0, "known.json now contains 1 finding\n")
    known = trainyard("lint", "c.yaml")
    assert (known.exit_code, known.stderr) == (0, "no findings in 1 file; 1 more in the baseline\n")
    (here / "c.yaml").write_text(COMPONENT)
    stale = trainyard("lint", "c.yaml")
    assert stale.exit_code == 0
    assert "known.json:4:5: warning[AML803]" in stale.stderr
    assert trainyard("lint", "c.yaml", "--write-baseline", "--baseline", "other.json").exit_code == 0
    assert trainyard("lint", "c.yaml", "--baseline", "other.json").stderr == "no findings in 1 file\n"


def test_a_baseline_takes_in_no_error_silently_and_no_file_that_became_unreadable(trainyard: Run, here: Path) -> None:
    baseline, write = here / "known.json", ("c.yaml", "--write-baseline", "--baseline", "known.json")
    (here / "c.yaml").write_text(MISTAKEN)
    assert trainyard("lint", *write).exit_code == 0
    before = baseline.read_text()
    (here / "c.yaml").write_text(f"{MISTAKEN}\tx: 1\n")
    refused = trainyard("lint", *write)
    assert refused.exit_code == 2
    assert "error[AML002]" in refused.stderr
    assert "known.json is unchanged: fix what cannot be read first" in refused.stderr
    assert baseline.read_text() == before
    (here / "c.yaml").write_text(f"{MISTAKEN}enviroment: e\n")
    added = trainyard("lint", *write)
    assert added.exit_code == 0
    assert re.search(r"c.yaml:\d+:1: error\[AML101\] unknown key 'enviroment'", added.stderr)
    assert added.stderr.endswith("known.json now contains 2 findings, with 1 new error\n")
    assert trainyard("lint", "c.yaml", "--baseline", "known.json").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--write-baseline"], "--write-baseline requires --baseline FILE"),
        (["--write-baseline", "--fix"], "--fix and --write-baseline cannot be combined"),
        (["--baseline", "none.json"], "none.json: no such file"),
        (["--format", "xml"], "expected one of text, json, sarif, github, got 'xml'"),
        (["-"], "--stdin-filename FILE"),
    ],
)
def test_incorrect_use_exits_2(trainyard: Run, here: Path, arguments: list[str], words: str) -> None:
    (here / "c.yaml").write_text(COMPONENT)
    outcome = trainyard("lint", "c.yaml", *arguments)
    assert outcome.exit_code == 2
    assert words in outcome.stderr


SEVERAL = COMPONENT.replace("azureml:e:1", "azureml:e") + "# trainyard: ignore[AML101]\n"


@pytest.mark.parametrize(
    ("arguments", "settings", "rules", "exit_code"),
    [
        ([], "", {"AML409", "AML801"}, 1),
        (["--select", "AML4"], "", {"AML409"}, 1),
        (["--select", "aml409,AML801"], "", {"AML409", "AML801"}, 1),
        (["--ignore", "AML409"], "", {"AML801"}, 0),
        (["--select", "AML4", "--ignore", "AML409"], "", set(), 0),
        ([], "select = ['AML8']", {"AML801"}, 0),
        ([], "ignore = ['AML4', 'AML8']", set(), 0),
        (["--select", "AML409"], "select = ['AML8']", {"AML409"}, 1),
    ],
)
def test_rules_are_selected(
    trainyard: Run, here: Path, arguments: list[str], settings: str, rules: set[str], exit_code: int
) -> None:
    (here / "c.yaml").write_text(SEVERAL)
    (here / ".trainyard.toml").write_text(f"[lint]\n{settings}\n")
    outcome = trainyard("lint", "c.yaml", "--format", "json", *arguments)
    assert {each["rule"] for each in json.loads(outcome.stdout)} == rules
    assert outcome.exit_code == exit_code


def test_a_file_that_cannot_be_read_is_reported_whatever_is_selected(trainyard: Run, here: Path) -> None:
    (here / "c.yaml").write_text("type: command\nname: [c\n")
    outcome = trainyard("lint", "c.yaml", "--select", "AML4")
    assert outcome.exit_code == 1
    assert "error[AML002]" in outcome.stderr


def test_an_unknown_rule_is_not_selected(trainyard: Run, here: Path) -> None:
    (here / "c.yaml").write_text(COMPONENT)
    outcome = trainyard("lint", "c.yaml", "--ignore", "AML999")
    assert (outcome.exit_code, "unknown rule 'AML999'" in outcome.stderr) == (2, True)
    (here / ".trainyard.toml").write_text("[lint]\nselect = 'AML4'\n")
    assert "'select' must be a list of rules" in trainyard("lint", "c.yaml").stderr


@pytest.mark.parametrize("is_saved", [True, False])
def test_standard_input_stands_for_a_file(here: Path, is_saved: bool) -> None:
    if is_saved:
        (here / "c.yaml").write_text(COMPONENT)
    command = [sys.executable, "-m", "trainyard", "lint", "-", "--stdin-filename", "c.yaml"]
    outcome = subprocess.run(command, input=MISTAKEN, capture_output=True, text=True, cwd=here)
    assert outcome.returncode == 1
    assert outcome.stderr.startswith("c.yaml:4:1: error[AML101] unknown key 'is_determinstic'")
    assert "4 | is_determinstic: false" in outcome.stderr
    as_json = subprocess.run([*command, "--format", "json"], input=COMPONENT, capture_output=True, text=True, cwd=here)
    assert (as_json.returncode, json.loads(as_json.stdout)) == (0, [])


def test_standard_input_sees_the_files_beside_it(here: Path) -> None:
    (here / "c.yaml").write_text(COMPONENT)
    pipeline = "type: pipeline\nsettings: {default_compute: azureml:cpus}\njobs: {a: {component: ./d.yaml}}\n"
    command = [sys.executable, "-m", "trainyard", "lint", "-", "--stdin-filename", "p.yaml"]
    outcome = subprocess.run(command, input=pipeline, capture_output=True, text=True, cwd=here)
    assert "p.yaml:3:23: error[AML401]" in outcome.stderr
    right = pipeline.replace("d.yaml", "c.yaml")
    assert subprocess.run(command, input=right, capture_output=True, text=True, cwd=here).returncode == 0


def test_wrong_settings_exit_2(trainyard: Run, here: Path) -> None:
    (here / ".trainyard.toml").write_text("[lint]\nexclud = []\n")
    (here / "c.yaml").write_text(COMPONENT)
    outcome = trainyard("lint", "c.yaml")
    assert outcome.exit_code == 2
    assert ".trainyard.toml: unknown key 'exclud'. Did you mean 'exclude'?" in outcome.stderr


def test_a_folder_without_azure_files_reports_that_nothing_was_checked(trainyard: Run, here: Path) -> None:
    (here / "workflow.yaml").write_text("on: push\njobs: {}\n")
    outcome = trainyard("lint", ".")
    assert (outcome.exit_code, outcome.stderr) == (0, "no Azure ML files found: nothing was checked\n")


@pytest.fixture
def copied_project(tmp_path: Path) -> Path:
    """Templates, a profile and what is rendered of them, in which nobody works."""
    project = tmp_path / "project"
    for folder in ("templates", "profiles", "settings", "components", "src/trainyard/settings/steps", "schemas"):
        shutil.copytree(ROOT / folder, project / folder)
    return project


def test_a_project_is_found_from_its_files_wherever_one_works(
    trainyard: Run, copied_project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(copied_project.parent)
    component = copied_project / "components" / "evaluate.yaml"
    component.write_text(component.read_text().replace("is_deterministic", "is_determinstic"))
    (found,) = [
        each
        for each in json.loads(trainyard("lint", str(component), "--format", "json").stdout)
        if each["rule"] == "AML101"
    ]
    assert found["file"] == "project/components/evaluate.yaml"
    assert [related["file"] for related in found["related"]] == ["project/templates/components/_step.j2"]
    profile = copied_project / "profiles" / "t4.yaml"
    profile.write_text(profile.read_text().replace("nodes: 1", "nodes: many"))
    assert "error[TY104]" in trainyard("lint", str(profile)).stderr
    (copied_project / ".trainyard.toml").write_text('[lint]\nexclude = ["profiles/"]\n')
    assert trainyard("lint", str(copied_project / "profiles")).exit_code == 0


def test_files_that_were_rendered_for_a_profile_that_is_gone_are_one_finding(
    trainyard: Run, copied_project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(copied_project)
    profiles = copied_project / "profiles"
    (profiles / "t4.yaml").rename(profiles / "t4a.yaml")
    for each in profiles.glob("*.yaml"):
        each.write_text(each.read_text().replace("extends: t4\n", "extends: t4a\n"))
    found = trainyard("lint")
    first = min(path.name for path in (copied_project / "components").glob("*.yaml"))
    assert (
        f"components/{first}:1:1: warning[TY101] this is rendered for the profile 't4', which is gone" in found.stderr
    )
    assert "hint: Did you mean 't4a'? `trainyard render PROFILE` renders for another." in found.stderr
    assert found.stderr.count("TY101]") == 1
    assert trainyard("render", "t4a").exit_code == 0
    assert "TY101" not in trainyard("lint").stderr


@pytest.mark.parametrize("output_format", ["text", "github"])
def test_a_terminal_that_knows_few_characters_gets_them_written_out(here: Path, output_format: str) -> None:
    (here / "c.yaml").write_text(COMPONENT + "description: 名前\nnäme: 1\n")
    command = [sys.executable, "-m", "trainyard", "lint", "c.yaml", "--format", output_format]
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"}
    done = subprocess.run(command, cwd=here, env=environment, capture_output=True, encoding="latin-1", check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_rules_are_explained_one_by_one_by_file_and_as_a_list(trainyard: Run, here: Path) -> None:
    (here / "c.yaml").write_text(MISTAKEN)
    assert trainyard("explain", "aml101").stdout.startswith("AML101 unknown-key (error)")
    assert trainyard("explain", "c.yaml").stdout == trainyard("explain", "AML101").stdout
    assert "TY104   error" in trainyard("explain").stdout
    assert "not an allowed choice" in trainyard("explain", "TY104").stdout
    unknown = trainyard("explain", "AML1O1")
    assert (unknown.exit_code, unknown.stderr) == (2, "error: unknown rule 'AML1O1'. Did you mean AML101?\n")


def test_a_pipeline_is_explained_with_the_settings_of_its_trainings(trainyard: Run, here: Path) -> None:
    write_project(here)
    lines = trainyard("explain", "pipelines/ddp.yaml").stdout.splitlines()
    listed = lines[lines.index("settings that the job train is given:") + 1 :]
    given = {name: (place, value) for name, place, value in (line.split(maxsplit=2) for line in listed)}
    assert given["epochs"] == ("settings/ddp.yaml:6", "16")
    assert given["micro_batch_size"] == ("pipelines/ddp.yaml:4", "16")
    assert "weight_decay" not in given, "it has its default"


def test_a_run_minds_the_settings_too(trainyard: Run, here: Path) -> None:
    (here / "c.yaml").write_text(MISTAKEN + "code: .\ninputs: {n: {type: integer}}\n")
    (here / "p.yaml").write_text("type: pipeline\njobs: {a: {component: ./c.yaml}}\n")
    assert "unknown key 'is_determinstic'" in trainyard("run", "p.yaml").stderr
    (here / ".trainyard.toml").write_text("[lint.severity]\nAML101 = 'off'\n")
    assert "unknown key" not in trainyard("run", "p.yaml").stderr


@pytest.mark.parametrize(
    ("options", "settings", "exit_code"),
    [
        ([], "", 0),
        (["--fail-on", "warning"], "", 1),
        ([], 'fail_on = "warning"\n', 1),
        (["--fail-on", "error"], 'fail_on = "warning"\n', 0),
    ],
    ids=["default", "option", "setting", "option_over_setting"],
)
def test_warnings_fail_where_they_are_to(
    trainyard: Run, here: Path, options: list[str], settings: str, exit_code: int
) -> None:
    (here / ".trainyard.toml").write_text(f"[lint]\n{settings}")
    (here / "c.yaml").write_text(COMPONENT.replace("azureml:e:1", "azureml:AzureML-e"))
    outcome = trainyard("lint", *options, "c.yaml")
    assert "0 errors, 1 warning" in outcome.stderr
    assert outcome.exit_code == exit_code


def test_a_wrong_fail_on_is_refused_with_the_words_that_it_takes(trainyard: Run, here: Path) -> None:
    (here / ".trainyard.toml").write_text('[lint]\nfail_on = "note"\n')
    (here / "c.yaml").write_text(COMPONENT)
    outcome = trainyard("lint", "c.yaml")
    assert outcome.exit_code == 2
    assert "'fail_on' must be error or warning, not 'note'" in outcome.stderr
