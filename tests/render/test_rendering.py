from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainyard.errors import UsageError
from trainyard.render.profile_schema import profile_schema
from trainyard.render.profiles import profile_names
from trainyard.render.project import Project
from trainyard.render.rendered_files import content_of, read_header
from trainyard.render.rendering import Rendering, render
from trainyard.settings.step_fields import StepField
from trainyard.settings.steps import STEP_CONFIGS
from trainyard.settings.task_fields import fields_with_task, step_fields
from trainyard.spec.diagnostic import Diagnostic, SpecError

PIPELINES = ("ddp", "fsdp", "deepspeed")
# Values that differ from every default, for settings that 300 would not do for.
EXAMPLES: dict[str, object] = {
    "format": "folder",
    "source": "azureml:mine:1",
    "more_sources": ["azureml:others:1"],
    "minimum_accuracy": 0.5,
    "activation_checkpointing": True,
    "cpu_offload": True,
    "reshard_after_forward": False,
}


def template(project: Project, name: str, text: str) -> None:
    file = project.templates / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def rendered(project: Project, name: str, profile: str = "base", settings: dict[str, object] | None = None) -> str:
    return content_of(render(project, profile, settings).files[project.root / name].text)


def problem_of(project: Project, text: str) -> Diagnostic:
    template(project, "notes/mine.txt.j2", text)
    with pytest.raises(SpecError) as caught:
        render(project, "base")
    (problem,) = caught.value.diagnostics
    assert problem.span.file == project.templates / "notes" / "mine.txt.j2"
    return problem


def test_rendering_twice_gives_the_same_bytes(repository: Project) -> None:
    first, second = (render(repository, "nd96") for _ in range(2))
    assert {path: file.text for path, file in first.files.items()} == {
        path: file.text for path, file in second.files.items()
    }


def component_of(rendering: Rendering, name: str) -> dict[str, Any]:
    component: dict[str, Any] = yaml.safe_load(rendering.files[rendering.root / "components" / f"{name}.yaml"].text)
    return component


HAVING_A_SETTINGS_FILE = [
    name for name, config in STEP_CONFIGS.items() if "settings" in {field.name for field in step_fields(config)}
]


@pytest.mark.parametrize("name", sorted(STEP_CONFIGS.keys() - HAVING_A_SETTINGS_FILE))
def test_the_component_of_a_short_step_holds_every_field(repository: Project, name: str) -> None:
    component = component_of(render(repository, "t4"), name)
    fields = step_fields(STEP_CONFIGS[name])
    if name == "measure_config":
        fields = sum(fields_with_task(STEP_CONFIGS[name], "language_modeling"), ())
    for field in fields:
        assert f"{field.flag} " in component["args" if component["type"] == "spark" else "command"]
        if field.kind == "output":
            assert component["outputs"][field.name]["mode"] == field.mode
            continue
        port = component["inputs"][field.name]
        assert port["type"] == field.type
        assert port.get("default") == field.default
        assert (port.get("min"), port.get("max")) == (field.minimum, field.maximum)
        assert port.get("optional", False) == field.optional
        assert port.get("enum") == (list(field.choices) if field.choices else None)
        assert port["description"] == field.summary


@pytest.mark.parametrize("name", HAVING_A_SETTINGS_FILE)
def test_the_component_of_a_training_has_ports_for_data_and_what_people_bind(repository: Project, name: str) -> None:
    component = component_of(render(repository, "t4"), name)
    fields = step_fields(STEP_CONFIGS[name])
    scalars = {field.name: field for field in fields if field.port}
    data = {field.name for field in fields if field.kind == "input"}
    model_type = {"model_type"} if "task" in scalars else set()
    assert set(component["inputs"]) == data | scalars.keys() | model_type
    assert set(component["outputs"]) == {field.name for field in fields if field.kind == "output"}
    for key, field in scalars.items():
        port = component["inputs"][key]
        assert port["optional"] is True
        assert "default" not in port
        assert (port.get("min"), port.get("max")) == (field.minimum, field.maximum)
        assert port.get("enum") == (list(field.choices) if field.choices else None)
        assert f"$[[ {field.flag} " in component["command"]
    assert component["inputs"]["settings"]["type"] == "uri_file"
    assert "$[[ --settings '${{inputs.settings}}' ]] $[[ --overrides '${{inputs.overrides}}' ]]" in component["command"]


def test_components_fit_a_review(repository: Project) -> None:
    rendering = render(repository, "nd96")
    lines = {
        path.name: file.text.splitlines() for path, file in rendering.files.items() if path.parent.name == "components"
    }
    assert max(map(len, lines.values())) <= 200
    assert sum(map(len, lines.values())) <= 3000
    descriptions = [line for text in lines.values() for line in text if line.startswith("    description: ")]
    assert max(map(len, descriptions)) <= 110
    assert not any("…" in line for line in descriptions)


def test_a_component_for_one_use_gives_a_setting_itself(repository: Project) -> None:
    component = component_of(render(repository, "t4"), "train_tensorflow_ps")
    assert component["command"].endswith("--strategy 'parameter_server'")
    assert "strategy" not in component["inputs"]


def test_texts_and_paths_are_quoted_in_commands_and_optional_ones_may_be_left_out(repository: Project) -> None:
    rendering = render(repository, "t4")
    command = component_of(rendering, "train_ddp")["command"]
    assert "--data '${{inputs.data}}' --model '${{outputs.model}}'" in command
    assert "$[[ --model-type '${{inputs.model_type}}' ]]" in command
    assert "$[[ --epochs ${{inputs.epochs}} ]]" in command
    assert "--repetitions ${{inputs.repetitions}}" in component_of(rendering, "check_cluster")["command"]
    assert "\\" not in command
    deepspeed = component_of(rendering, "train_deepspeed")
    assert "--deepspeed-config '${{inputs.deepspeed_config}}'" in deepspeed["command"]
    assert deepspeed["inputs"]["deepspeed_config"]["type"] == "uri_file"


def test_components_say_everything_that_a_node_could_replace(repository: Project) -> None:
    rendering = render(repository, "nd96", {"nodes": 4})
    component = yaml.safe_load(rendering.files[repository.root / "components/train_ddp.yaml"].text)
    assert component["resources"] == {"instance_count": 4, "shm_size": "128g"}
    assert component["distribution"] == {"type": "pytorch", "process_count_per_instance": 8}


def test_the_machines_of_spark_come_from_the_profile(repository: Project) -> None:
    machines = {"spark_machine": "standard_e16s_v3", "spark_executors": 20}
    rendering = render(
        repository, "t4", {f"pipelines.prepare_at_scale.{key}": value for key, value in machines.items()}
    )
    component = yaml.safe_load(rendering.files[repository.root / "components/prepare_text_spark.yaml"].text)
    assert {key: component["conf"][f"spark.executor.{key}"] for key in ("instances", "cores", "memory")} == {
        "instances": 20,
        "cores": 16,
        "memory": "80g",
    }
    job = pipeline_of(rendering, "prepare_at_scale")["jobs"]["prepare_text_spark"]
    assert job["resources"] == {"instance_type": "standard_e16s_v3", "runtime_version": "3.5"}


def pipeline_of(rendering: Rendering, name: str) -> dict[str, Any]:
    pipeline: dict[str, Any] = yaml.safe_load(rendering.files[rendering.root / "pipelines" / f"{name}.yaml"].text)
    return pipeline


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("accumulation_steps", [1, 4])
def test_batch_sizes_multiply_out(repository: Project, name: str, accumulation_steps: int) -> None:
    settings = {
        "nodes": 3,
        f"pipelines.{name}.accumulation_steps": accumulation_steps,
        f"pipelines.{name}.micro_batch_size": 5,
    }
    inputs = pipeline_of(render(repository, "nd96", settings), name)["inputs"]
    assert inputs["micro_batch_size"] == 5
    assert inputs["global_batch_size"] == 5 * accumulation_steps * 24


@pytest.mark.parametrize("name", PIPELINES)
def test_every_setting_of_a_profile_reaches_a_step(repository: Project, name: str) -> None:
    keys = set(profile_schema(repository)["properties"]["pipelines"]["properties"][name]["properties"])
    of_profiles = {"accumulation_steps", "checkpoints_path", "check_cluster_first", "config", "settings"}
    given = {key: EXAMPLES.get(key, 300) for key in keys - of_profiles}
    settings = {f"pipelines.{name}.{key}": value for key, value in given.items()}
    pipeline = pipeline_of(render(repository, "nd96", settings), name)
    expected = set(given) - {"more_sources"} | ({"data_2"} if "more_sources" in given else set())
    assert expected <= {key for job in pipeline["jobs"].values() for key in job["inputs"]}
    for key in set(given) - {"source", "more_sources"}:
        assert pipeline["inputs"][key] == given[key]


def test_the_pipeline_has_the_steps_defaults(repository: Project) -> None:
    inputs = pipeline_of(render(repository, "local"), "ddp")["inputs"]
    defaults = {field.name: field.default for step in ("prepare_images", "train_ddp") for field in fields_of(step)}
    for name in ("format", "image_size", "micro_batch_size"):
        assert inputs[name] == defaults[name]


def fields_of(step: str) -> tuple[StepField, ...]:
    return step_fields(STEP_CONFIGS[step])


TRAINING_JOBS = {
    **{name: f"train_{name}" for name in (*PIPELINES, "lightning", "horovod", "tensorflow", "tensorflow_ps")},
    "prepare_at_scale": "train_fsdp",
    "finetune": "finetune",
    "preferences": "tune_preferences",
    "sweep": "search",
}


@pytest.mark.parametrize("name", TRAINING_JOBS)
@pytest.mark.parametrize("out", [None, "elsewhere/deep"])
def test_a_pipeline_binds_what_the_profile_owns_and_names_the_settings_file(
    project: Project, tmp_path: Path, name: str, out: str | None
) -> None:
    (project.root / "settings" / "mine.yaml").write_text("epochs: 3\n")
    rendering = render(project, "t4", {f"pipelines.{name}.settings": "settings/mine.yaml"}, out and tmp_path / out)
    pipeline = pipeline_of(rendering, name)
    inputs = pipeline["jobs"][TRAINING_JOBS[name]]["inputs"]
    bound = {key for key, value in inputs.items() if value == f"${{{{parent.inputs.{key}}}}}"}
    owned = {"micro_batch_size", "global_batch_size", "precision", "activation_checkpointing", "reshard_after_forward"}
    assert {"overrides", "micro_batch_size", "precision"} <= bound
    assert bound <= owned | {"overrides", "base_model", "deepspeed_config", "minimum_accuracy"}
    assert pipeline["inputs"]["overrides"] == "{}"
    assert inputs["settings"]["type"] == "uri_file"
    path = os.path.normpath(rendering.root / "pipelines" / inputs["settings"]["path"])
    assert Path(path) == project.root / "settings/mine.yaml"


def test_a_swept_input_has_a_value_beside_the_search_space(repository: Project) -> None:
    search = pipeline_of(render(repository, "t4"), "sweep")["jobs"]["search"]
    assert search["search_space"].keys() == {"learning_rate", "global_batch_size"}
    assert search["inputs"]["learning_rate"] == 0.003
    assert search["inputs"]["global_batch_size"] in search["search_space"]["global_batch_size"]["values"]


@pytest.mark.parametrize("name", ["finetune", "preferences"])
def test_weights_of_4_bits_are_tuned_without_sharding(repository: Project, name: str) -> None:
    for engine, component in (("fsdp", "finetune"), ("ddp", "finetune_ddp")):
        rendering = render(repository, "t4", {f"pipelines.{name}.engine": engine})
        job = pipeline_of(rendering, name)["jobs"][TRAINING_JOBS[name]]
        assert job["component"] == f"../components/{component}.yaml"
        assert f"trainyard.steps.train_{engine}" in component_of(rendering, component)["command"]


def test_autotuning_measures_the_model_of_the_settings_file(project: Project) -> None:
    file = project.root / "settings" / "deepspeed.yaml"
    file.write_text("model_type: gpt2\nmodel_overrides: {n_layer: 2}\ncompile: yes\nloss_chunk_tokens: 64\nepochs: 9\n")
    pipeline = pipeline_of(render(project, "local"), "autotune")
    expected = {"model_type": "gpt2", "model_overrides": '{"n_layer": 2}', "compile": True, "loss_chunk_tokens": 64}
    assert expected.items() <= pipeline["inputs"].items()
    assert expected.keys() <= pipeline["jobs"]["measure"]["inputs"].keys()
    assert "epochs" not in pipeline["inputs"]
    file.write_text("loss_chunk_tokens: many\n")
    with pytest.raises(SpecError, match=r"deepspeed.yaml:1:20: loss_chunk_tokens: expected a whole number"):
        render(project, "local")


def test_images_of_your_own_are_an_input_of_the_pipeline(project: Project, tmp_path: Path) -> None:
    images = {"pipelines.ddp.format": "folder", "pipelines.ddp.source": "data/images"}
    out = tmp_path / "elsewhere" / "deep"
    pipeline_file = out / "pipelines/ddp.yaml"
    pipeline = yaml.safe_load(render(project, "t4", images, out).files[pipeline_file].text)
    assert (pipeline_file.parent / pipeline["inputs"]["images"]["path"]).resolve() == project.root / "data/images"
    assert pipeline["jobs"]["prepare_images"]["inputs"]["source"] == "${{parent.inputs.images}}"
    asset = yaml.safe_load(
        render(project, "t4", {"pipelines.ddp.source": "azureml:images:1"})
        .files[project.root / "pipelines/ddp.yaml"]
        .text
    )
    assert asset["inputs"]["images"]["path"] == "azureml:images:1"


def test_text_of_your_own_and_a_threshold_are_inputs_of_the_pipeline(repository: Project) -> None:
    settings = {"pipelines.fsdp.source": "azureml:text:1", "pipelines.fsdp.maximum_perplexity": 80.0}
    pipeline = pipeline_of(render(repository, "t4", settings), "fsdp")
    assert pipeline["inputs"]["text"] == {"type": "uri_folder", "path": "azureml:text:1", "mode": "ro_mount"}
    assert pipeline["inputs"]["maximum_perplexity"] == 80.0
    assert pipeline["jobs"]["prepare_text"]["inputs"]["source"] == "${{parent.inputs.text}}"
    assert pipeline["jobs"]["evaluate"]["inputs"]["maximum_perplexity"] == "${{parent.inputs.maximum_perplexity}}"


@pytest.mark.parametrize("out", [None, "elsewhere/deep"])
def test_the_deepspeed_configuration_is_the_file_that_the_profile_chose(
    project: Project, tmp_path: Path, out: str | None
) -> None:
    rendering = render(project, "nd96", {"pipelines.deepspeed.config": "zero3_offload"}, out and tmp_path / out)
    pipeline = pipeline_of(rendering, "deepspeed")
    assert pipeline["inputs"]["deepspeed_config"]["type"] == "uri_file"
    path = os.path.normpath(rendering.root / "pipelines" / pipeline["inputs"]["deepspeed_config"]["path"])
    assert Path(path) == rendering.root / "components" / "deepspeed" / "zero3_offload.json"
    assert Path(path) in rendering.files


def test_a_deepspeed_configuration_of_your_own_is_a_template_beside_ours(project: Project) -> None:
    folder = project.templates / "components" / "deepspeed"
    (folder / "mine.json.j2").write_text((folder / "zero2.json.j2").read_text())
    rendering = render(project, "t4", {"pipelines.deepspeed.config": "mine"})
    assert pipeline_of(rendering, "deepspeed")["inputs"]["deepspeed_config"]["path"].endswith("deepspeed/mine.json")


@pytest.mark.parametrize("name", PIPELINES)
def test_a_fixed_folder_for_checkpoints_is_the_outputs_path(repository: Project, name: str) -> None:
    path = "azureml://datastores/workspaceblobstore/paths/trainyard/mine"
    rendering = render(repository, "t4", {f"pipelines.{name}.checkpoints_path": path})
    outputs = pipeline_of(rendering, name)["outputs"]
    assert outputs["checkpoints"] == {"type": "uri_folder", "mode": "rw_mount", "path": path}


def test_a_rendering_elsewhere_finds_its_code_components_and_environment(project: Project, tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    rendering = render(project, "nd96-mi300x", None, out)
    component = yaml.safe_load(rendering.files[out / "components/train_ddp.yaml"].text)
    assert (out / "components" / component["code"]).resolve() == project.root / "src"
    assert component["environment"] == "file:../environments/trainyard-rocm.yaml"
    for job in (job for name in PIPELINES for job in pipeline_of(rendering, name)["jobs"].values()):
        assert Path(os.path.normpath(out / "pipelines" / job["component"])) in rendering.files


def test_several_machines_without_infiniband_get_a_warning(repository: Project) -> None:
    for profile, nodes, warned in (("t4", 1, False), ("t4", 2, True), ("nd96", 2, False)):
        rendering = render(repository, profile, {"nodes": nodes})
        component = rendering.files[repository.root / "components/train_ddp.yaml"].text
        assert ("# WARNING: there is no InfiniBand" in component) == warned


def test_spot_capacity_is_the_low_priority_tier(repository: Project) -> None:
    for spot, tier in ((True, "low_priority"), (False, "dedicated")):
        rendering = render(repository, "t4", {"spot": spot})
        compute = yaml.safe_load(rendering.files[repository.root / "compute/gpu_cluster.yaml"].text)
        assert (compute["tier"], compute["min_instances"]) == (tier, 0)


def test_an_empty_template_renders_no_file(repository: Project) -> None:
    assert repository.root / "compute/gpu_cluster.yaml" not in render(repository, "local").files


def test_templates_with_an_underscore_are_only_used_by_others(small_project: Project) -> None:
    template(small_project, "notes/_shared.j2", "{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}")
    template(small_project, "notes/a.txt.j2", "{% import 'notes/_shared.j2' as s %}\n{{ s.twice(profile.nodes) }}\n")
    assert [path.name for path in render(small_project, "base").files] == ["a.txt"]
    assert rendered(small_project, "notes/a.txt") == "22\n"


def test_the_header_names_template_profile_and_settings(repository: Project) -> None:
    settings = {"nodes": 4, "spot": True, "description": "my own machines"}
    for path, file in render(repository, "nd96", settings).files.items():
        header = read_header(file.text)
        assert header is not None
        assert repository.root / header.template.removesuffix(".j2") == path
        assert (header.profile, header.settings) == ("nd96", settings)
        command = "`trainyard render nd96 --set nodes=4 --set spot=true --set 'description=my own machines'`"
        lines = file.text.splitlines()
        assert command in lines.pop(1 if path.suffix == ".json" else 0)
        assert "rendered" not in lines[0].lower()


def test_the_header_says_nothing_that_changes_without_the_content(small_project: Project) -> None:
    template(small_project, "notes/a.txt.j2", "{% include 'notes/_b.j2' %}\nend\n")
    template(small_project, "notes/_b.j2", "{# one #}\n")
    (before,) = render(small_project, "base").files.values()
    template(small_project, "notes/_b.j2", "{# two #}\n")
    with (small_project.profiles / "base.yaml").open("a") as profile:
        profile.write("# a remark\n")
    (after,) = render(small_project, "base").files.values()
    assert after.text == before.text


def test_without_files_on_disk_a_profile_must_be_named(project: Project) -> None:
    with pytest.raises(UsageError, match=r"nothing is rendered in .* yet"):
        render(project)


# Mistakes in templates ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "column", "message", "hint"),
    [
        ("one\n  {{ profil.nodes }}\n", 2, 6, "'profil' is undefined", "Did you mean 'profile'?"),
        ("{% set size = 3 %}\n{{ sise }}\n", 2, 4, "'sise' is undefined", "Did you mean 'size'?"),
        ("{{ profile.nodes }} {{ profile.nodez }}\n", 1, 32, "the profile has no 'nodez'", "Did you mean 'nodes'?"),
        ("{{ steps.train_dpd.name }}\n", 1, 10, "this mapping has no 'train_dpd'", "Did you mean 'train_ddp'?"),
        ("{{ steps.evaluate.titel }}\n", 1, 19, "a step has no 'titel'", "Did you mean 'title'?"),
        ("{{ profile.name.foo }}\n", 1, 17, "the value 'base' has no 'foo'", ""),
        ("{% if nothing %}x{% endif %}\n", 1, 7, "'nothing' is undefined", "Known here"),
        ("{% for x in nothing %}x{% endfor %}\n", 1, 13, "'nothing' is undefined", ""),
        ("{{ 1 + nothing }}\n", 1, 8, "'nothing' is undefined", ""),
        ("{{ nothing.more }}\n", 1, 4, "'nothing' is undefined", ""),
        ("{{ nothing() }}\n", 1, 4, "'nothing' is undefined", ""),
        ("a\n{{ profile.nodes | yml }}\n", 2, 20, "No filter named 'yml'", "Did you mean 'yaml'?"),
        (
            "{% if profile.sku %}{{ 1 | yml }}{% else %}{{ 1 | ymal }}{% endif %}\n",
            1,
            51,
            "No filter named 'ymal'",
            "yaml",
        ),
        ("{{ 1 is evn }}\n", 1, 9, "No test named 'evn'", "Did you mean 'even'?"),
        ("a\n{% endfro %}\n", 2, 4, "Encountered unknown tag 'endfro'", ""),
        ("a\nb {{ 1 +\n", 2, 3, "unexpected", ""),
        ("{{ 'unclosed }}\n", 1, 1, "unexpected char", ""),
        ("{{ profile.__class__ }}\n", 1, 12, "access to attribute '__class__'", "sandbox"),
        ("{{ profile.pipelines.clear() }}\n", 1, 22, "access to attribute 'clear'", "sandbox"),
        ("{{ 1 / 0 }}\n", 1, 1, "this cannot be computed: division by zero", ""),
        ("{{ 'a' + 1 }}\n", 1, 1, "this cannot be computed: can only concatenate", ""),
        ("{{ range(1000000) | list }}\n", 1, 1, "this cannot be computed: Range too big", ""),
        ("{% macro m() %}{{ m() }}{% endmacro %}\n{{ m() }}\n", 1, 1, "this cannot be computed", ""),
        ("{% include 'notes/mien.txt.j2' %}\n", 1, 13, "unknown template", "Did you mean 'notes/mine.txt.j2'?"),
        ("{% include '../profiles/base.yaml' %}\n", 1, 13, "unknown template", ""),
    ],
)
def test_a_mistake_in_a_template_is_shown_at_its_line_and_column(
    small_project: Project, text: str, line: int, column: int, message: str, hint: str
) -> None:
    problem = problem_of(small_project, text)
    assert message in problem.message
    assert hint in problem.hint
    assert (problem.span.line, problem.span.column) == (line, column)


def test_a_name_in_a_later_line_of_a_tag_is_found_there(small_project: Project) -> None:
    problem = problem_of(small_project, "{{ [\n  1,\n  nothing,\n] | join }}\n")
    assert (problem.span.line, problem.span.column) == (3, 3)


def test_a_mistake_inside_a_macro_is_shown_inside_the_macro(small_project: Project) -> None:
    template(small_project, "notes/_m.j2", "{% macro m(x) %}\n{{ x.no_such_thing }}\n{% endmacro %}\n")
    template(small_project, "notes/a.txt.j2", "{% import 'notes/_m.j2' as m %}\n\n{{ m.m(profile) }}\n")
    with pytest.raises(SpecError) as caught:
        render(small_project, "base")
    assert str(caught.value).startswith(f"{small_project.templates / 'notes' / '_m.j2'}:2:6")
    template(small_project, "notes/a.txt.j2", "{% import 'notes/_m.j2' as m %}\n\n{{ m.mm(profile) }}\n")
    with pytest.raises(SpecError, match=r"a.txt.j2:3:6: templates/notes/_m.j2 has no 'mm'"):
        render(small_project, "base")


def test_a_template_that_is_not_text_is_named(small_project: Project) -> None:
    (small_project.templates / "notes" / "a.txt.j2").write_bytes(b"\xff\xfe")
    with pytest.raises(SpecError, match="not UTF-8"):
        render(small_project, "base")


def test_invalid_yaml_is_found_before_anything_is_written(small_project: Project) -> None:
    template(small_project, "notes/a.yaml.j2", "a:\n  - 1\n b: {{ profile.nodes }}\n")
    with pytest.raises(SpecError) as caught:
        render(small_project, "base")
    (problem,) = caught.value.diagnostics
    assert "not valid YAML" in problem.message
    assert problem.span.file == small_project.templates / "notes" / "a.yaml.j2"
    template(small_project, "notes/a.yaml.j2", "a: 1\na: {{ profile.nodes }}\n")
    with pytest.raises(SpecError) as caught:
        render(small_project, "base")
    (problem,) = caught.value.diagnostics
    assert (problem.span.line, problem.related[0].span.file.name) == (2, "base.yaml")


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ('{\n  "nodes": {{ profile.nodes }}\n  "more": 1\n}\n', "expecting ',' delimiter", 3),
        ('{\n  "a": [1, 2\n}\n', "expecting ',' delimiter", 3),
        ('{ "a": 1 }\n', "expecting property name", 1),
        ("[1, 2]\n", "expecting property name", 1),
        ("{\n}\n", "property name", 2),
    ],
)
def test_invalid_json_is_found_before_anything_is_written(
    small_project: Project, text: str, message: str, line: int
) -> None:
    template(small_project, "notes/a.json.j2", text)
    with pytest.raises(SpecError) as caught:
        render(small_project, "base")
    (problem,) = caught.value.diagnostics
    assert "not valid JSON" in problem.message
    assert message in problem.message
    assert problem.span.file == small_project.templates / "notes" / "a.json.j2"
    assert problem.span.line == line


def test_json_holds_its_header_as_its_first_key(small_project: Project) -> None:
    template(small_project, "notes/a.json.j2", '{\n  "nodes": {{ profile.nodes }}\n}\n')
    (file,) = render(small_project, "base").files.values()
    content = json.loads(file.text)
    assert list(content) == ["_rendered", "nodes"]
    assert content["_rendered"].startswith("Rendered from templates/notes/a.json.j2 and profiles/base.yaml:")
    assert read_header(file.text) is not None
    assert content_of(file.text) == '{\n  "nodes": 2\n}\n'


def test_every_profile_renders(repository: Project) -> None:
    for name in profile_names(repository):
        for path, file in render(repository, name).files.items():
            if path.suffix == ".yaml":
                assert isinstance(yaml.safe_load(file.text), dict)
