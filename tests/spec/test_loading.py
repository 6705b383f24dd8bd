from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trainyard.spec.diagnostic import Diagnostic, SpecError
from trainyard.spec.expressions import CYCLE, UNKNOWN_COMMAND_PORT, UNKNOWN_PIPELINE_PORT, UNKNOWN_SCOPE
from trainyard.spec.literals import LITERAL_OUT_OF_RANGE, MISSING_INPUT, UNKNOWN_INPUT, WRONG_LITERAL
from trainyard.spec.loading import load_component, load_job
from trainyard.spec.parsed import (
    BAD_REFERENCE,
    CODE_NOT_FOUND,
    COMPONENT_NOT_FOUND,
    ENVIRONMENT_FILE_NOT_FOUND,
    NOT_SEEN_OFFLINE,
)
from trainyard.spec.resolution import Resolution
from trainyard.spec.rules import (
    IGNORED_KEY,
    MISSING_KEY,
    NOT_A_CHOICE,
    NOT_A_MAPPING,
    NOT_RUN_LOCALLY,
    OUT_OF_BOUNDS,
    UNKNOWN_KIND,
    WRONG_TYPE,
    YAML_SYNTAX,
)

COMPONENT = """\
type: command
name: step
inputs:
  data: {type: uri_folder, optional: true}
  rate: {type: number, default: 0.1, min: 0, max: 1}
outputs:
  out: {type: uri_folder}
environment: azureml:env:1
command: run ${{inputs.rate}} ${{outputs.out}} $[[ ${{inputs.data}} ]]
"""


def errors_of(file: Path) -> tuple[Diagnostic, ...]:
    with pytest.raises(SpecError) as caught:
        load_job(file, strict=True)
    return caught.value.diagnostics


def test_a_pipeline_is_read_whole(project: Path) -> None:
    pipeline = load_job(project / "pipelines" / "digits.yaml", strict=True)
    assert pipeline.name == "digits"
    assert pipeline.display_name == "Digits"
    assert pipeline.default_compute is not None
    assert pipeline.default_compute.data == "azureml:gpu-cluster"
    assert {name: (port.type, port.default and port.default.data) for name, port in pipeline.inputs.items()} == {
        "epochs": ("integer", 3),
        "learning_rate": ("number", 0.01),
        "raw": ("uri_folder", None),
    }
    assert pipeline.outputs["model"].type == "custom_model"
    assert list(pipeline.jobs) == ["prepare", "train", "evaluate"]


def test_a_job_replaces_its_components_distribution_and_resources(project: Path) -> None:
    train = load_job(project / "pipelines" / "digits.yaml", strict=True).jobs["train"]
    assert train.effective_distribution is not None
    assert train.effective_distribution.type == "pytorch"
    assert train.effective_distribution.process_count_per_instance is not None
    assert train.effective_distribution.process_count_per_instance.data == 8
    assert train.component.distribution is not None
    assert train.component.distribution.type == "pytorch"
    assert train.effective_resources is not None
    assert train.effective_resources.instance_count is not None
    assert train.effective_resources.instance_count.data == 1
    assert train.environment_variables["NCCL_DEBUG"].data == "WARN"


def test_files_are_found_from_the_file_that_names_them(project: Path) -> None:
    jobs = load_job(project / "pipelines" / "digits.yaml", strict=True).jobs
    assert jobs["train"].component.code == project / "src"
    assert jobs["train"].component.environment is not None
    assert jobs["train"].component.environment.conda_file == project / "environments" / "conda.yaml"
    assert jobs["evaluate"].component.environment is not None
    assert jobs["evaluate"].component.environment.build_path == project / "environments" / "docker"


def test_a_job_with_its_own_command_has_ports_of_what_it_is_bound_to(project: Path) -> None:
    component = load_job(project / "pipelines" / "digits.yaml", strict=True).jobs["evaluate"].component
    assert component.name == "evaluate"
    assert {name: port.type for name, port in component.inputs.items()} == {
        "model": "custom_model",
        "data": "uri_folder",
        "threshold": "number",
    }
    assert component.outputs["evaluation"].type == "uri_folder"


def test_a_component_is_read_whole(project: Path) -> None:
    component = load_component(project / "components" / "prepare.yaml")
    assert component.inputs["source"].optional
    fraction = component.inputs["validation_fraction"]
    assert (fraction.minimum and fraction.minimum.data, fraction.maximum and fraction.maximum.data) == (0.0, 0.5)
    assert [choice.data for choice in component.inputs["dataset"].choices or ()] == ["digits", "idx", "folders"]
    assert component.outputs["prepared"].mode == "rw_mount"
    assert component.is_deterministic
    assert component.command.text.startswith("python prepare.py --dataset")


def test_jobs_come_behind_those_they_wait_for(project: Path) -> None:
    pipeline = load_job(project / "pipelines" / "digits.yaml", strict=True)
    assert Resolution(pipeline).waits_for == {
        "prepare": frozenset(),
        "train": frozenset({"prepare"}),
        "evaluate": frozenset({"train", "prepare"}),
    }
    assert Resolution(pipeline).order() == ["prepare", "train", "evaluate"]


def test_a_pipeline_without_a_type_is_refused(write: Callable[[str, str], Path]) -> None:
    write("c.yaml", COMPONENT)
    (error,) = errors_of(write("p.yaml", "jobs:\n  a:\n    component: ./c.yaml\n"))
    assert (error.rule, error.span.line, error.hint) == (MISSING_KEY.id, 1, "Add `type: pipeline`.")


def test_an_inline_component_and_literals_as_value(write: Callable[[str, str], Path]) -> None:
    indented = "".join(f"      {line}\n" for line in COMPONENT.splitlines())
    file = write(
        "p.yaml", f"type: pipeline\njobs:\n  a:\n    component:\n{indented}    inputs: {{rate: {{value: 0.5}}}}\n"
    )
    job = load_job(file, strict=True).jobs["a"]
    assert job.inputs["rate"].data == 0.5
    assert job.component.name == "step"


def test_a_pipeline_whose_jobs_are_in_a_component(write: Callable[[str, str], Path]) -> None:
    write("parts/step.yaml", COMPONENT)
    write(
        "parts/whole.yaml",
        "type: pipeline\nname: whole\nversion: '1'\n"
        "inputs:\n  rate: {type: number}\n  data: {type: uri_folder, optional: true}\n"
        "jobs:\n  a:\n    component: ./step.yaml\n    inputs: {rate: '${{parent.inputs.rate}}'}\n",
    )
    pipeline = load_job(
        write("p.yaml", "type: pipeline\ncomponent: parts/whole.yaml\ninputs: {rate: 0.3}\n"), strict=True
    )
    assert pipeline.inputs["rate"].default is not None
    assert pipeline.inputs["rate"].default.data == 0.3
    assert list(pipeline.jobs) == ["a"]
    (missing, unknown) = sorted(
        errors_of(write("q.yaml", "type: pipeline\ncomponent: parts/whole.yaml\ninputs: {rat: 0.3}\n")),
        key=lambda d: d.rule,
    )
    assert (missing.rule, unknown.rule) == (MISSING_INPUT.id, UNKNOWN_INPUT.id)
    assert unknown.hint == "Did you mean 'rate'?"


def test_all_mistakes_are_told_at_once(write: Callable[[str, str], Path]) -> None:
    write("c.yaml", COMPONENT)
    file = write(
        "p.yaml",
        """\
type: pipeline
inputs:
  lr: 0.1
jobs:
  a:
    component: ./c.yaml
    inputs:
      rate: ${{parent.inputs.rate}}
      data: ${{parent.jobs.b.outputs.out}}
  b:
    component: c.yaml
    inputs:
      rate: 7
      date: ${{parent.jobs.a.outputs.out}}
""",
    )
    found = {(d.rule, d.span.line, d.span.column) for d in errors_of(file)}
    assert found == {
        (UNKNOWN_PIPELINE_PORT.id, 8, 30),
        (LITERAL_OUT_OF_RANGE.id, 13, 13),
        (UNKNOWN_INPUT.id, 14, 7),
        (CYCLE.id, 9, 13),
    }


@pytest.mark.parametrize(
    ("job", "rule"),
    [
        ("component: azureml:step:1", NOT_SEEN_OFFLINE.id),
        ("component: azureml://registries/r/components/step/versions/1", NOT_SEEN_OFFLINE.id),
        ("type: automl\n    task: classification", NOT_RUN_LOCALLY.id),
        ("type: pipeline\n    component: ./c.yaml", BAD_REFERENCE.id),
        ("type: pipeline\n    component: ./circle.yaml", BAD_REFERENCE.id),
        ("command: run\n    environment: azureml:e:1\n    code: azureml:code:1", NOT_SEEN_OFFLINE.id),
        ("command: run\n    environment: azureml:e:1\n    code: git+https://host/repo", NOT_SEEN_OFFLINE.id),
        ("component: ./none.yaml", COMPONENT_NOT_FOUND.id),
        ("component: ./p.yaml", BAD_REFERENCE.id),
        ("component: ./nested.yaml\n    inputs: {rates: 1}", UNKNOWN_INPUT.id),
        ("component: ./other.yaml", NOT_RUN_LOCALLY.id),
        ("component: [a]", WRONG_TYPE.id),
        ("component:", MISSING_KEY.id),
        ("component: ./broken.yaml", YAML_SYNTAX.id),
        ("component: ./list.yaml", NOT_A_MAPPING.id),
        ("environment: azureml:e:1", MISSING_KEY.id),
        ("component: ./c.yaml\n    inputs: [a]", WRONG_TYPE.id),
        ("component: ./c.yaml\n    inputs: {rate: [1]}", WRONG_LITERAL.id),
        ("component: ./c.yaml\n    compute: [a]", WRONG_TYPE.id),
        ("component: ./c.yaml\n    distribution: {process_count_per_instance: 2}", MISSING_KEY.id),
        ("component: ./c.yaml\n    distribution: pytorch", WRONG_TYPE.id),
        ("component: ./c.yaml\n    resources: {instance_count: true}", WRONG_TYPE.id),
        ("component: ./c.yaml\n    resources: {instance_count: -1}", OUT_OF_BOUNDS.id),
        ("command: [run]\n    environment: azureml:e:1", WRONG_TYPE.id),
        ("command: run\n    environment: 3", WRONG_TYPE.id),
        ("command: run\n    environment: file:broken.yaml", YAML_SYNTAX.id),
        ("command: run\n    environment: {image: a, build: {path: .}}", IGNORED_KEY.id),
        ("command: run\n    environment: {build: {path: .}}", ENVIRONMENT_FILE_NOT_FOUND.id),
        ("command: run\n    environment: {image: a, conda_file: 3}", WRONG_TYPE.id),
        ("command: run\n    code: [a]", WRONG_TYPE.id),
        ("command: run\n    outputs: {o: 3}", WRONG_TYPE.id),
        ("command: run\n    inputs: {i: {type: uri_folder, path: 3}}", WRONG_TYPE.id),
        ("command: run ${{inputs}}", UNKNOWN_COMMAND_PORT.id),
        ("command: run ${{parent.inputs.x}}", UNKNOWN_SCOPE.id),
        ("component: ./c.yaml\n    inputs: {rate: '${{parent}}'}", UNKNOWN_SCOPE.id),
        ("component: ./c.yaml\n    inputs: {rate: '${{parnt.inputs.x}}'}", UNKNOWN_SCOPE.id),
        ("component: ./c.yaml\n    inputs: {rate: '${{parent.jobs.a}}'}", UNKNOWN_SCOPE.id),
        ("component: ./c.yaml\n    outputs: {out: '${{parent.jobs.a.outputs.out}}'}", UNKNOWN_SCOPE.id),
        ("component: ./c.yaml\n    outputs: {out: {path: '${{parent.inputs.x}}'}}", UNKNOWN_PIPELINE_PORT.id),
        ("3", WRONG_TYPE.id),
    ],
)  # fmt: skip
def test_one_mistake_in_a_job(write: Callable[[str, str], Path], job: str, rule: str) -> None:
    write("c.yaml", COMPONENT)
    write("broken.yaml", "a: [")
    write("list.yaml", "- 1")
    write("nested.yaml", "type: pipeline\nname: n\njobs: {x: {component: ./c.yaml}}\n")
    write("circle.yaml", "type: pipeline\nname: n\njobs: {x: {type: pipeline, component: ./circle_back.yaml}}\n")
    write("circle_back.yaml", "type: pipeline\nname: n\njobs: {x: {type: pipeline, component: ./circle.yaml}}\n")
    write("other.yaml", "type: automl\nname: n\n")
    file = write("p.yaml", f"type: pipeline\njobs:\n  a:\n    {job}\n")
    assert rule in {d.rule for d in errors_of(file)}


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("type: pipeline\n", MISSING_KEY.id),
        ("type: pipeline\njobs:\n", MISSING_KEY.id),
        ("type: pipeline\njobs: [a]\n", WRONG_TYPE.id),
        ("type: pipeline\njobs: {a: }\n", MISSING_KEY.id),
        ("type: pipeline\ncomponent: azureml:x:1\n", NOT_SEEN_OFFLINE.id),
        ("type: pipeline\ninputs: {a: [1]}\njobs: {a: {component: ./c.yaml}}\n", WRONG_TYPE.id),
        ("type: pipeline\ninputs: {a: {type: integr}}\njobs: {a: {component: ./c.yaml}}\n", NOT_A_CHOICE.id),
        ("type: pipeline\nsettings: {force_rerun: perhaps}\njobs: {a: {component: ./c.yaml}}\n", WRONG_TYPE.id),
        ("name: e\nimage: python:3.11\n", UNKNOWN_KIND.id),
        ("- a\n", NOT_A_MAPPING.id),
    ],
)  # fmt: skip
def test_one_mistake_in_a_pipeline(write: Callable[[str, str], Path], text: str, rule: str) -> None:
    write("c.yaml", COMPONENT)
    assert rule in {d.rule for d in errors_of(write("p.yaml", text))}


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("inputs: [a]\n", WRONG_TYPE.id),
        ("inputs: {a: 3}\n", WRONG_TYPE.id),
        ("inputs: {a: }\n", MISSING_KEY.id),
        ("inputs: {a: {type: string, enum: b}}\n", WRONG_TYPE.id),
        ("inputs: {a: {type: boolean, default: maybe}}\n", WRONG_LITERAL.id),
        ("inputs: {a: {type: integer, default: '1,000'}}\n", WRONG_LITERAL.id),
        ("inputs: {a: {type: integer, default: [1]}}\n", WRONG_LITERAL.id),
        ("additional_includes: ../x\n", WRONG_TYPE.id),
        ("additional_includes: [../none]\n", CODE_NOT_FOUND.id),
        ("is_deterministic: perhaps\n", WRONG_TYPE.id),
    ],
)
def test_one_mistake_in_a_component(write: Callable[[str, str], Path], text: str, rule: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_component(write("c.yaml", f"type: command\nname: c\ncommand: run\nenvironment: azureml:e:1\n{text}"))
    assert rule in {d.rule for d in caught.value.diagnostics}


def test_what_the_client_takes_is_taken(write: Callable[[str, str], Path]) -> None:
    write("extra.txt", "x")
    component = load_component(
        write(
            "c.yaml",
            "name: c\ncommand: run ${{inputs.a.b}}\nenvironment: {image: x, conda_file: {dependencies: []}}\n"
            "is_deterministic: 'no'\nadditional_includes: [./extra.txt]\ncode: .\n"
            "inputs: {a.b: {type: path}, n: {type: number, default: '3e-4'}, f: {type: boolean, default: 'True'}}\n"
            "resources: {instance_count: '2', docker_args: --ipc=host}\ndistribution: {type: MPI}\n",
        )
    )
    assert not component.is_deterministic
    assert component.inputs["a.b"].type == "uri_folder"
    assert component.resources is not None
    assert component.resources.instance_count is not None
    assert component.resources.instance_count.data == 2
    assert component.distribution is not None
    assert component.distribution.process_count_per_instance is None
    assert len(component.additional_includes) == 1


def test_a_cycle_is_shown_whole(write: Callable[[str, str], Path]) -> None:
    write("c.yaml", COMPONENT)
    jobs = "".join(
        f"  {name}:\n    component: ./c.yaml\n    inputs: {{data: '${{{{parent.jobs.{other}.outputs.out}}}}'}}\n"
        for name, other in (("a", "b"), ("b", "c"), ("c", "a"))
    )
    (cycle,) = errors_of(write("p.yaml", f"type: pipeline\njobs:\n{jobs}"))
    assert "a → b → c → a" in cycle.message
    assert [related.span.line for related in cycle.related] == [6, 9]


def test_the_order_of_a_cycle_is_refused(write: Callable[[str, str], Path], project: Path) -> None:
    from trainyard.spec.documents import Value

    pipeline = load_job(project / "pipelines" / "digits.yaml", strict=True)
    prepare = pipeline.jobs["prepare"]
    source = Value({"path": ["${{parent.jobs.train.outputs.model}}"]}, prepare.span)
    pipeline.jobs["prepare"] = prepare._replace(inputs={"source": source})
    with pytest.raises(SpecError, match="prepare → train → prepare"):
        Resolution(pipeline).order()


def test_data_that_is_not_there_yet_does_not_stop_a_load(write: Callable[[str, str], Path]) -> None:
    write("c.yaml", COMPONENT)
    file = write(
        "p.yaml", "type: pipeline\njobs:\n  a:\n    component: ./c.yaml\n    inputs: {data: {path: ./none}, rate: 1}\n"
    )
    path = load_job(file, strict=True).jobs["a"].inputs["data"].data["path"]
    assert str(path).endswith("none")
