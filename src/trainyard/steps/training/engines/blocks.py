"""The blocks of a model: its repeated layers, which are sharded, compiled and recomputed one by one.

They are the elements of the model's large ModuleLists: that is where every family of models keeps its layers, each is
called as a whole, and together they hold nearly all parameters.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from trainyard.settings.steps.training import Training
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.engines.activation_offload import activations_in_main_memory
from trainyard.steps.training.engines.float8 import check_float8, multiply_in_float8

_LEAST_SHARE = 0.1
"""Of the model's parameters: a smaller list, such as one of heads, is not worth a separate exchange per element."""
_MOST_COMPILED_SHAPES = 64
"""Beyond this, torch leaves a block uncompiled. Its default of 8 is too low for a model with several stages."""

_ATEN = torch.ops.aten
_MATRIX_PRODUCTS = frozenset({_ATEN.mm.default, _ATEN.addmm.default})
_ATTENTIONS = frozenset(
    {
        _ATEN._scaled_dot_product_flash_attention.default,
        _ATEN._scaled_dot_product_efficient_attention.default,
        _ATEN._scaled_dot_product_cudnn_attention.default,
        _ATEN._scaled_dot_product_flash_attention_for_cpu.default,
    }
)

_ATTENTION_WITHIN_DOCUMENTS = "torch_attn::_varlen_attn"
"""By name: torch knows it only once it is imported."""


def find_blocks(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the model's repeated layers in the order of registration; none without a large ModuleList."""
    least = _LEAST_SHARE * _size(model)
    blocks = (block for blocks in _outermost_lists(model) if _size(blocks) > least for block in blocks if _size(block))
    return list(dict.fromkeys(blocks))


def find_separate_blocks(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the blocks that share no parameter with the rest of the model, unlike those of models with tied layers."""
    places = _places(model)
    return [block for block in find_blocks(model) if all(places[key] == own for key, own in _places(block).items())]


def check_blocks(settings: Training) -> None:
    """StepError for settings of the blocks that exclude each other, or that this machine cannot have."""
    check_float8(settings)
    if settings.checkpointed_operators != "all" and not settings.activation_checkpointing:
        raise StepError(
            f"--checkpointed-operators {settings.checkpointed_operators} needs --activation-checkpointing true"
        )
    if settings.activation_offload and settings.compile:
        raise StepError(
            "--activation-offload does not work with --compile, whose kernels decide themselves what they keep; leave "
            "one out"
        )


def prepare_blocks(model: torch.nn.Module, settings: Training) -> None:
    """Apply the settings to each block, before an engine wraps the model. Names stay as they are."""
    blocks = find_blocks(model) or [model]
    if settings.float8:
        multiply_in_float8(blocks)
    if settings.activation_checkpointing:
        for block in blocks:
            _recompute(block, only_cheap=settings.checkpointed_operators == "cheap")
    if settings.activation_offload:
        for block in blocks:
            _offload(block)
    if settings.compile:
        _prepare_compiler()
        # Block by block: equal blocks compile once, and an engine's exchanges between them still overlap.
        for block in blocks:
            # Each shape separately: kernels for dynamic shapes are slower, and a training that has met a small last
            # batch would compute other bits from there on than one that resumes after it.
            block.compile(dynamic=False)


def _prepare_compiler() -> None:
    import torch._dynamo

    # Blocks of one class share their limit of shapes: those of each stage, of small last batches, of evaluation.
    torch._dynamo.config.recompile_limit = _MOST_COMPILED_SHAPES
    # DDP's exchanges overlap with blocks; within them, torch would break the graph at each of DDP's buckets.
    torch._dynamo.config.optimize_ddp = False


def _outermost_lists(module: torch.nn.Module) -> Iterator[torch.nn.ModuleList]:
    for child in module.children():
        if isinstance(child, torch.nn.ModuleList) and not any(_is_container(element) for element in child):
            yield child
        else:
            yield from _outermost_lists(child)


def _is_container(module: torch.nn.Module) -> bool:
    """Return whether a module has no forward of its own, so that only its elements can be blocks."""
    return isinstance(module, torch.nn.ModuleList | torch.nn.ModuleDict)


def _places(module: torch.nn.Module) -> Counter[int]:
    """Return in how many places each parameter is, by its identity."""
    parameters = (parameter for part in module.modules() for parameter in part._parameters.values())
    return Counter(id(parameter) for parameter in parameters if parameter is not None)


def _size(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _recompute(block: torch.nn.Module, *, only_cheap: bool) -> None:
    """Keep only the block's inputs for the backward pass. A wrapper module would change the parameters' names.

    With `only_cheap` also the outputs of what takes long, as torchtitan's selective checkpointing by operator.
    """
    forward = block.forward
    options: dict[str, Any] = {"context_fn": _keeping_what_takes_long} if only_cheap else {}

    @functools.wraps(forward)
    def checkpointed(*arguments: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*arguments, **named)
        return checkpoint(forward, *arguments, use_reentrant=False, **options, **named)

    block.forward = checkpointed


def _keeping_what_takes_long() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Return contexts for a block's forward pass and for its repetition."""
    products: Counter[bool] = Counter()

    def policy(context: SelectiveCheckpointContext, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        if operator in _MATRIX_PRODUCTS:
            products[context.is_recompute] += 1
            is_kept = products[context.is_recompute] % 2 == 1
        else:
            is_kept = operator in _ATTENTIONS or operator.name() == _ATTENTION_WITHIN_DOCUMENTS
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    found: tuple[AbstractContextManager[Any], AbstractContextManager[Any]]
    found = create_selective_checkpoint_contexts(policy)
    return found


def _offload(block: torch.nn.Module) -> None:
    """Keep what the block saves for the backward pass in main memory."""
    forward = block.forward

    @functools.wraps(forward)
    def offloaded(*arguments: Any, **named: Any) -> Any:
        with activations_in_main_memory():
            return forward(*arguments, **named)

    block.forward = offloaded
