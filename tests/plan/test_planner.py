"""What a plan says of processes, machines, batches and prices."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.catalogue.prices import price_of
from trainyard.catalogue.skus import all_skus, find_sku
from trainyard.errors import UsageError
from trainyard.plan.job_plans import Plan, most_at_once
from trainyard.plan.planner import plan as plan_with
from trainyard.render.project import Project
from trainyard.render.rendering import render
from trainyard.render.writing import write
from trainyard.spec.computes import Computes
from trainyard.spec.diagnostic import SpecError
from trainyard.spec.findings import DocumentStore
from trainyard.spec.loading import load_job
from trainyard.spec.model import Pipeline

ROOT = Path(__file__).parents[2]
ND96 = {"gpus": "Standard_ND96asr_v4"}


def plan(pipeline: Pipeline, sizes: dict[str, str]) -> Plan:
    """The plan of a pipeline on clusters of these sizes."""
    return plan_with(pipeline, Computes(DocumentStore(), sizes))


def jobs_of(planned):
    return {job.name: job for job in planned.jobs}


def test_a_machine_checked_by_hand(pipeline_of) -> None:
    """Standard_ND96asr_v4: 8 A100 of 40 GB, 8 InfiniBand links of 200 Gbit/s, $27.197 an hour in eastus."""
    train = jobs_of(plan(pipeline_of(), ND96))["train"]

    assert (train.processes.nodes, train.processes.processes_per_node, train.processes.world_size) == (2, 8, 16)
    assert (train.gpus_used_per_node, train.gpus_idle_per_node) == (8, 0)
    assert train.gpu_memory_gb == 640
    assert train.sku.rdma
    assert train.sku.infiniband_gbit_per_second_total == 1600
    assert train.on_demand.usd_per_hour == pytest.approx(54.394)
    assert train.on_demand.region == "eastus"
    assert train.spot.usd_per_hour == pytest.approx(5.98334)
    assert str(train.batch) == "32 micro × 2 accumulation × 16 processes = 1024 samples"
    assert train.environment.endswith("acpt-pytorch-2.8-cuda12.6/versions/9")
    assert train.findings == ()


def test_a_component_kept_in_azure_ml_is_named_and_the_rest_planned(pipeline_of, digits) -> None:
    components, jobs = digits
    jobs["train"]["component"] = "azureml:train:1"
    whole = plan(pipeline_of(), ND96)
    planned = plan(pipeline_of(components, jobs), ND96)

    (train,) = planned.not_planned
    assert (train.name, train.component, train.compute) == ("train", "azureml:train:1", "gpus")
    assert train.reason == "kept in Azure ML: not known here"
    assert train.waits_for == ("prepare",)
    assert jobs_of(planned)["prepare"] == jobs_of(whole)["prepare"]
    assert jobs_of(planned)["evaluate"].waits_for == ("prepare", "train")
    assert planned.totals.nodes_at_once == {"gpus": 1}, "evaluate waits for prepare through train"
    assert planned.totals.on_demand_usd_per_hour is None


def test_a_pipeline_kept_in_azure_ml_is_one_unknown_job(tmp_path: Path) -> None:
    file = tmp_path / "whole.yaml"
    file.write_text("type: pipeline\ncomponent: azureml:whole:1\n", encoding="utf-8")
    planned = plan(load_job(file, on_azure=True, strict=True), {})

    assert planned.jobs == ()
    assert [(each.name, each.component) for each in planned.not_planned] == [("whole", "azureml:whole:1")]


@pytest.mark.parametrize("sku", all_skus(), ids=lambda sku: sku.name)
def test_figures_are_the_catalogues_for_every_machine(pipeline_of, sku) -> None:
    train = jobs_of(plan(pipeline_of(), {"gpus": sku.name}))["train"]

    assert train.sku is sku
    assert train.gpu_memory_gb == 2 * (sku.gpu_memory_gb_total or 0)
    assert train.gpus_idle_per_node == max(0, sku.gpu_count - 8)
    assert train.gpus_used_per_node == min(8, sku.gpu_count)
    assert (train.on_demand, train.spot) == (price_of(sku, "on demand", 2), price_of(sku, "spot", 2))
    assert any("was retired" in finding for finding in train.findings) == sku.is_retired
    assert any("is to be retired on" in f for f in train.findings) == (not sku.is_retired and not sku.is_current)


def test_jobs_stand_in_the_order_in_which_they_can_run(pipeline_of, digits) -> None:
    components, jobs = digits
    planned = plan(pipeline_of(components, dict(reversed(jobs.items()))), ND96)

    assert [job.name for job in planned.jobs] == ["prepare", "train", "evaluate"]
    assert jobs_of(planned)["evaluate"].waits_for == ("train", "prepare")


def test_totals_count_what_runs_at_one_time(pipeline_of) -> None:
    planned = plan(pipeline_of(), ND96)
    totals = planned.totals

    assert len(planned.jobs) == 3
    assert totals.nodes_at_once == {"gpus": 2}
    assert totals.on_demand_usd_per_hour == pytest.approx(54.394)


def test_independent_jobs_add_up_and_clusters_are_counted_apart(pipeline_of, digits) -> None:
    components, jobs = digits
    jobs["train_again"] = dict(jobs["train"])
    jobs["prepare"]["compute"] = "azureml:processors"
    sku = find_sku("Standard_NC64as_T4_v3")
    planned = plan(pipeline_of(components, jobs), {"gpus": sku.name, "processors": "Standard_D8s_v5"})

    assert planned.totals.nodes_at_once == {"processors": 1, "gpus": 4}
    assert planned.totals.on_demand_usd_per_hour == pytest.approx(price_of(sku, "on demand", 4).usd_per_hour)


def test_a_batch_that_does_not_divide_is_said_with_the_nearest_that_do(pipeline_of, digits) -> None:
    components, jobs = digits
    jobs["train"]["inputs"]["global_batch_size"] = 1000

    train = jobs_of(plan(pipeline_of(components, jobs), ND96))["train"]

    assert not train.batch.fits
    assert train.batch.nearest_global_batch_sizes == (512, 1024)
    assert train.findings == (
        "batch sizes do not multiply out: 32 micro × 16 processes does not make 1000 samples; "
        "nearest that fits: 512 or 1024",
    )


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("global_batch_size", 1000, "global_batch_size 1000 is not a multiple of 32 micro × 2 × 8 processes"),
        ("micro_batch_size", 2048, "global_batch_size 1024 is not a multiple of 2048 micro × 2 × 8 processes"),
        ("model_overrides", "{depths: 2}", "model_overrides is not JSON: Expecting property name"),
        ("model_overrides", "[2, 2]", "model_overrides is JSON, but not an object"),
    ],
)
def test_what_a_training_step_would_refuse_is_refused_on_its_line(
    pipeline_of, digits, setting: str, value: object, message: str
) -> None:
    components, jobs = digits
    components["train_ddp"]["command"] = (
        "python -m trainyard.steps.train_ddp --micro-batch-size ${{inputs.micro_batch_size}} "
        "--global-batch-size ${{inputs.global_batch_size}} $[[ --model-overrides '${{inputs.model_overrides}}' ]]"
    )
    components["train_ddp"]["inputs"]["model_overrides"] = {"type": "string", "optional": True}
    jobs["train"]["inputs"].update(global_batch_size=1024, micro_batch_size=32)
    jobs["train"]["inputs"][setting] = value

    with pytest.raises(SpecError, match=message) as raised:
        plan(pipeline_of(components, jobs), ND96)

    span = raised.value.diagnostics[0].span
    shown = "1024" if setting == "micro_batch_size" else str(value)
    assert shown in span.file.read_text(encoding="utf-8").splitlines()[span.line - 1]


def test_a_batch_smaller_than_one_round_has_one_neighbour(pipeline_of, digits) -> None:
    components, jobs = digits
    jobs["train"]["inputs"]["global_batch_size"] = 64

    assert jobs_of(plan(pipeline_of(components, jobs), ND96))["train"].batch.nearest_global_batch_sizes == (512,)


@pytest.mark.parametrize(("accumulation", "fits"), [(2, True), (3, False)])
def test_given_accumulation_steps_have_to_agree(pipeline_of, digits, accumulation: int, fits: bool) -> None:
    components, jobs = digits
    components["train_ddp"]["inputs"]["accumulation_steps"] = {"type": "integer", "default": accumulation}

    batch = jobs_of(plan(pipeline_of(components, jobs), ND96))["train"].batch

    assert batch.fits == fits
    assert batch.nearest_global_batch_sizes == (() if fits else (1536,))
    assert ("does not make" in str(batch)) != fits


def test_values_come_through_bindings(pipeline_of, digits) -> None:
    components, jobs = digits
    components["train_ddp"]["inputs"]["nodes"] = {"type": "integer", "default": 1}
    jobs["train"]["inputs"].update(global_batch_size="${{parent.inputs.batch}}")
    jobs["train"]["resources"] = {"instance_count": "${{parent.inputs.nodes}}"}
    jobs["train"]["distribution"] = {"type": "pytorch", "process_count_per_instance": 4}

    train = jobs_of(plan(pipeline_of(components, jobs, inputs={"batch": 384, "nodes": 3}), ND96))["train"]

    assert train.processes.world_size == 12
    assert str(train.batch) == "32 micro × 1 accumulation × 12 processes = 384 samples"
    assert train.findings == (
        "4 of the 8 GPUs of a node have no process; one process per GPU is process_count_per_instance: 8",
    )


def test_a_job_may_take_the_input_of_another(pipeline_of, digits) -> None:
    components, jobs = digits
    components["evaluate"]["inputs"].update(
        micro_batch_size={"type": "integer", "default": 1}, global_batch_size={"type": "integer", "default": 1}
    )
    jobs["train"]["inputs"]["micro_batch_size"] = 8
    for name in ("micro_batch_size", "global_batch_size"):
        jobs["evaluate"]["inputs"][name] = f"${{{{parent.jobs.train.inputs.{name}}}}}"

    batch = jobs_of(plan(pipeline_of(components, jobs), ND96))["evaluate"].batch

    assert str(batch) == "8 micro × 128 accumulation × 1 process = 1024 samples"


@pytest.mark.parametrize("recipe", ["fsdp", "deepspeed"])
def test_the_language_models_of_nd96_multiply_out(tmp_path, recipe: str) -> None:
    project = Project(ROOT)
    write(project, render(project, "nd96", {}, tmp_path))

    train = jobs_of(
        plan(load_job(tmp_path / "pipelines" / f"{recipe}.yaml", strict=True), {"gpu-nd96": "Standard_ND96asr_v4"})
    )[f"train_{recipe}"]

    assert (train.processes.world_size, train.batch.fits, train.findings) == (16, True, ())
    assert train.batch.tokens_per_step == train.batch.global_batch_size * 128


def test_the_file_is_named_from_the_working_directory(pipeline_of, tmp_path, monkeypatch) -> None:
    pipeline = pipeline_of()
    assert plan(pipeline, ND96).file == str(tmp_path / "pipeline.yaml")
    monkeypatch.chdir(tmp_path.parent)
    assert plan(pipeline, ND96).file == f"{tmp_path.name}/pipeline.yaml"


def test_more_processes_than_gpus_is_said(pipeline_of) -> None:
    [finding] = jobs_of(plan(pipeline_of(), {"gpus": "Standard_NC64as_T4_v3"}))["train"].findings

    assert finding == ("8 processes share the 4 GPUs of a node; one process per GPU is process_count_per_instance: 4")


def test_one_process_on_a_big_machine_leaves_gpus_idle_without_complaint(pipeline_of) -> None:
    prepare = jobs_of(plan(pipeline_of(), ND96))["prepare"]

    assert (prepare.gpus_used_per_node, prepare.gpus_idle_per_node) == (1, 7)
    assert prepare.findings == ()
    assert prepare.batch is None


def test_a_job_that_names_its_machine_has_that_one(pipeline_of, digits) -> None:
    components, jobs = digits
    jobs["prepare"]["resources"] = {"instance_count": 1, "instance_type": "Standard_D8s_v5"}

    prepare = jobs_of(plan(pipeline_of(components, jobs), ND96))["prepare"]

    assert prepare.sku.name == "Standard_D8s_v5"
    assert prepare.gpu_memory_gb == 0


def test_nothing_is_guessed_of_an_unknown_cluster(pipeline_of) -> None:
    planned = plan(pipeline_of(), {})

    for job in planned.jobs:
        assert (job.sku, job.gpu_memory_gb, job.gpus_used_per_node, job.on_demand, job.spot) == (None,) * 5
        [finding] = job.findings
        assert finding.startswith("unknown machine of the cluster 'gpus': no figures for GPUs and prices; ")
    assert planned.totals.on_demand_usd_per_hour is None
    assert planned.totals.nodes_at_once == {"gpus": 2}


def test_a_pipeline_without_compute_says_so(pipeline_of) -> None:
    planned = plan(pipeline_of(settings={}), ND96)

    assert "unknown machine (no compute is named)" in planned.jobs[0].findings[0]


def test_a_mistyped_machine_is_an_error_at_its_line(pipeline_of, digits) -> None:
    components, jobs = digits
    jobs["train"]["resources"] = {"instance_count": 2, "instance_type": "Standard_ND96asr_v5"}

    with pytest.raises(SpecError, match=r"unknown VM size 'Standard_ND96asr_v5'.*Standard_ND96asr_v4") as raised:
        plan(pipeline_of(components, jobs), ND96)

    span = raised.value.diagnostics[0].span
    assert "Standard_ND96asr_v5" in span.file.read_text(encoding="utf-8").splitlines()[span.line - 1]


def test_a_cluster_of_an_unknown_size_is_named(pipeline_of) -> None:
    with pytest.raises(UsageError, match="the cluster 'gpus': unknown VM size 'Standard_ND'"):
        plan(pipeline_of(), {"gpus": "Standard_ND"})


def test_a_count_below_one_is_an_error_at_its_line(pipeline_of, digits) -> None:
    components, jobs = digits
    jobs["train"]["resources"] = {"instance_count": "${{parent.inputs.nodes}}"}

    with pytest.raises(SpecError, match="'instance_count' of the job 'train' is the number 0; expected a whole"):
        plan(pipeline_of(components, jobs, inputs={"nodes": 0}), ND96)


def test_tensorflow_counts_workers_and_parameter_servers(pipeline_of, digits) -> None:
    components, jobs = digits
    components["train_ddp"].update(
        distribution={"type": "tensorflow", "worker_count": 4, "parameter_server_count": 1},
        resources={"instance_count": 4},
    )

    train = jobs_of(plan(pipeline_of(components, jobs), ND96))["train"]

    assert (train.processes.world_size, train.processes.training_processes) == (5, 4)
    assert str(train.processes) == "5 processes on 4 nodes, at most 2 on each"
    assert train.batch.world_size == 4
    assert (train.gpus_used_per_node, train.findings) == (
        1,
        ("with parameter servers a machine uses one of its 8 GPUs",),
    )

    del components["train_ddp"]["distribution"]["parameter_server_count"]
    train = jobs_of(plan(pipeline_of(components, jobs), ND96))["train"]
    assert (train.gpus_used_per_node, train.findings) == (8, ())


def test_environments_are_named(pipeline_of, digits, tmp_path) -> None:
    components, jobs = digits
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker" / "Dockerfile").write_text("FROM scratch\n", encoding="utf-8")
    (tmp_path / "conda.yaml").write_text("dependencies: []\n", encoding="utf-8")
    components["prepare_images"]["environment"] = {"build": {"path": "./docker"}}
    components["evaluate"]["environment"] = {"image": "ubuntu:24.04", "conda_file": "./conda.yaml"}

    found = jobs_of(plan(pipeline_of(components, jobs), ND96))

    assert found["prepare"].environment == "build context docker/"
    assert found["evaluate"].environment == "image ubuntu:24.04 with conda file conda.yaml"


@st.composite
def weighted_graphs(draw: st.DrawFn) -> tuple[dict[str, int], dict[str, frozenset[str]]]:
    names = [f"job_{number}" for number in range(draw(st.integers(1, 8)))]
    waits_for = {
        name: frozenset(draw(st.lists(st.sampled_from(names[:number]), max_size=3))) if number else frozenset()
        for number, name in enumerate(names)
    }
    return {name: draw(st.integers(0, 9)) for name in names}, waits_for


@given(weighted_graphs())
def test_most_at_once_is_what_trying_every_set_of_jobs_finds(
    graph: tuple[dict[str, int], dict[str, frozenset[str]]],
) -> None:
    weights, waits_for = graph
    before: dict[str, set[str]] = {}
    for name, sources in waits_for.items():
        before[name] = set(sources).union(*(before[source] for source in sources))

    def together(names: tuple[str, ...]) -> bool:
        return not any(one in before[other] or other in before[one] for one, other in combinations(names, 2))

    sets = (names for size in range(len(weights) + 1) for names in combinations(weights, size) if together(names))
    assert most_at_once(weights, waits_for) == max(sum(weights[name] for name in names) for names in sets)


def test_a_sweep_takes_the_machines_of_all_trials_that_run_at_one_time(pipeline_of, digits) -> None:
    components, jobs = digits
    search = {
        "type": "sweep",
        "trial": "./train_ddp.yaml",
        "sampling_algorithm": "random",
        "search_space": {"global_batch_size": {"type": "choice", "values": [1024, 2048]}},
        "objective": {"primary_metric": "accuracy", "goal": "maximize"},
        "limits": {"max_total_trials": 6, "max_concurrent_trials": 3},
        "inputs": jobs["train"]["inputs"],
    }
    planned = plan(pipeline_of(components, {"prepare": jobs["prepare"], "search": search}), ND96)

    found = jobs_of(planned)["search"]
    assert (found.kind.name, found.processes.nodes, found.kind.machines) == ("sweep", 2, 6)
    assert found.on_demand.usd_per_hour == pytest.approx(6 * 27.197)
    assert planned.totals.nodes_at_once == {"gpus": 6}
    assert found.batch.global_batch_size == 1024
    assert dict(found.kind.facts) == {
        "sweep": "6 trials, at most 3 at one time, sampling random",
        "searches": "global_batch_size choice of 1024, 2048: maximize accuracy",
    }


def test_a_parallel_job_says_how_many_mini_batches_run_at_one_time(pipeline_of, tmp_path) -> None:
    (tmp_path / "score.py").write_text("def run(files):\n    return files\n")
    job = {
        "type": "parallel",
        "mini_batch_size": "10",
        "input_data": "${{inputs.files}}",
        "max_concurrency_per_instance": 4,
        "resources": {"instance_count": 3},
        "inputs": {"files": {"type": "uri_folder", "path": "azureml:files:1"}},
        "task": {"type": "run_function", "entry_script": "score.py", "code": ".", "environment": "azureml:score:1"},
    }
    (found,) = plan(pipeline_of(jobs={"score": job}), {"gpus": "Standard_D8s_v5"}).jobs

    assert (found.kind.name, found.kind.machines) == ("parallel", 3)
    assert found.kind.facts == (("parallel", "mini-batches of 10, 12 at one time (4 on each node)"),)
    assert found.on_demand.usd_per_hour == pytest.approx(3 * 0.384)
    del job["max_concurrency_per_instance"]
    (found,) = plan(pipeline_of(jobs={"score": job}), {"gpus": "Standard_D8s_v5"}).jobs
    assert found.kind.facts == (("parallel", "mini-batches of 10, 24 at one time (8 on each node)"),)


def test_a_spark_job_takes_a_machine_for_its_driver_and_each_executor(pipeline_of, tmp_path) -> None:
    (tmp_path / "clean.py").write_text("print('clean')\n")
    job = {
        "type": "spark",
        "code": ".",
        "entry": {"file": "clean.py"},
        "conf": {
            "spark.driver.cores": 1,
            "spark.driver.memory": "2g",
            "spark.executor.cores": 2,
            "spark.executor.memory": "2g",
            "spark.executor.instances": 2,
        },
        "resources": {"instance_type": "standard_e4s_v3", "runtime_version": "3.4"},
    }
    (found,) = plan(pipeline_of(jobs={"clean": job}), {}).jobs

    assert (found.kind.name, found.kind.machines, found.sku.name) == ("spark", 3, "Standard_E4s_v3")
    assert found.compute == "serverless"
    assert dict(found.kind.facts) == {
        "Spark": "1 driver and 2 executors: driver with 1 cores and 2g memory, executor with 2 cores and 2g memory"
    }
