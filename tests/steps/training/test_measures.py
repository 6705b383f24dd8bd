"""Rates, percentiles, utilization: the figures of a training."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_processes import training_arguments
from torch.utils.flop_counter import FlopCounterMode

from trainyard.settings.batch_arithmetic import divide_batch
from trainyard.steps import train_ddp
from trainyard.steps.data.dataset.manifest import read_manifest
from trainyard.steps.runtime.world import UNKNOWN_PERCENT, World
from trainyard.steps.training.observing.flops import (
    flops_of_transformer,
    multiplying_parameters,
    peak_flops_per_second,
)
from trainyard.steps.training.observing.measures import ModelFlops, StepMeasures, Work, percentiles
from trainyard.steps.training.observing.observer import figures_of_nodes
from trainyard.steps.training.observing.recorder import Recorder
from trainyard.steps.training.samples.plan import AgreedStep, GpuUse, TokenCounts, TrainingPlan
from trainyard.steps.training.tasks.image_classification import ImageClassification, image_logits

DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"
PLAN = TrainingPlan(10_000, divide_batch(20, 10, 2), epochs=1)


def agreed(number: int, seconds: float, rank_own_seconds: list[float]) -> AgreedStep:
    return AgreedStep(PLAN.step(number), 0.1, 1.0, 1.0, False, rank_own_seconds, seconds)


def test_the_figures_of_a_window() -> None:
    waited = [0.0]
    work = Work(100, ModelFlops(per_token=5e5, per_pair=5e3), peak_flops_per_second=1e9)
    measures = StepMeasures(work, lambda: waited[0], lambda: 2 * waited[0])
    for number in range(1, 5):
        measures.add(agreed(number, 0.5 * number, [0.1, 0.3]))
        waited[0] += 0.25
    window = measures.window()
    assert window == {
        "step_seconds": 1.25,
        "step_seconds_p50": 1.0,
        "step_seconds_p90": 2.0,
        "step_seconds_p99": 2.0,
        "samples_per_second": 16.0,
        "tokens_per_second": 1600.0,
        "mfu": 1.6,
        "data_wait_seconds": 0.25,
        "checkpoint_stall_seconds": 2.0,
        "slowest_rank": 1,
        "slowest_rank_seconds": pytest.approx(0.3),
        "fastest_rank_seconds": pytest.approx(0.1),
        "rank_0_seconds": pytest.approx(0.1),
        "rank_1_seconds": pytest.approx(0.3),
    }
    measures.add(agreed(5, 4.0, [0.2, 0.1]))
    later = measures.window()
    assert (later["step_seconds"], later["samples_per_second"], later["slowest_rank"]) == (4.0, 5.0, 0)
    assert (later["data_wait_seconds"], later["checkpoint_stall_seconds"]) == (0.0, 0.0)
    assert measures.whole() == {"run_step_seconds_p50": 1.5, "run_step_seconds_p90": 4.0, "run_step_seconds_p99": 4.0}


def test_memory_and_waits_are_those_of_the_rank_that_has_most() -> None:
    measures = StepMeasures(Work(), lambda: 0.0, lambda: 0.0)
    for number, waits, peaks in ((1, [0.0, 1.0], [5e9, 6e9]), (2, [0.5, 2.0], [5e9, 6e9])):
        step = agreed(number, 1.0, [0.1, 0.1])
        measures.add(step._replace(rank_data_wait_seconds=waits, rank_peak_bytes=peaks))
    window = measures.window()
    assert (window["longest_data_wait_seconds"], window["longest_data_wait_rank"]) == (1.0, 1)
    assert (window["peak_memory_bytes"], window["peak_memory_rank"]) == (6e9, 1)
    later = agreed(3, 1.0, [0.1, 0.1])._replace(rank_data_wait_seconds=[3.5, 2.0], rank_peak_bytes=[7e9, 6e9])
    measures.add(later)
    window = measures.window()
    assert (window["longest_data_wait_seconds"], window["longest_data_wait_rank"]) == (3.0, 0), "since the last line"
    assert (window["peak_memory_bytes"], window["peak_memory_rank"]) == (7e9, 0)


def test_padding_and_other_documents_are_no_work() -> None:
    flops = ModelFlops(per_token=1e6, per_pair=1e3)
    measures = StepMeasures(Work(100, flops, 1e9, tokens_vary=True), lambda: 0.0, lambda: 0.0)
    for number in (1, 2):
        step = agreed(number, 2.0, [0.1, 0.1])
        measures.add(step._replace(counts=TokenCounts(tokens=1500, predicted=400, attended=60_000)))
    window = measures.window()
    assert window["tokens_per_second"] == 750
    assert window["supervised_tokens_per_second"] == 200
    assert window["padding_share"] == 0.25
    assert window["mfu"] == (1500 * 1e6 + 60_000 * 1e3) / 2.0 / 1e9


def test_the_utilization_of_samples_without_tokens() -> None:
    measures = StepMeasures(Work(flops=ModelFlops(per_sample=1e7), peak_flops_per_second=1e9), lambda: 0, lambda: 0)
    measures.add(agreed(1, 2.0, [0.1, 0.1]))
    assert measures.window()["mfu"] == 20 * 1e7 / 2.0 / 1e9


def test_percentiles_are_values_that_were_seen() -> None:
    found = percentiles("x", [float(value) for value in range(200, 0, -1)])
    assert found == {"x_p50": 100.0, "x_p90": 180.0, "x_p99": 198.0}
    assert percentiles("x", [7.0]) == {"x_p50": 7.0, "x_p90": 7.0, "x_p99": 7.0}


def test_no_rates_without_tokens_or_a_known_peak() -> None:
    measures = StepMeasures(Work(), lambda: 0.0, lambda: 0.0)
    measures.add(agreed(1, 1.0, [0.0, 0.0]))
    assert not {"tokens_per_second", "mfu", "slowest_rank"} & measures.window().keys()


def new_model(model_type: str, **settings: Any) -> torch.nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(model_type, attn_implementation="eager", use_cache=False, **settings)
    model: torch.nn.Module = AutoModelForCausalLM.from_config(config)
    return model


def training_flops(model: torch.nn.Module, tokens: torch.Tensor, **options: Any) -> int:
    """Of matrix products, forward and backward, as torch counts them."""
    with FlopCounterMode(display=False) as counter:
        model(tokens, **options).logits.sum().backward()
    return int(counter.get_total_flops())


def flops_of_documents(model: torch.nn.Module, *lengths: int) -> float:
    each = flops_of_transformer(model)
    assert each is not None
    return each.per_token * sum(lengths) + each.per_pair * sum(length**2 for length in lengths)


def test_flops_of_gpt2_by_hand() -> None:
    """124,439,808 parameters, of which 1024 positions of 768 are looked up; tokens are looked up and multiplied."""
    with torch.device("meta"):
        model = new_model("gpt2")
    assert multiplying_parameters(model) == (124_439_808 - 1024 * 768, 0)
    assert flops_of_transformer(model) == ModelFlops(per_token=6 * 123_653_376, per_pair=12 * 12 * 12 * 64)


SMALL_SIZES = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4}
SMALL = {**SMALL_SIZES, "intermediate_size": 256, "vocab_size": 512, "tie_word_embeddings": False}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 128, "experts_implementation": "eager"}


@pytest.mark.parametrize(
    ("model_type", "settings"),
    [
        ("gpt2", {"n_embd": 128, "n_layer": 4, "n_head": 4, "n_positions": 64, "vocab_size": 512}),
        ("llama", SMALL),
        ("mixtral", SMALL | EXPERTS | {"num_local_experts": 4}),
        ("qwen3_moe", SMALL | EXPERTS | {"num_experts": 8, "head_dim": 32}),
    ],
)
def test_flops_are_what_torch_counts(model_type: str, settings: dict[str, Any]) -> None:
    """Within 1 %; norms and biases, which are no products, make the difference."""
    model = new_model(model_type, **settings)
    tokens = torch.randint(512, (3, 64))
    assert flops_of_documents(model, 64, 64, 64) == pytest.approx(training_flops(model, tokens), rel=0.01)


def test_flops_of_packed_documents_are_those_of_each_alone() -> None:
    model = new_model("llama", **SMALL)
    tokens = torch.randint(512, (1, 192))
    lengths = [40, 24, 128]
    counted = sum(training_flops(model, piece) for piece in tokens.split(lengths, dim=1))
    assert flops_of_documents(model, *lengths) == pytest.approx(counted, rel=0.01)


def test_flops_with_adapters_are_what_torch_counts() -> None:
    """A frozen weight has no gradient: 4 operations per token, not 6."""
    from peft import LoraConfig, inject_adapter_in_model

    model = new_model("llama", **SMALL | {"num_hidden_layers": 16})
    inject_adapter_in_model(LoraConfig(r=4, target_modules="all-linear"), model)
    tokens = torch.randint(512, (3, 64))
    assert flops_of_documents(model, 64, 64, 64) == pytest.approx(training_flops(model, tokens), rel=0.01)


def test_flops_of_images_are_what_torch_counts_on_a_device(digits: Path) -> None:
    task = ImageClassification(read_manifest(digits), ImageClassification.Settings())
    with torch.device("meta"):
        without_memory = task.new_model()
    with FlopCounterMode(display=False) as counter:
        image_logits(task.new_model(), torch.rand(3, *task.manifest.arrays["images"].shape)).sum().backward()
    assert task.flops_per_sample(without_memory) == counter.get_total_flops() / 3 > 0


def test_flops_of_an_image_that_shrinks_to_a_single_value(digits: Path) -> None:
    """A ResNet's last layers have one value per channel of an 8 x 8 image; batch norm takes that of two images only."""
    sizes = {"embedding_size": 32, "hidden_sizes": [32, 64], "depths": [1, 1], "layer_type": "basic"}
    settings = ImageClassification.Settings(model_type="resnet", model_overrides=json.dumps(sizes))
    task = ImageClassification(read_manifest(digits), settings)
    with torch.device("meta"):
        without_memory = task.new_model()
    counted = task.flops_per_sample(without_memory)
    assert counted is not None
    assert counted > 0


def test_models_that_the_formula_does_not_cover() -> None:
    assert flops_of_transformer(torch.nn.Sequential(torch.nn.Linear(3, 3))) is None


def test_peaks() -> None:
    assert peak_flops_per_second("NVIDIA A100-SXM4-80GB", "bf16") == 312e12
    assert peak_flops_per_second("NVIDIA H100 PCIe", "bf16") == 756.5e12
    assert peak_flops_per_second("NVIDIA H100 80GB HBM3", "fp32") == 67e12
    assert peak_flops_per_second("NVIDIA H200", "fp16") == 989.5e12
    assert peak_flops_per_second("Tesla T4", "bf16") is None, "no bf16 on a T4"
    assert peak_flops_per_second("NVIDIA H200 NVL", "bf16") == 835.5e12
    assert peak_flops_per_second("a CPU", "fp32") is None


@pytest.mark.parametrize(
    "name",
    ["NVIDIA A100-SXM4-80GB MIG 1g.10gb", "NVIDIA A10-4Q", "NVIDIA A100-3-20C", "NVIDIA A10G", "NVIDIA T400 4GB"],
)
def test_no_peak_for_a_part_of_a_device_or_a_similar_name(name: str) -> None:
    assert peak_flops_per_second(name, "fp16") is None


def test_every_figure_is_documented(digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = training_arguments(digits, tmp_path, "tiny_task:TinyTask", "--log-every-steps", 5)
    assert train_ddp.main([str(argument) for argument in arguments]) == 0
    lines = [json.loads(line) for line in (tmp_path / "metrics" / "metrics.jsonl").read_text().splitlines()]
    written = {name for line in lines for name in line if not name.startswith("validation_")}
    documented = set(re.findall(r"^\| `(\w+)` \|", DOCS.read_text(), re.MULTILINE))
    assert written <= documented
    assert documented - written == {"tokens_per_second", "supervised_tokens_per_second", "padding_share", "mfu"}
    for line in lines:
        assert {"step", "loss", "samples_consumed", "learning_rate", "grad_norm", "step_seconds"} <= line.keys()
        assert 0 < line["step_seconds_p50"] <= line["step_seconds_p90"] <= line["step_seconds_p99"]
        assert line["peak_memory_bytes"] > 50 * 2**20
    said = capsys.readouterr().out
    assert re.search(r"after the first step: peak memory \d+\.\d+ GiB on rank 0", said)
    assert re.search(r"at the end: peak memory \d+\.\d+ GiB on rank 0", said)
    assert re.search(r"waited \d+\.\d% of the time for data and \d+\.\d% for checkpoints", said)


def test_the_gpus_of_each_node_have_their_own_figures() -> None:
    uses = [GpuUse(90, 5), GpuUse(70, 7), GpuUse(-1, 3), GpuUse(40, 2), GpuUse(-1, 9), GpuUse(-1, 1)]
    assert figures_of_nodes(uses, 2) == {
        "node_0_gpu_utilization_percent": 80,
        "node_0_gpu_memory_bytes": 7,
        "node_1_gpu_utilization_percent": 40,
        "node_1_gpu_memory_bytes": 3,
        "node_2_gpu_memory_bytes": 9,
    }
    assert figures_of_nodes([], 2) == {}


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_gpus_there_are_no_figures_of_them() -> None:
    with World(20, {}) as world:
        assert world.gpu_use() == ()


def test_a_driver_that_does_not_tell_how_busy_a_gpu_is_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.device] = []

    def utilization(device: torch.device) -> int:
        asked.append(device)
        raise ModuleNotFoundError("pynvml does not seem to be installed")

    with World(20, {}) as world, monkeypatch.context() as patched:
        patched.setattr(world, "device", torch.device("cuda", 0))
        patched.setattr(torch.cuda, "mem_get_info", lambda device: (3, 10))
        patched.setattr(torch.cuda, "utilization", utilization)
        assert [world.gpu_use() for _ in range(3)] == [(UNKNOWN_PERCENT, 7)] * 3
        assert asked == [world.device]
        assert figures_of_nodes([GpuUse(*world.gpu_use())], 1) == {"node_0_gpu_memory_bytes": 7}


def test_an_interrupted_validation_is_added_to_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the line has a figure that was not finite, and MLflow listens."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    line = {"step": 5, "epoch": 1, "loss": None, "samples_per_second": 7.0}
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 4}}\n{json.dumps(line)}\n{{"step": 6}}\n')
    with World(20, {}) as world:
        recorder = Recorder(world, tmp_path, log_every_steps=1, total_steps=9)
        recorder.begin(5, {}, {})
        recorder.add_validation(4, {"loss": 9.0})
        recorder.add_validation(5, {"loss": 1.5})
        recorder.close()
    written = [json.loads(text) for text in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert written == [{"step": 4}, {**line, "validation_loss": 1.5}]
    (logged,) = (tmp_path / "mlruns").glob("0/*/metrics/validation_loss")
    assert " 1.5 5" in logged.read_text()


def test_a_loss_is_divided_by_its_number_of_terms_even_if_it_varies(digits: Path, tmp_path: Path) -> None:
    """About half of the samples have a loss; how many do differs from one micro-batch to the next."""
    losses = {}
    for micro in (64, 4):
        out = tmp_path / f"{micro}"
        flags = ("disturbed_tasks:LossOnSomeSamples", "--micro-batch-size", micro, "--log-every-steps", 1)
        arguments = training_arguments(digits, out, *flags)
        assert train_ddp.main([str(argument) for argument in arguments]) == 0
        lines = (out / "metrics" / "metrics.jsonl").read_text().splitlines()
        losses[micro] = [json.loads(line)["loss"] for line in lines]
    assert losses[4] == pytest.approx(losses[64], rel=1e-4)
    assert 1.5 < losses[64][0] < 3.5, "a mean of cross-entropies over ten classes, not half of one"
