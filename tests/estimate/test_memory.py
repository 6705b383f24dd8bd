"""Memory, held to the ZeRO paper, to DeepSpeed's own estimators, and to counts of real models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from trainyard.catalogue.gpus import find_gpu
from trainyard.estimate.architectures import all_architectures, find_architecture
from trainyard.estimate.estimator import estimate, settings_that_fit
from trainyard.estimate.memory import deepspeed_model_states, memory_of, zero_model_states
from trainyard.estimate.training import TrainingShape, machines_of_gpu

Make = Callable[..., TrainingShape]


@pytest.fixture
def training() -> Make:
    def make(model: str = "llama-3.1-8b", gpu: str = "H100-SXM", nodes: int = 1, **settings: object) -> TrainingShape:
        chosen = {"engine": "fsdp", "micro_batch_size": 1, "accumulation_steps": 1, "sequence_length": 2048, **settings}
        machines = machines_of_gpu(find_gpu(gpu), nodes)
        return TrainingShape(find_architecture(model), machines, **chosen)  # type: ignore[arg-type]

    return make


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_figure_1_of_the_zero_paper(stage: int, gigabytes: float) -> None:
    assert round(sum(zero_model_states(7.5e9, 64, stage)) / 1e9, 1) == gigabytes


@pytest.mark.parametrize("offload", [False, True])
def test_deepspeeds_estimator_of_stage_2(offload: bool) -> None:
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    _, theirs = estimate_zero2_model_states_mem_needs(7_000_000_000, 8, 4, cpu_offload=offload)
    ours = deepspeed_model_states(7_000_000_000, 2e8, 32, 2, offload_optimizer=offload)
    assert ours == pytest.approx(theirs, rel=0.02)


@pytest.mark.parametrize(("optimizer", "parameters"), [(False, False), (True, False), (True, True)])
def test_deepspeeds_estimator_of_stage_3(optimizer: bool, parameters: bool) -> None:
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs

    _, theirs, _ = estimate_zero3_model_states_mem_needs(
        70_000_000_000, 900_000_000, 8, 4, cpu_offload=optimizer, cpu_offload_params=parameters
    )
    ours = deepspeed_model_states(
        70_000_000_000, 900_000_000, 32, 3, offload_optimizer=optimizer, offload_parameters=parameters
    )
    assert ours == pytest.approx(theirs, rel=0.02)


@pytest.mark.parametrize("engine", ["zero2", "zero3"])
def test_a_zero_trainings_states_and_buffers_are_what_deepspeed_says(training: Make, engine: str) -> None:
    memory = memory_of(training(engine=engine))
    count = find_architecture("llama-3.1-8b").parameters
    stage = int(engine[-1])
    largest = count - 32 * find_architecture("llama-3.1-8b").layer_parameters
    assert memory.model_states + memory.buffers == pytest.approx(deepspeed_model_states(count, largest, 8, stage))


def test_sharding_takes_less_at_every_stage(training: Make) -> None:
    totals = [memory_of(training(engine=engine)).total for engine in ("zero0", "zero1", "zero2", "zero3")]
    assert totals == sorted(totals, reverse=True)


def test_checkpointing_takes_less(training: Make) -> None:
    modes = ("none", "selective", "full")
    kept = [memory_of(training(activation_checkpointing=mode)).activations for mode in modes]
    assert kept == sorted(kept, reverse=True)


def test_what_fits_instead_has_the_same_batch(training: Make) -> None:
    too_large = training(micro_batch_size=4, sequence_length=8192)
    assert not estimate(too_large).fits
    alternatives = settings_that_fit(too_large)
    assert alternatives
    assert all(each.fits for each in alternatives)
    assert {each.training.global_batch_size for each in alternatives} == {too_large.global_batch_size}


def test_nothing_is_offered_where_nothing_fits(training: Make) -> None:
    assert settings_that_fit(training("llama-3.1-405b", "T4", precision="fp16", sequence_length=8192)) == []


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "gpt2", "opt", "gpt_neox", "mpt"])
def test_parameters_are_those_of_the_real_model(family: str) -> None:
    """The closed form against transformers' model on the meta device, which holds shapes and no values."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from trainyard.estimate.architectures import FAMILIES

    ours = next(model for model in all_architectures() if model.family == family)
    sizes = {
        theirs: getattr(ours, key)
        for key, theirs in FAMILIES[family].names.items()
        if key != "intermediate_size" or family not in ("gpt2", "mpt")
    }
    if family == "opt":
        sizes["word_embed_proj_dim"] = ours.hidden_size
    config = AutoConfig.for_model(family, **{**sizes, FAMILIES[family].names["layers"]: 2})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    real = sum(parameter.numel() for parameter in model.parameters())
    assert replace(ours, layers=2).parameters == real


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
        ("llama-2-7b", 6_738_415_616),
        ("gpt2", 124_439_808),
        ("tinyllama-1.1b", 1_100_048_384),
        ("pythia-1.4b", 1_414_647_808),
        ("mistral-7b", 7_241_732_096),
        ("qwen2.5-7b", 7_615_616_512),
    ],
)
def test_parameters_are_those_of_the_model_card(name: str, parameters: int) -> None:
    assert find_architecture(name).parameters == parameters


def test_a_dot_in_a_name_counts() -> None:
    for name in ("opt-1.3b", "opt-13b", "gpt3-1.3b", "gpt3-13b", "mpt-1b", "mpt-13b", "cerebras-gpt-1.3b"):
        assert find_architecture(name).name == name
    assert find_architecture("Qwen/Qwen25-7B-Instruct").name == "qwen2.5-7b"
    assert find_architecture("mistralai/Mistral-7B-Instruct-v0.3").name == "mistral-7b"


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("bigscience/bloom-7b1", 7.069),
        ("falcon-40b", 41.3),
        ("google/gemma-7b", 8.538),
        ("starcoder2-15b", 15.958),
        ("megatron-gpt-1008b", 1008.0),
        ("nemotron-4-340b", 341.0),
        ("gpt-j-6b", 6.05),
    ],
)
def test_models_have_the_parameters_that_their_authors_state(name: str, billions: float) -> None:
    assert find_architecture(name).parameters / 1e9 == pytest.approx(billions, rel=0.001)
