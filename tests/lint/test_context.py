"""What rules learn beside the YAML: machines behind clusters, and scripts behind components."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard.lint.config import LintSettings
from trainyard.lint.linter import lint

PIPELINE = """\
type: pipeline
settings: {default_compute: azureml:gpu}
jobs:
  train:
    component: ../components/train.yaml
    inputs: {mode: fast}
    distribution: {type: pytorch, process_count_per_instance: 8}
    resources: {instance_count: 1, shm_size: 64g}
"""
COMPONENT = """\
type: command
name: train
is_deterministic: false
code: ../src
command: python train.py --mode '${{inputs.mode}}'
environment: azureml:torch:3
inputs:
  mode: {type: string, default: slow}
"""
SCRIPT = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--mode', choices=['slow', 'fast'])\n"
T4 = "Standard_NC64as_T4_v3"


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    """A pipeline whose one job starts eight processes on the cluster `gpu`."""
    files = {"pipelines/p.yaml": PIPELINE, "components/train.yaml": COMPONENT, "src/train.py": SCRIPT}
    put(tmp_path, files)
    return tmp_path / "pipelines" / "p.yaml"


def put(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def rules(file: Path, settings: LintSettings | None = None) -> list[str]:
    return [d.rule for d in lint([file], settings).diagnostics]


def test_of_a_cluster_that_nobody_describes_nothing_is_said(pipeline: Path) -> None:
    assert rules(pipeline) == []


def test_the_settings_name_the_machine(pipeline: Path) -> None:
    assert rules(pipeline, LintSettings(computes={"gpu": T4})) == ["AML601"]


def test_a_compute_file_names_the_machine(pipeline: Path) -> None:
    put(pipeline.parents[1], {"compute/any.yml": f"type: amlcompute\nname: gpu\nsize: {T4}\n"})
    (found,) = lint([pipeline]).diagnostics
    assert found.rule == "AML601"
    assert found.related[0].span.file.name == "any.yml"


def test_a_profile_names_the_machine_also_through_extends(pipeline: Path) -> None:
    put(
        pipeline.parents[1],
        {
            "profiles/base.yaml": f"sku: {T4}\ncluster: other\nnodes: 1\n",
            "profiles/mine.yaml": "extends: base\ncluster: gpu\n",
        },
    )
    assert rules(pipeline) == ["AML601"]


def test_profiles_that_contradict_each_other_say_nothing(pipeline: Path) -> None:
    put(
        pipeline.parents[1],
        {
            "profiles/a.yaml": f"sku: {T4}\ncluster: gpu\nnodes: 1\n",
            "profiles/b.yaml": "sku: Standard_ND96asr_v4\ncluster: gpu\nnodes: 1\n",
            "profiles/broken.yaml": "sku: [",
        },
    )
    assert rules(pipeline) == []


def test_a_size_that_is_not_in_the_catalogue_says_nothing(pipeline: Path) -> None:
    assert rules(pipeline, LintSettings(computes={"gpu": "Standard_Z99"})) == []


def test_counts_are_followed_to_the_pipelines_inputs(pipeline: Path) -> None:
    text = pipeline.read_text().replace("per_instance: 8", "per_instance: '${{parent.inputs.n}}'")
    pipeline.write_text(text.replace("jobs:\n", "inputs: {n: 16}\njobs:\n"))
    (found,) = lint([pipeline], LintSettings(computes={"gpu": T4})).diagnostics
    assert (found.rule, found.span.line) == ("AML601", 3)


def test_a_count_of_the_components_own_inputs_is_known(pipeline: Path) -> None:
    component = pipeline.parents[1] / "components" / "train.yaml"
    count = "distribution: {type: pytorch, process_count_per_instance: '${{inputs.gpus}}'}\n"
    component.write_text(component.read_text() + "  gpus: {type: integer, default: 16}\n" + count)
    own = "    distribution: {type: pytorch, process_count_per_instance: 8}\n"
    pipeline.write_text(pipeline.read_text().replace(own, ""))

    def place() -> tuple[str, int]:
        diagnostics = lint([pipeline], LintSettings(computes={"gpu": T4})).diagnostics
        (found,) = (each for each in diagnostics if each.rule == "AML601")
        return found.span.file.name, found.span.line

    assert place() == ("train.yaml", 9)
    pipeline.write_text(pipeline.read_text().replace("mode: fast", "mode: fast, gpus: 12"))
    assert place() == ("p.yaml", 6)


def test_a_pipeline_within_has_the_counts_that_the_outer_one_gives_it(pipeline: Path) -> None:
    text = pipeline.read_text().replace("per_instance: 8", "per_instance: '${{parent.inputs.n}}'")
    text = text.replace(
        "settings: {default_compute: azureml:gpu}", "name: part\ninputs: {n: {type: integer, default: 4}}"
    )
    outer = (
        "type: pipeline\nsettings: {default_compute: azureml:gpu}\njobs:\n"
        "  fit: {type: pipeline, component: ./p.yaml, inputs: {n: %s}}\n"
    )
    pipeline.write_text(text)
    for count, rule in ((4, []), (16, ["AML601"]), (0, ["AML106"])):
        put(pipeline.parent, {"outer.yaml": outer % count})
        assert rules(pipeline.parent / "outer.yaml", LintSettings(computes={"gpu": T4})) == rule


def test_what_no_machine_satisfies_is_said_of_unknown_ones_too(pipeline: Path) -> None:
    pipeline.write_text(pipeline.read_text().replace("process_count_per_instance: 8", "process_count_per_instance: 16"))
    (found,) = lint([pipeline]).diagnostics
    assert (found.rule, found.severity) == ("AML601", "warning")


def test_a_jobs_value_is_held_against_the_scripts_choices(pipeline: Path) -> None:
    pipeline.write_text(pipeline.read_text().replace("mode: fast", "mode: quick"))
    (found,) = lint([pipeline]).diagnostics
    assert (found.rule, found.span.line) == ("AML503", 6)
    assert [related.span.file.name for related in found.related] == ["train.yaml", "train.py"]


def test_flags_that_an_input_may_bring_are_not_missed(pipeline: Path) -> None:
    root = pipeline.parents[1]
    (root / "src" / "train.py").write_text(SCRIPT + "p.add_argument('--epochs', required=True)\n")
    component = root / "components" / "train.yaml"
    assert rules(component) == ["AML502"]
    text = component.read_text().replace("'${{inputs.mode}}'", "'${{inputs.mode}}' ${{inputs.more}}")
    component.write_text(text + "  more: {type: string, default: ''}\n")
    assert rules(component) == ["AML551"]


def test_a_text_that_breaks_its_quotes_is_reported_where_it_is_set(pipeline: Path) -> None:
    text = pipeline.read_text()
    pipeline.write_text(text.replace("mode: fast", "mode: '${{parent.inputs.mode}}'") + 'inputs: {mode: "it\'s"}\n')
    found = [each for each in lint([pipeline]).diagnostics if each.rule == "AML557"]
    assert [(each.span.file, each.span.line) for each in found] == [(pipeline, len(text.splitlines()) + 1)]
    assert found[0].message == "'mode' is within ' in the command, and this text contains '"
    assert [related.span.file.name for related in found[0].related] == ["train.yaml"]


def test_processors_count_where_there_are_no_gpus(pipeline: Path) -> None:
    settings = LintSettings(computes={"gpu": "Standard_D8s_v5"})
    assert rules(pipeline, settings) == []
    pipeline.write_text(pipeline.read_text().replace("process_count_per_instance: 8", "process_count_per_instance: 9"))
    assert rules(pipeline, settings) == ["AML601"]


def test_a_rocm_image_is_for_amd(pipeline: Path) -> None:
    component = pipeline.parents[1] / "components" / "train.yaml"
    component.write_text(component.read_text().replace("azureml:torch:3", "azureml:torch-rocm:3"))
    assert rules(pipeline, LintSettings(computes={"gpu": "Standard_ND96isr_MI300X_v5"})) == []
    assert rules(pipeline, LintSettings(computes={"gpu": "Standard_ND96asr_v4"})) == ["AML606"]


def test_an_ignore_file_that_cannot_be_read_leaves_nothing_out(pipeline: Path) -> None:
    (pipeline.parents[1] / "src" / ".amlignore").write_bytes(b"\xff\xfe")
    assert rules(pipeline) == []
