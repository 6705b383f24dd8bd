"""Model FLOPs utilisation (MFU): the arithmetic that training a model needs, relative to what the device could do.

    MFU = tokens/s x FLOPs per token / (ranks x peak FLOP/s of one device)
    FLOPs per token = 6 N + 4 F + 12 L H Q T

N trained parameters that multiply activations, F frozen ones, which have no gradient of their own, L layers,
H heads of Q dimensions, T tokens per sample: appendix B of "PaLM:
Scaling Language Modeling with Pathways", arxiv.org/abs/2204.02311. Forward and backward passes count once:
what activation checkpointing recomputes does not count, and causal masking is not discounted.
"""

from __future__ import annotations

import re

import torch

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


def flops_per_token(model: torch.nn.Module, tokens_per_sample: int) -> float | None:
    """Return the training FLOPs per token of a model with a transformers config, else None.

    Also None for a mixture of experts, where only some parameters are multiplied for each token.
    """
    config = _config_of(model)
    if any(getattr(config, name, None) for name in _EXPERT_COUNTS):
        return None
    sizes = [getattr(config, name, None) for name in ("num_hidden_layers", "num_attention_heads", "hidden_size")]
    whole = [size for size in sizes if isinstance(size, int)]
    if len(whole) < len(sizes):
        return None
    layers, heads, hidden = whole
    head_size = getattr(config, "head_dim", None) or hidden // heads
    trained, frozen = multiplying_parameters(model)
    return 6.0 * trained + 4.0 * frozen + 12.0 * layers * heads * head_size * tokens_per_sample


def multiplying_parameters(model: torch.nn.Module) -> tuple[int, int]:
    """Return the numbers of trained and frozen parameters.

    They are without embedding tables, unless one is also the output layer's weight.
    """
    looked_up = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    multiplied = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Linear)}
    only_looked_up = looked_up - multiplied
    sizes = {True: 0, False: 0}
    for parameter in model.parameters():
        if id(parameter) not in only_looked_up:
            sizes[parameter.requires_grad] += _whole_size(parameter)
    return sizes[True], sizes[False]


def _whole_size(parameter: torch.nn.Parameter) -> int:
    """Return the size of the whole parameter where an engine keeps a part of it: ZeRO-3 stores it in `ds_numel`."""
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def _config_of(model: torch.nn.Module) -> object:
    """Return the configuration beneath whatever wraps the model."""
    configs = (getattr(module, "config", None) for module in model.modules())
    return next((config for config in configs if hasattr(config, "num_hidden_layers")), None)
