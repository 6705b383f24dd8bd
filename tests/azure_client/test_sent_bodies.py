"""What Microsoft's client sends for the rendered files of profiles, over a real connection, to loopback.

The client is the pinned one (constraints.txt). tests/azure_client/golden holds all that it sends for a profile with one
machine and for one with several: another version of the client that sends something else is noticed there.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import azure.ai.ml as azure_ml
import golden_bodies
import pytest
from azure.identity import DefaultAzureCredential
from golden_bodies import SentPipeline, send_pipeline
from lean_project import lean_project
from loopback_azure import GROUP, SUBSCRIPTION, WORKSPACE, WORKSPACE_PATH, LoopbackAzure, Request

from trainyard.rehearse.snapshots import snapshot_of
from trainyard.render.profiles import Profile, load_profile, profile_names
from trainyard.render.project import Project
from trainyard.render.rendering import render
from trainyard.render.writing import write
from trainyard.settings.steps import STEP_CONFIGS
from trainyard.spec.loading import load_job
from trainyard.spec.model import Component
from trainyard.spec.model import code_of as component_run_by

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The `context` parameter is deprecated"),
]

PROJECT = Project(Path(__file__).resolve().parents[2])
# `make soak` sends them too: they differ from t4 or nd96 in a few values of their files, and sending all takes long.
ALIKE = ("nc96", "nd96-h100", "nd96-h200")
SENT = [pytest.param(name, marks=pytest.mark.soak) if name in ALIKE else name for name in profile_names(PROJECT)]


@pytest.fixture(scope="module")
def renderings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every profile, rendered into a folder of its own."""
    project = Project(lean_project(tmp_path_factory.mktemp("project") / "lean"))
    folders = {profile: tmp_path_factory.mktemp("out") / profile / "deep" for profile in profile_names(project)}
    for profile, folder in folders.items():
        write(project, render(project, profile, {}, folder))
    return folders


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackAzure]:
    """One workspace for all profiles: a snapshot that it has already is not uploaded again."""
    with LoopbackAzure(tmp_path_factory.mktemp("azure")) as running, pytest.MonkeyPatch.context() as patch:
        for name, value in running.variables.items():
            patch.setenv(name, value)
        yield running


@pytest.fixture(scope="module")
def client(azure: LoopbackAzure) -> Any:
    return azure_ml.MLClient(
        DefaultAzureCredential(), SUBSCRIPTION, GROUP, WORKSPACE, enable_telemetry=False, show_progress=False
    )


@pytest.fixture(scope="module")
def pipelines_sent(
    renderings: dict[str, Path], azure: LoopbackAzure, client: Any, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], dict[str, SentPipeline]]:
    """What is sent for the pipelines of a profile, by their names; each is sent once for all tests."""
    base_model = tmp_path_factory.mktemp("model")
    (base_model / "config.json").write_text("{}")

    @functools.cache
    def sent(profile: str) -> dict[str, SentPipeline]:
        found = {}
        for file in sorted((renderings[profile] / "pipelines").glob("*.yaml")):
            loaded = azure_ml.load_job(file)
            if profile == "local" and file.stem in ("finetune", "preferences"):
                loaded.inputs["base_model"].path = str(base_model)  # what another pipeline's run leaves here
            found[file.stem] = send_pipeline(loaded, azure, client)
        return found

    return sent


@functools.cache
def as_the_client_reads_it(component_file: Path) -> Any:
    return azure_ml.load_component(component_file)


def not_rendered(machines: Profile) -> set[str]:
    """Pipelines and components that a profile's machines cannot run."""
    is_amd = machines.sku is not None and machines.sku.gpu_vendor == "AMD"
    if not is_amd:
        return set()
    return {"horovod", "train_horovod", "tensorflow", "tensorflow_ps", "train_tensorflow", "train_tensorflow_ps"}


def workers_of(machines: Profile) -> int:
    """TensorFlow's: one for each machine with GPUs, which uses all of them."""
    return machines.nodes if machines.sku is not None else machines.world_size


@pytest.mark.parametrize("profile", SENT)
def test_every_pipeline_of_a_profile_is_sent_whole(
    profile: str,
    renderings: dict[str, Path],
    azure: LoopbackAzure,
    pipelines_sent: Callable[[str], dict[str, SentPipeline]],
) -> None:
    on_disk = {path.relative_to(PROJECT.root).as_posix() for path in (PROJECT.root / "src").rglob("*.py")}
    machines = load_profile(PROJECT, profile)
    committed = {file.stem for file in (PROJECT.root / "pipelines").glob("*.yaml")}
    assert set(pipelines_sent(profile)) == committed - not_rendered(machines)
    for name, pipeline_sent in pipelines_sent(profile).items():
        pipeline = load_job(renderings[profile] / "pipelines" / f"{name}.yaml", strict=True)
        sent = pipeline_sent.job["properties"]

        assert sent["settings"]["default_compute"].endswith(f"/computes/{machines.cluster}")
        assert set(sent["jobs"]) == set(pipeline.jobs)
        for job, node in sent["jobs"].items():
            request = pipeline_sent.components[golden_bodies.component_id(node)]
            component = component_run_by(pipeline.jobs[job].component)
            assert isinstance(component, Component)
            check_component(request.json["properties"]["componentSpec"], component)
            check_bindings(node, sent)
            uploaded = code_of(azure, request)
            snapshot = snapshot_of(component).files
            assert sorted(uploaded) == [place for _, place in snapshot]
            assert {f"src/{place}" for place in uploaded if place.endswith(".py")} <= on_disk
            for path, place in snapshot:
                assert uploaded[place] == path.read_bytes(), place
        train = sent["jobs"].get(f"train_{name}")
        if train is not None:
            precision = machines.precision
            if "tensorflow" in name:
                precision = "fp32" if precision == "fp16" else precision  # which its step does not take
                workers = workers_of(machines)
                assert train["resources"]["instance_count"] == train["distribution"]["worker_count"] == workers
            else:
                workers = machines.world_size
                assert train["resources"]["instance_count"] == machines.nodes
                assert train["distribution"]["process_count_per_instance"] == machines.processes_per_node
            literals = {key: value["value"] for key, value in sent["inputs"].items() if "value" in value}
            assert int(literals["global_batch_size"]) % workers == 0
            assert literals["precision"] == precision
        assert all(not isinstance(value, (int, float)) for value in literals_of(sent))
        check_training(name, sent, machines)
        check_computes(sent, machines)


def check_training(pipeline: str, sent: dict[str, Any], machines: Profile) -> None:
    """The job of a pipeline that runs on several processes has the variables and a batch they share."""
    names = (f"train_{pipeline}", pipeline, "search")
    distributed = next((sent["jobs"][name] for name in names if name in sent["jobs"]), None)
    if distributed is not None:
        assert distributed.get("environment_variables", {}) == machines.environment_variables
    if "micro_batch_size" not in sent["inputs"]:
        return
    # Numbers travel as Python's str() has them; YAML that read 0.003 as text would show here.
    if pipeline == "sweep":
        assert distributed is not None
        batch_sizes = distributed["search_space"]["global_batch_size"]["values"]
        assert float(distributed["inputs"]["learning_rate"]["value"]) > 0
    else:
        batch_sizes = [int(sent["inputs"]["global_batch_size"]["value"])]
    processes = workers_of(machines) if "tensorflow" in pipeline else machines.world_size
    micro_batch = int(sent["inputs"]["micro_batch_size"]["value"]) * processes
    assert [size % micro_batch for size in batch_sizes] == [0] * len(batch_sizes)


def check_computes(sent: dict[str, Any], machines: Profile) -> None:
    """Steps without GPUs run on the cluster without GPUs, Spark on none, and every other on the pipeline's."""
    for name, node in sent["jobs"].items():
        is_without = name.startswith(("prepare_", "export_", "compare")) and "prepare" in machines.clusters
        is_serverless = name == "prepare_text_spark"
        compute = machines.clusters["prepare"].name if is_without and not is_serverless else ""
        assert node.get("computeId", "").rpartition("/")[2] == compute, name
        assert is_serverless == (node["type"] == "spark" and node["resources"]["instance_type"] == "standard_e8s_v3")


def code_of(azure: LoopbackAzure, component: Request) -> dict[str, bytes]:
    """The files of a component's snapshot as they were uploaded, by their paths in it."""
    code_id = component.json["properties"]["componentSpec"]["code"].removeprefix(f"azureml:{WORKSPACE_PATH}/")
    return azure.files_below(azure.resources[code_id]["properties"]["codeUri"])


def check_component(sent: dict[str, Any], component: Component) -> None:
    """What is sent of a component is what its file says."""
    written = as_the_client_reads_it(component.file)
    line = "args" if sent["type"] == "spark" else "command"
    assert " ".join(sent[line].split()) == " ".join(str(getattr(written, line)).split())
    assert sent["is_deterministic"] is component.is_deterministic
    assert set(sent["inputs"]) == set(written.inputs)
    assert set(sent["outputs"]) == set(written.outputs)
    for name, port in written.inputs.items():
        assert sent["inputs"][name]["type"] == port.type, name
        if port.default is not None:
            assert sent["inputs"][name]["default"] == str(port.default), name


def check_bindings(node: dict[str, Any], sent: dict[str, Any]) -> None:
    """Every binding of a job names something that the same body has."""
    for value in (*node.get("inputs", {}).values(), *node.get("outputs", {}).values()):
        words = str(value.get("value", "")).removeprefix("${{").removesuffix("}}").split(".")
        if words[:2] == ["parent", "jobs"]:
            assert words[2] in sent["jobs"], value
        elif words[0] == "parent":
            assert words[2] in sent[words[1]], value


def literals_of(sent: dict[str, Any]) -> Iterator[Any]:
    """Every literal of a pipeline and of its jobs."""
    for inputs in (sent["inputs"], *(node.get("inputs", {}) for node in sent["jobs"].values())):
        yield from (value["value"] for value in inputs.values() if "value" in value)


@pytest.mark.parametrize("profile", profile_names(PROJECT))
def test_every_component_loads_alone_and_what_is_sent_for_training_is_complete(
    profile: str, renderings: dict[str, Path]
) -> None:
    machines = load_profile(PROJECT, profile)
    files = sorted((renderings[profile] / "components").glob("*.yaml"))
    known = {*STEP_CONFIGS, "finetune", "finetune_ddp", "train_tensorflow_ps"}
    assert {file.stem for file in files} == known - not_rendered(machines)
    for file in files:
        component = as_the_client_reads_it(file)
        assert component._validate(raise_error=False).error_messages == {}, file
        if not file.stem.startswith("train_"):
            continue
        sent = component._to_dict()
        if "tensorflow" in file.stem:
            workers, has_servers = workers_of(machines), file.stem.endswith("_ps")
            assert sent["resources"] == {"instance_count": workers, "shm_size": machines.shm_size}
            assert sent["distribution"]["worker_count"] == workers
            assert sent["distribution"]["parameter_server_count"] == has_servers
            assert sent["is_deterministic"] is not has_servers
            continue
        is_single = file.stem == "train_single"
        nodes, distribution = 1 if is_single else machines.nodes, sent.get("distribution")
        assert sent["resources"] == {"instance_count": nodes, "shm_size": machines.shm_size}
        assert is_single == (distribution is None)
        assert is_single or distribution["process_count_per_instance"] == machines.processes_per_node
        assert sent["is_deterministic"] is True


@pytest.mark.parametrize("profile", SENT)
def test_the_deepspeed_configuration_is_sent_as_a_file(
    profile: str,
    renderings: dict[str, Path],
    azure: LoopbackAzure,
    pipelines_sent: Callable[[str], dict[str, SentPipeline]],
) -> None:
    sent = pipelines_sent(profile)["deepspeed"].job["properties"]["inputs"]["deepspeed_config"]
    assert (sent["jobInputType"], sent["mode"]) == ("uri_file", "ReadOnlyMount")
    name = f"{load_profile(PROJECT, profile).pipelines['deepspeed']['config']}.json"
    assert sent["uri"].endswith(f"/{name}")
    place = sent["uri"].partition("/paths/")[2]
    (uploaded,) = (body for blob, body in azure.blobs.items() if blob.endswith(f"/{place}"))
    assert uploaded == (renderings[profile] / "components" / "deepspeed" / name).read_bytes()


@pytest.mark.parametrize("profile", SENT)
def test_settings_files_are_sent_as_files(
    profile: str,
    renderings: dict[str, Path],
    azure: LoopbackAzure,
    pipelines_sent: Callable[[str], dict[str, SentPipeline]],
) -> None:
    for name, sent in pipelines_sent(profile).items():
        if name in ("autotune", "check_cluster"):
            continue
        jobs = sent.job["properties"]["jobs"].values()
        (settings,) = [job["inputs"]["settings"] for job in jobs if "settings" in job.get("inputs", {})]
        assert (settings["job_input_type"], settings.get("mode")) == ("uri_file", None)
        written = load_profile(PROJECT, profile).pipelines.get(name, {}).get("settings", f"settings/{name}.yaml")
        place = settings["uri"].partition("/paths/")[2]
        (uploaded,) = (body for blob, body in azure.blobs.items() if blob.endswith(f"/{place}"))
        assert uploaded == (PROJECT.root / written).read_bytes()


@pytest.mark.parametrize("profile", golden_bodies.PROFILES)
def test_the_bodies_are_those_of_the_golden_file(
    profile: str, pipelines_sent: Callable[[str], dict[str, SentPipeline]]
) -> None:
    sent = golden_bodies.bodies_of(pipelines_sent(profile))
    known = json.loads(golden_bodies.golden_file(profile).read_text(encoding="utf-8"))
    assert sent == known, "if this is meant: python tests/azure_client/helpers/golden_bodies.py"


@pytest.mark.parametrize("profile", profile_names(PROJECT))
def test_every_environment_and_cluster_of_a_profile_can_be_created(
    profile: str, renderings: dict[str, Path], azure: LoopbackAzure, client: Any
) -> None:
    machines = load_profile(PROJECT, profile)
    environments = sorted((renderings[profile] / "environments").glob("*.yaml"))
    clusters = sorted((renderings[profile] / "compute").glob("*.yaml"))
    frameworks = {"trainyard-horovod", "trainyard-tensorflow", "trainyard-rocm"}
    assert {file.stem for file in environments} == {"trainyard", *frameworks}
    expected = {cluster.name for cluster in machines.clusters.values()}
    expected |= {machines.cluster} if machines.sku_name else set()
    assert {azure_ml.load_compute(file).name for file in clusters} == expected
    assert ("gpu_cluster.yaml" in {file.name for file in clusters}) is (machines.sku is not None)
    for file in environments:
        environment = azure_ml.load_environment(file)
        client.environments.create_or_update(environment)
        sent = azure.sent("PUT", f"/environments/{environment.name}/versions/")[-1].json["properties"]
        context = azure.files_below(sent["build"]["contextUri"])
        scripts = {script.name for script in file.with_suffix("").glob("*.sh")}
        assert set(context) == {"Dockerfile", "requirements.txt", *scripts}
        assert sum(map(len, context.values())) < 16_384
        assert all("==" in line for line in context["requirements.txt"].decode().splitlines() if line[0] != "#")
    for file in clusters:
        compute = azure_ml.load_compute(file)
        client.compute.begin_create_or_update(compute).result()
        sent = azure.sent("PUT", f"/computes/{compute.name}")[-1].json["properties"]["properties"]
        of_steps = {each.name: (each.sku_name, each.nodes, "Dedicated") for each in machines.clusters.values()}
        of_training = (machines.sku_name, machines.nodes, "LowPriority" if machines.spot else "Dedicated")
        size, nodes, priority = of_steps.get(compute.name, of_training)
        assert (sent["vmSize"], sent["vmPriority"]) == (size, priority)
        assert machines.idle_seconds == 300
        scale = {"minNodeCount": 0, "maxNodeCount": nodes, "nodeIdleTimeBeforeScaleDown": "PT5M"}
        assert sent["scaleSettings"] == scale
        assert sent.get("enableNodePublicIp", True), "without a subnet, machines need an address"


def test_machines_in_a_network_of_ones_own_have_no_public_address(
    azure: LoopbackAzure, client: Any, tmp_path: Path
) -> None:
    subnet = f"{WORKSPACE_PATH.partition('/providers')[0]}/providers/Microsoft.Network/virtualNetworks/v/subnets/s"
    write(PROJECT, render(PROJECT, "nd96", {"subnet": subnet, "spot": True}, tmp_path))
    for name, priority in (("gpu_cluster", "LowPriority"), ("cpu_cluster", "Dedicated")):
        client.compute.begin_create_or_update(azure_ml.load_compute(tmp_path / "compute" / f"{name}.yaml")).result()
        sent = azure.sent("PUT", "/computes/")[-1].json["properties"]["properties"]
        assert (sent["enableNodePublicIp"], sent["subnet"], sent["vmPriority"]) == (False, {"id": subnet}, priority)
