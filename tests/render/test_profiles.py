from __future__ import annotations

import json
import re
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainyard.errors import UsageError
from trainyard.lint.linter import lint
from trainyard.render.batch_scaling import Batch, scaled
from trainyard.render.profile_schema import accepted_settings, profile_schema, shared_by_workers
from trainyard.render.profiles import Profile, load_profile, profile_names
from trainyard.render.project import Project
from trainyard.render.rendering import context_of, render
from trainyard.render.settings import as_argument
from trainyard.render.templates import TemplateSet
from trainyard.render.values import origin_of
from trainyard.render.writing import write as write_files
from trainyard.resources import schema_file
from trainyard.settings.steps import STEP_CONFIGS
from trainyard.settings.task_fields import step_fields
from trainyard.spec.diagnostic import Diagnostic, SpecError

ALL = ["local", "nc96", "nd40", "nd96", "nd96-h100", "nd96-h200", "nd96-mi300x", "t4"]


def write(project: Project, name: str, text: str) -> None:
    (project.profiles / f"{name}.yaml").write_text(text)


def problems_of(project: Project, name: str) -> list[Diagnostic]:
    with pytest.raises(SpecError) as caught:
        load_profile(project, name)
    return list(caught.value.diagnostics)


def test_every_profile_of_the_repository_loads(repository: Project) -> None:
    assert profile_names(repository) == ALL
    for name in ALL:
        assert isinstance(load_profile(repository, name), Profile)


@pytest.mark.parametrize(
    ("name", "sku", "world_size", "precision"),
    [
        ("local", None, 2, "fp32"),
        ("t4", "Standard_NC64as_T4_v3", 4, "fp32"),
        ("nc96", "Standard_NC96ads_A100_v4", 4, "bf16"),
        ("nd40", "Standard_ND40rs_v2", 16, "fp16"),
        ("nd96", "Standard_ND96asr_v4", 16, "bf16"),
        ("nd96-h100", "Standard_ND96isr_H100_v5", 16, "bf16"),
        ("nd96-h200", "Standard_ND96isr_H200_v5", 16, "bf16"),
        ("nd96-mi300x", "Standard_ND96isr_MI300X_v5", 16, "bf16"),
    ],
)
def test_gpus_per_node_come_from_the_catalogue(
    repository: Project, name: str, sku: str | None, world_size: int, precision: str
) -> None:
    profile = load_profile(repository, name)
    assert (profile.sku_name, profile.world_size, profile.precision) == (sku, world_size, precision)


def test_a_profile_has_what_it_extends_unless_it_says_otherwise(repository: Project) -> None:
    profile = load_profile(repository, "nd96-h200")
    assert [file.stem for file in profile.files] == ["nd96-h200", "nd96-h100", "nd96", "t4"]
    assert profile.pipelines["ddp"]["micro_batch_size"] == 4
    assert profile.pipelines["ddp"]["accumulation_steps"] == 1


def test_values_know_the_line_they_were_written_at(repository: Project) -> None:
    profile = load_profile(repository, "nd96-h100")
    nodes, sku, processes = (origin_of(each) for each in (profile.nodes, profile.sku_name, profile.processes_per_node))
    assert nodes is not None
    assert sku is not None
    assert nodes.file.name == "nd96.yaml"
    assert nodes.file.read_text().splitlines()[nodes.line - 1] == "nodes: 2"
    assert sku.file.name == "nd96-h100.yaml"
    assert processes == sku, "the number of processes follows from the size"


def test_settings_are_laid_over_everything(repository: Project) -> None:
    profile = load_profile(repository, "nd96", {"nodes": 4, "pipelines.ddp.micro_batch_size": 64})
    assert profile.world_size == 32
    assert profile.pipelines["ddp"]["micro_batch_size"] == 64
    assert profile.pipelines["ddp"]["accumulation_steps"] == 1
    assert origin_of(profile.nodes) is None


def test_a_setting_may_make_a_mapping_of_a_text(repository: Project) -> None:
    settings = {"environment.default": "trainyard-rocm", "environment.evaluate": "azureml:mine:3"}
    profile = load_profile(repository, "nd96-mi300x", settings)
    assert profile.environment_of("train_ddp") == "trainyard-rocm"
    assert profile.environment_of("evaluate") == "azureml:mine:3"


def test_nccl_gets_what_azure_sets_but_no_file_of_the_host(repository: Project) -> None:
    variables = load_profile(repository, "nd96").environment_variables
    assert variables["NCCL_IB_PCI_RELAXED_ORDERING"] == "1"
    assert "NCCL_TOPO_FILE" not in variables
    interfaces = {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "eth0"}
    assert load_profile(repository, "nd96-mi300x").environment_variables == interfaces
    assert load_profile(repository, "local").environment_variables == {}


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("nodes", 0, "'nodes': 0 is out of range; the minimum is 1"),
        ("nodes", 4096, "the maximum is 1024"),
        ("nodes", "many", "'nodes': expected a whole number, found the text 'many'"),
        ("nodez", 2, "unknown key 'nodez' in the profile. Did you mean 'nodes'"),
        ("pipelines.ddp.mirco_batch_size", 2, "unknown key 'mirco_batch_size' in 'pipelines.ddp'. Did you mean 'micro"),
        (
            "pipelines.fsdp.learning_rate",
            0.1,
            "'learning_rate' is a setting of the training. Write it in settings/fsdp.yaml.",
        ),
        ("pipelines.ddp.epoch", 2, "'epochs' is a setting of the training. Write it in settings/ddp.yaml."),
        (
            "pipelines.ddp.mixup_alpha",
            0.2,
            "'mixup_alpha' is a setting of the training",
        ),
        (
            "pipelines.tensorflow.keras_model",
            "mine:build",
            "is a setting of the training. Write it in settings",
        ),
        ("pipelines.ddp.settings", "settings/dpd.yaml", "there is no settings/dpd.yaml, .*'settings/ddp.yaml'"),
        (
            "pipelines.dpd.source",
            2,
            "unknown pipeline 'dpd': there is no templates.*Did you mean 'ddp'",
        ),
        ("precision", "bf32", "'precision': expected one of fp32, bf16, fp16, found the text 'bf32'"),
        ("precision", "bf16", "the NVIDIA T4 16GB of Standard_NC64as_T4_v3 does not have"),
        ("shm_size", "lots", "expected a whole number followed by k, m or g"),
        ("cluster", "a_b", "letters, digits and hyphens"),
        ("environment", "trainyrd", "Did you mean 'trainyard'"),
        ("environment.evalute", "trainyard", "unknown step 'evalute'. Did you mean 'evaluate'"),
        ("extends", "nd96", "name the profile itself"),
        ("sku", "Standard_NC24", "was retired on 2023-08-31.*Closest: Standard_NC64as_T4_v3"),
        ("sku", "nd96asr", "Closest: Standard_ND96asr_v4"),
        ("sku", "Standard_D8s_v5", "has no GPUs.*Add processes_per_node"),
        ("processes_per_node", 2, "says that again. Remove processes_per_node"),
        ("pipelines.ddp.source", "", "'pipelines.ddp.source' is empty"),
        ("pipelines.fsdp.vocabulary_size", 100, "the minimum is 257"),
        ("pipelines.fsdp.minimum_accuracy", 0.9, "unknown key 'minimum_accuracy' in 'pipelines.fsdp'"),
        ("pipelines.deepspeed.config", "zero_2", "unknown configuration 'zero_2'.*Did you mean 'zero2'"),
        ("pipelines.finetune.engine", "deepspeed", "'pipelines.finetune.engine': expected one of fsdp, ddp"),
    ],
)
def test_an_invalid_setting_is_wrong_usage(repository: Project, setting: str, value: object, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        load_profile(repository, "t4", {setting: value})
    assert str(caught.value).startswith(f"--set {as_argument(setting, value)}: ")


def test_a_size_without_gpus_takes_its_processes_from_the_profile(repository: Project) -> None:
    profile = load_profile(repository, "local", {"sku": "hb120rs_v3", "nodes": 2, "processes_per_node": 4})
    assert profile.sku_name == "Standard_HB120rs_v3"
    assert profile.world_size == 8
    assert profile.environment_variables == {}


def test_steps_without_gpus_have_a_cluster_of_their_own(repository: Project) -> None:
    prepare = load_profile(repository, "nd96", {"clusters.prepare.nodes": 3}).clusters["prepare"]
    assert (prepare.name, prepare.sku_name, prepare.nodes) == ("cpu-prepare", "Standard_D8s_v5", 3)
    assert load_profile(repository, "local").clusters == {}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("sku", "Standard_D8s_v9", "unknown VM size 'Standard_D8s_v9'"),
        ("sku", "Standard_NC6", "Standard_NC6 was retired on 2023-08-31"),
        ("sku", "Standard_ND96asr_v4", "Standard_ND96asr_v4 has 8 GPUs, which preparation leaves idle"),
        ("name", "gpu-t4", "'gpu-t4' is the cluster of the trainings"),
    ],
)
def test_a_cluster_without_gpus_is_checked(repository: Project, key: str, value: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"--set clusters.prepare.{key}={value}: {message}"):
        load_profile(repository, "t4", {f"clusters.prepare.{key}": value})


def test_an_unknown_profile_is_answered_with_the_likely_one_and_all(repository: Project) -> None:
    with pytest.raises(UsageError, match=r"unknown profile 'nd69'. Did you mean 'nd96'.*Known: local, nc96") as caught:
        load_profile(repository, "nd69")
    assert all(name in str(caught.value) for name in ALL)


def test_a_mistake_in_a_file_is_shown_at_its_line(project: Project) -> None:
    write(project, "mine", "extends: nd96\ndescription: mine\nnodes: 2\nnodez: 3\nprecision: fp23\n")
    problems = problems_of(project, "mine")
    assert [(problem.span.line, problem.span.column) for problem in problems] == [(4, 1), (5, 12)]
    assert problems[0].hint == "Did you mean 'nodes'?"


def test_a_mistake_in_what_is_extended_is_shown_where_it_is(project: Project) -> None:
    write(project, "parent", "extends: t4\nsku: Standard_NC24\n")
    write(project, "child", "extends: parent\nnodes: 1\n")
    (problem,) = problems_of(project, "child")
    assert (problem.span.file.name, problem.span.line) == ("parent.yaml", 2)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("extends: nd69\n", "unknown profile 'nd69'", "Did you mean 'nd96'?"),
        ("extends: [t4]\n", "'extends' is the name of one profile, not a list", ""),
        ("extends: mine\n", "profiles extend each other in a circle: mine extends mine", "Remove one of these"),
        ("nodes: 1\nnodes: 2\n", "nodes", ""),
        ("- nodes\n", "", ""),
    ],
)
def test_a_profile_that_cannot_be_put_together(project: Project, text: str, message: str, hint: str) -> None:
    write(project, "mine", text)
    problem = problems_of(project, "mine")[0]
    assert message in problem.message
    assert hint in problem.hint


def test_a_cycle_of_profiles_is_named_completely(project: Project) -> None:
    for name, extended in (("one", "two"), ("two", "three"), ("three", "two")):
        write(project, name, f"extends: {extended}\n")
    (problem,) = problems_of(project, "one")
    assert "two extends three extends two" in problem.message
    assert problem.span.file.name == "three.yaml"


def test_without_size_or_processes_a_profile_says_nothing_to_start(small_project: Project) -> None:
    text = (small_project.profiles / "base.yaml").read_text().replace("processes_per_node: 3\n", "")
    write(small_project, "mine", text)
    (problem,) = problems_of(small_project, "mine")
    assert "names its machines" in problem.message


def test_what_is_missing_is_named(small_project: Project) -> None:
    write(small_project, "mine", "nodes: 1\nprocesses_per_node: 1\n")
    missing = {problem.message for problem in problems_of(small_project, "mine")}
    assert "the profile lacks 'cluster'" in missing
    assert len(missing) == 5


STEPS_OF_PIPELINE = {
    "ddp": ("prepare_images", "train_ddp", "evaluate"),
    "fsdp": ("prepare_text", "train_fsdp", "evaluate"),
    "deepspeed": ("prepare_text", "train_deepspeed", "evaluate"),
    "prepare_at_scale": ("prepare_text_spark", "train_fsdp", "evaluate"),
    "horovod": ("prepare_images", "train_horovod", "evaluate"),
    "finetune": ("prepare_chat", "train_fsdp", "evaluate"),
    "preferences": ("prepare_chat", "compute_reference", "train_fsdp", "evaluate"),
    "lightning": ("prepare_images", "train_lightning", "evaluate"),
    "sweep": ("prepare_images", "train_ddp", "evaluate"),
    "tensorflow": ("prepare_images", "train_tensorflow"),
    "tensorflow_ps": ("prepare_images", "train_tensorflow"),
    "check_cluster": ("check_cluster",),
    "autotune": ("prepare_text", "measure_config"),
}
# What a profile says in a way of its own: two numbers that make a third, files by their name, the size of a sweep,
# machines, which step tunes.
ONLY_OF_PROFILES = {
    *("accumulation_steps", "base_model", "checkpoints_path", "source", "more_sources", "config"),
    *("settings", "engine"),
    *("trials", "concurrent_trials", "check_cluster_first", "spark_machine", "spark_executors"),
}


def settings_of(project: Project, pipeline: str) -> dict[str, Any]:
    settings: dict[str, Any] = profile_schema(project)["properties"]["pipelines"]["properties"][pipeline]["properties"]
    return settings


@pytest.mark.parametrize("pipeline", STEPS_OF_PIPELINE)
def test_the_schema_says_of_pipeline_settings_what_the_steps_say(repository: Project, pipeline: str) -> None:
    described = {
        field.name: field for step in reversed(STEPS_OF_PIPELINE[pipeline]) for field in step_fields(STEP_CONFIGS[step])
    }
    settings = settings_of(repository, pipeline)
    for name in set(settings) - ONLY_OF_PROFILES:
        field, said = described[name], settings[name]
        assert said.get("type", "string") == field.type, name
        assert said.get("minimum") == field.minimum, name
        assert said.get("maximum") == field.maximum, name
        assert said.get("enum") == (list(field.choices) if field.choices else None), name


def test_every_setting_of_the_schema_is_one_that_a_pipeline_accepts(repository: Project) -> None:
    accepted = {name for pipeline in STEPS_OF_PIPELINE for name in settings_of(repository, pipeline)}
    assert accepted == set(profile_schema(repository)["$defs"]["pipeline"]["properties"])


def test_a_pipeline_of_your_own_accepts_what_its_template_declares(project: Project) -> None:
    (project.templates / "pipelines" / "mine.yaml.j2").write_text(
        '{% set accepted_settings = ["image_size", "evaluate", "note"] %}'
    )
    write(
        project,
        "mine",
        "extends: t4\npipelines:\n  mine:\n    image_size: none\n    note: [x]\n    evaluate:\n"
        "      minimum_accuracy: 2\n      data: here\n",
    )
    assert [(problem.span.line, problem.message) for problem in problems_of(project, "mine")] == [
        (4, "'pipelines.mine.image_size': expected a whole number, found the text 'none'"),
        (7, "'pipelines.mine.evaluate.minimum_accuracy': 2 is out of range; the maximum is 1.0"),
        (8, "unknown key 'data' in 'pipelines.mine.evaluate'"),
    ]
    assert load_profile(project, "t4", {"pipelines.mine.evaluate.minimum_accuracy": 0.5})


def test_without_a_settings_file_nothing_is_rendered(project: Project) -> None:
    write(project, "mine", "extends: t4\npipelines:\n  fsdp:\n    settings: settings/fsdb.yaml\n")
    (project.root / "settings" / "ddp.yaml").unlink()
    asked, default = sorted(problems_of(project, "mine"), key=lambda problem: problem.message, reverse=True)
    assert (asked.span.line, asked.hint) == (4, "Did you mean 'settings/fsdp.yaml'?")
    assert asked.message == "there is no settings/fsdb.yaml, which says what pipelines/fsdp.yaml trains"
    assert default.message == "there is no settings/ddp.yaml, which says what pipelines/ddp.yaml trains"


def test_a_task_of_your_own_is_a_constant_of_a_component_or_stands_in_a_settings_file(project: Project) -> None:
    project.source.mkdir()
    (project.source / "mine.py").write_text(
        "from trainyard.tasks import Task, TaskSettings, parameter\nclass Mine(Task):\n"
        "    class Settings(TaskSettings):\n        depth: int = parameter(3, minimum=1)\n        'How deep.'\n"
    )
    template = project.templates / "components" / "mine.yaml.j2"
    template.write_text(
        '{% import "components/_step.j2" as component with context %}\n'
        '{{ component.training(steps.train_ddp.for_use("train_mine", task="mine:Mine")) }}'
    )
    component = yaml.safe_load(render(project, "t4").files[project.root / "components" / "mine.yaml"].text)
    assert component["name"] == "train_mine"
    assert component["command"].endswith("--task 'mine:Mine'")
    assert "task" not in component["inputs"]
    template.write_text('{{ steps.measure_config.for_task("mine:Mine").field.depth.default }}')
    assert render(project, "t4").files[project.root / "components" / "mine.yaml"].text.endswith("\n3")
    template.write_text('{{ steps.train_ddp.for_task("mine:Mine").name }}')
    with pytest.raises(SpecError, match=r"train_ddp reads its task from its settings file: write `task: …` there"):
        render(project, "t4")
    template.write_text('{{ steps.measure_config.for_task("mine:Mine").name }}')
    (project.source / "mine.py").write_text("class Mine: ...\n")
    with pytest.raises(SpecError, match=r"Mine in mine does not derive from trainyard.tasks.Task"):
        render(project, "t4")


def test_every_key_of_the_schema_is_described_for_editors(repository: Project) -> None:
    def undescribed(schema: dict[str, Any], path: str) -> list[str]:
        return [
            name
            for key, value in schema.get("properties", {}).items()
            for name in ([f"{path}{key}"] if not value.get("description") else []) + undescribed(value, f"{path}{key}.")
        ]

    schema = json.loads(schema_file("profile").read_text())
    assert undescribed(schema, "") == undescribed(schema["$defs"]["pipeline"], "") == []


def test_profiles_point_editors_to_the_schema(repository: Project) -> None:
    for name in profile_names(repository):
        first_line = (repository.profiles / f"{name}.yaml").read_text().splitlines()[0]
        assert first_line == "# yaml-language-server: $schema=../schemas/profile.schema.json"


def test_a_profile_has_no_field_that_is_not_loaded() -> None:
    assert {"sku", "nodes", "cluster", "spot", "precision", "shm_size", "pipelines"} <= {
        field.name for field in dataclass_fields(Profile)
    }


def test_a_size_that_is_asked_for_wrongly_is_answered_in_whole_sentences(repository: Project) -> None:
    with pytest.raises(UsageError, match=r"`trainyard skus` lists all\.$"):
        load_profile(repository, "local", {"sku": "Standard_ND96asr_v5"})


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (16, 32, Batch(2, 1)),
        (16, 8, Batch(4, 2)),
        (16, 64, Batch(1, 1)),
        (16, 24, Batch(3, 1)),  # 64 samples become 72
        (16, 256, Batch(1, 1)),  # 64 samples become 256
    ],
)
def test_other_numbers_of_processes_train_the_same(before: int, after: int, expected: Batch) -> None:
    assert scaled(Batch(4, 1), before, after) == expected


def test_setting_nodes_keeps_global_batches_and_says_how(repository: Project) -> None:
    profile = load_profile(repository, "nd96", {"nodes": 4})
    assert profile.pipelines["ddp"]["micro_batch_size"] == 2
    assert "ddp: micro_batch_size 4 → 2 for 32 processes instead of 16; global batch stays 64" in profile.adjustments
    assert (
        "fsdp: micro_batch_size stays 1 for 32 processes instead of 16; global batch 16 → 32, "
        "so multiply learning_rate in settings/fsdp_125m.yaml by 1.41"
    ) in profile.adjustments
    assert load_profile(repository, "nd96", {"spot": True}).adjustments == ()


def test_workers_with_several_gpus_keep_micro_batches_that_divide_among_them(repository: Project) -> None:
    assert scaled(Batch(32, 1), 2, 3, multiple_of=8) == Batch(24, 1)  # 64 samples become 72
    assert load_profile(repository, "nd96", {"nodes": 4}).adjustments[-2:] == (
        "tensorflow: micro_batch_size 32 → 16 for 4 workers instead of 2; global batch stays 64",
        "tensorflow_ps: accumulation_steps 2 → 1 for 4 workers instead of 2; global batch stays 64",
    )


@pytest.mark.parametrize("name", ALL)
def test_batches_of_every_pipeline_divide_on_any_number_of_machines(repository: Project, name: str) -> None:
    templates = TemplateSet(repository)
    of_workers = shared_by_workers(repository)
    for nodes in (1, 2, 3, 4, 8):
        profile = load_profile(repository, name, {"nodes": nodes})
        gpus = profile.sku.gpu_count if profile.sku is not None else 0
        for pipeline in accepted_settings(repository):
            template = f"pipelines/{pipeline}.yaml.j2"
            text = templates.get_template(template).render(context_of(repository, profile, repository.root, template))
            sizes = dict(re.findall(r"^  (micro|global)_batch_size: (\d+)$", text, re.MULTILINE))
            if sizes.keys() != {"micro", "global"}:
                continue
            micro, whole = int(sizes["micro"]), int(sizes["global"])
            by_machines = pipeline in of_workers and gpus
            assert whole % (micro * (nodes if by_machines else profile.world_size)) == 0, (pipeline, nodes)
            assert not by_machines or micro % gpus == 0, (pipeline, nodes)


def test_pipelines_for_more_machines_have_no_errors(repository: Project, tmp_path: Path) -> None:
    write_files(repository, render(repository, "nd96", {"nodes": 4}, tmp_path))
    pipelines = sorted((tmp_path / "pipelines").glob("*.yaml"))
    assert [each for each in lint(pipelines).diagnostics if each.severity == "error"] == []


def test_a_batch_that_is_set_too_stays_as_it_is_set(repository: Project) -> None:
    profile = load_profile(repository, "nd96", {"nodes": 4, "pipelines.ddp.micro_batch_size": 8})
    assert profile.pipelines["ddp"]["micro_batch_size"] == 8
    assert not any(line.startswith("ddp:") for line in profile.adjustments)


def test_the_cluster_of_trainings_may_stand_beside_that_of_preparation(project: Project) -> None:
    write(
        project,
        "mine",
        "extends: t4\nidle_seconds: 900\nclusters:\n"
        "  train: {name: gpu-mine, sku: Standard_ND96asr_v4, nodes: 3}\n"
        "  prepare: {name: cpu-mine, sku: Standard_D8s_v5}\n",
    )
    profile = load_profile(project, "mine")
    assert (profile.cluster, profile.sku_name, profile.nodes) == ("gpu-mine", "Standard_ND96asr_v4", 3)
    assert profile.clusters["prepare"].name == "cpu-mine"
    origin = origin_of(profile.cluster)
    assert origin is not None
    assert (origin.file.name, origin.line) == ("mine.yaml", 4)
    clusters = [file.text for path, file in render(project, "mine").files.items() if path.parent.name == "compute"]
    assert len(clusters) == 2
    assert all("idle_time_before_scale_down: 900\n" in text for text in clusters)
    write(project, "other", "extends: t4\nclusters:\n  train: {name: gpu-mine, nods: 3}\n")
    (problem,) = problems_of(project, "other")
    assert "unknown key 'nods'" in problem.message
