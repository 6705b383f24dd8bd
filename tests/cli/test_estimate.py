"""`trainyard estimate` as a person types it, and as a program reads it."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainyard.plan.estimate import intervals

Run = Callable[..., Any]

ROOT = Path(__file__).parents[2]
OWN_TASK = ROOT / "docs" / "own_task" / "forecasting.py"
H100 = ("--sku", "Standard_ND96isr_H100_v5")


def test_an_estimate_says_whether_it_fits_how_long_and_how_much(trainyard: Run) -> None:
    outcome = trainyard("estimate", "--model", "llama-3.1-8b", *H100, "--nodes", "2", "--sequence-length", "2048")
    assert outcome.exit_code == 0
    lines = outcome.stdout.splitlines()
    assert len(lines) <= 24
    for words in ("8,030,261,248 parameters", "fits", "tokens a second and GPU", "a billion tokens", "1024:"):
        assert words in outcome.stdout


def test_what_does_not_fit_comes_with_what_does(trainyard: Run) -> None:
    outcome = trainyard("estimate", "--model", "llama-3.1-8b", *H100, "--micro-batch-size", "4")
    assert "does not fit" in outcome.stdout
    assert "what fits" in outcome.stdout


def test_where_no_settings_fit_other_trainings_that_do_are_named(trainyard: Run) -> None:
    """Each of the two that are named fits when it is estimated alone; what is asked for is marked as not fitting."""
    asked = ("estimate", "--model", "mistral-7b", "--sku", "Standard_NC64as_T4_v3")
    text = trainyard(*asked, "--tuning", "lora").stdout
    qlora, shorter = re.findall(r"checkpointing full, (Q?LoRA) of rank 16, .*?: (\d+\.\d GB)", text)
    assert qlora[0] == "QLoRA"
    assert shorter[0] == "LoRA"
    assert "it does not fit: time and price are what it would take if it did" in text
    full = ("--activation-checkpointing", "full")
    alone = trainyard(*asked, "--tuning", "qlora", "--engine", "ddp", *full).stdout
    assert f"{qlora[1]} of 16.1 GB a GPU: fits" in alone
    length = re.findall(r"samples of ([\d,]+) tokens", text)[0].replace(",", "")
    alone = trainyard(*asked, "--tuning", "lora", *full, "--sequence-length", length).stdout
    assert f"{shorter[1]} of 16.1 GB a GPU: fits" in alone
    assert "if it did" not in alone
    assert "nearly all of them took longer" not in alone


@pytest.mark.parametrize(("low", "are_limits"), [("0.99", False), ("1.01", True)])
def test_an_interval_of_longer_times_only_says_so(
    trainyard: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, low: str, are_limits: bool
) -> None:
    """Whatever the intervals of the day are: with another lowest time of small micro-batches in their file."""
    file, text = tmp_path / "intervals.csv", intervals.INTERVALS_FILE.read_text(encoding="utf-8")
    changed, rows = re.subn(r"^(small micro-batches,\d+,\d+),[\d.]+", rf"\1,{low}", text, flags=re.MULTILINE)
    assert rows == 1
    file.write_text(changed, encoding="utf-8")
    monkeypatch.setattr(intervals, "INTERVALS_FILE", file)
    intervals._intervals.cache_clear()
    try:
        small = trainyard("estimate", "--model", "gpt2", *H100, "--sequence-length", "128").stdout
    finally:
        intervals._intervals.cache_clear()
    assert "of small micro-batches" in small
    limits = "nearly all of them took longer than predicted: take time and price as lower limits"
    assert (limits in small) == are_limits


def test_what_is_offloaded_has_to_fit_in_main_memory(trainyard: Run) -> None:
    """16 bytes for each of a layer's parameters, 18 with ZeRO 3's own: DeepSpeed's estimators."""
    full = ("--engine", "zero3", "--offload", "all", "--activation-checkpointing", "full", "--sequence-length", "2048")
    outcome = trainyard("estimate", "--model", "llama-3.1-405b", *H100, "--nodes", "2", *full)
    assert "each node offloads 3,653 GB to its 2,040 GB of main memory: does not fit" in outcome.stdout
    outcome = trainyard("estimate", "--model", "llama-3.1-405b", *H100, "--nodes", "2", *full, "--format", "json")
    memory = json.loads(outcome.stdout)["jobs"]["train"]["memory"]
    assert memory["total_bytes_per_gpu"] < memory["available_bytes_per_gpu"]
    assert memory["fits"] is False
    assert "main memory" in memory["reason"]
    outcome = trainyard("estimate", "--model", "llama-3.1-405b", *H100, "--nodes", "4", *full, "--format", "json")
    memory = json.loads(outcome.stdout)["jobs"]["train"]["memory"]
    assert memory["fits"] is True
    assert "reason" not in memory


def test_the_tokens_of_the_data_give_days_and_dollars(trainyard: Run) -> None:
    """Two epochs of 150 billion tokens are as many steps as one of 300 billion."""
    of_data = ("--nodes", "16", "--tokens", "150B", "--epochs", "2", "--format", "json")
    outcome = trainyard("estimate", "--model", "llama-3.1-8b", *H100, *of_data)
    job = json.loads(outcome.stdout)["jobs"]["train"]
    time, money = job["time"], job["money"]
    assert time["steps"] == math.ceil(300e9 / (128 * 8192))
    assert time["training_seconds"] == pytest.approx(time["steps"] * time["step_seconds"])
    assert money["on_demand_usd"] == pytest.approx(money["on_demand_usd_per_hour"] * time["training_seconds"] / 3600)
    outcome = trainyard("estimate", "--model", "llama-3.1-8b", *H100, "--nodes", "16", "--tokens", "300B")
    assert f"training    {time['steps']:,} steps in {time['training_seconds'] / 86400:.1f} days, $" in outcome.stdout


def test_a_training_on_spot_machines_takes_longer_by_what_preemptions_lose(trainyard: Run) -> None:
    spot = ("--sku", "Standard_NC24ads_A100_v4", "--tokens", "1B", "--format", "json")
    job = json.loads(trainyard("estimate", "--model", "gpt2", *spot).stdout)["jobs"]["train"]
    time, money = job["time"], job["money"]
    assert time["training_seconds"] / time["spot_training_seconds"] == pytest.approx(1 - money["spot_lost_share"])
    assert money["spot_usd"] == pytest.approx(money["spot_usd_per_hour"] * time["spot_training_seconds"] / 3600)


def test_what_if_compares_machines_and_engines(trainyard: Run) -> None:
    what = ("--model", "llama-3.1-8b", *H100, "--nodes", "4", "--tokens", "15B", "--what-if")
    found = json.loads(trainyard("estimate", *what, "--format", "json").stdout)["what_if"]
    assert {job["nodes"] for job in found} == {1, 2, 4}
    for job in found:
        assert job["memory"]["verdict"] == "fits"
        assert job["money"]["on_demand_usd"] > 0
    assert len({(job["nodes"], job["engine"]) for job in found}) == len(found)
    text = trainyard("estimate", *what).stdout.splitlines()
    markdown = trainyard("estimate", *what, "--format", "markdown").stdout.splitlines()
    assert text[0].split()[:2] == ["machines", "settings"]
    assert len(text) == 1 + len(found)
    assert len(markdown) == 2 + len(found)
    assert markdown[2].startswith("| 1 × Standard_ND96isr_H100_v5, 8 × H100-SXM | ")


def test_what_if_compares_several_sizes_on_a_page_too(trainyard: Run) -> None:
    """Each size has a line of its fastest engines in the drawing, and every row of the table is a dot."""
    sizes = ("--sku", "NC24ads_A100_v4", "--sku", "NC96ads_A100_v4")
    what = ("--model", "gpt2-xl", *sizes, "--nodes", "2", "--tokens", "15B", "--what-if")
    found = json.loads(trainyard("estimate", *what, "--format", "json").stdout)["what_if"]
    assert {(job["sku"], job["nodes"]) for job in found} == {
        (f"Standard_{name}_v4", nodes) for name in ("NC24ads_A100", "NC96ads_A100") for nodes in (1, 2)
    }
    page = trainyard("estimate", *what, "--format", "html").stdout
    assert page.count('<circle class="dot ') == len(found) == page.count('<tr><th scope="row"')
    assert page.count('<path class="curve ') == 2
    assert "time and price of 15,000,000,000 tokens" in page
    assert not re.search(r"(src|href)=\"(?!data:|#)", page)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--tokens", "2TT"), "expected an amount such as 300B, 2T or 5000000, got '2TT'"),
        (("--tokens", "-5B"), "expected an amount such as 300B, 2T or 5000000, got '-5B'"),
        (("--epochs", "2"), "--epochs needs --tokens: how much the data is"),
        (("--images", "1M"), "--images: gpt2-xl is measured in tokens; use --tokens"),
        (("--format", "markdown"), "--format markdown needs --what-if"),
        (("--format", "html"), "--format html needs --what-if"),
        (H100, "several --sku: that needs --search or --what-if"),
        (("--search", "--what-if"), "expected --search or --what-if, not both"),
    ],
)
def test_a_wrong_length_of_training_says_what_is_expected(trainyard: Run, flags: tuple[str, ...], message: str) -> None:
    outcome = trainyard("estimate", "--model", "gpt2-xl", *H100, *flags)
    assert outcome.exit_code == 2
    assert message in outcome.stderr


def test_the_interval_is_that_of_the_kind_of_training(trainyard: Run) -> None:
    decoder = ("estimate", "--model", "llama-3.1-8b", *H100)
    text = trainyard(*decoder).stdout
    assert re.search(
        r"a step in 8 of 10 published trainings of decoders \(\d+ compared, \d+ of them predicted in advance\)", text
    )
    assert "the allocator reserves" in text
    lora = trainyard(*decoder, "--engine", "ddp", "--tuning", "lora")
    assert "a step in 8 of 10 published trainings of adapters" in lora.stdout
    job = json.loads(trainyard(*decoder, "--format", "json").stdout)["jobs"]["train"]
    for figures, name in ((job["time"], "step_seconds"), (job["memory"], "total_bytes_per_gpu")):
        assert figures[f"{name}_p10"] < figures[name] < figures[f"{name}_p90"]
    assert job["memory"]["reserved_bytes_per_gpu"] > job["memory"]["total_bytes_per_gpu"]


def test_the_software_is_a_setting(trainyard: Run) -> None:
    flags = ("estimate", "--model", "llama-3.1-8b", *H100)
    jobs = {}
    for stack, year in (("eager", 2026), ("sdpa", 2026), ("fused", 2026), ("sdpa", 2024)):
        outcome = trainyard(*flags, "--stack", stack, "--stack-year", str(year), "--format", "json")
        jobs[stack, year] = json.loads(outcome.stdout)["jobs"]["train"]
        assert (jobs[stack, year]["stack"], jobs[stack, year]["stack_year"]) == (stack, year)
    eager, today, fused, older = (job["time"]["step_seconds"] for job in jobs.values())
    assert eager > older > today > fused
    assert "of 2024" in trainyard(*flags, "--stack-year", "2024").stdout
    assert "fused software" in trainyard(*flags, "--stack", "fused").stdout
    free = trainyard(*flags, "--no-deterministic", "--format", "json")
    assert json.loads(free.stdout)["jobs"]["train"]["time"]["step_seconds"] < today
    assert "not deterministic" in trainyard(*flags, "--no-deterministic").stdout
    assert "not deterministic" not in trainyard(*flags, "--deterministic").stdout
    refused = trainyard(*flags, "--stack", "fast")
    assert (refused.exit_code, "fast" in refused.stderr) == (2, True)


def test_a_retired_size_is_named_with_what_replaces_it(trainyard: Run) -> None:
    outcome = trainyard("estimate", "--model", "gpt2", "--sku", "Standard_NC6s_v3")
    assert (
        "note        Standard_NC6s_v3 was retired on 2025-09-30; closest current sizes: Standard_NC24ads_A100_v4"
        in (outcome.stdout)
    )


def test_memory_is_what_a_gpu_has_for_programs(trainyard: Run) -> None:
    """A GB200 is sold with 192 GB, of which 186 are there for programs."""
    outcome = trainyard("estimate", "--model", "llama-3.1-8b", "--sku", "Standard_ND128isr_NDR_GB200_v6")
    assert "of 198.6 GB a GPU: fits" in outcome.stdout


def test_json_has_the_fields_of_a_plan(trainyard: Run) -> None:
    outcome = trainyard("estimate", "--model", "gpt2-xl", *H100, "--engine", "zero2", "--format", "json")
    document = json.loads(outcome.stdout)
    assert document["format"] == "trainyard.plan/2"
    (job,) = document["jobs"].values()
    assert (job["sku"], job["nodes"], job["processes_per_node"]) == ("Standard_ND96isr_H100_v5", 1, 8)
    assert job["global_batch_size"] == 8
    assert job["memory"]["total_bytes_per_gpu"] == pytest.approx(sum(job["memory"]["parts"].values()), abs=10)
    assert job["memory"]["fits"] is True
    assert job["time"]["step_seconds"] == pytest.approx(sum(job["time"]["parts"].values()))
    assert job["time"]["tokens_per_second_per_gpu"] == pytest.approx(1024 / job["time"]["step_seconds"])
    assert job["money"]["on_demand_usd_per_hour"] > 0
    assert job["money"]["on_demand_usd"] is None
    assert "number of steps" in job["money"]["reason"]


@pytest.mark.parametrize(
    ("settings", "engines"),
    [(("--tuning", "qlora"), "ddp only"), (("--tuning", "lora", "--engine", "zero2"), "ddp or fsdp only")],
)
def test_adapters_that_only_other_software_trains_so_are_estimated_with_a_note(
    trainyard: Run, settings: tuple[str, ...], engines: str
) -> None:
    outcome = trainyard("estimate", "--model", "llama-2-7b", *H100, *settings)
    assert outcome.exit_code == 0
    assert outcome.stdout.splitlines()[0].startswith("note")
    assert outcome.stdout.splitlines()[0].endswith(f"Trainyard trains these adapters with {engines}")


def test_zeros_stages_are_those_of_the_paper(trainyard: Run, tmp_path: Path) -> None:
    """7.5 billion parameters on 64 GPUs, as near as whole layers come: figure 1 of Rajbhandari et al. 2020."""
    config = {"model_type": "gpt2", "n_embd": 4096, "n_layer": 36, "n_head": 32, "vocab_size": 50257}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    shares = {"zero0": 120 / 120, "zero1": 31.4 / 120, "zero2": 16.6 / 120, "zero3": 1.9 / 120}
    for engine, share in shares.items():
        outcome = trainyard(
            "estimate",
            "--model",
            str(tmp_path),
            "--gpu",
            "V100",
            "--nodes",
            "8",
            "--engine",
            engine,
            "--format",
            "json",
        )
        job = json.loads(outcome.stdout)["jobs"]["train"]
        states = sum(job["memory"]["parts"][part] for part in ("parameters", "gradients", "optimizer"))
        assert states / (16 * job["parameters"]) == pytest.approx(share, abs=0.0005)


def test_unknown_figures_are_null_with_a_reason(trainyard: Run) -> None:
    outcome = trainyard("estimate", "--model", "gpt2", "--gpu", "P100", "--format", "json")
    job = json.loads(outcome.stdout)["jobs"]["train"]
    assert job["time"]["step_seconds"] > 0
    assert job["time"]["remark"].endswith("taken from Volta")
    assert job["money"]["on_demand_usd_per_hour"] is None
    assert "--sku" in job["money"]["reason"]


def test_a_search_names_the_fastest_and_the_cheapest(trainyard: Run) -> None:
    outcome = trainyard("estimate", "--model", "llama-3.1-8b", "--nodes", "2", "--sequence-length", "4096", "--search")
    assert outcome.exit_code == 0
    assert outcome.stdout.startswith("fastest")
    assert "cheapest" in outcome.stdout


def test_a_search_on_one_size_stays_on_it(trainyard: Run) -> None:
    outcome = trainyard("estimate", "--model", "llama-2-7b", *H100, "--search", "--format", "json")
    document = json.loads(outcome.stdout)
    assert {job["sku"] for job in document["fastest"]} == {"Standard_ND96isr_H100_v5"}
    assert all(job["memory"]["fits"] for job in document["fastest"])


@pytest.mark.parametrize(
    "name",
    [
        "meta-llama/Llama-3.1-8B-Instruct",
        "llama3.1-8b",
        "Meta-Llama-3-8B",
        "Llama-2-7b-hf",
        "gpt2-124m",
        "mosaicml/mpt-7b",
    ],
)
def test_a_models_name_may_be_written_as_elsewhere(trainyard: Run, name: str) -> None:
    assert trainyard("estimate", "--model", name, "--gpu", "H100").exit_code == 0


@pytest.mark.parametrize(
    "name", ["NVIDIA H100-SXM5-80GB", "h100", "A100-SXM4-40GB", "AMD Instinct MI300X", "v100-sxm2-32gb"]
)
def test_a_gpus_name_may_be_written_as_elsewhere(trainyard: Run, name: str) -> None:
    assert trainyard("estimate", "--model", "gpt2", "--gpu", name).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--model", "lama-3.1-8b", *H100), "llama-3.1-8b"),
        (("--model", "gpt2", "--sku", "Standard_ND96isr_H100_v4"), "Standard_ND96isr_H100_v5"),
        (("--model", "gpt2", "--gpu", "H100-SXN"), "H100-SXM"),
        (("--model", "gpt2", "--gpu", "H100", *H100), "not both"),
        (("--model", "gpt2"), "--sku or --gpu"),
        (("--model", "gpt2", "--sku", "Standard_D8s_v5"), "no GPU"),
        (("--model", "gpt2", *H100, "--gpus-per-node", "16"), "--gpus-per-node 16"),
        (("--model", "gpt2", *H100, "--micro-batch-size", "0"), "--micro-batch-size"),
        (("--model", "gpt2", "--gpu", "A100", "--precision", "fp8"), "has no fp8"),
        (("--model", "no/such/config.json", *H100), "no such file"),
        (("--model", "gpt2", *H100, "--search", "--headroom", "100"), "--headroom 100: expected less than 100 percent"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(trainyard: Run, arguments: tuple[str, ...], words: str) -> None:
    outcome = trainyard("estimate", *arguments)
    assert outcome.exit_code == 2
    assert words in outcome.stderr
    assert outcome.stdout == ""


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not JSON"),
        ("[]", "expected a JSON object"),
        ("{}", "no model_type"),
        ('{"model_type": "lama"}', "llama"),
        ('{"model_type": "llama", "hidden_size": "4096"}', "hidden_size"),
        ('{"model_type": "llama", "hidden_size": 100, "num_attention_heads": 3}', "not a multiple"),
        ('{"model_type": "llama", "num_hidden_layers": 0}', "num_hidden_layers"),
        ('{"model_type": "llama", "hidden_sise": 2048}', "unknown key 'hidden_sise'; did you mean 'hidden_size'?"),
        ('{"model_type": "mistral", "num_local_experts": 8}', "mixture of experts"),
    ],
)
def test_a_broken_config_is_one_line_with_its_path(trainyard: Run, tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(content, encoding="utf-8")
    outcome = trainyard("estimate", "--model", str(file), *H100)
    assert outcome.exit_code == 2
    assert outcome.stderr.count("\n") == 1
    assert str(file) in outcome.stderr
    assert words in outcome.stderr


def test_a_config_of_another_family_is_counted_on_the_meta_device(trainyard: Run, tmp_path: Path) -> None:
    config = {"model_type": "bloom", "hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 1000}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    outcome = trainyard("estimate", "--model", str(tmp_path), "--gpu", "H100", "--format", "json")
    # 1000 x 64 words, 128 beside them, two layers of 12 h^2 + 13 h, and the last norm.
    expected = 64_000 + 128 + 2 * (12 * 64**2 + 13 * 64) + 128
    assert json.loads(outcome.stdout)["jobs"]["train"]["parameters"] == expected


def test_an_unknown_model_is_answered_with_the_nearest_and_the_page_with_all(trainyard: Run) -> None:
    outcome = trainyard("estimate", "--model", "hawk-900b", *H100)
    assert outcome.exit_code == 2
    near = re.search(r"Nearest: (.*?)\. docs/models\.md has all (\d+)", outcome.stderr)
    assert near is not None, outcome.stderr
    names = near[1].split(", ")
    assert len(names) == 5
    page = (ROOT / "docs/models.md").read_text()
    assert page.count("\n| `") == int(near[2])
    assert all(f"| `{name}` |" in page for name in names)


@pytest.mark.parametrize("name", ["mixtral-8x7b", "Qwen/Qwen3-30B-A3B", "deepseek-v3", "gpt-oss-20b", "OLMoE-1B-7B"])
def test_a_mixture_of_experts_is_named_as_one(trainyard: Run, name: str) -> None:
    outcome = trainyard("estimate", "--model", name, *H100)
    assert outcome.exit_code == 2
    assert f"{name} is a mixture of experts, which is not estimated" in outcome.stderr


def test_a_dense_model_distilled_from_experts_is_not_one(trainyard: Run) -> None:
    assert "unknown model" in trainyard("estimate", "--model", "deepseek-r1-distill-llama-8b", *H100).stderr


# A task of one's own --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def waves_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset of docs/own_task.md."""
    dataset = tmp_path_factory.mktemp("dataset") / "waves"
    subprocess.run([sys.executable, OWN_TASK, dataset], check=True, timeout=600)
    return dataset


@pytest.fixture
def waves(waves_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the task of docs/own_task.md, its dataset, and settings files."""
    shutil.copy(OWN_TASK, tmp_path)
    shutil.copytree(waves_dataset, tmp_path / "waves")
    (tmp_path / "wide.yaml").write_text("task: forecasting:Forecasting\nhidden_size: 4096\nepochs: 3\n")
    (tmp_path / "without.yaml").write_text("epochs: 3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "forecasting", raising=False)
    return tmp_path


def test_a_task_of_your_own_is_counted_as_its_loss_computes_it(trainyard: Run, waves: Path) -> None:
    flags = ("--data", "waves", *H100, "--engine", "ddp", "--micro-batch-size", "64", "--format", "json")
    narrow, wide = (trainyard("estimate", "--task", task, *flags) for task in ("forecasting:Forecasting", "wide.yaml"))
    assert narrow.exit_code == wide.exit_code == 0, narrow.stderr + wide.stderr
    jobs = [json.loads(outcome.stdout)["jobs"]["train"] for outcome in (narrow, wide)]
    # From 32 values to the hidden units, and from these to one: weights and biases.
    assert [job["parameters"] for job in jobs] == [hidden * 34 + 1 for hidden in (64, 4096)]
    assert jobs[0]["memory"]["parts"]["activations"] < jobs[1]["memory"]["parts"]["activations"]
    assert jobs[1]["time"]["step_seconds"] > 0

    text = trainyard("estimate", "--task", "wide.yaml", *flags[:-2])
    assert "in 8 of 10" not in text.stdout, "nothing is published of it"
    assert "forecasting:Forecasting, 139,265 parameters" in text.stdout
    assert "samples a second and GPU" in text.stdout


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--task", "forecasting:Forecasting"), "expected --model alone, or --task with --data"),
        (("--model", "gpt2", "--data", "waves"), "expected --model alone, or --task with --data"),
        (("--task", "forecasting:Forecsting", "--data", "waves"), "has no class Forecsting"),
        (("--task", "without.yaml", "--data", "waves"), "without.yaml names no task"),
        (("--task", "wide.yml", "--data", "waves"), "wide.yml"),
        (("--task", "wide.yaml", "--data", "waves", "--tuning", "lora"), "--tuning is of language models"),
        (("--task", "wide.yaml", "--data", "."), "manifest.json"),
    ],
)
def test_a_task_that_cannot_be_counted_is_refused(
    trainyard: Run, waves: Path, flags: tuple[str, ...], message: str
) -> None:
    outcome = trainyard("estimate", *flags, *H100)
    assert outcome.exit_code == 2
    assert message in outcome.stderr
    assert outcome.stderr.count("error: ") == 1


def test_a_model_that_depends_on_values_is_named(trainyard: Run, waves: Path) -> None:
    file = waves / "forecasting.py"
    line = "        return (errors.square()"
    file.write_text(file.read_text().replace(line, f"        assert errors.sum().item() < 9\n{line}"))
    outcome = trainyard("estimate", "--task", "forecasting:Forecasting", "--data", "waves", *H100)
    assert outcome.exit_code == 2
    assert "forecasting:Forecasting cannot be counted without values" in outcome.stderr


def test_a_search_says_in_json_too_what_is_a_tie(trainyard: Run) -> None:
    """The first has none before it; `tie`, or how far the others are behind, as the text has it."""
    command = ("estimate", "--model", "pythia-1b", "--sku", "ND40rs_v2", "--precision", "fp16", "--search")
    text, found = trainyard(*command).stdout, json.loads(trainyard(*command, "--format", "json").stdout)
    for name in ("fastest", "cheapest"):
        first, *others = (job["behind"] for job in found[name])
        assert first is None
        assert others
        assert all(each == "tie" or re.search(r"\d % (slower|dearer), ", each) for each in others)
        assert all(each in text for each in others)
