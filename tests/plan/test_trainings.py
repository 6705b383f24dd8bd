"""What a plan says of a training: read from the pipeline, estimated, compared with runs and with other machines."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from trainyard.errors import UsageError
from trainyard.estimate.training import TrainingShape
from trainyard.plan import page, reporters
from trainyard.plan.measured import read_measured
from trainyard.plan.planner import JobPlan, Plan
from trainyard.plan.planner import plan as plan_with
from trainyard.resources import schema_file
from trainyard.spec.computes import Computes
from trainyard.spec.findings import DocumentStore
from trainyard.spec.loading import load_pipeline

ROOT = Path(__file__).parents[2]


def _plan(recipe: str, sku: str = "Standard_ND96asr_v4") -> Plan:
    """The plan of a committed pipeline as if its cluster were of this size."""
    pipeline = load_pipeline(ROOT / "pipelines" / f"{recipe}.yaml")
    return plan_with(pipeline, Computes(DocumentStore(), {"gpu-t4": sku}))


def _job(planned: Plan) -> JobPlan:
    return next(job for job in planned.jobs if job.is_training)


def _training(recipe: str) -> TrainingShape:
    found = _job(_plan(recipe)).estimate
    assert found is not None
    return found.training


def test_a_zero_job_is_read_from_its_inputs_and_deepspeeds_file() -> None:
    training = _training("deepspeed")
    shape = training.architecture
    assert (training.engine, training.offload_optimizer) == ("zero2", False)
    assert (shape.layers, shape.hidden_size, shape.vocabulary_size, shape.tied) == (3, 128, 2048, True)
    assert (training.micro_batch_size, training.accumulation_steps, training.sequence_length) == (2, 1, 128)
    assert (training.precision, training.activation_checkpointing, training.compiled) == ("fp32", "none", False)


def test_an_fsdp_job_keeps_its_parameters_gathered_where_the_pipeline_says_so() -> None:
    training = _training("fsdp")
    assert training.engine == "fsdp"
    assert not training.reshard_after_forward


def test_an_image_classifier_is_not_estimated_and_says_so() -> None:
    train = _job(_plan("ddp"))
    assert train.estimate is None
    assert train.estimate_reason == "only language models are estimated"
    assert "not estimated" in reporters.as_text(_plan("ddp"))


def test_text_stays_on_one_screen_and_says_all() -> None:
    text = reporters.as_text(_plan("deepspeed"))
    assert len(text.splitlines()) <= 50
    for label in ("model", "settings", "memory", "time", "scaling", "money", "spot", "quota"):
        assert f"\n  {label:<13}" in text


@pytest.mark.parametrize("recipe", ["ddp", "deepspeed"])
def test_json_is_as_its_schema_says(recipe: str) -> None:
    schema = json.loads(schema_file("plan").read_text(encoding="utf-8"))
    document = json.loads(reporters.as_json(_plan(recipe)))
    jsonschema.validate(document, schema, cls=jsonschema.Draft202012Validator)


def test_a_model_that_does_not_fit_is_a_finding() -> None:
    train = _job(_plan("fsdp"))
    assert train.estimate is not None
    large = replace(train.estimate.training, sequence_length=10**7)
    assert not replace(train.estimate, training=large, memory=replace(train.estimate.memory, activations=1e12)).fits


def _measured(tmp_path: Path, replaces: bool) -> Plan:
    lines = [
        {"step": 1, "step_seconds_p50": 0.2, "tokens_per_second": 1000, "peak_memory_bytes": 1e9},
        {"step": 500, "step_seconds_p50": 0.1, "tokens_per_second": 2000, "peak_memory_bytes": 2e9},
    ]
    file = tmp_path / "metrics.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    measured = read_measured(file, "a-run", processes=2, replaces=replaces)
    planned = _plan("deepspeed")
    return replace(
        planned, jobs=tuple(replace(job, measured=measured) if job.is_training else job for job in planned.jobs)
    )


def test_what_was_measured_on_the_same_machines_replaces_the_estimate(tmp_path: Path) -> None:
    planned = _measured(tmp_path, replaces=True)
    job = json.loads(reporters.as_json(planned))["jobs"]["train_deepspeed"]
    assert job["memory"]["total_bytes_per_gpu"] == 2e9
    assert job["time"]["step_seconds"] == 0.2
    assert job["money"]["on_demand_usd"] == pytest.approx(500 * 0.2 / 3600 * 27.197)
    assert job["measured"]["estimate_differs_by"]["memory"] < 0
    assert "estimated: step_seconds" in reporters.as_text(planned)


def test_a_local_run_gives_its_steps_and_stands_beside_the_estimate(tmp_path: Path) -> None:
    planned = _measured(tmp_path, replaces=False)
    job = json.loads(reporters.as_json(planned))["jobs"]["train_deepspeed"]
    assert job["memory"]["total_bytes_per_gpu"] != 2e9
    assert job["money"]["on_demand_usd"] == pytest.approx(500 * job["time"]["step_seconds"] / 3600 * 27.197)
    assert "a-run: 500 steps, on 2 processes" in reporters.as_text(planned)


@pytest.mark.parametrize(
    ("content", "words"), [("{", ":1: not a line"), ("[]", "expected an object"), ('{"loss": 1}', "no steps")]
)
def test_a_broken_metrics_file_is_named_with_its_line(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(UsageError, match=words):
        read_measured(file, "a-run", processes=None, replaces=True)


def test_the_fastest_and_the_cheapest_profile_are_named() -> None:
    found = _job(_plan("deepspeed")).estimate
    slower = _job(_plan("deepspeed", "Standard_ND40rs_v2")).estimate
    assert found is not None
    assert slower is not None
    rows = reporters.profile_rows(
        [reporters.OnProfile("nd96", "train", found), reporters.OnProfile("nd40", "train", slower)]
    )
    assert [row[0] for row in rows if "fastest" in row[-1]] == ["nd96"]
    assert sum("cheapest" in row[-1] for row in rows) == 1


def test_the_page_stands_alone_and_draws_memory_and_scaling() -> None:
    pipeline = load_pipeline(ROOT / "pipelines" / "deepspeed.yaml")
    text = page.as_html(_plan("deepspeed"), pipeline, [])
    assert text.count("<svg") == 2
    assert "1024 nodes" in text
    assert "http" not in text.replace("https://learn", "")
