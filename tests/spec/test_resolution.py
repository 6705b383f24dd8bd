"""What values come to: through bindings, defaults and pipelines within pipelines; unknown and why; wrong and where."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trainyard.errors import UsageError
from trainyard.spec.diagnostic import SpecError
from trainyard.spec.documents import Value, read_document
from trainyard.spec.expressions import CYCLE
from trainyard.spec.literals import LITERAL_OUT_OF_RANGE, WRONG_LITERAL
from trainyard.spec.loading import load_component, load_job
from trainyard.spec.resolution import Resolution, resolve_component
from trainyard.spec.resolved import DataPath, JobOutput, Known, Unknown, Wrong, settled
from trainyard.spec.rules import OUT_OF_BOUNDS
from trainyard.spec.set_inputs import resolve_with

Write = Callable[[str, str], Path]

STEP = """\
type: command
name: step
inputs:
  gpus: {type: integer, default: 4, max: 8}
  note: {type: string, optional: true}
  data: {type: uri_folder, optional: true}
outputs: {out: {type: uri_folder}}
environment: azureml:env:1
command: run ${{inputs.gpus}} ${{outputs.out}} $[[ ${{inputs.note}} ${{inputs.data}} ]]
distribution: {type: pytorch, process_count_per_instance: '${{inputs.gpus}}'}
"""
PART = """\
type: pipeline
name: part
inputs:
  size: {type: integer}
  source: {type: uri_folder, optional: true}
outputs: {result: {type: uri_folder}}
jobs:
  fit:
    component: ./step.yaml
    inputs: {gpus: '${{parent.inputs.size}}', data: '${{parent.inputs.source}}'}
    outputs: {out: '${{parent.outputs.result}}'}
"""
WHOLE = """\
type: pipeline
inputs: {size: %s}
settings: {default_compute: azureml:gpus}
jobs:
  first: {type: pipeline, component: ./part.yaml, inputs: {size: '${{parent.inputs.size}}'}}
  second:
    type: pipeline
    component: ./part.yaml
    compute: azureml:others
    inputs: {size: '${{parent.jobs.first.inputs.size}}', source: '${{parent.jobs.first.outputs.result}}'}
"""


@pytest.fixture
def whole(write: Write) -> Callable[[str], Resolution]:
    """A pipeline that uses one pipeline component twice, with a size."""

    def resolved(size: str) -> Resolution:
        write("step.yaml", STEP)
        write("part.yaml", PART)
        return Resolution(load_job(write("whole.yaml", WHOLE % size), strict=True))

    return resolved


def test_values_come_through_pipelines_within_pipelines(whole: Callable[[str], Resolution]) -> None:
    jobs = whole("7").jobs

    assert list(jobs) == ["first.fit", "second.fit"]
    for job in jobs.values():
        assert settled(job.input("gpus")) == 7
        assert (job.processes().nodes, job.processes().processes_per_node) == (1, 7)
    assert settled(jobs["second.fit"].input("data")) == JobOutput("first.fit", "out")
    assert settled(jobs["first.fit"].input("data")) is None
    assert [settled(job.compute) for job in jobs.values()] == ["azureml:gpus", "azureml:others"]


def test_the_order_follows_outputs_through_pipelines(whole: Callable[[str], Resolution]) -> None:
    resolution = whole("2")

    assert resolution.waits_for == {"first.fit": frozenset(), "second.fit": frozenset({"first.fit"})}
    assert resolution.order() == ["first.fit", "second.fit"]


def test_a_value_is_said_to_be_written_where_a_person_wrote_it(whole: Callable[[str], Resolution]) -> None:
    resolution = whole("7")
    found = resolution.jobs["second.fit"].processes_per_node

    assert isinstance(found, Known)
    assert (found.written.span.file.name, found.written.span.line, found.key) == ("whole.yaml", 2, "inputs.size")


def test_settings_replace_what_is_written_at_any_depth(whole: Callable[[str], Resolution]) -> None:
    pipeline = whole("7").pipeline
    span = pipeline.span
    resolution = Resolution(pipeline, {"jobs.second.inputs.size": Value("3", span, "3")})
    deeper = Resolution(pipeline, {"jobs.first.fit.inputs.gpus": Value("5", span, "5")})

    assert [settled(job.input("gpus")) for job in resolution.jobs.values()] == [7, 3]
    assert [settled(job.input("gpus")) for job in deeper.jobs.values()] == [5, 7]


def test_a_literal_that_only_a_job_within_refuses_is_wrong_where_it_is_written(
    whole: Callable[[str], Resolution],
) -> None:
    found = whole("9").jobs["first.fit"].input("gpus")

    assert isinstance(found, Wrong)
    assert found.diagnostic.rule == LITERAL_OUT_OF_RANGE.id
    assert (found.diagnostic.span.file.name, found.diagnostic.span.line) == ("whole.yaml", 2)
    with pytest.raises(SpecError, match="'gpus' is 9, above the max of 8"):
        settled(found)


def test_an_input_without_a_value_is_unknown_and_says_how_to_give_one(whole: Callable[[str], Resolution]) -> None:
    found = whole("{type: integer}").jobs["second.fit"].processes_per_node

    assert isinstance(found, Unknown)
    assert found.reason == "the pipeline's input 'size' has no value"
    assert found.hint == "Give one with --set inputs.size=VALUE."


def test_a_count_below_one_is_wrong_at_the_count(whole: Callable[[str], Resolution]) -> None:
    found = whole("0").jobs["first.fit"].processes_per_node

    assert isinstance(found, Wrong)
    assert found.diagnostic.rule == OUT_OF_BOUNDS.id
    assert (found.diagnostic.span.file.name, found.diagnostic.span.line) == ("step.yaml", 10)
    assert found.diagnostic.related[0].span.file.name == "whole.yaml"


def test_what_the_users_of_a_component_give_is_unknown(write: Write) -> None:
    component = load_component(write("step.yaml", STEP.replace(", default: 4", "")))
    use = resolve_component(component, read_document(component.file).root)

    assert isinstance(use.processes_per_node, Unknown)
    assert settled(use.input("note")) is None
    assert settled(use.instance_count) == 1


@pytest.mark.parametrize("quoted", ["'${{parent.jobs.b.inputs.gpus}}'", "'a ${{parent.jobs.b.inputs.gpus}}'"])
def test_inputs_bound_in_a_circle_are_wrong(write: Write, quoted: str) -> None:
    write("step.yaml", STEP)
    text = (
        f"type: pipeline\njobs:\n  a: {{component: ./step.yaml, inputs: {{gpus: {quoted}}}}}\n"
        "  b: {component: ./step.yaml, inputs: {gpus: '${{parent.jobs.a.inputs.gpus}}'}}\n"
    )
    with pytest.raises(SpecError) as caught:
        load_job(write("p.yaml", text), strict=True)
    assert CYCLE.id in {each.rule for each in caught.value.diagnostics}


def test_data_is_a_path_however_it_is_given(write: Write) -> None:
    write("step.yaml", STEP)
    (write("data/x.csv", "").parent).mkdir(exist_ok=True)
    text = (
        "type: pipeline\ninputs: {name: data}\njobs:\n"
        "  a: {component: ./step.yaml, inputs: {data: {type: uri_folder, path: './${{parent.inputs.name}}'}}}\n"
        "  b: {component: ./step.yaml, inputs: {data: ./data}}\n"
    )
    jobs = Resolution(load_job(write("p.yaml", text), strict=True)).jobs

    assert settled(jobs["a"].input("data")) == settled(jobs["b"].input("data")) == DataPath("./data", "uri_folder")


def test_a_wrong_value_of_the_command_line_is_wrong_use(whole: Callable[[str], Resolution]) -> None:
    pipeline = whole("7").pipeline
    resolution = resolve_with(pipeline, {"inputs.size": "seven"})

    with pytest.raises(UsageError, match=r"--set inputs\.size=seven: 'size' is of type integer: the text 'seven'"):
        settled(resolution.jobs["first.fit"].input("gpus"))
    assert resolution.jobs["first.fit"].input("gpus").diagnostic.rule == WRONG_LITERAL.id
