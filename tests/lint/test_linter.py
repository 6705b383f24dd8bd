from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from trainyard.lint.linter import UnreadablePath, lint
from trainyard.lint.machine_output import as_json
from trainyard.lint.text_output import as_text
from trainyard.spec.diagnostic import Diagnostic, Related, Span
from trainyard.spec.expressions import UNKNOWN_JOB_PORT
from trainyard.spec.literals import LITERAL_NOT_A_CHOICE, WRONG_LITERAL
from trainyard.spec.rules import KEY_NOT_TEXT, MISSING_KEY, UNKNOWN_KEY, WRONG_TYPE

COMPONENT = "type: command\nname: c\nversion: '1'\ncommand: run\nenvironment: azureml:e:1\n"


def using(*bindings: str) -> str:
    """A component whose command uses these ports."""
    return COMPONENT.replace(
        "command: run", "command: run " + " ".join(f"'${{{{{binding}}}}}'" for binding in bindings)
    )


def rules_of(path: Path) -> list[str]:
    return [d.rule for d in lint([path]).diagnostics]


def put(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def test_a_pipeline_takes_its_components_along(project: Path) -> None:
    train = project / "components" / "train.yaml"
    train.write_text(train.read_text().replace("is_deterministic", "is_determinstic"))
    result = lint([project / "pipelines" / "digits.yaml"])
    assert [(d.rule, d.span.file) for d in result.diagnostics] == [(UNKNOWN_KEY.id, train)]
    assert len(result.files) == 4


def test_a_file_named_twice_is_checked_once(project: Path) -> None:
    train = project / "components" / "train.yaml"
    train.write_text(train.read_text().replace("code: ../src", "code: ../scr"))
    assert len(lint([train, project, project / "components"]).diagnostics) == 1


def test_without_paths_the_standard_folders_are_checked(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    (project / "compute").mkdir(exist_ok=True)
    assert len(lint([]).files) == 5
    monkeypatch.chdir(project / "src")
    with pytest.raises(UnreadablePath, match="none of the folders components"):
        lint([])


def test_a_path_that_is_not_there_is_incorrect_use(project: Path) -> None:
    with pytest.raises(UnreadablePath, match=r"no such file or folder: '.*pipelins'; did you mean '.*pipelines'"):
        lint([project / "pipelins"])
    with pytest.raises(UnreadablePath, match="no such file or folder"):
        lint([project / "nowhere" / "at_all"])


def test_a_path_without_yaml_is_incorrect_use(tmp_path: Path) -> None:
    readme = put(tmp_path, "src/README.md", "# Read me")
    with pytest.raises(UnreadablePath, match=r"no YAML files in .*src"):
        lint([tmp_path / "src"])
    with pytest.raises(UnreadablePath, match=r"README\.md is not a YAML file"):
        lint([readme])


def test_a_pipeline_says_that_it_is_one(tmp_path: Path) -> None:
    (found,) = lint([put(tmp_path, "p.yaml", "name: p\njobs:\n  a: {component: 'azureml:c:1'}\n")]).diagnostics
    assert (found.rule, found.span.line, found.hint) == (MISSING_KEY.id, 1, "Add `type: pipeline`.")


@pytest.mark.parametrize(
    ("text", "line", "rule", "hint"),
    [
        ("type: pipeline\njob:\n  a: {component: ./c.yaml}\n", 2, UNKNOWN_KEY.id, "Did you mean 'jobs'?"),
        ("type: pipeline\ninputs:\n  epochs: [16]\njobs:\n  a:\n    component: ./c.yaml\n"
         "    inputs: {epochs: '${{parent.inputs.epochs}}'}\n", 3, WRONG_TYPE.id, ""),
        ("type: pipeline\ninputs:\n  epochs: 16\njobs:\n  a:\n    component: ./c.yaml\n"
         "    inputs: {epochs: {{parent.inputs.epochs}}}\n", 7, KEY_NOT_TEXT.id,
         "Write ${{parent.inputs.epochs}}"),
        ("type: pipeline\ninputs:\n  epochs: 16\njobs:\n  a:\n    component: ./c.yaml\n"
         "    inputs: {epochs: '{{parent.inputs.epochs}}'}\n", 7, WRONG_LITERAL.id,
         "Write ${{parent.inputs.epochs}}"),
    ],
)  # fmt: skip
def test_one_mistake_is_one_finding(tmp_path: Path, text: str, line: int, rule: str, hint: str) -> None:
    put(tmp_path, "c.yaml", using("inputs.epochs") + "inputs: {epochs: {type: integer, default: 1}}\n")
    (found,) = lint([put(tmp_path, "p.yaml", text)]).diagnostics
    assert (found.rule, found.span.line, found.hint) == (rule, line, hint)


COMPUTE = "compute: azureml:c\n"
PORTS = """\
inputs:
  epochs: {type: integer}
  rate: {type: number}
  format: {type: string, enum: [png, jpg]}
"""


@pytest.mark.parametrize(
    ("literals", "rules"),
    [
        ("  n: sixteen\n  rate: 0.1\n  format: png\n", [WRONG_LITERAL.id]),
        ("  n: 16\n  rate: 0.1\n  format: jpeg\n", [LITERAL_NOT_A_CHOICE.id]),
        ("  n: 16\n  rate: 1\n  format: png\n", []),
    ],
)
def test_a_pipelines_literal_suits_what_it_is_bound_to(tmp_path: Path, literals: str, rules: list[str]) -> None:
    put(tmp_path, "c.yaml", using("inputs.epochs", "inputs.rate", "inputs.format") + PORTS)
    job = "jobs:\n  a:\n    component: ./c.yaml\n    inputs:\n      epochs: ${{parent.inputs.n}}\n"
    bound = "      rate: ${{parent.inputs.rate}}\n      format: ${{parent.inputs.format}}\n"
    found = lint([put(tmp_path, "p.yaml", f"type: pipeline\ninputs:\n{literals}{COMPUTE}{job}{bound}")]).diagnostics
    assert [d.rule for d in found] == rules
    for diagnostic in found:
        assert diagnostic.span.line in (3, 5)
        binding, declaration = diagnostic.related
        assert (binding.span.file.name, binding.span.line) == ("p.yaml", 11 if diagnostic.span.line == 3 else 13)
        assert declaration.span.file.name == "c.yaml"


@pytest.mark.parametrize(
    "text",
    [
        "name: CI\non: [push]\njobs:\n  test:\n    runs-on: ubuntu-latest\n    steps: [{run: make}]\n",
        "name: env\nchannels: [conda-forge]\ndependencies: [python=3.10, {pip: [torch]}]\n",
        "services:\n  web:\n    image: nginx\n",
        "- hosts: all\n",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n---\napiVersion: v1\nkind: Pod\n",
        "trigger: [main]\njobs:\n- job: a\n  steps: []\n",
        "Resources:\n  x: !Ref y\n",
        "repos:\n- repo: local\n  hooks: []\n",
        "type: object\nproperties: {}\n",
        "just text",
    ],
)
def test_files_of_other_kinds_are_passed_over(tmp_path: Path, text: str) -> None:
    file = put(tmp_path, "a.yaml", text)
    result = lint([tmp_path])
    assert result.diagnostics == ()
    assert len(result.files) == 0
    assert lint([file]).diagnostics


def test_hidden_folders_and_links_to_folders_are_not_followed(tmp_path: Path) -> None:
    put(tmp_path, ".github/workflows/ci.yaml", "a: [")
    put(tmp_path, "node_modules/x.yml", "a: [")
    (tmp_path / "loop").symlink_to(tmp_path)
    put(tmp_path, "c.yaml", COMPONENT)
    assert lint([tmp_path]).diagnostics == ()


def test_what_cannot_be_read_is_a_diagnostic_each(tmp_path: Path) -> None:
    (tmp_path / "dangling.yaml").symlink_to(tmp_path / "none.yaml")
    (tmp_path / "binary.yml").write_bytes(b"type: command\n" + bytes(range(256)))
    put(tmp_path, "deep.yaml", "# azureml:\n" + "[" * 10_000)
    with open(tmp_path / "large.yaml", "wb") as large:
        large.write(b"type: pipeline\n")
        large.truncate(100 * 1024 * 1024)
    os.mkfifo(tmp_path / "pipe.yaml")
    tracemalloc.start()
    assert sorted(rules_of(tmp_path)) == ["AML001", "AML001", "AML003", "AML004", "AML004"]
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 20 * 1024 * 1024, "the large file was read"


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("$schema: https://azuremlschemas.azureedge.net/latest/commandJob.schema.json\ncommand: run ${{inputs.a}}\n"
         "environment: azureml:e:1\ninputs: {a: 3}\ncompute: azureml:c\nlimits: {timeout: 60}\n", []),
        ("type: command\ncommand: run ${{inputs.b}}\nenvironment: azureml:e:1\ninputs: {a: 3}\ncompute: azureml:c\n",
         ["AML206"]),
        ("type: command\ncommand: run\ncompute: azureml:c\nenviroment: azureml:e:1\n", ["AML101"]),
        ("type: pipeline\nname: p\nversion: 1\ninputs: {a: {type: integer}}\njobs:\n  x:\n    component: azureml:c:1\n"
         "    inputs: {b: '${{parent.inputs.a}}'}\n", []),
        ("type: pipeline\nname: p\nversion: 1\njobs:\n  x:\n    component: azureml:c:1\n"
         "    inputs: {b: '${{parent.inputs.a}}'}\n",
         ["AML203"]),
        ("type: parallel\nname: p\nversion: 1\ninputs: {a: {type: uri_folder}}\n"
         "task: {type: function, entry_script: x.py, environment: azureml:e:1}\nmore: 1\n",
         ["AML101"]),
        ("name: e\nimage: x\nversion: 3\n", []),
        ("name: ci\ntype: computeinstance\nsize: Standard_DS3_v2\nidle_time_before_shutdown_minutes: 30\n", []),
        ("name: k8s\ntype: kubernetes\nresource_id: x\nnamespace: n\n", []),
        ("type: pipeline\ncompute: azureml:c\njobs:\n  s:\n    type: sweep\n    trial: azureml:c:1\n"
         "    search_space: {}\n    objective: {goal: minimize, primary_metric: loss}\n"
         "    limits: {max_total_trials: 2}\n  t:\n    component: azureml:c:1\n"
         "    inputs: {m: '${{parent.jobs.s.outputs.model}}'}\n", []),
        ("type: pipeline\njobs:\n  s:\n    type: spark\n    compute: azureml:p\n    component: ./none.yaml\n",
         ["AML401"]),
        ("type: pipeline\ncompute: azureml:c\ninputs: {n: 2}\njobs:\n  s:\n    component: azureml:c:1\n"
         "    resources: {instance_count: '${{parent.inputs.n}}'}\n", []),
        ("type: pipeline\ncomponent: azureml:p:1\ninputs: {a: 3}\n", []),
        ("type: pipeline\ncompute: azureml:c\njobs:\n  a:\n    component: azureml:c:1\n"
         "    inputs: {d: {type: URI_FOLDER, path: 'azureml:d:1'}}\n", []),
        ("type: pipeline\n", ["AML102"]),
        ("type: pipeline\njobs:\n", ["AML102"]),
        ("type: pipeline\njobs: {}\n", ["AML102"]),
        ("type: pipeline\njob: {a: {component: azureml:x:1}}\n", ["AML101"]),
        ("type: pipeline\nsettings: {force_rerun: perhaps}\njobs: {a: {component: azureml:x:1}}\n", ["AML103"]),
        ("type: pipeline\njobs:\n  a:\n    component:\n      type: command\n      environment: azureml:e:1\n",
         ["AML102"]),
    ],
)  # fmt: skip
def test_each_kind_is_checked_as_what_it_is(tmp_path: Path, text: str, rules: list[str]) -> None:
    assert rules_of(put(tmp_path, "file.yaml", text)) == rules


def test_a_component_of_a_nested_pipeline_has_ports_that_count(tmp_path: Path) -> None:
    put(tmp_path, "c.yaml", using("outputs.o") + "outputs: {o: {type: uri_folder}}\n")
    put(
        tmp_path,
        "nested.yaml",
        "type: pipeline\nname: n\nversion: 1\noutputs: {result: {type: uri_folder}}\n"
        "jobs: {x: {component: ./c.yaml, outputs: {o: '${{parent.outputs.result}}'}}}\n",
    )
    pipeline = put(
        tmp_path,
        "p.yaml",
        "type: pipeline\njobs:\n  a:\n    type: pipeline\n    component: ./nested.yaml\n"
        "  b:\n    command: run ${{inputs.d}}\n    environment: azureml:e:1\n"
        "    inputs: {d: '${{parent.jobs.a.outputs.resul}}'}\n",
    )
    (found,) = lint([pipeline]).diagnostics
    assert (found.rule, found.hint) == (UNKNOWN_JOB_PORT.id, "Did you mean 'result'?")


def test_profiles_are_checked_against_their_schema(tmp_path: Path) -> None:
    put(tmp_path, "profiles/mine.yaml", "extends: t4\nnodes: two\nclustr: gpu\n")
    found = {(d.rule, d.span.line) for d in lint([tmp_path]).diagnostics}
    assert found == {(WRONG_TYPE.id, 2), (UNKNOWN_KEY.id, 3)}


def test_numbers_that_json_has_not_are_no_trouble(tmp_path: Path) -> None:
    text = (
        using("inputs.a", "inputs.b")
        + "inputs: {a: {type: number, default: .nan, max: .inf}, b: {type: integer, default: "
        + "9" * 60
        + "}}\n"
    )
    assert rules_of(put(tmp_path, "c.yaml", text)) == []


def test_numbers_that_json_has_not_are_reported_where_a_list_is_expected(tmp_path: Path) -> None:
    file = put(tmp_path, "c.yaml", using("inputs.a") + "inputs: {a: {type: string, enum: .nan}}\n")
    assert [found.rule for found in lint([file]).diagnostics if found.severity == "error"] == [WRONG_TYPE.id]


def test_text_shows_the_line_the_culprit_and_the_mend(project: Path) -> None:
    train = project / "components" / "train.yaml"
    train.write_text(train.read_text().replace("${{inputs.epochs}}", "${{inputs.epoch}}"))
    text = as_text(lint([train]).diagnostics, colour=False, relative_to=project)
    assert text == (
        "components/train.yaml:44:22: error[AML206] the command uses the input 'epoch', which is not declared\n"
        "44 |   --epochs ${{inputs.epoch}}\n"
        "   |                      ^^^^^\n"
        "  hint: Did you mean 'epochs'?"
    )


def test_related_places_follow(project: Path) -> None:
    pipeline = project / "pipelines" / "digits.yaml"
    pipeline.write_text(pipeline.read_text().replace("precision: fp32", "precision: fp8"))
    text = as_text(lint([pipeline]).diagnostics, colour=False, relative_to=project)
    assert text.endswith("\n  components/train.yaml:19:3: 'precision' is declared here")


def test_colour_only_when_asked(project: Path) -> None:
    found = [Diagnostic(Span(project / "src" / "train.py", 1, 1, 1, 6), "AML001", "message", "warning", "hint")]
    assert "\x1b[33m" in as_text(found, colour=True, relative_to=project)
    assert "\x1b" not in as_text(found, colour=False, relative_to=project)


def test_a_long_line_is_cut_around_the_culprit(tmp_path: Path) -> None:
    file = put(tmp_path, "a.yaml", "x" * 500 + "\n")
    found = [Diagnostic(Span(file, 1, 401, 1, 404), "AML001", "message")]
    _, source, caret = as_text(found, colour=False, relative_to=tmp_path).split("\n")
    assert len(source) < 180
    assert caret.count("^") == 3


def test_places_without_a_line_are_named_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\x00")
    for file in (tmp_path / "none", tmp_path / "binary", put(tmp_path, "short", "a\n")):
        found = [Diagnostic(Span(file, 9, 1, 9, 2), "AML001", "message")]
        assert as_text(found, colour=False, relative_to=tmp_path) == f"{file.name}:9:1: error[AML001] message"


def test_a_span_of_several_lines_is_underlined_to_the_end_of_its_first(tmp_path: Path) -> None:
    file = put(tmp_path, "a.yaml", "\tab: c  \n  d\n")
    found = [Diagnostic(Span(file, 1, 2, 2, 3), "AML001", "message")]
    assert as_text(found, colour=False, relative_to=tmp_path).split("\n")[1:] == ["1 | \tab: c", "  | \t^^^^^"]


def test_json_has_what_the_format_says(tmp_path: Path) -> None:
    here, there = Span(tmp_path / "a.yaml", 1, 2, 3, 4), Span(tmp_path / "b.yaml", 5, 6, 5, 7)
    found = [Diagnostic(here, "AML101", "message", hint="hint", related=(Related(there, "declared here"),))]
    assert json.loads(as_json(found, relative_to=tmp_path)) == [
        {
            "file": "a.yaml", "line": 1, "column": 2, "end_line": 3, "end_column": 4,
            "rule": "AML101", "severity": "error", "message": "message", "hint": "hint",
            "related": [{"file": "b.yaml", "line": 5, "column": 6, "message": "declared here"}],
        }
    ]  # fmt: skip


def test_files_far_away_have_their_full_name(tmp_path: Path) -> None:
    found = [Diagnostic(Span(Path("/elsewhere/a.yaml")), "AML001", "message")]
    assert as_text(found, colour=False, relative_to=tmp_path / "a" / "b").startswith("/elsewhere/a.yaml:1:1:")


CHECKING_AND_PARSING = """
import sys, time, timeit
from pathlib import Path
import yaml
from trainyard.lint.linter import lint

folder, warm_up = map(Path, sys.argv[1:])
texts = [file.read_text() for file in folder.iterdir()]
lint([warm_up])
check, parse = lambda: lint([folder]), lambda: [yaml.compose(text, yaml.SafeLoader) for text in texts]
pairs = ([timeit.timeit(work, timer=time.process_time, number=1) for work in (check, parse)] for _ in range(4))
print(min(checking / parsing for checking, parsing in pairs))
"""


def test_five_hundred_files_take_little_longer_than_parsing_them(tmp_path: Path) -> None:
    """At most twice as long as by PyYAML's parser in Python, which a busy machine slows as much as the linter.

    In a process of its own, which coverage does not trace, and in which lies nothing that earlier tests left.
    """
    text = COMPONENT + "description: Number {}.\noutputs: {{o: {{type: uri_folder}}}}\n"
    for index in range(500):
        put(tmp_path, f"many/{index}.yaml", text.format(index))
    one = put(tmp_path, "one/c.yaml", COMPONENT)
    command = (sys.executable, "-c", CHECKING_AND_PARSING, tmp_path / "many", one.parent)
    untraced = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=untraced)
    assert float(done.stdout) < 2


def test_a_module_that_is_almost_one_in_the_code_is_found_with_any_environment(tmp_path: Path) -> None:
    text = (
        "type: command\nname: c\nis_deterministic: false\nenvironment: azureml:e:1\ncode: .\ncommand: python train.py\n"
    )
    file = put(tmp_path, "c.yml", text)
    put(tmp_path, "model.py", "class Net: ...\n")
    put(tmp_path, "train.py", "import mode1x\nfrom modle import Net\n\nprint(Net, mode1x)\n")
    (found,) = lint([file]).diagnostics
    assert (found.rule, found.message, found.hint) == (
        "AML509", "train.py imports 'modle', which its code does not have", "Did you mean 'model'?",
    )  # fmt: skip
    assert found.related[0].span.line == 2
    put(tmp_path, "modle.py", "class Net: ...\n")
    assert rules_of(file) == []


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("process_count_per_instance: 2\n", "It belongs under `distribution`."),
        ("distribution: {type: pytorch, instance_count: 2}\n", "It belongs under `resources`."),
        ("distribution: {type: pytorch, process_count_per_node: 2}\n", "Did you mean 'process_count_per_instance'?"),
        (
            "\u200bcompute: azureml:c\n",
            "It begins with the invisible character U+200B (zero width space): remove it, or",
        ),
    ],
)
def test_an_unknown_key_is_explained(tmp_path: Path, written: str, hint: str) -> None:
    file = put(tmp_path, "job.yml", f"type: command\nenvironment: azureml:e:1\ncommand: python -V\n{written}")
    (found,) = (each for each in lint([file]).diagnostics if each.rule == "AML101")
    assert found.hint.startswith(hint)


@pytest.mark.parametrize(
    "line", ["\u00a0\u00a0instance_count: 1\n  shm_size: 2g", "  shm_size: 2g\n \u00a0instance_count: 1"]
)
def test_an_invisible_character_in_the_indentation_is_named_on_its_line(tmp_path: Path, line: str) -> None:
    file = put(tmp_path, "job.yml", f"type: command\nresources:\n{line}\n")
    (found,) = lint([file]).diagnostics
    number = 3 + line[: line.index("\u00a0")].count("\n")
    assert found.rule == "AML002"
    invisible = "the invisible character U+00A0 (no-break space)"
    assert found.hint == f"Line {number} begins with {invisible}. Indent with spaces."


def test_a_registered_environment_without_its_prefix_is_recognized(tmp_path: Path) -> None:
    file = put(tmp_path, "job.yml", "type: command\ncompute: azureml:c\nenvironment: churn-env:3\ncommand: python -V\n")
    (found,) = lint([file]).diagnostics
    assert (found.rule, found.hint) == ("AML405", "Did you mean 'azureml:churn-env:3'?")
