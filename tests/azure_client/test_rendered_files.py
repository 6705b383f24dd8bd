"""Microsoft's own client loads and validates everything that every profile renders: offline, in one process.

It shows what the client accepts and would send, not what the service makes of it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainyard.author.profiles import Profile, load_profile, profile_names
from trainyard.author.project import Project
from trainyard.author.rendering import render
from trainyard.author.writing import write
from trainyard.foundation.configs import STEP_CONFIGS
from trainyard.local.snapshot import snapshot_of
from trainyard.spec.loading import load_pipeline
from trainyard.spec.model import Component

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # The client warns of its own dealings with marshmallow, here as it is imported …
    import azure.ai.ml as azure_ml

# … and here as it is used.
pytestmark = pytest.mark.filterwarnings("ignore:The `context` parameter is deprecated")

PROJECT = Project(Path(__file__).resolve().parents[2])
PROFILES = profile_names(PROJECT)


@pytest.fixture(scope="module")
def renderings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every profile, rendered into a folder of its own outside of the project."""
    folders: dict[str, Path] = {}
    for profile in PROFILES:
        folders[profile] = tmp_path_factory.mktemp("out") / profile / "deep"
        write(PROJECT, render(PROJECT, profile, {}, folders[profile]))
    return folders


@pytest.fixture(params=PROFILES)
def rendering(request: pytest.FixtureRequest, renderings: dict[str, Path]) -> tuple[Profile, Path]:
    """One profile, and the folder it is rendered into."""
    return load_profile(PROJECT, request.param), renderings[request.param]


def yaml_files(root: Path, folder: str) -> Iterator[Path]:
    return iter(sorted((root / folder).glob("*.yaml")))


def not_rendered(profile: Profile) -> set[str]:
    """Pipelines and components that a profile's machines cannot run."""
    is_amd = profile.sku is not None and profile.sku.gpu_vendor == "AMD"
    if not is_amd:
        return set()
    return {"horovod", "train_horovod", "tensorflow", "tensorflow_ps", "train_tensorflow", "train_tensorflow_ps"}


def workers_of(profile: Profile) -> int:
    """TensorFlow's: one for each machine with GPUs, which uses all of them."""
    return profile.nodes if profile.sku is not None else profile.world_size


def errors_of(loaded: Any) -> dict[str, str]:
    result = loaded._validate(raise_error=False)
    return {} if result.passed else dict(result.error_messages)


def test_every_pipeline_loads_validates_and_can_be_sent(rendering: tuple[Profile, Path]) -> None:
    profile, root = rendering
    files = list(yaml_files(root, "pipelines"))
    expected = {"autotune", "check_cluster", "ddp", "deepspeed", "finetune", "fsdp", "horovod", "lightning", "sweep"}
    expected |= {"preferences", "prepare_at_scale", "tensorflow", "tensorflow_ps"}
    assert {file.stem for file in files} == expected - not_rendered(profile)
    for file in files:
        job = azure_ml.load_job(file)
        assert errors_of(job) == {}
        sent = job._to_rest_object().as_dict()["properties"]
        names = (f"train_{file.stem}", file.stem, "search")
        distributed = next((sent["jobs"][name] for name in names if name in sent["jobs"]), None)
        if distributed is not None:
            assert distributed.get("environment_variables", {}) == profile.environment_variables
        if "micro_batch_size" not in sent["inputs"]:
            continue
        # Numbers travel as Python's str() has them; YAML that read 0.003 as text would show here.
        if file.stem == "sweep":
            assert distributed is not None
            batch_sizes = distributed["search_space"]["global_batch_size"]["values"]
        else:
            assert float(sent["inputs"]["learning_rate"]["value"]) > 0
            batch_sizes = [int(sent["inputs"]["global_batch_size"]["value"])]
        processes = workers_of(profile) if "tensorflow" in file.stem else profile.world_size
        micro_batch = int(sent["inputs"]["micro_batch_size"]["value"]) * processes
        assert [size % micro_batch for size in batch_sizes] == [0] * len(batch_sizes)


def test_every_component_loads_alone_and_what_is_sent_for_training_is_complete(
    rendering: tuple[Profile, Path],
) -> None:
    profile, root = rendering
    files = list(yaml_files(root, "components"))
    assert {file.stem for file in files} == {
        *STEP_CONFIGS,
        "finetune",
        "tune_preferences",
        "train_tensorflow_ps",
    } - not_rendered(profile)
    for file in files:
        component = azure_ml.load_component(file)
        assert errors_of(component) == {}, file
        assert Path(os.path.normpath(file.parent / component.code)) == PROJECT.root / "src"
        if file.stem.startswith("train_"):
            sent = component._to_dict()
            if "tensorflow" in file.stem:
                workers, has_servers = workers_of(profile), file.stem.endswith("_ps")
                assert sent["resources"] == {"instance_count": workers, "shm_size": profile.shm_size}
                assert sent["distribution"]["worker_count"] == workers
                assert sent["distribution"]["parameter_server_count"] == has_servers
                assert sent["is_deterministic"] is not has_servers
                continue
            is_single = file.stem == "train_single"
            nodes, distribution = 1 if is_single else profile.nodes, sent.get("distribution")
            assert sent["resources"] == {"instance_count": nodes, "shm_size": profile.shm_size}
            assert is_single == (distribution is None)
            assert is_single or distribution["process_count_per_instance"] == profile.processes_per_node
            assert sent["is_deterministic"] is True


def test_the_deepspeed_configuration_is_found_from_the_pipeline_and_sent_as_a_file(
    rendering: tuple[Profile, Path],
) -> None:
    profile, root = rendering
    file = root / "pipelines" / "deepspeed.yaml"
    job = azure_ml.load_job(file)
    sent = job._to_rest_object().as_dict()["properties"]["inputs"]["deepspeed_config"]
    assert (sent["jobInputType"], sent["mode"]) == ("uri_file", "ReadOnlyMount")
    # From here the client takes the file when it uploads.
    found = Path(os.path.normpath(Path(job.base_path) / sent["uri"]))
    assert found == root / "components" / "deepspeed" / f"{profile.pipelines['deepspeed']['config']}.json"
    assert found.is_file()


def test_every_environment_and_compute_loads(rendering: tuple[Profile, Path]) -> None:
    profile, root = rendering
    environments = [azure_ml.load_environment(file) for file in yaml_files(root, "environments")]
    assert {environment.name for environment in environments} == {
        "trainyard",
        "trainyard-horovod",
        "trainyard-tensorflow",
        "trainyard-rocm",
    }
    computes = {compute.name: compute for compute in map(azure_ml.load_compute, yaml_files(root, "compute"))}
    expected = {each.name: (each.sku_name, each.nodes) for each in profile.clusters.values()}
    if profile.sku_name:
        expected[profile.cluster] = (profile.sku_name, profile.nodes)
    assert {name: (compute.size, compute.max_instances) for name, compute in computes.items()} == expected
    for compute in computes.values():
        assert (compute.min_instances, compute.idle_time_before_scale_down) == (0, 300)


def test_steps_without_gpus_run_on_the_cluster_without_gpus(rendering: tuple[Profile, Path]) -> None:
    profile, root = rendering
    for file in yaml_files(root, "pipelines"):
        jobs = azure_ml.load_job(file).jobs
        for name, job in jobs.items():
            is_without = name.startswith(("prepare_", "export_", "compare")) and "prepare" in profile.clusters
            is_serverless = name == "prepare_text_spark"
            assert job.compute == (profile.clusters["prepare"].name if is_without and not is_serverless else None), name
            assert is_serverless == (job.type == "spark" and job.resources["instance_type"] == "standard_e8s_v3")


@pytest.mark.parametrize(
    ("pipeline", "settings"),
    [
        ("ddp", {"environment": "trainyard"}),
        ("ddp", {"spot": True, "nodes": 2}),
        ("ddp", {"pipelines.ddp.check_cluster_first": True}),
        ("ddp", {"pipelines.ddp.format": "folder", "pipelines.ddp.source": "src"}),
        ("ddp", {"pipelines.ddp.format": "folder", "pipelines.ddp.source": "azureml:images:1"}),
        ("ddp", {"pipelines.ddp.checkpoints_path": "azureml://datastores/workspaceblobstore/paths/trainyard/mine"}),
        ("fsdp", {"pipelines.fsdp.source": "docs", "pipelines.fsdp.max_steps": 10, "pipelines.fsdp.compile": True}),
        ("deepspeed", {"pipelines.deepspeed.source": "azureml:text:1", "pipelines.deepspeed.maximum_perplexity": 80}),
    ],
    ids=str,
)
def test_what_settings_add_is_accepted_too(pipeline: str, settings: dict[str, object], tmp_path: Path) -> None:
    write(PROJECT, render(PROJECT, "t4", settings, tmp_path))
    job = azure_ml.load_job(tmp_path / "pipelines" / f"{pipeline}.yaml")
    assert errors_of(job) == {}
    job._to_rest_object()


def test_the_committed_files_are_accepted_where_they_lie() -> None:
    for file in yaml_files(PROJECT.root, "pipelines"):
        assert errors_of(azure_ml.load_job(file)) == {}


def test_the_local_snapshot_holds_the_files_that_the_client_uploads() -> None:
    from azure.ai.ml._utils._asset_utils import get_ignore_file

    source = PROJECT.root / "src"
    ignored = get_ignore_file(source)
    files = sorted(path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    uploaded = [path.relative_to(source).as_posix() for path in files if not ignored.is_file_excluded(path)]
    component = load_pipeline(PROJECT.root / "pipelines" / "ddp.yaml").jobs["train_ddp"].component
    assert isinstance(component, Component)
    assert [place for _, place in snapshot_of(component).files] == uploaded
    assert {"trainyard/foundation/step_fields.py", "trainyard/steps/train_ddp.py"} <= set(uploaded)
    assert not any(name.startswith(("trainyard/lint/", "trainyard/cli/")) for name in uploaded)
