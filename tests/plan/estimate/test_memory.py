"""Memory, held to the ZeRO paper, to DeepSpeed's own estimators, and to counts of real models."""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainyard.catalogue.gpus import find_gpu
from trainyard.catalogue.skus import find_sku
from trainyard.errors import UsageError
from trainyard.plan.estimate.architectures import all_architectures, find_architecture, from_settings
from trainyard.plan.estimate.blocks import layer_activation_bytes
from trainyard.plan.estimate.estimator import Estimate, estimate
from trainyard.plan.estimate.memory import (
    APEX,
    FOREACH,
    Memory,
    memory_of,
    zero_model_states,
)
from trainyard.plan.estimate.search import Scope, memory_by_engine, search, settings_that_fit
from trainyard.plan.estimate.training import Adapters, TrainingShape, machines_of_gpu, machines_of_sku

GENERATOR = Path(__file__).parents[3] / "docs" / "generate_families.py"
Make = Callable[..., TrainingShape]


@pytest.fixture
def training() -> Make:
    def make(model: str = "llama-3.1-8b", gpu: str = "H100-SXM", nodes: int = 1, **settings: object) -> TrainingShape:
        chosen = {"engine": "fsdp", "micro_batch_size": 1, "accumulation_steps": 1, "sequence_length": 2048, **settings}
        machines = machines_of_gpu(find_gpu(gpu), nodes)
        return TrainingShape(find_architecture(model), machines, **chosen)

    return make


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_figure_1_of_the_zero_paper(stage: int, gigabytes: float) -> None:
    assert round(sum(zero_model_states(7.5e9, 64, stage)) / 1e9, 1) == gigabytes


def _states(training: TrainingShape) -> float:
    memory = memory_of(training)
    return memory.parameters + memory.gradients + memory.optimizer


@pytest.mark.parametrize(("nodes", "offload"), [(1, False), (4, False), (4, True)])
def test_zero_2_takes_what_deepspeed_estimates(training: Make, nodes: int, offload: bool) -> None:
    """With next to no activations: DeepSpeed counts its update, before which they are freed."""
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    wanted = training(engine="zero2", nodes=nodes, offload_optimizer=offload, sequence_length=1)
    _, theirs = estimate_zero2_model_states_mem_needs(wanted.architecture.parameters, 8, nodes, cpu_offload=offload)
    assert _states(wanted) + memory_of(wanted).buffers == pytest.approx(theirs, rel=0.02)


@pytest.mark.parametrize(
    ("nodes", "optimizer", "parameters"), [(1, False, False), (4, False, False), (4, True, False), (4, True, True)]
)
def test_zero_3_takes_what_deepspeed_estimates(training: Make, nodes: int, optimizer: bool, parameters: bool) -> None:
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs

    wanted = training(engine="zero3", nodes=nodes, offload_optimizer=optimizer, offload_parameters=parameters)
    count = wanted.architecture.parameters
    # Of this model, embedding and prediction are larger than a layer.
    largest = count - 32 * find_architecture("llama-3.1-8b").layer_parameters
    _, theirs, _ = estimate_zero3_model_states_mem_needs(
        count, largest, 8, nodes, cpu_offload=optimizer, cpu_offload_params=parameters
    )
    assert _states(wanted) + memory_of(wanted).buffers == pytest.approx(theirs, rel=0.02)


def test_sharding_takes_less_at_every_stage(training: Make) -> None:
    totals = [memory_of(training(engine=engine)).total for engine in ("zero0", "zero1", "zero2", "zero3")]
    assert totals == sorted(totals, reverse=True)


def test_checkpointing_takes_less(training: Make) -> None:
    modes = ("none", "selective", "full")
    kept = [memory_of(training(activation_checkpointing=mode)).activations for mode in modes]
    assert kept == sorted(kept, reverse=True)


def test_other_optimizers_take_less(training: Make) -> None:
    """8 bits: a quarter of AdamW's 8 bytes and a scale for each 256; Adafactor: next to nothing."""
    of = {
        name: memory_of(training(engine="ddp", optimizer=name)).optimizer
        for name in ("adamw", "adamw8bit", "adafactor")
    }
    assert of["adamw8bit"] == pytest.approx(of["adamw"] / 4 * (1 + 4 / 256))
    # 32 layers of 2 x (4096 + 4096), 2 x (4096 + 1024) and 3 x (4096 + 14336), and two matrices of words.
    assert of["adafactor"] == 4 * (32 * (16384 + 10240 + 55296) + 2 * (128256 + 4096))


_COMPUTED_IN = [("fsdp", "bf16"), ("ddp", "bf16"), ("ddp", "bf16-true"), ("ddp", "fp32")]


@pytest.mark.parametrize(
    ("engine", "precision", "family", "lora"),
    [
        *((*each, "llama", lora) for each in _COMPUTED_IN for lora in ("", "all-linear", "q_proj,v_proj")),
        *((*each, name, "") for each in _COMPUTED_IN[:2] for name in ("qwen3", "gpt_neox")),
        *((*each, name, "all-linear") for each in _COMPUTED_IN[1:3] for name in ("qwen3", "gpt_neox")),
        *((*each, "gpt2", "") for each in _COMPUTED_IN[1:]),
    ],
)
def test_a_layer_keeps_what_the_real_model_saves(engine: str, precision: str, family: str, lora: str) -> None:
    """What two layers of transformers' model save for their backward pass beyond what one does, without weights.

    FSDP and bf16-true compute in 16 bits throughout, DDP under autocast. The least exact is an adapter of GPT-NeoX
    in 16 bits beside what follows attention, whose input is not counted again. A GPU's autocast computes powers in
    fp32, unlike a CPU's; attention that drops out is not fused on a CPU, and has masks of values.
    """
    import torch
    from peft import LoraConfig, inject_adapter_in_model
    from torch.overrides import TorchFunctionMode
    from transformers import AutoConfig, AutoModelForCausalLM

    class WidePowers(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            base, *rest = args or (None,)
            return function(base.float() if function is torch.pow else base, *rest, **(kwargs or {}))

    sizes = {"hidden_size": 96, "intermediate_size": 256, "num_attention_heads": 6, "vocab_size": 100}
    sizes |= {"head_dim": 16, "num_key_value_heads": 6} if family == "qwen3" else {}
    sizes = {"n_embd": 96, "n_head": 6, "vocab_size": 100, "attn_pdrop": 0.0} if family == "gpt2" else sizes
    length, found, is_wide = 320, [], engine == "ddp" and precision != "bf16-true"
    for layers in (1, 2):
        config = AutoConfig.for_model(family, **sizes, num_hidden_layers=layers, use_cache=False)
        dtype = torch.float32 if is_wide else torch.bfloat16
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).train()
        if lora:
            targets = lora if lora == "all-linear" else lora.split(",")
            inject_adapter_in_model(LoraConfig(r=4, target_modules=targets), model)
            for name, parameter in model.named_parameters():
                parameter.requires_grad_("lora_" in name)
            model.to(dtype).enable_input_require_grads()
        saved: dict[int, torch.Tensor] = {}

        def keep(tensor: torch.Tensor, saved: dict[int, torch.Tensor] = saved) -> torch.Tensor:
            if tensor.shape.count(length) == 1:
                saved[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with (
            torch.autograd.graph.saved_tensors_hooks(keep, torch.clone),
            torch.autocast("cpu", dtype=torch.bfloat16, enabled=engine == "ddp" and precision == "bf16"),
            WidePowers() if family == "gpt2" and precision == "bf16" else nullcontext(),
        ):
            model(input_ids=torch.zeros(1, length, dtype=torch.long))
        found.append(sum(tensor.untyped_storage().nbytes() for tensor in saved.values()))
    layers_and_length = {"num_hidden_layers": 2, "n_layer": 2, "max_position_embeddings": length}
    ours = from_settings(family, {**sizes, **layers_and_length}, family)
    machines, adapters = machines_of_gpu(find_gpu("A100-SXM-80GB"), 1, 2), Adapters(4, lora) if lora else None
    wanted = TrainingShape(ours, machines, engine, 1, 1, length, precision, adapters=adapters)
    predicted = layer_activation_bytes(wanted)
    error = 0.075 if (family, lora) == ("gpt_neox", "all-linear") else 0.05
    assert predicted == pytest.approx(found[1] - found[0], rel=error)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("precision", ["fp32", "bf16-true", "bf16"])
def test_eager_attention_keeps_its_scores_as_the_real_model_saves_them(precision: str, family: str) -> None:
    """GPT-2 drops out, on the CPU with a mask of values where a GPU's is of bytes."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"hidden_size": 96, "num_attention_heads": 6, "intermediate_size": 256}
    sizes = {"n_embd": 96, "n_head": 6, "n_inner": 256} if family == "gpt2" else sizes
    layers, length = {"gpt2": "n_layer"}.get(family, "num_hidden_layers"), 64
    config = AutoConfig.for_model(family, **sizes, **{layers: 1}, vocab_size=100, use_cache=False)
    dtype = torch.bfloat16 if precision == "bf16-true" else torch.float32
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="eager").train()
    saved: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.shape[-2:] == (length, length) and tensor.numel() == 6 * length**2:
            saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, torch.clone),
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"),
    ):
        model(input_ids=torch.zeros(1, length, dtype=torch.long))
    kept = sum(tensor.element_size() for tensor in saved.values())
    ours = from_settings(family, {**sizes, layers: 1, "vocab_size": 100}, family)
    wanted = TrainingShape(ours, machines_of_gpu(find_gpu("A100-SXM-80GB"), 1, 2), "ddp", 1, 1, length, precision)
    bytes_of_layer = [layer_activation_bytes(replace(wanted, stack=stack)) for stack in ("eager", "sdpa")]
    of_mask = (3 if precision == "fp32" else 1) if family == "gpt2" else 0
    assert (bytes_of_layer[0] - bytes_of_layer[1]) / (6 * length**2) == kept - of_mask


_KEPT_BY_FSDP = """
import functools, torch, torch.distributed as dist, weakref
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.utils.checkpoint import checkpoint

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen = torch.nn.Linear(8, 8).requires_grad_(False)

    def forward(self, values):
        if torch.is_grad_enabled():
            entered.append(weakref.ref(values))
        return self.frozen(values)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer() for _ in range(4))

    def forward(self, values):
        for layer in self.layers:
            values = checkpoint(layer, values, use_reentrant=True)
        return values

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for version in (0, 1, 2):
    entered, kept, model = [], [], Model()
    if version == 1:
        policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Layer})
        model = FullyShardedDataParallel(model, auto_wrap_policy=policy, device_id=torch.device("cpu"))
    elif version == 2:
        mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
    values = torch.ones(2, 8, requires_grad=True)
    values.register_hook(lambda gradient: kept.extend(each() for each in entered))
    model(values * 1).sum().backward()
    print(sum(each is not None and each.grad is not None for each in kept))
dist.destroy_process_group()
"""


def test_the_first_fsdp_keeps_each_input_of_frozen_layers_with_its_gradient(training: Make) -> None:
    """How many of four layers, computed again, still hold their input and its gradient when all have been passed: on
    one GPU, in the first FSDP, and in the second."""
    command = [sys.executable, "-W", "ignore", "-c", _KEPT_BY_FSDP]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout.split()) == (0, ["0", "4", "0"]), done.stderr
    lora = training(activation_checkpointing="full", loss_chunk_tokens=64, adapters=Adapters(8))
    inputs = 32 * 2048 * 4096 * 2
    assert memory_of(replace(lora, is_fsdp1=True)).total - memory_of(lora).total == inputs


def test_old_bitsandbytes_keeps_the_inputs_of_frozen_matrices(training: Make) -> None:
    """Of two steps where nothing is computed again: three inputs of 4096, one of 14336, in 16 bits."""
    new = training(engine="ddp", precision="bf16-true", adapters=Adapters(8, is_quantized=True))
    old = replace(new, stack_year=2024)
    each = 32 * 2048 * (2 * 4096 + 14336) * 2
    assert memory_of(old).activations - memory_of(new).activations == 2 * each


def test_what_adapters_drop_out_is_kept_with_its_mask(training: Make) -> None:
    kept = training(engine="ddp", precision="bf16-true", adapters=Adapters(8, "q_proj,v_proj"))
    dropped = replace(kept, adapters=Adapters(8, "q_proj,v_proj", drops_out=True))
    # One copy more, and a byte for each value of both.
    more = 32 * 2048 * (4096 * 2 + 2 * 4096)
    assert memory_of(dropped).activations - memory_of(kept).activations == more


def test_foreach_holds_another_copy_of_what_it_updates(training: Make) -> None:
    """Five copies of all parameters in bf16 while AdamW steps, as fms-acceleration measured of Mistral 7B: 72.4 GB."""
    machines = machines_of_gpu(find_gpu("A100-SXM-80GB"), 1, 1)
    settings = {"engine": "ddp", "precision": "bf16-true", "activation_checkpointing": "full", "optimizer": FOREACH}
    wanted = replace(training("mistral-7b", sequence_length=4096, micro_batch_size=4, **settings), machines=machines)
    assert memory_of(wanted).total == 5 * 2 * wanted.architecture.parameters
    # Where activations are larger still, they make the peak, and the copy is not there.
    large = replace(wanted, micro_batch_size=64)
    assert memory_of(large) == memory_of(replace(large, optimizer="adamw"))


def test_each_gpu_of_a_group_has_buffers_of_nccl() -> None:
    alone, pair, node, nodes = (
        machines_of_gpu(find_gpu("A100-SXM-80GB"), *shape).runtime_bytes for shape in ((1, 1), (1, 2), (1, 8), (4, 8))
    )
    assert (pair - alone, node - alone) == (544 * 2**20, 688 * 2**20)
    assert nodes == node


def test_what_fits_instead_has_the_same_batch(training: Make) -> None:
    too_large = training(micro_batch_size=4, sequence_length=8192)
    assert not estimate(too_large).fits
    alternatives = settings_that_fit(too_large)
    assert alternatives
    assert all(each.verdict == "fits" for each in alternatives)
    assert {each.training.global_batch_size for each in alternatives} == {too_large.global_batch_size}


def test_engines_are_compared_with_the_settings_of_the_training(training: Make) -> None:
    found = memory_by_engine(training("llama-3.1-8b", engine="fsdp", sequence_length=4096))
    assert list(found) == ["ddp", "fsdp", "zero0", "zero1", "zero2", "zero3", "zero3 offloaded"]
    for engine in found.keys() - {"zero3 offloaded"}:
        alone = estimate(training("llama-3.1-8b", engine=engine, sequence_length=4096))
        assert found[engine] == (alone.memory, alone.verdict)
    zero = [found[name][0].total for name in ("zero0", "zero1", "zero2", "zero3", "zero3 offloaded")]
    assert zero == sorted(zero, reverse=True)
    assert found["ddp"][1] == "does not fit"
    assert found["fsdp"][1]
    lora = Adapters(16)
    assert list(memory_by_engine(replace(training("llama-3.1-8b"), adapters=lora))) == ["ddp", "fsdp"]


def test_one_gpu_has_no_engines_to_compare(training: Make) -> None:
    whole = training("llama-3.1-8b")
    assert memory_by_engine(replace(whole, machines=replace(whole.machines, nodes=1, gpus_per_node=1))) == {}


def test_what_leaves_less_than_a_tenth_of_a_gpu_may_not_fit(training: Make) -> None:
    """Up to nine tenths with what the allocator keeps beyond tensors, which it gives back where memory is short."""
    found = estimate(training("llama-3.1-8b"))
    assert found.memory.total < found.memory.reserved < 1.6 * found.memory.total
    machines, verdicts = found.training.machines, []
    size, runtime = machines.memory_bytes_per_gpu, machines.runtime_bytes
    for share in (0.89, 0.91):
        scale = (share * size - runtime) / found.memory.reserved
        verdicts.append(_scaled(found, scale).verdict)
    for share in (0.99, 1.01):
        scale = (share * size - runtime) / found.memory.total
        verdicts.append(_scaled(found, scale).verdict)
    assert verdicts == ["fits", "may not fit", "may not fit", "does not fit"]


def _scaled(found: Estimate, scale: float) -> Estimate:
    return replace(found, memory=Memory(**{name: scale * size for name, size in found.memory.parts().items()}))


def test_nothing_is_offered_where_nothing_fits(training: Make) -> None:
    assert settings_that_fit(training("llama-3.1-405b", "T4", precision="fp16", sequence_length=8192)) == ()


def test_offloading_is_offered_only_where_main_memory_holds_it(training: Make) -> None:
    """70B at 18 bytes are 1.2 TB; a machine of this size has 900 GiB."""
    sku = find_sku("Standard_ND96asr_v4")
    for nodes, is_offered in ((1, False), (2, True)):
        wanted = training("llama-2-70b", "A100-SXM-40GB", engine="zero3", activation_checkpointing="full")
        found = settings_that_fit(replace(wanted, machines=machines_of_sku(sku, nodes)))
        assert any(each.training.offload_optimizer for each in found) is is_offered


@pytest.mark.slow
def test_the_table_of_families_is_that_of_transformers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, which imports transformers for the tests below as well; where it differs, the script exits."""
    monkeypatch.setattr(sys, "argv", [str(GENERATOR), "--check"])
    runpy.run_path(str(GENERATOR), run_name="__main__")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "gpt2", "opt", "gpt_neox", "mpt"])
def test_parameters_are_those_of_the_real_model(family: str) -> None:
    """The closed form against transformers' model on the meta device, which holds shapes and no values."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from trainyard.plan.estimate.architectures import families

    ours = next(model for model in all_architectures() if model.family == family)
    sizes = {
        theirs: getattr(ours, key)
        for key, theirs in families()[family].names.items()
        if key != "intermediate_size" or family not in ("gpt2", "mpt")
    }
    if family == "opt":
        sizes["word_embed_proj_dim"] = ours.hidden_size
    config = AutoConfig.for_model(family, **{**sizes, families()[family].names["layers"]: 2})
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


@pytest.mark.parametrize(
    ("family", "targets"),
    [("llama", "all-linear"), ("llama", "q_proj,v_proj"), ("gpt2", "all-linear"), ("gpt2", "c_proj")],
)
def test_adapters_are_as_large_as_peft_makes_them(family: str, targets: str) -> None:
    from peft import LoraConfig, inject_adapter_in_model
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"vocab_size": 100, "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 80, "num_key_value_heads": 2} if family == "llama" else {}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes))
    chosen = targets if targets == "all-linear" else targets.split(",")
    inject_adapter_in_model(LoraConfig(r=4, target_modules=chosen), model)
    real = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    ours = from_settings(family, model.config.to_dict(), family)
    assert Adapters(4, targets).parameters(ours) == real


def test_targets_that_a_model_lacks_are_named() -> None:
    with pytest.raises(UsageError, match="no layer of gpt2 is called q_proj"):
        Adapters(8, "q_proj").matrices(find_architecture("gpt2"))


@pytest.mark.parametrize(("is_quantized", "engines"), [(True, {"ddp"}), (False, {"ddp", "fsdp"})])
def test_only_engines_that_train_the_adapters_are_proposed(
    training: Make, is_quantized: bool, engines: set[str]
) -> None:
    wanted = training("llama-3.2-1b", engine="ddp", adapters=Adapters(16, is_quantized=is_quantized))
    assert {each.training.engine for each in search(wanted, [wanted.machines], Scope()).fastest} == engines
    assert {each.training.engine for each in settings_that_fit(wanted)} <= engines


def test_adapters_train_a_fraction_of_the_memory_and_four_bits_less_still(training: Make) -> None:
    full = training(engine="ddp", activation_checkpointing="full")
    lora, qlora = (replace(full, adapters=Adapters(16, is_quantized=quantized)) for quantized in (False, True))
    states = [_states(each) for each in (full, lora, qlora)]
    count = full.architecture.parameters
    assert states[0] == 16 * count
    assert states[1] == 4 * count + 16 * lora.trained_parameters
    # Embedding and prediction stay in fp32.
    assert states[2] == pytest.approx(0.516 * (count - 2 * 128256 * 4096) + 8 * 128256 * 4096, rel=0.2)
    seconds = [each.total for each in (estimate(full).time, estimate(lora).time) if each is not None]
    assert seconds[1] < seconds[0]


def test_chunks_of_the_loss_replace_whole_logits(training: Make) -> None:
    whole = training(sequence_length=8192)
    chunked = replace(whole, loss_chunk_tokens=1024)
    assert memory_of(chunked).logits == memory_of(whole).logits / 8
    assert memory_of(replace(whole, loss_chunk_tokens=10**6)).logits == memory_of(whole).logits
    slower, faster = estimate(chunked).time, estimate(whole).time
    assert slower is not None
    assert faster is not None
    assert faster.total < slower.total < 1.1 * faster.total


def test_zero_in_fp32_keeps_values_of_four_bytes(training: Make) -> None:
    count = find_architecture("gpt2").parameters
    memory = memory_of(training("gpt2", engine="zero2", precision="fp32"))
    assert (memory.parameters, memory.gradients, memory.optimizer) == (4 * count, 4 * count / 8, 12 * count / 8)


_GRADIENTS_IN_A_LAYER = 2048 * (2 * 14336 + 4096) * 2


def test_a_layer_that_is_computed_again_and_the_logits_are_not_there_at_once(training: Make) -> None:
    recomputed = training(activation_checkpointing="full")
    # Each layer's input; and of the last norm its input in fp32, what its weight multiplies, and its result.
    kept = 32 * 2048 * 4096 * 2 + 2048 * 4096 * (4 + 2 + 2)
    memory = memory_of(recomputed)
    assert (memory.activations, memory.logits) == (kept, 12 * 2048 * 128256)
    chunked = memory_of(replace(recomputed, loss_chunk_tokens=64))
    passed = layer_activation_bytes(recomputed) + _GRADIENTS_IN_A_LAYER
    assert (chunked.activations, chunked.logits) == (kept + passed, 0)


def test_alone_gradients_take_the_place_of_activations(training: Make) -> None:
    alone = replace(training(engine="ddp"), machines=machines_of_gpu(find_gpu("H100-SXM"), 1, 1))
    count = alone.architecture.parameters
    large, small = (memory_of(replace(alone, micro_batch_size=size)) for size in (16, 1))
    assert large.gradients == 0
    assert large.activations > 4 * count
    assert (small.gradients, small.activations, small.logits) == (4 * count, _GRADIENTS_IN_A_LAYER, 0)
    assert memory_of(replace(alone, accumulation_steps=2)).gradients == 4 * count


def test_gradients_that_software_fills_with_zeros_stay(training: Make) -> None:
    """Before torch 2; Apex's optimizers always freed them."""
    alone = replace(training(engine="ddp"), machines=machines_of_gpu(find_gpu("H100-SXM"), 1, 1), micro_batch_size=16)
    old = replace(alone, stack_year=2022)
    assert memory_of(old).gradients == 4 * alone.architecture.parameters
    assert (
        memory_of(replace(alone, stack_year=2023)).gradients == memory_of(replace(old, optimizer=APEX)).gradients == 0
    )


def test_fsdp_of_old_gathers_all_layers_ahead(training: Make) -> None:
    new, old = (training(stack_year=year) for year in (2024, 2023))
    model = new.architecture
    more = memory_of(old).buffers - memory_of(new).buffers
    assert more == 2 * (model.block_parameters - 2 * model.largest_block)


def test_deepspeed_has_wide_gradients_only_when_activations_are_gone(training: Make) -> None:
    small, large = (memory_of(training("gpt2", engine="zero1", micro_batch_size=size)) for size in (1, 8))
    assert large.buffers == 0
    assert large.activations > small.activations
    tiny = training("gpt2", engine="zero1", sequence_length=1)
    assert memory_of(tiny).buffers == 4 * tiny.architecture.parameters / 8
    assert memory_of(tiny).activations == 0


def test_autocast_has_a_copy_of_every_matrix_until_the_backward_pass(training: Make) -> None:
    """With recomputation, of one layer at a time after that: without it, of all."""
    whole, again = (training(engine="ddp", activation_checkpointing=kind) for kind in ("none", "full"))
    model = whole.architecture
    assert memory_of(whole).buffers == 2 * model.parameters
    found = memory_of(again)
    assert found.buffers == 2 * (model.largest_block + model.parameters - model.block_parameters)
    copies = 2 * (model.block_parameters - model.largest_block)
    inputs = 32 * 2048 * 4096 * 4 + 2048 * 4096 * (4 + 4 + 2)
    assert found.activations == pytest.approx(inputs + copies - found.logits / 6, rel=0.01)


def test_the_allocator_reuses_what_activations_leave_for_logits(training: Make) -> None:
    """And keeps 12 % of all else."""
    few, many = (memory_of(training(activation_checkpointing=kind)) for kind in ("full", "none"))
    else_of_few, else_of_many = (each.total - each.logits for each in (few, many))
    assert few.reserved - few.total == pytest.approx(0.12 * else_of_few + 0.6 * (few.logits - few.activations))
    assert many.activations > many.logits
    assert many.reserved - many.total == pytest.approx(0.12 * else_of_many)


def test_buckets_beside_gradients_take_as_much_again(training: Make) -> None:
    """As in software that leaves torch's DistributedDataParallel as it is, with more than one GPU."""
    views = training("gpt2", engine="ddp", sequence_length=1024)
    copies = replace(views, copies_gradients=True)
    size = 4 * views.architecture.parameters
    assert memory_of(copies).total - memory_of(views).total == size
    times = [estimate(each).time for each in (views, copies)]
    assert times[0] is not None
    assert times[1] is not None
    rate = 0.7e9 * views.machines.gpu.memory_gbyte_per_second
    assert times[1].total - times[0].total == pytest.approx(1.1004 * 4 * size / rate, rel=1e-4)
    alone = replace(copies, machines=replace(copies.machines, nodes=1, gpus_per_node=1))
    assert memory_of(alone) == memory_of(replace(alone, copies_gradients=False))


def test_a_loss_in_16_bits_has_its_logits_three_times(training: Make) -> None:
    wanted = training(upcasts_logits=False)
    assert memory_of(wanted).logits == 3 * 2 * 2048 * 128256


def test_autocast_computes_a_loss_of_16_bits_in_fp32_but_for_the_softmax(training: Make) -> None:
    """As torch's cross_entropy asks for the softmax in the type of the logits: what is kept for the backward pass, and
    one gradient in fp32. Only the loss itself is what a GPU's autocast makes fp32."""
    import torch

    logits = torch.zeros(50, 80, dtype=torch.bfloat16, requires_grad=True)
    saved: dict[int, torch.Tensor] = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda each: saved.setdefault(each.data_ptr(), each), torch.clone):
        logarithms = torch.nn.functional.log_softmax(logits, 1, dtype=logits.dtype)
        torch.nn.functional.nll_loss(logarithms.float(), torch.zeros(50, dtype=torch.long))
    kept = sum(each.nbytes for each in saved.values() if each.shape == logits.shape)
    wanted = training(engine="ddp", upcasts_logits=False)
    assert memory_of(wanted).logits / (2048 * 128256) == kept / logits.numel() + 4


@pytest.mark.parametrize(
    ("stack", "precision", "keeps"),
    [("sdpa", "fp16", False), ("sdpa", "fp32", False), ("sdpa", "bf16", True), ("eager", "fp16", True)],
)
def test_a_gpu_without_flash_attention_keeps_scores_of_bf16(
    training: Make, stack: str, precision: str, keeps: bool
) -> None:
    assert training(gpu="V100-SXM-32GB", stack=stack, precision=precision).keeps_scores is keeps
    assert not training(stack="sdpa", precision=precision).keeps_scores


def test_fsdp_sums_every_micro_batch_where_a_whole_gradient_is_large(training: Make) -> None:
    assert training("gpt2").sums_every_micro_batch is False
    large = training("llama-3.1-8b", accumulation_steps=4)
    assert large.sums_every_micro_batch is True  # 32 GB of gradient; a quarter of an H100 is 20

    at_the_end = replace(large, gradient_sync="last")
    more = memory_of(at_the_end).buffers - memory_of(large).buffers
    assert more > 0.8 * 4 * large.architecture.parameters
    quieter, more_often = estimate(at_the_end).time, estimate(large).time
    assert quieter is not None
    assert more_often is not None
    assert quieter.communication < more_often.communication
    assert memory_of(large) == memory_of(replace(large, accumulation_steps=1))


def test_replicas_exchange_once_though_every_micro_batch_is_summed(training: Make) -> None:
    def communication(steps: int, choice: str) -> float:
        hybrid = training("llama-3.1-8b", nodes=2, accumulation_steps=steps, shard_size=8, gradient_sync=choice)
        time = estimate(hybrid).time
        assert time is not None
        return time.communication

    assert communication(1, "every") == communication(1, "last")
    assert communication(3, "last") < communication(3, "every") < 3 * communication(1, "every")
