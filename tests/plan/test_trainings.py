"""What a plan says of a training: read from the pipeline, estimated, compared with runs and with other machines."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from trainyard.cli import main
from trainyard.cli.plan import read_measured
from trainyard.errors import UsageError
from trainyard.plan import reporters
from trainyard.plan.estimate import estimator
from trainyard.plan.estimate import reporters as estimates
from trainyard.plan.estimate.architectures import Architecture, find_architecture
from trainyard.plan.estimate.training import TrainingShape
from trainyard.plan.job_plans import JobPlan, Plan
from trainyard.plan.planner import plan as plan_with
from trainyard.plan.training_jobs import NOTHING_STATED, Stated
from trainyard.render.project import Project
from trainyard.render.rendering import render
from trainyard.render.writing import write
from trainyard.report.plan_page import as_html
from trainyard.resources import schema_file
from trainyard.spec.computes import Computes
from trainyard.spec.findings import DocumentStore
from trainyard.spec.loading import load_job
from trainyard.spec.model import Pipeline

ROOT = Path(__file__).parents[2]


def _plan(recipe: str, sku: str = "Standard_ND96asr_v4", base_model: Architecture | None = None) -> Plan:
    """The plan of a committed pipeline as if its cluster were of this size."""
    pipeline = load_job(ROOT / "pipelines" / f"{recipe}.yaml", strict=True)
    return plan_with(pipeline, Computes(DocumentStore(), {"gpu-t4": sku}), Stated(base_model))


def _with_overrides(tmp_path: Path, recipe: str, overrides: str, changes: dict[str, str] | None = None) -> Pipeline:
    """A committed pipeline whose training has other settings, and with other changes of its text."""
    text = (ROOT / "pipelines" / f"{recipe}.yaml").read_text(encoding="utf-8").replace("../", f"{ROOT}/")
    for old, new in {'overrides: "{}"': f'overrides: "{overrides}"', **(changes or {})}.items():
        assert old in text
        text = text.replace(old, new)
    file = tmp_path / f"{recipe}.yaml"
    file.write_text(text, encoding="utf-8")
    return load_job(file, strict=True)


def _job(planned: Plan) -> JobPlan:
    return next(job for job in planned.jobs if job.is_training)


def _training(recipe: str) -> TrainingShape:
    found = _job(_plan(recipe)).estimate
    assert found is not None
    return found.training


def test_a_zero_job_is_read_from_its_inputs_and_deepspeeds_file() -> None:
    training = _training("deepspeed")
    shape = training.language_model
    assert (training.engine, training.offload_optimizer) == ("zero2", False)
    assert (shape.layers, shape.hidden_size, shape.vocabulary_size, shape.tied) == (3, 128, 2048, True)
    assert (training.micro_batch_size, training.accumulation_steps, training.sequence_length) == (2, 1, 128)
    assert (training.precision, training.activation_checkpointing, training.compiled) == ("fp32", "none", False)


def test_an_fsdp_job_keeps_its_parameters_gathered_where_the_pipeline_says_so() -> None:
    training = _training("fsdp")
    assert training.engine == "fsdp"
    assert not training.reshard_after_forward


@pytest.mark.parametrize("recipe", ["ddp", "horovod", "lightning", "sweep"])
def test_an_image_classifier_is_sized_to_its_images_and_fits(recipe: str) -> None:
    planned = _plan(recipe)
    found = _job(planned).estimate
    assert found is not None
    assert (found.training.engine, found.training.architecture.parameters) == ("ddp", 221_002)
    assert found.fits
    assert found.tokens_per_second is None
    text = reporters.as_text(planned)
    assert "images a second and GPU" in text
    assert "tokens" not in text
    time = json.loads(reporters.as_json(planned))["jobs"][_job(planned).name]["time"]
    assert time["tokens_per_second_per_gpu"] is None
    assert time["samples_per_second_per_gpu"] == pytest.approx(found.training.micro_batch_size / found.time.total)


def test_images_and_classes_that_are_not_known_are_assumed_and_said(tmp_path: Path) -> None:
    text = (ROOT / "pipelines" / "ddp.yaml").read_text(encoding="utf-8").replace("../", f"{ROOT}/")
    for old, new in (("format: digits", "format: folder"), ("image_size: 0", "image_size: 128")):
        text = text.replace(old, new)
    source = "image_size: ${{parent.inputs.image_size}}\n      source: {type: uri_folder, path: azureml:images:1}"
    file = tmp_path / "ddp.yaml"
    file.write_text(text.replace("image_size: ${{parent.inputs.image_size}}", source), encoding="utf-8")
    found = _job(
        plan_with(load_job(file, strict=True), Computes(DocumentStore(), {"gpu-t4": "Standard_ND96asr_v4"}))
    ).estimate
    assert found is not None
    assert found.training.architecture.parameters == 28_589_128
    assert estimates.model_text(found.training).endswith("parameters; 1000 classes are assumed")


def test_a_base_model_that_azure_ml_keeps_is_named_and_can_be_given() -> None:
    assert "--base-model" in _job(_plan("finetune")).estimate_reason
    planned = _plan("finetune", base_model=find_architecture("llama-3.2-1b"))
    found = _job(planned).estimate
    assert found is not None
    assert found.training.architecture.parameters == 1_235_814_400
    assert found.training.adapters is not None
    assert found.training.trained_parameters == 11_272_192
    assert found.training.activation_checkpointing == "full"
    assert found.memory.optimizer == pytest.approx(8 * 11_272_192 / 4)
    assert "LoRA of rank 16" in reporters.as_text(planned)


def test_adapters_that_the_step_does_not_train_are_not_estimated(tmp_path: Path) -> None:
    pipeline = _with_overrides(tmp_path, "finetune", "{tuning: qlora}")
    computes = Computes(DocumentStore(), {"gpu-t4": "Standard_ND96asr_v4"})
    reason = _job(plan_with(pipeline, computes, Stated(find_architecture("llama-3.2-1b")))).estimate_reason
    assert "the engine fsdp does not train these adapters; ddp does" in reason


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_what_adapters_drop_out_is_estimated(tmp_path: Path, dropout: float) -> None:
    computes = Computes(DocumentStore(), {"gpu-t4": "Standard_ND96asr_v4"})
    pipeline = _with_overrides(tmp_path, "finetune", f"{{lora_dropout: {dropout}}}")
    found = _job(plan_with(pipeline, computes, Stated(find_architecture("gpt2")))).estimate
    assert found is not None
    assert found.training.adapters is not None
    assert found.training.adapters.drops_out is (dropout > 0)


def test_adapters_of_an_unknown_rank_are_not_estimated(tmp_path: Path) -> None:
    kept = {f"{ROOT}/settings/finetune.yaml}}": "azureml:kept-in-azure-ml:1}"}
    pipeline = _with_overrides(tmp_path, "finetune", "{tuning: lora, task: language_modeling}", kept)
    computes = Computes(DocumentStore(), {"gpu-t4": "Standard_ND96asr_v4"})
    reason = _job(plan_with(pipeline, computes, Stated(find_architecture("llama-3.2-1b")))).estimate_reason
    assert "the rank of the adapters is not known" in reason


def test_a_base_model_in_a_folder_is_read_from_its_config(tmp_path: Path) -> None:
    folder = tmp_path / "base" / "data"
    folder.mkdir(parents=True)
    config = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 500}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    pipeline = _with_overrides(tmp_path, "finetune", "{tuning: full}", {"azureml:my-base-model:1": "./base"})
    found = _job(plan_with(pipeline, Computes(DocumentStore(), {"gpu-t4": "Standard_ND96asr_v4"}))).estimate
    assert found is not None
    assert found.training.adapters is None
    assert (found.training.language_model.layers, found.training.language_model.vocabulary_size) == (2, 500)


def test_the_chunks_of_a_loss_are_read_from_the_pipeline(tmp_path: Path) -> None:
    pipeline = _with_overrides(tmp_path, "fsdp", "{loss_chunk_tokens: 64}")
    computes = Computes(DocumentStore(), {"gpu-t4": "Standard_ND96asr_v4"})
    found, whole = _job(plan_with(pipeline, computes)).estimate, _job(_plan("fsdp")).estimate
    assert found is not None
    assert whole is not None
    assert found.memory.logits == pytest.approx(whole.memory.logits / 4)


@pytest.mark.parametrize("value", [True, False])
def test_deterministic_algorithms_are_read_from_the_pipeline(tmp_path: Path, value: bool) -> None:
    """They are the default of the steps."""
    assert _training("fsdp").is_deterministic
    pipeline = _with_overrides(tmp_path, "fsdp", f"{{deterministic: {str(value).lower()}}}")
    found = _job(plan_with(pipeline, Computes(DocumentStore(), {"gpu-t4": "Standard_ND96asr_v4"}))).estimate
    assert found is not None
    assert found.training.is_deterministic is value


def test_a_training_that_mixes_data_says_how(tmp_path: Path) -> None:
    project = Project(ROOT)
    write(project, render(project, "nd96", {"pipelines.fsdp.more_sources": ["books", "code"]}, tmp_path))
    file = tmp_path / "pipelines" / "fsdp.yaml"
    text = file.read_text(encoding="utf-8").replace("../settings", f"{ROOT}/settings")
    computes = Computes(DocumentStore(), {"gpu-nd96": "Standard_ND96asr_v4"})

    file.write_text(text.replace('overrides: "{}"', 'overrides: "{data_weights: \\"2,1,1\\"}"'), encoding="utf-8")
    planned = plan_with(load_job(file, strict=True), computes)
    assert _job(planned).data_shares == {"prepare_text": 0.5, "prepare_text_2": 0.25, "prepare_text_3": 0.25}
    assert "50.0% of the samples from prepare_text, 25.0% of the samples from prepare_text_2" in reporters.as_text(
        planned
    )

    file.write_text(text, encoding="utf-8")
    planned = plan_with(load_job(file, strict=True), computes)
    assert "each sample of prepare_text, prepare_text_2, prepare_text_3 once" in reporters.as_text(planned)
    jsonschema.validate(json.loads(reporters.as_json(planned)), json.loads(schema_file("plan").read_text()))


def test_plan_and_estimate_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """FSDP in replicas of a machine with a moving average: from a pipeline's inputs, and from flags."""
    project = Project(ROOT)
    write(project, render(project, "nd96", {}, tmp_path))
    file = tmp_path / "pipelines" / "fsdp.yaml"
    text = file.read_text(encoding="utf-8").replace("../settings", f"{ROOT}/settings")
    file.write_text(text.replace('overrides: "{}"', 'overrides: "{ema_decay: 0.999}"'), encoding="utf-8")
    computes = Computes(DocumentStore(), {"gpu-nd96": "Standard_ND96asr_v4"})
    planned = _job(plan_with(load_job(file, strict=True), computes)).estimate
    assert planned is not None
    training, shape = planned.training, planned.training.language_model
    assert (training.shard_size, training.has_moving_average) == (8, True)

    config = {"model_type": "llama", "vocab_size": shape.vocabulary_size, "hidden_size": shape.hidden_size}
    config |= {"num_hidden_layers": shape.layers, "num_attention_heads": shape.heads, "tie_word_embeddings": shape.tied}
    config |= {"intermediate_size": shape.intermediate_size, "num_key_value_heads": shape.kv_heads}
    (tmp_path / "config.json").write_text(json.dumps(config))
    flags = {
        "--model": tmp_path / "config.json",
        "--sku": "Standard_ND96asr_v4",
        "--nodes": 2,
        "--engine": "fsdp",
        "--micro-batch-size": training.micro_batch_size,
        "--accumulation-steps": training.accumulation_steps,
        "--sequence-length": training.sequence_length,
        "--precision": training.precision,
        "--activation-checkpointing": training.activation_checkpointing,
        "--shard-size": 8,
        "--ema-decay": 0.9,
        "--format": "json",
    }
    words = [str(word) for flag in flags.items() for word in flag]
    words += ["--compile"] if training.compiled else []
    words += [] if training.reshard_after_forward else ["--no-reshard"]
    with pytest.raises(SystemExit):
        main(["estimate", *words])
    (job,) = json.loads(capsys.readouterr().out)["jobs"].values()
    assert job["memory"] == estimates.memory_as_json(planned)
    assert job["time"] == estimates.time_as_json(planned)


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
    assert job["money"]["on_demand_usd"] == pytest.approx((600 + 500 * 0.2) / 3600 * 27.197)
    assert job["measured"]["estimate_differs_by"]["memory"] < 0
    assert "estimated: step_seconds" in reporters.as_text(planned)
    whole = "500 steps in 1 min 40 s, about 10 min 00 s to start (machine, image, data), $5.29 on demand"
    assert whole in reporters.as_text(planned)


def test_a_local_run_stands_beside_the_estimate_and_says_nothing_of_the_number_of_steps(tmp_path: Path) -> None:
    planned = _measured(tmp_path, replaces=False)
    job = json.loads(reporters.as_json(planned))["jobs"]["train_deepspeed"]
    assert job["memory"]["total_bytes_per_gpu"] != 2e9
    assert job["money"]["on_demand_usd"] is None
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
    """Of a model for which a GPU, and not Python, sets the pace: that of the pipeline ties on both."""
    jobs = [_job(_plan("deepspeed", size)).estimate for size in ("Standard_ND96asr_v4", "Standard_NC64as_T4_v3")]
    large = find_architecture("gpt2")
    found, slower = (
        estimator.estimate(replace(each.training, architecture=large)) for each in jobs if each is not None
    )
    assert found.time is not None
    assert slower.time is not None
    assert slower.time.total > 2 * found.time.total
    _, *rows = reporters.profile_table(
        [reporters.OnProfile("nd96", "train", found), reporters.OnProfile("t4", "train", slower)]
    )
    assert [row[0] for row in rows if "fastest" in row[-1]] == ["nd96"]
    assert sum("cheapest" in row[-1] for row in rows) == 1


def test_the_page_stands_alone_and_draws_graph_memory_time_and_scaling() -> None:
    pipeline = load_job(ROOT / "pipelines" / "deepspeed.yaml", strict=True)
    text = as_html(_plan("deepspeed"), pipeline, [])
    for job in ("prepare_text", "train_deepspeed", "evaluate"):
        assert text.count(f'href="#job-{job}"') == 2, "once for wide and once for narrow screens"
        assert f'id="job-{job}"' in text
    assert "prepare_text → train_deepspeed\nprepared → data" in text
    bars = re.findall(r'style="left:[\d.]+%;width:([\d.]+)%" title="(\w+): [\d.]+ [kMG]B"', text)
    assert [name for _, name in bars] == ["parameters", "gradients", "optimizer", "activations", "logits"]
    assert 0 < sum(float(share) for share, _ in bars) <= 100.1
    times = re.findall(r'style="left:[\d.]+%;width:([\d.]+)%" title="([\w ]+): [\d.]+ m?s"', text)
    assert [name for _, name in times] == ["forward", "backward", "optimizer", "exchange", "between steps"]
    assert sum(float(share) for share, _ in times) == pytest.approx(100, abs=0.1)
    assert "of the exchange is hidden" in text
    assert "1,024 nodes" in text
    assert "micro-batch × accumulation × processes" in text
    assert "http://" not in text
    assert "https://" not in text.replace("https://learn", "")


@pytest.mark.parametrize(
    ("recipe", "overrides", "stated", "steps"),
    [
        ("fsdp", "{max_tokens: 100000}", Stated(), 98),
        ("fsdp", "{max_tokens: 100000, max_steps: 50}", Stated(), 50),
        ("fsdp", "{epochs: 3}", Stated(tokens=1e6), 3 * 977),
        ("fsdp", "{epochs: 3, max_steps: 100}", Stated(tokens=1e6), 100),
        ("ddp", "{epochs: 2}", Stated(images=1000), 2 * 16),
    ],
)
def test_the_number_of_steps_is_the_least_that_settings_and_data_allow(
    tmp_path: Path, recipe: str, overrides: str, stated: Stated, steps: int
) -> None:
    """A step of fsdp has 8 samples of 128 tokens, one of ddp 64 images; an epoch's last step may have fewer."""
    pipeline = _with_overrides(tmp_path, recipe, overrides)
    planned = plan_with(pipeline, Computes(DocumentStore(), {"gpu-t4": "Standard_NC64as_T4_v3"}), stated)
    job = _job(planned)
    assert job.steps == steps
    assert planned.training_usd is not None
    assert not planned.beyond(planned.training_usd, must_fit=False)
    assert "its trainings cost" in planned.beyond(planned.training_usd / 2, must_fit=False)[0]


@pytest.mark.parametrize(
    ("recipe", "advice"),
    [
        ("fsdp", "set max_steps or max_tokens, or give the size of its data with `trainyard plan --tokens`"),
        ("ddp", "set max_steps, or give the size of its data with `trainyard plan --images`"),
    ],
)
def test_an_unknown_number_of_steps_says_what_to_state(recipe: str, advice: str) -> None:
    planned = _plan(recipe)
    assert advice in planned.beyond(1.0, must_fit=False)[0]
    assert f"not known: {advice}" in reporters.as_text(planned)
    money = json.loads(reporters.as_json(planned))["jobs"][_job(planned).name]["money"]
    assert advice in money["reason"]


def _prepared(folder: Path, step: str, *flags: str) -> Path:
    """A dataset, as a step of ours writes it."""
    command = [sys.executable, "-m", f"trainyard.steps.{step}", "--prepared", str(folder), *flags]
    subprocess.run(command, check=True, timeout=300, stdout=subprocess.DEVNULL)
    return folder


def _planned_on(
    tmp_path: Path, recipe: str, data: str, overrides: str = "{}", stated: Stated = NOTHING_STATED, more: str = ""
) -> JobPlan:
    """The training of a committed pipeline, on `data` in place of what the pipeline prepares, and `more`."""
    text = (ROOT / "pipelines" / f"{recipe}.yaml").read_text(encoding="utf-8")
    own = re.search(r"data: \$\{\{parent\.jobs\.prepare_\w+\.outputs\.prepared\}\}", text)
    assert own is not None
    changes = {own[0]: f"data: {data}"}
    if more:
        changes["settings: {type"] = f"data_2: {more}\n      settings: {{type"
    pipeline = _with_overrides(tmp_path, recipe, overrides, changes)
    return _job(plan_with(pipeline, Computes(DocumentStore(), {"gpu-t4": "Standard_NC64as_T4_v3"}), stated))


def test_a_prepared_dataset_on_this_machine_says_how_much_it_is_and_what_its_samples_are(tmp_path: Path) -> None:
    """Epochs, sequence length and vocabulary come from what was prepared; a step of fsdp has 8 samples."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 500, encoding="utf-8")
    flags = ("--source", str(tmp_path / "texts"), "--vocabulary-size", "300", "--sequence-length", "32")
    text = _prepared(tmp_path / "text", "prepare_text", *flags, "--validation-fraction", "0", "--test-fraction", "0")
    manifest = json.loads((text / "manifest.json").read_text(encoding="utf-8"))
    samples = manifest["splits"]["train"]["samples"]
    data = "{type: uri_folder, path: ./text}"
    job = _planned_on(tmp_path, "fsdp", data, "{epochs: 3}")
    assert job.steps == 3 * math.ceil(samples / 8)
    assert job.batch is not None
    assert job.batch.sequence_length == 32
    assert job.estimate is not None
    assert job.estimate.training.language_model.vocabulary_size == manifest["text"]["vocabulary_size"] < 300
    assert _planned_on(tmp_path, "fsdp", data, "{epochs: 3, max_steps: 2}").steps == 2
    stated = _planned_on(tmp_path, "fsdp", data, "{epochs: 3}", Stated(tokens=1e6))
    assert stated.steps == 3 * math.ceil(1e6 / 32 / 8), "what is stated is of the data that is meant"
    mixed = _planned_on(tmp_path, "fsdp", data, "{epochs: 3}", more=data)
    assert mixed.steps == 3 * math.ceil(2 * samples / 8)
    away = _planned_on(tmp_path, "fsdp", data, "{epochs: 3}", more="{type: uri_folder, path: azureml:more:1}")
    assert away.steps is None


def test_prepared_images_have_their_own_size_and_classes(tmp_path: Path) -> None:
    _prepared(tmp_path / "digits", "prepare_images", "--validation-fraction", "0.1", "--test-fraction", "0")
    job = _planned_on(tmp_path, "ddp", "{type: uri_folder, path: ./digits}", "{epochs: 2}")
    assert job.steps == 2 * math.ceil(1617 / 64)
    assert job.estimate is not None
    assert job.estimate.training.architecture == _training("ddp").architecture


@pytest.mark.parametrize(
    "manifest", ["", "[]", "{}", '{"splits": {"train": {"samples": "9"}}, "arrays": {}}', "[" * 9999]
)
def test_a_folder_without_a_valid_manifest_says_nothing_of_the_data(tmp_path: Path, manifest: str) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "manifest.json").write_text(manifest, encoding="utf-8")
    job = _planned_on(tmp_path, "fsdp", "{type: uri_folder, path: ./text}")
    assert (job.steps, job.estimate_reason) == (None, "batch size or sequence length is not known")


def _job_of_own_task(tmp_path: Path, settings: str, overrides: str, step: str = "train_ddp", gpus: int = 8) -> Plan:
    (tmp_path / "train.yaml").write_text(f"{settings}\n", encoding="utf-8")
    (tmp_path / "waves.py").write_text(OWN_TASK, encoding="utf-8")
    (tmp_path / "job.yaml").write_text(
        f"""\
type: pipeline
jobs:
  fit:
    command: >-
      python -m trainyard.steps.{step} --data ${{{{inputs.data}}}} --settings ${{{{inputs.settings}}}}
      --precision bf16 --micro_batch_size 4 {overrides}
    code: .
    environment: azureml:torch:1
    compute: azureml:gpu-t4
    distribution: {{type: pytorch, process_count_per_instance: {gpus}}}
    resources: {{instance_count: 2}}
    inputs:
      data: {{type: uri_folder, path: azureml:waves:1}}
      settings: {{type: uri_file, path: train.yaml}}
""",
        encoding="utf-8",
    )
    pipeline = load_job(tmp_path / "job.yaml", strict=True)
    return plan_with(pipeline, Computes(DocumentStore(), {"gpu-t4": "Standard_ND96asr_v4"}))


OWN_TASK = """\
from dataclasses import dataclass

from trainyard.steps.training.task import Task


@dataclass
class Waves(Task):
    width: int = 8
"""


@pytest.mark.parametrize(
    ("settings", "overrides", "named"),
    [
        ("task: waves:Waves", "", "train.yaml"),
        ("epochs: 1", "--task waves:Waves", "waves:Waves"),
    ],
    ids=["in the settings file", "in the command"],
)
def test_the_plan_of_an_own_task_has_the_command_that_estimates_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str, overrides: str, named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    planned = _job_of_own_task(tmp_path, settings, overrides)
    command = (
        f"trainyard estimate --task {named} --data DATA --sku Standard_ND96asr_v4 --nodes 2 --engine ddp "
        "--micro-batch-size 4 --precision bf16"
    )
    assert f"of your own, with prepared DATA: {command}\n" in reporters.as_text(planned)
    assert planned.beyond(None, must_fit=True)[0].endswith(command)
    dear = planned.beyond(1.0, must_fit=False)[0]
    assert dear.endswith(command), "the number of steps alone would give no price"


def test_the_command_has_the_settings_of_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    overrides = "--task 'my waves:Waves' --global_batch_size 64 --activation_checkpointing true"
    text = reporters.as_text(_job_of_own_task(tmp_path, "epochs: 1", overrides, gpus=4))
    assert "--task 'my waves:Waves' --data DATA --sku Standard_ND96asr_v4 --nodes 2 --gpus-per-node 4 " in text
    assert "--micro-batch-size 4 --accumulation-steps 2 --activation-checkpointing full --precision bf16\n" in text


def test_the_command_leaves_the_engine_open_where_deepspeed_is_not_configured_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = reporters.as_text(_job_of_own_task(tmp_path, "task: waves:Waves", "", step="train_deepspeed"))
    assert "--nodes 2 --engine ENGINE --micro-batch-size 4 --precision bf16\n" in text


def test_a_task_without_a_value_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = reporters.as_text(_job_of_own_task(tmp_path, "epochs: 1", "--task $TASK"))
    assert "the task is not known" in text
    assert "--task None" not in text
