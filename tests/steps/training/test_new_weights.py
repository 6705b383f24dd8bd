"""New weights: the distributions of transformers, the same bits on every engine, and nobody draws another's part."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from forked_ranks import forked_ranks
from rank_processes import training_arguments
from safetensors.torch import load_file
from torch.utils._device import _device_constructors

from trainyard.steps import train_ddp
from trainyard.steps.runtime.files import sha256_of_json
from trainyard.steps.training.checkpoints.commit import read_commit
from trainyard.steps.training.models_without_weights import (
    CannotLeaveOut,
    ModelWithoutWeights,
    WeightReader,
    model_without_weights,
    with_new_weights,
)
from trainyard.steps.training.new_weights import CHUNK_ELEMENTS, SCHEME, NewWeight, to_draw

SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 512, "pad_token_id": 3}
LLAMA = SIZES | {"intermediate_size": 128, "num_key_value_heads": 2}
EXPERTS = LLAMA | {"head_dim": 16, "num_experts": 4, "moe_intermediate_size": 32}
OF_TEXT: dict[str, dict[str, Any]] = {
    "apertus": LLAMA,
    "bailing_hybrid": EXPERTS | {"num_hidden_layers": 6, "q_lora_rank": 16, "kv_lora_rank": 16, "n_group": 1},
    "bert": SIZES | {"intermediate_size": 128},
    "big_bird": SIZES | {"intermediate_size": 128},
    "bloom": SIZES | {"n_layer": 2, "n_head": 4},
    "ctrl": {"n_embd": 64, "n_layer": 2, "n_head": 4, "dff": 128, "vocab_size": 512},
    "electra": SIZES | {"intermediate_size": 128, "embedding_size": 32},
    "falcon": SIZES,
    "gemma": LLAMA | {"head_dim": 16},
    "gemma2": LLAMA | {"head_dim": 16},
    "gemma3_text": LLAMA | {"head_dim": 16},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 512},
    "gpt_bigcode": {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 512},
    "gpt_neo": {
        "hidden_size": 64,
        "num_layers": 2,
        "num_heads": 4,
        "vocab_size": 512,
        "attention_types": [[["global"], 2]],
    },
    "gpt_neox": SIZES | {"intermediate_size": 128},
    "gpt_oss": EXPERTS | {"num_local_experts": 4},
    "gptj": {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 512, "rotary_dim": 8},
    "granite": LLAMA,
    "kimi_linear": EXPERTS | {"linear_num_heads": 4, "linear_head_dim": 16, "kv_lora_rank": 16},
    "llama": LLAMA,
    "mamba": SIZES | {"state_size": 8},
    "mamba2": SIZES | {"state_size": 8, "head_dim": 32, "num_heads": 4, "n_groups": 2},
    "mistral": LLAMA,
    "mixtral": LLAMA | {"num_local_experts": 4},
    "modernbert-decoder": SIZES | {"intermediate_size": 128},
    "mpt": {"d_model": 64, "n_layers": 2, "n_heads": 4, "vocab_size": 512},
    "nemotron_h": LLAMA
    | {"mamba_num_heads": 4, "mamba_head_dim": 32, "ssm_state_size": 8, "n_groups": 2, "head_dim": 16}
    | {"moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 32, "num_hidden_layers": 4},
    "olmo": LLAMA,
    "olmo2": LLAMA,
    "olmoe": EXPERTS,
    "openai-gpt": {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 512},
    "opt": SIZES | {"ffn_dim": 128, "word_embed_proj_dim": 64},
    "phi": LLAMA,
    "phi3": LLAMA,
    "qwen2": LLAMA,
    "qwen3": LLAMA | {"head_dim": 16},
    "qwen3_moe": EXPERTS,
    "rwkv": {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 512},
    "smollm3": LLAMA,
    "stablelm": LLAMA,
    "starcoder2": LLAMA,
    "xlm": {"emb_dim": 64, "n_layers": 2, "n_heads": 4, "vocab_size": 512},
    "xlnet": {"d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 128, "vocab_size": 512},
    "xlstm": {"hidden_size": 64, "num_blocks": 2, "num_heads": 4, "vocab_size": 512},
}
OF_IMAGES: dict[str, dict[str, Any]] = {
    "convnext": {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 32, 32, 64]},
    "imagegpt": {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 513},
    "resnet": {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 32, 32, 64], "embedding_size": 16},
    "swin": {"depths": [1, 1], "num_heads": [2, 4], "embed_dim": 32, "image_size": 32, "patch_size": 2},
    "vit": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128},
}
GPT2_OVERRIDES = json.dumps({"n_layer": 2, "n_embd": 32, "n_head": 2})


def builder(model_type: str) -> Callable[[], Any]:
    is_of_text = model_type in OF_TEXT
    auto = transformers.AutoModelForCausalLM if is_of_text else transformers.AutoModelForImageClassification
    sizes = OF_TEXT[model_type] if is_of_text else OF_IMAGES[model_type]
    return lambda: auto.from_config(transformers.AutoConfig.for_model(model_type, **sizes))


def seeded(build: Callable[[], Any], seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return build()


def zero_rows(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor == 0).flatten(1).all(1) if tensor.dim() > 1 else torch.tensor([])


@pytest.mark.parametrize("model_type", [*OF_TEXT, *OF_IMAGES])
def test_they_are_distributed_as_transformers_does(model_type: str) -> None:
    build = builder(model_type)
    usual, another, new = seeded(build), seeded(build, 1), seeded(lambda: with_new_weights(build))
    assert [*dict(new.named_parameters())] == [*dict(usual.named_parameters())]
    assert all(torch.equal(one, other) for one, other in zip(new.buffers(), usual.buffers(), strict=True))
    of_another = dict(another.named_parameters())
    for (name, expected), found in zip(usual.named_parameters(), new.parameters(), strict=True):
        assert (found.shape, found.dtype, found.requires_grad) == (expected.shape, expected.dtype, True), name
        if torch.equal(expected, of_another[name]):  # not random
            assert torch.equal(found, expected), name
            continue
        assert torch.equal(zero_rows(found), zero_rows(expected)), f"{name}: the padding's embedding"
        assert not torch.equal(found, expected), f"{name} has the bits that transformers gives it"
        if (elements := expected.numel()) >= 64:
            spread = expected.std()
            assert abs(found.std() / spread - 1) < 6 / elements**0.5, name
            assert abs(found.mean() - expected.mean()) < 6 * spread / elements**0.5, name


@pytest.mark.parametrize("model_type", [*OF_TEXT, *OF_IMAGES])
def test_a_model_without_them_has_what_draws_the_same_bits(model_type: str) -> None:
    build = builder(model_type)
    whole = seeded(lambda: with_new_weights(build))
    assert_drawn_as(whole, seeded(lambda: model_without_weights(lambda: with_new_weights(build))))


def assert_drawn_as(whole: torch.nn.Module, without: ModelWithoutWeights) -> None:
    assert all(tensor.is_meta for tensor in without.module.parameters())
    assert len(without.weights) == len([*whole.parameters()]), "those with several names are one"
    for tensor, expected in zip(without.module.parameters(), whole.parameters(), strict=True):
        assert torch.equal(WeightReader().elements(without.weights[tensor]).view(expected.shape), expected)


def drawn(build: Callable[[], torch.nn.Module]) -> list[NewWeight]:
    """How to draw what a model is built with on the meta device."""
    with torch.device("meta"):
        shapes = build()
    return [*to_draw(lambda: shapes.apply(lambda layer: getattr(layer, "reset_parameters", int)()))[1].values()]


def test_any_range_is_drawn_as_within_the_whole() -> None:
    weight, bias = drawn(lambda: torch.nn.Linear(90, 400))
    whole = weight.values(0, 36_000)
    ends = (0, 1, 5, 8191, 8192, 8193, 16_384, 20_000, 35_999, 36_000)
    for start in ends:
        for stop in (end for end in ends if end >= start):
            assert torch.equal(weight.values(start, stop), whole[start:stop])
    assert bias.values(0, 400).std() > 0


def test_chunks_have_nothing_in_common() -> None:
    """Neither those of a tensor, nor those of two, nor those of a training with the next seed."""
    rows = []
    for seed in (0, 1):
        layers = seeded(
            lambda: drawn(lambda: torch.nn.ModuleList(torch.nn.Embedding(16, 8192) for _ in range(2))), seed
        )
        rows += [layer.values(0, 16 * 8192).view(16 * 8192 // CHUNK_ELEMENTS, CHUNK_ELEMENTS) for layer in layers]
    correlated = torch.corrcoef(torch.cat(rows)) - torch.eye(sum(map(len, rows)))
    assert correlated.abs().max() < 6 / CHUNK_ELEMENTS**0.5


def test_the_seed_alone_decides() -> None:
    """Checkpoints name this scheme: another way from the seed to the values is another one."""
    assert SCHEME == 1
    model = seeded(lambda: with_new_weights(lambda: torch.nn.Embedding(20, 1000, padding_idx=1)))
    torch.manual_seed(0)
    first = int(torch.randint(2**32, ()))
    expected = torch.empty(20_000)
    for chunk, start in enumerate(range(0, 20_000, 8192)):
        generator = torch.Generator().manual_seed((first + chunk) * 0x9E3779B1 % 2**32)
        expected[start : start + 8192].normal_(generator=generator)
    expected[1000:2000] = 0
    assert torch.equal(model.weight.view(-1), expected)


class Orthogonal(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        torch.nn.init.orthogonal_(self.layer.weight)


class HalfOfIt(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4, 8))
        torch.nn.init.normal_(self.weight[:2])


class GivenValues(torch.nn.Module):
    """Before they are parameters, by another name, and of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = torch.nn.Parameter(torch.randn(1, 300, 8) * 0.02)
        self.scale = torch.nn.Parameter(torch.full((9000,), 0.5))
        weight = torch.nn.Parameter(torch.empty(9000, 2))
        self.weight = weight
        torch.nn.init.normal_(weight)
        self.numbers = torch.nn.Parameter(torch.empty(3))
        with torch.no_grad():
            self.numbers.copy_(torch.tensor([1.0, 2.0, 3.0], device=self.numbers.device) ** 2)


class Computed(torch.nn.Module):
    """From its own weights, element by element, and as a copy of another's."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(100, 100), torch.nn.Linear(100, 100)
        with torch.no_grad():
            self.first.weight.mul_(0.5).clamp_(-0.02, 0.02)
            self.first.bias.copy_(self.first.bias.exp() + self.first.bias)
            self.second.weight.copy_(self.first.weight)
            self.second.bias.data = -self.first.bias.data


class Transformer(torch.nn.Module):
    """Of torch's own layers: copied, with names for several weights, and with the running figures of normalization."""

    def __init__(self) -> None:
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
        self.layers, self.memory = torch.nn.TransformerEncoder(layer, 2), torch.nn.LSTM(32, 32)
        self.norm = torch.nn.BatchNorm1d(32)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.norm(self.memory(self.layers(states))[0].flatten(0, 1))
        return found


@pytest.mark.parametrize("model", [Orthogonal, HalfOfIt, GivenValues, Computed, Transformer])
def test_what_torch_would_not_do_without_memory_is_done(model: type[torch.nn.Module]) -> None:
    """By whoever needs a part of it as by one process that needs all, and as often as the model asks for it."""
    whole = seeded(lambda: with_new_weights(model))
    assert_drawn_as(whole, seeded(lambda: model_without_weights(lambda: with_new_weights(model))))
    usual, parameters = seeded(model), dict(whole.named_parameters())
    for name, expected in usual.named_parameters():
        assert expected.numel() < 100 or abs(parameters[name].mean() - expected.mean()) < 0.1, name
        assert expected.numel() < 100 or abs(parameters[name].std() - expected.std()) < 0.1, name
    if isinstance(whole, Orthogonal):
        assert torch.allclose(whole.layer.weight @ whole.layer.weight.T, torch.eye(8), atol=1e-5)
    if isinstance(whole, HalfOfIt):
        assert whole.weight[2:].unique().tolist() == [1]
        assert whole.weight[:2].unique().numel() == 16
    if isinstance(whole, GivenValues):
        assert torch.equal(whole.scale, torch.full((9000,), 0.5))
        assert whole.numbers.tolist() == [1, 4, 9]
    if isinstance(whole, Computed):
        assert torch.equal(whole.second.weight, whole.first.weight)
        assert torch.equal(whole.second.bias, -whole.first.bias)
        assert whole.first.weight.abs().max() == whole.first.weight.new_tensor(0.02)
    if isinstance(whole, Transformer):
        one, other = whole.layers.layers
        assert torch.equal(one.linear1.weight, other.linear1.weight), "torch copies the first"
        whole(torch.randn(2, 5, 32)).sum().backward()
        assert whole.memory.weight_ih_l0.grad is not None


class Dependent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        self.total = torch.nn.Parameter(self.layer.weight.detach().sum(0))


class Copied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        self.register_buffer("initial", self.layer.weight.detach().clone())


class Whole(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = torch.nn.Parameter(torch.full((2,), 2**24 + 1), requires_grad=False)


class NeverFilled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(8, 8))


class Sampled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8, 8))
        self.is_large = self.weight.abs().max().item() > 2


def clear_gradient(parameter: torch.Tensor) -> None:
    parameter.grad = None


class WithHooks(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        self.layer.weight.register_hook(torch.zeros_like)
        self.layer.bias.register_post_accumulate_grad_hook(clear_gradient)


class GoesOn(torch.nn.Module):
    """With something else, after what cannot be done without memory."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        try:
            self.scale = float(self.layer.weight.abs().max())
        except RuntimeError:
            self.scale = 1.0


class Seeded(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.layer = torch.nn.Linear(8, 8)


class SeededInside(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # the seed that the training has too
            self.first = torch.nn.Linear(8, 8)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(7)
            self.second = torch.nn.Linear(8, 8)


class OfEachOther(torch.nn.Module):
    """The second's values must be those that the first subtracts."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (torch.nn.Parameter(torch.empty(8, 8)) for _ in range(2))
        torch.nn.init.normal_(self.first)
        torch.nn.init.normal_(self.second)
        with torch.no_grad():
            self.first.sub_(self.second)


class Scripted(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.jit.script(torch.nn.Linear(8, 8))


class OwnTask:
    """With what it keeps beside its model."""

    def __init__(self) -> None:
        self.embedding = torch.nn.Parameter(torch.ones(8, 8))

    def of_values_it_keeps(self) -> torch.nn.Module:
        model = torch.nn.Linear(8, 8)
        self.start = [parameter.detach().clone() for parameter in model.parameters()]
        return model

    def of_a_layer_it_shares(self) -> torch.nn.Module:
        model = torch.nn.Linear(8, 8)
        self.start = [parameter.data for parameter in model.parameters()]
        return model

    def with_a_copy(self) -> torch.nn.Module:
        model = torch.nn.Linear(8, 8)
        self.start = [*copy.deepcopy(model).parameters()]
        return model

    def of_its_own_parameter(self) -> torch.nn.Module:
        model = torch.nn.Linear(8, 8)
        model.weight = self.embedding
        return model


class OfItsOwnGenerator(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(8, 8))
        torch.nn.init.normal_(self.weight, generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize(
    "change",
    [
        lambda weight: torch.nn.init.zeros_(weight),
        lambda weight: torch.nn.init.constant_(weight, 0.5),
        lambda weight: weight.data.zero_(),
        lambda weight: weight.data[0].zero_(),
        lambda weight: setattr(weight, "data", torch.ones(8, 8)),
    ],
)
def test_what_a_task_does_to_new_weights_is_kept(change: Callable[[torch.Tensor], object]) -> None:
    def new_model() -> torch.nn.Module:
        model = with_new_weights(lambda: torch.nn.Sequential(torch.nn.Linear(8, 8)))
        change(model[0].weight)
        return model

    with pytest.raises(CannotLeaveOut, match="changed after the model was built"):
        model_without_weights(new_model)


def test_numbers_and_shared_weights_are_as_the_model_has_them() -> None:
    def build() -> torch.nn.Module:
        first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        with torch.no_grad():
            first.bias.fill_(torch.tensor(2.0))
            second.weight[0] = 1.0
        second.bias = first.bias
        shared = torch.nn.Parameter(torch.empty(4, 4))
        model = torch.nn.Sequential(first, second, torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False))
        model[2].weight = model[3].weight = shared
        torch.nn.init.ones_(shared)
        return model

    model = with_new_weights(build)
    assert torch.equal(model[0].bias, torch.full((4,), 2.0))
    assert torch.equal(model[1].weight[0], torch.ones(4))
    assert model[1].bias is model[0].bias
    assert model[2].weight is model[3].weight


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Dependent, "it is not known what initializes total"),
        (Copied, "something was computed from weights in Copied"),
        (Whole, "it is not known what initializes steps"),
        (NeverFilled, "it is not known what initializes weight"),
        (Sampled, r".* \(test_new_weights\.py, line \d+\)"),
        (WithHooks, r"layer\.weight has hooks for its gradient"),
        (GoesOn, r".*item\(\) cannot be called on meta tensors \(test_new_weights\.py, line \d+\)"),
        (Seeded, r"it seeds torch's random numbers \(test_new_weights\.py, line \d+\)"),
        (SeededInside, r"it seeds torch's random numbers \(test_new_weights\.py, line \d+\)"),
        (OfEachOther, "second and another weight are computed from each other's random numbers"),
        (Scripted, r"layer is compiled by torch\.jit"),
        (OfItsOwnGenerator, r"drawn by a generator of the model's own \(test_new_weights\.py, line \d+\)"),
    ],
)
def test_a_model_that_cannot_be_drawn_is_built(model: type[torch.nn.Module], reason: str) -> None:
    """As torch builds it, whether it was asked before or not."""
    with pytest.raises(CannotLeaveOut) as found:
        seeded(lambda: model_without_weights(lambda: with_new_weights(model)))
    assert re.fullmatch(reason, str(found.value))
    built, expected = seeded(lambda: with_new_weights(model)), seeded(model)
    assert not any(tensor.is_meta for tensor in (*built.parameters(), *built.buffers()))
    if model is not NeverFilled:
        assert all(
            torch.equal(one, other) for one, other in zip(built.parameters(), expected.parameters(), strict=True)
        )
    if isinstance(built, WithHooks):
        built.layer(torch.ones(8)).sum().backward()
        assert built.layer.weight.grad.abs().max() == 0
        assert built.layer.bias.grad is None
    if isinstance(built, GoesOn):
        assert built.scale == float(built.layer.weight.abs().max())
    if isinstance(built, Scripted):
        assert torch.equal(built.layer(torch.ones(8)), expected.layer(torch.ones(8)))
    if isinstance(built, Whole):
        assert built.steps.tolist() == [2**24 + 1] * 2


@pytest.mark.parametrize("new_model", [OwnTask.of_values_it_keeps, OwnTask.of_a_layer_it_shares, OwnTask.with_a_copy])
def test_what_a_task_keeps_of_new_weights_is_what_the_model_starts_with(
    new_model: Callable[[OwnTask], torch.nn.Module],
) -> None:
    """Though nothing of it is in the model."""
    task = OwnTask()
    with pytest.raises(CannotLeaveOut, match=r"computed from weights, or shares their memory, is kept beside"):
        model_without_weights(lambda: with_new_weights(lambda: new_model(task)))
    built, expected = (
        seeded(build) for build in (lambda: with_new_weights(lambda: new_model(task)), lambda: new_model(OwnTask()))
    )
    for kept, found, usual in zip(task.start, built.parameters(), expected.parameters(), strict=True):
        assert torch.equal(found, usual)
        assert torch.equal(kept, found)


@pytest.mark.parametrize("is_drawn", [True, False])
def test_a_parameter_that_a_task_had_before_is_left_as_it_is(is_drawn: bool) -> None:
    """Whether or not the rest of the model could be drawn."""
    task = OwnTask()

    def new_model() -> torch.nn.Module:
        model = task.of_its_own_parameter()
        return model if is_drawn else torch.nn.Sequential(model, Orthogonal())

    with pytest.raises(CannotLeaveOut, match=r"made before the model is built, or read \(test_new_weights"):
        model_without_weights(lambda: with_new_weights(new_model))
    built = with_new_weights(new_model)
    assert torch.equal(task.embedding, torch.ones(8, 8))
    assert any(parameter is task.embedding for parameter in built.parameters())
    assert not any(parameter.is_meta for parameter in built.parameters())


def test_torch_is_as_before_when_a_model_was_drawn() -> None:
    """Also if nobody has asked before for tensors on another device."""
    _device_constructors.cache_clear()

    def new_model() -> torch.nn.Module:
        with torch.device("cpu"):
            return torch.nn.Linear(8, 8)

    with_new_weights(new_model)
    with torch.device("meta"):
        assert torch.tensor([1.0]).is_meta


def test_much_that_is_computed_is_not_kept_by_every_rank() -> None:
    class Large(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Parameter(torch.arange(2**26 + 1.0))

    with pytest.raises(CannotLeaveOut, match="more than 256 MiB of weights are computed while the model is built"):
        model_without_weights(lambda: with_new_weights(Large))


@pytest.mark.slow
def test_a_model_is_drawn_where_nothing_of_it_was_imported_before() -> None:
    """Else one process would draw it and another build it, with other weights."""
    code = """
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from trainyard.steps.training.models_without_weights import with_new_weights
config = AutoConfig.for_model("gpt2", n_embd=16, n_layer=1, n_head=2)
weights = []
for _ in range(2):
    torch.manual_seed(0)
    weights.append(with_new_weights(lambda: AutoModelForCausalLM.from_config(config)).lm_head.weight)
assert torch.equal(*weights)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_each_rank_draws_its_part(text: Path, tmp_path: Path, ranks: int) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4}
    exit_codes, outputs = forked_ranks().run("new_models", [text, tmp_path, "llama", json.dumps(sizes)], ranks)
    assert exit_codes == [0] * ranks, "\n".join(outputs)
    found = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(ranks)]
    assert all(each["middles"] for each in found)
    for way in ("rows", "replicas", "in turn"):
        assert [each[way] for each in found] == [True] * ranks, f"{way}: the bits of one process"
        elements = [each[f"{way}: drawn"] for each in found]
        assert sum(elements) < 1.1 * found[0]["elements"], f"{way}: together they draw the model once"
        assert max(elements) < 1.1 / ranks * found[0]["elements"], f"{way}: each draws its part"


@pytest.mark.slow
def test_every_engine_starts_from_the_same_bits(text: Path, tmp_path: Path) -> None:
    """Without a learning rate the model that comes out is the one that was drawn, its tied weights included."""
    trainings: dict[str, tuple[object, ...]] = {
        "fsdp 2": (),
        "fsdp 4": ("--micro-batch-size", 16),
        "hsdp 4": ("--shard-size", 2, "--micro-batch-size", 16),
    }
    for stage in (1, 3):
        config = {"train_batch_size": "auto", "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": stage}}
        (tmp_path / f"zero{stage}.json").write_text(json.dumps(config))
        trainings[f"zero{stage} 2"] = ("--deepspeed-config", tmp_path / f"zero{stage}.json", "--precision", "bf16")

    def arguments(name: str) -> list[object]:
        of_model = ("--model-type", "gpt2", "--model-overrides", GPT2_OVERRIDES)
        more = ("--learning-rate", 0, "--max-steps", 1, "--weight-decay", 0, *of_model)
        return training_arguments(text, tmp_path / name, "language_modeling", *more)

    assert train_ddp.main([str(argument) for argument in arguments("ddp")]) == 0
    expected = load_file(tmp_path / "ddp" / "model" / "model.safetensors")
    assert "lm_head.weight" not in expected
    for name, more in trainings.items():
        step, ranks = "train_deepspeed" if "zero" in name else "train_fsdp", int(name[-1])
        exit_codes, outputs = forked_ranks().run(step, [*arguments(name), *more], ranks)
        assert exit_codes == [0] * ranks, "\n".join(outputs)
        assert "rank 0 has built" not in outputs[0]
        found = load_file(tmp_path / name / "model" / "model.safetensors")
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], expected[key]) for key in expected), name


@pytest.mark.slow
@pytest.mark.parametrize("task", ["TinyTask", "ScaledByItsLargest"])
def test_a_task_of_ones_own_starts_from_the_same_bits(digits: Path, tmp_path: Path, task: str) -> None:
    """Drawn by all ranks, unless it cannot be: then rank 0 says once why it has built the model."""
    config = {"train_batch_size": "auto", "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3}}
    (tmp_path / "zero3.json").write_text(json.dumps(config))
    trainings: dict[str, tuple[object, ...]] = {
        "fsdp 2": (),
        "hsdp 4": ("--shard-size", 2, "--micro-batch-size", 16),
        "zero3 2": ("--deepspeed-config", tmp_path / "zero3.json", "--precision", "bf16"),
    }

    def arguments(name: str) -> list[object]:
        more = ("--learning-rate", 0, "--max-steps", 1, "--weight-decay", 0)
        return training_arguments(digits, tmp_path / name, f"tiny_task:{task}", *more)

    assert train_ddp.main([str(argument) for argument in arguments("ddp")]) == 0
    expected = load_file(tmp_path / "ddp" / "model" / "model.safetensors")
    for name, more in trainings.items():
        step, ranks = "train_deepspeed" if "zero" in name else "train_fsdp", int(name[-1])
        exit_codes, outputs = forked_ranks().run(step, [*arguments(name), *more], ranks)
        assert exit_codes == [0] * ranks, "\n".join(outputs)
        reasons = re.findall(r"rank 0 has built the whole model, .* to all ranks: (.*)", "\n".join(outputs))
        if task == "TinyTask":
            assert not reasons
        else:
            assert [re.sub(r"line \d+", "line N", reason) for reason in reasons] == [
                "Tensor.item() cannot be called on meta tensors (tiny_task.py, line N)"
            ]
        found = load_file(tmp_path / name / "model" / "model.safetensors")
        assert all(torch.equal(found[key], expected[key]) for key in expected), name


@pytest.mark.slow
def test_a_checkpoint_names_the_scheme(digits: Path, tmp_path: Path) -> None:
    """One from before it did is continued, and those that follow name none either."""

    def train(steps: int) -> Path:
        more = ("--max-steps", steps, "--checkpoint-every-steps", 1)
        assert (
            train_ddp.main([str(each) for each in training_arguments(digits, tmp_path, "tiny_task:TinyTask", *more)])
            == 0
        )
        return tmp_path / "checkpoints" / f"step-{steps:08}"

    folder = train(1)
    assert read_commit(folder).new_weights == SCHEME
    commit = json.loads((folder / "commit.json").read_text())
    older = {name: value for name, value in commit.items() if name not in ("new_weights", "sha256")}
    (folder / "commit.json").write_text(json.dumps({**older, "sha256": sha256_of_json(older)}))
    assert read_commit(train(2)).new_weights is None
