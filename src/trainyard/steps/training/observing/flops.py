"""Model FLOPs utilisation (MFU): the arithmetic that training a model needs, relative to what the device could do.

    MFU = FLOPs of the step's samples / (seconds x ranks x peak FLOP/s of one device)
    FLOPs of a document of T tokens = (6 N + 4 F) T + 12 L H Q T x T

N trained parameters that multiply a token's activations, F frozen ones, which have no gradient of their own, L layers,
H heads of Q dimensions: appendix B of "PaLM: Scaling Language Modeling with Pathways", arxiv.org/abs/2204.02311. Of a
mixture of experts only those count that a token is sent to. Forward and backward passes count once: what activation
checkpointing recomputes does not count, nor does padding, and causal masking is not discounted.
"""

from __future__ import annotations

import re

import torch

from trainyard.steps.training.observing.measures import ModelFlops

_TERA = 1e12
_PEAK_TERAFLOPS: tuple[tuple[str, dict[str, float]], ...] = (
    ("MI300X", {"fp32": 163.4, "fp16": 1307.4, "bf16": 1307.4}),
    ("H200 NVL", {"fp32": 60.0, "fp16": 835.5, "bf16": 835.5}),
    ("H200", {"fp32": 67.0, "fp16": 989.5, "bf16": 989.5}),
    ("H100 NVL", {"fp32": 60.0, "fp16": 835.5, "bf16": 835.5}),
    ("H100 PCIe", {"fp32": 51.0, "fp16": 756.5, "bf16": 756.5}),
    ("H100", {"fp32": 67.0, "fp16": 989.5, "bf16": 989.5}),
    ("A100", {"fp32": 19.5, "fp16": 312.0, "bf16": 312.0}),
    ("A10", {"fp32": 31.2, "fp16": 125.0, "bf16": 125.0}),
    ("V100-PCIE", {"fp32": 14.0, "fp16": 112.0}),
    ("V100", {"fp32": 15.7, "fp16": 125.0}),
    ("T4", {"fp32": 8.1, "fp16": 65.0}),
)
"""Dense, without sparsity, by words of the device's name; the first match counts. fp32 is without TF32, which torch
uses only when asked to. From the vendors' data sheets: NVIDIA's for H200, H100, A100, A10, V100 and T4 Tensor
Core GPUs, AMD's for the Instinct MI300X."""
_PART_OF_DEVICE = re.compile(r"\bMIG\b|-\d+[ABCQ]\b")
"""Names of slices (A100-SXM4-80GB MIG 1g.10gb) and of virtual GPUs (A10-4Q): NVIDIA's MIG and vGPU user guides."""
_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Names of the number of experts in configurations of transformers."""


def peak_flops_per_second(device_name: str, precision: str) -> float | None:
    """Return the peak of one device in a precision (fp32, bf16, fp16).

    None for a device that is not in the table, and for a part of one, whose name does not tell its share.
    """
    if _PART_OF_DEVICE.search(device_name):
        return None
    for words, teraflops in _PEAK_TERAFLOPS:
        if re.search(rf"\b{words}\b", device_name):
            return teraflops[precision] * _TERA if precision in teraflops else None
    return None


def flops_of_transformer(model: torch.nn.Module) -> ModelFlops | None:
    """Return the training FLOPs of a model of tokens with a configuration of transformers, else None."""
    config = _config_of(model)
    sizes = [getattr(config, name, None) for name in ("num_hidden_layers", "num_attention_heads", "hidden_size")]
    whole = [size for size in sizes if isinstance(size, int)]
    if len(whole) < len(sizes):
        return None
    layers, heads, hidden = whole
    head_size = getattr(config, "head_dim", None) or hidden // heads
    key_size, value_size = (getattr(config, name, head_size) for name in ("qk_head_dim", "v_head_dim"))
    trained, frozen = multiplying_parameters(model)
    return ModelFlops(per_token=6 * trained + 4 * frozen, per_pair=6 * layers * heads * (key_size + value_size))


def multiplying_parameters(model: torch.nn.Module) -> tuple[float, float]:
    """Return the numbers of trained and frozen parameters that multiply each token's activations.

    They are without embedding tables, unless one is also the output layer's weight; of experts, the share that a token
    is sent to.
    """
    config = _config_of(model)
    experts = next((getattr(config, name) for name in _EXPERT_COUNTS if getattr(config, name, None)), 1)
    share = int(getattr(config, "num_experts_per_tok", None) or experts) / int(experts)
    of_experts = {
        id(parameter)
        for name, module in model.named_modules()
        if name.rpartition(".")[2] == "experts"
        for parameter in module.parameters()
    }
    looked_up = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    multiplied = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Linear)}
    only_looked_up = looked_up - multiplied
    sizes = {True: 0.0, False: 0.0}
    for parameter in model.parameters():
        if id(parameter) not in only_looked_up:
            # ZeRO-3 keeps a part of a parameter, and the size of the whole in `ds_numel`.
            size = int(getattr(parameter, "ds_numel", parameter.numel()))
            sizes[parameter.requires_grad] += size * (share if id(parameter) in of_experts else 1)
    return sizes[True], sizes[False]


def _config_of(model: torch.nn.Module) -> object:
    """Return the configuration beneath whatever wraps the model."""
    configs = (getattr(module, "config", None) for module in model.modules())
    return next((config for config in configs if hasattr(config, "num_hidden_layers")), None)
