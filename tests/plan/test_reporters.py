"""A plan as text, JSON and Markdown, and a pipeline as a drawing."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import jsonschema

from trainyard.catalogue.skus import find_sku
from trainyard.plan import drawing, reporters
from trainyard.plan.estimate.architectures import find_architecture
from trainyard.plan.estimate.estimator import estimate
from trainyard.plan.estimate.training import TrainingShape, machines_of_sku
from trainyard.plan.job_plans import Plan
from trainyard.plan.planner import plan as plan_with
from trainyard.plan.reporters import OnProfile, profile_table
from trainyard.report.plan_page import as_html
from trainyard.resources import schema_file
from trainyard.spec.computes import Computes
from trainyard.spec.findings import DocumentStore
from trainyard.spec.model import Pipeline

ND96 = {"gpus": "Standard_ND96asr_v4"}


def plan(pipeline: Pipeline, sizes: dict[str, str]) -> Plan:
    """The plan of a pipeline on clusters of these sizes."""
    return plan_with(pipeline, Computes(DocumentStore(), sizes))


def test_text_says_what_each_job_takes(pipeline_of) -> None:
    text = reporters.as_text(plan(pipeline_of(), ND96))

    train = text.split("\n\n")[2]
    assert train.splitlines() == [
        "train   train_ddp, after prepare",
        "  processes    2 nodes × 8 per node = 16 processes",
        "  compute      gpus",
        "  machine      2 × Standard_ND96asr_v4 (8 × NVIDIA A100 SXM4 40GB, 96 vCPUs, 900 GiB), "
        "InfiniBand 1600 Gbit/s a node",
        "  batch        32 micro × 2 accumulation × 16 processes = 1024 samples",
        "  environment  azureml://registries/azureml/environments/acpt-pytorch-2.8-cuda12.6/versions/9",
        "  price        on demand $54.394 an hour (eastus, 2026-11-09); spot $5.983 an hour (eastus, 2024-08-27)",
    ]
    assert "GPUs         1 of 8 a node, 7 idle" in text
    assert "  quota        192 vCPUs of Standard_ND96asr_v4" in text


def test_a_job_kept_in_azure_ml_is_in_every_format(pipeline_of, digits) -> None:
    components, jobs = digits
    jobs["train"]["component"] = "azureml://registries/shared/components/train/versions/1"
    pipeline = pipeline_of(components, jobs)
    planned = plan(pipeline, ND96)
    text = reporters.as_text(planned)

    assert (
        "train   azureml://registries/shared/components/train/versions/1, after prepare\n"
        "  kept in Azure ML: not known here\n" in text
    )
    assert "  not counted  train" in text.split("at one time, at most")[1]
    assert "| `train` | kept in Azure ML: not known here |" in reporters.as_markdown(planned)
    assert "components/train/versions/1: kept in Azure ML: not known here" in as_html(planned, pipeline, [])
    document = json.loads(reporters.as_json(planned))
    jsonschema.validate(document, json.loads(schema_file("plan").read_text(encoding="utf-8")))
    assert document["not_planned"]["train"]["waits_for"] == ["prepare"]


def test_text_points_at_what_should_be_looked_at(pipeline_of) -> None:
    text = reporters.as_text(plan(pipeline_of(), {"gpus": "Standard_NC24"}))

    assert (
        "  ! look at    Standard_NC24 was retired on 2023-08-31; closest current sizes: Standard_NC64as_T4_v3" in text
    )
    assert "on demand no price found" in text
    assert "GiB), no InfiniBand" in text
    assert "  on demand    not known" in text.split("at one time, at most")[1]


def test_text_without_a_machine_and_with_one_without_gpus(pipeline_of) -> None:
    assert "machine  " not in reporters.as_text(plan(pipeline_of(), {}))
    text = reporters.as_text(plan(pipeline_of(), {"gpus": "Standard_D8s_v5"}))
    assert "Standard_D8s_v5 (8 vCPUs, 32 GiB, no GPU)" in text
    share = reporters.as_text(plan(pipeline_of(), {"gpus": "Standard_NV6ads_A10_v5"}))
    assert "1 × 1/6 of a NVIDIA A10" in share


def test_json_holds_the_same_with_units_in_the_names(pipeline_of) -> None:
    document = json.loads(reporters.as_json(plan(pipeline_of(), ND96)))

    assert document["format"] == "trainyard.plan/2"
    assert list(document["jobs"]) == ["prepare", "train", "evaluate"]
    train = document["jobs"]["train"]
    assert train["world_size"] == 16
    assert train["sku"] == "Standard_ND96asr_v4"
    money = train["money"]
    assert (money["on_demand_usd_per_hour"], money["region"], money["date"]) == (54.394, "eastus", "2026-11-09")
    assert money["on_demand_usd"] is None
    assert "how long" in money["reason"]
    assert train["memory"]["total_bytes_per_gpu"] is None
    assert train["time"]["reason"] == "only Trainyard's training steps are estimated"
    assert train["batch"] == {
        "micro_batch_size": 32,
        "accumulation_steps": 2,
        "world_size": 16,
        "global_batch_size": 1024,
        "sequence_length": None,
        "tokens_per_step": None,
        "fits": True,
        "nearest_global_batch_sizes": [],
    }
    assert document["at_one_time"] == {
        "nodes": {"gpus": 2},
        "vcpus": {"Standard_ND96asr_v4": 192},
        "on_demand_usd_per_hour": 54.394,
        "spot_usd_per_hour": 5.98334,
    }


def test_tokens_per_step_follow_from_the_job_that_prepares_the_text(pipeline_of, digits) -> None:
    components, jobs = digits
    components["prepare_images"]["inputs"]["sequence_length"] = {"type": "integer", "default": 256}
    planned = plan(pipeline_of(components, jobs), ND96)

    batch = "32 micro × 2 accumulation × 16 processes = 1024 samples × 256 = 262,144 tokens"
    assert f"  batch        {batch}\n" in reporters.as_text(planned)
    assert f"| {batch} |" in reporters.as_markdown(planned)
    train = json.loads(reporters.as_json(planned))["jobs"]["train"]
    assert (train["batch"]["sequence_length"], train["batch"]["tokens_per_step"]) == (256, 262_144)


def test_json_has_null_for_what_is_not_known(pipeline_of) -> None:
    prepare = json.loads(reporters.as_json(plan(pipeline_of(), {})))["jobs"]["prepare"]

    assert [prepare[key] for key in ("sku", "gpu_memory_gb", "rdma", "batch")] == [None] * 4
    assert prepare["money"]["on_demand_usd_per_hour"] is None
    assert "machine is not known" in prepare["money"]["reason"]


def test_markdown_is_a_table_with_findings_beneath(pipeline_of, digits) -> None:
    components, jobs = digits
    jobs["train"]["inputs"]["global_batch_size"] = 1000
    text = reporters.as_markdown(plan(pipeline_of(components, jobs, display_name="a|b"), ND96))

    assert text.startswith("### Plan of `a|b`")
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 5
    assert table[2] == (
        "| `prepare` | 1 × Standard_ND96asr_v4 | 1 process on 1 node | 1 of 8 a node, 7 idle | – | 27.197 | 2.992 |"
    )
    assert "- **train**: batch sizes do not multiply out" in text
    assert "Prices: eastus, 2026-11-09; eastus, 2024-08-27" in text
    totals = "nodes 2 of gpus; quota 192 vCPUs of Standard_ND96asr_v4; on demand $54.394 an hour; spot $5.983 an hour."
    assert f"At one time, at most: {totals}" in text


def test_markdown_of_an_unknown_cluster(pipeline_of) -> None:
    text = reporters.as_markdown(plan(pipeline_of(), {}))

    assert "| `prepare` | not known | 1 process on 1 node | not known | – | not known | not known |" in text
    assert "Prices:" not in text
    assert "| no GPU |" in reporters.as_markdown(plan(pipeline_of(), {"gpus": "Standard_D8s_v5"}))


def test_a_drawing_leads_a_line_from_each_output_to_its_readers(pipeline_of) -> None:
    assert drawing.as_text(pipeline_of()).splitlines() == [
        "┌────────────────────────────────────────────────────────┐",
        "│ prepare  prepare_images · 1 process on 1 node          │",
        "│   ▷ prepared                                           ├─┐",
        "└────────────────────────────────────────────────────────┘ │",
        "┌────────────────────────────────────────────────────────┐ │",
        "│ train  train_ddp · 2 nodes × 8 per node = 16 processes │ │",
        "│   ◁ data                                               ├─┤",
        "│   ▷ model                                              ├─┼─┐",
        "└────────────────────────────────────────────────────────┘ │ │",
        "┌────────────────────────────────────────────────────────┐ │ │",
        "│ evaluate  evaluate · 1 process on 1 node               │ │ │",
        "│   ◁ data                                               ├─┘ │",
        "│   ◁ model                                              ├───┘",
        "└────────────────────────────────────────────────────────┘",
    ]


def test_a_column_is_used_again_when_its_line_has_ended(pipeline_of, make_component) -> None:
    chain = {"step": make_component("step", {"data": None}, ("data",))}
    first = make_component("first", outputs=("data",))
    names = ["a", "b", "c", "d"]
    jobs = {"a": {"type": "command", "component": "./first.yaml"}}
    for before, name in pairwise(names):
        source = f"${{{{parent.jobs.{before}.outputs.data}}}}"
        jobs[name] = {"type": "command", "component": "./step.yaml", "inputs": {"data": source}}

    lines = drawing.as_text(pipeline_of({**chain, "first": first}, jobs)).splitlines()

    assert max(map(len, lines)) == len(lines[0]) + 2
    assert sum("┐" in line[-1] and "▷" in line for line in lines) == 3


def test_one_job_alone_is_a_box(pipeline_of, digits) -> None:
    components, jobs = digits

    assert drawing.as_text(pipeline_of(components, {"prepare": jobs["prepare"]})).splitlines() == [
        "┌───────────────────────────────────────────────┐",
        "│ prepare  prepare_images · 1 process on 1 node │",
        "└───────────────────────────────────────────────┘",
    ]


def test_mermaid(pipeline_of) -> None:
    assert drawing.as_mermaid(pipeline_of()).splitlines() == [
        "flowchart LR",
        '  job_prepare["<b>prepare</b><br>prepare_images · 1 process on 1 node"]',
        '  job_train["<b>train</b><br>train_ddp · 2 nodes × 8 per node = 16 processes"]',
        '  job_evaluate["<b>evaluate</b><br>evaluate · 1 process on 1 node"]',
        '  job_prepare -->|"prepared → data"| job_train',
        '  job_prepare -->|"prepared → data"| job_evaluate',
        '  job_train -->|"model"| job_evaluate',
    ]


A100 = machines_of_sku(find_sku("Standard_ND96asr_v4"), 2)


def on_sizes(training: TrainingShape, *sizes: str) -> list[OnProfile]:
    """A training on two machines of each size, as a profile of that name."""
    return [
        OnProfile(size, "train", estimate(replace(training, machines=machines_of_sku(find_sku(f"Standard_{size}"), 2))))
        for size in sizes
    ]


def test_each_profile_has_the_place_and_day_of_its_price_and_others_are_marked() -> None:
    """The catalogue's prices of H100 and A100 were looked up again in November; those of T4 are of June."""
    training = TrainingShape(find_architecture("gpt2"), A100, "ddp", 1, 1, 1024, precision="fp16")
    header, *rows = profile_table(on_sizes(training, "ND96asr_v4", "ND96isr_H100_v5", "ND40rs_v2"))
    place = header.index("price of")
    assert [row[place] for row in rows] == ["eastus, 2026-11-09", "eastus, 2026-11-09", "eastus, 2026-06-18"]
    assert ["price of another region or day" in row[-1] for row in rows] == [False, False, True]


def test_profiles_that_tie_are_named_alike() -> None:
    """A step that waits for Python takes as long on an H200 as on an H100, to 2 %; an A100's is not among them."""
    training = TrainingShape(find_architecture("llama-2-7b"), A100, "fsdp", 1, 1, 256)
    sizes = ("ND96asr_v4", "ND96isr_H100_v5", "ND96isr_H200_v5")
    _, *rows = profile_table(on_sizes(training, *sizes))
    assert ["fastest" in row[-1] for row in rows] == [False, True, True]
    steps = [
        [found.estimate.time for found in on_sizes(replace(training, sequence_length=tokens), *sizes[1:])]
        for tokens in (256, 128)
    ]
    assert steps[0] == steps[1], "with half the tokens a step takes as long: it waits for Python"
    _, *rows = profile_table(on_sizes(replace(training, sequence_length=4096), *sizes))
    assert ["fastest" in row[-1] for row in rows] == [False, False, True], "here the GPUs set the pace"
