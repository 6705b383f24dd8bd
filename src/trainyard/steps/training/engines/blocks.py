"""The blocks of a model: its repeated layers, which are sharded, compiled and recomputed one by one.

They are the elements of the model's large ModuleLists: that is where every family of models keeps its layers, each is
called as a whole, and together they hold nearly all parameters.
"""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
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
from trainyard.steps.runtime.imports import from_extra, require_packages

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
_LEAST_BYTES = 1024
"""A smaller tensor is not worth a copy."""
_CONTAINERS = (torch.nn.ModuleList, torch.nn.ModuleDict)
_LEAST_CAPABILITY = (8, 9)
"""Of NVIDIA's GPUs, Ada and Hopper: what torch._scaled_mm asks for."""
_MULTIPLE = 16
"""Of both dimensions of a matrix: what cuBLAS asks for."""


def find_blocks(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the model's repeated layers in the order of registration; none without a large ModuleList."""
    least = _LEAST_SHARE * _size(model)
    found: dict[torch.nn.Module, None] = {}
    for blocks in _outermost_lists(model):
        if _size(blocks) > least:
            found.update((block, None) for block in blocks if _size(block))
    return list(found)


def find_separate_blocks(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the blocks that share no parameter with the rest of the model, unlike those of models with tied layers."""
    places = _places(model)
    return [block for block in find_blocks(model) if all(places[key] == own for key, own in _places(block).items())]


def check_blocks(settings: Training) -> None:
    """StepError for settings of the blocks that cannot be combined or that this machine cannot have.

    SetupError for a missing package.
    """
    if settings.float8:
        if settings.precision != "bf16":
            raise StepError(f"--float8 needs --precision bf16 for everything else; found {settings.precision}")
        if settings.tuning != "full":
            raise StepError(f"--float8 does not work with --tuning {settings.tuning}; use full, or leave it out")
        if not torch.cuda.is_available() or torch.cuda.get_device_capability() < _LEAST_CAPABILITY:
            gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU"
            raise StepError(f"--float8 needs a GPU that multiplies in float8 (L4, L40S, H100 and later); this is {gpu}")
        require_packages("--float8", from_extra("torchao"), "torchao")
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
        offload = ActivationOffload()
        for block in blocks:
            forward_within(block, functools.partial(offload.around, block))
    if settings.compile:
        import torch._dynamo

        # Blocks of one class share their limit of shapes: those of each stage, of small last batches, of evaluation.
        torch._dynamo.config.recompile_limit = _MOST_COMPILED_SHAPES
        # DDP's exchanges overlap with blocks; within them, torch would break the graph at each of DDP's buckets.
        torch._dynamo.config.optimize_ddp = False
        # Block by block: equal blocks compile once, and an engine's exchanges between them still overlap.
        for block in blocks:
            # Each shape separately: kernels for dynamic shapes are slower, and a training that has met a small last
            # batch would compute other bits from there on than one that resumes after it.
            block.compile(dynamic=False)


def _outermost_lists(module: torch.nn.Module) -> Iterator[torch.nn.ModuleList]:
    for child in module.children():
        # Containers have no forward of their own, so that only their elements can be blocks.
        if isinstance(child, torch.nn.ModuleList) and not any(isinstance(element, _CONTAINERS) for element in child):
            yield child
        else:
            yield from _outermost_lists(child)


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


def forward_within(module: torch.nn.Module, context: Callable[[], AbstractContextManager[Any]]) -> None:
    """Enter a context around each forward pass of a module. A wrapper module would change the parameters' names."""
    forward = module.forward

    @functools.wraps(forward)
    def within(*arguments: Any, **named: Any) -> Any:
        with context():
            return forward(*arguments, **named)

    module.forward = within


class _Pass:
    """What one forward pass of a block has saved, and the pass before it, for as long as anybody needs either."""

    def __init__(self, before: Callable[[], _Pass | None]) -> None:
        self.before = before
        self.kept: list[weakref.ref[_Kept]] = []
        self.has_left: torch.cuda.Event | None = None
        """Once everything is in main memory."""
        self.is_back: torch.cuda.Event | None = None

    def alive(self) -> list[_Kept]:
        """Return what is still needed."""
        return [kept for reference in self.kept if (kept := reference()) is not None]


@dataclass(eq=False)
class _Kept:
    """A tensor in main memory, and on the GPU while it leaves or comes back."""

    values: torch.Tensor
    saved_by: _Pass
    on_device: torch.Tensor | None = None


class ActivationOffload:
    """Keeps in main memory what blocks save for the backward pass: as torch.autograd.graph.save_on_cpu, with overlap.

    Copies are queued on a stream of their own, from and to pinned memory, so that neither host nor computation waits
    for them: a block's leave the GPU while the next two compute, and come back while the block after it does. Memory of
    a GPU is handed from one stream to the other by events only: `record_stream` would keep it until the host looks,
    which is far ahead. Tensors keep their layout, and the backward pass computes the same bits.
    """

    def __init__(self) -> None:
        self._copies: torch.cuda.Stream | None = None
        self._last: Callable[[], _Pass | None] = lambda: None

    @contextmanager
    def around(self, block: torch.nn.Module) -> Iterator[None]:
        """A context for one forward pass of a block. Its weights stay where they are, and so do copies of frozen ones.

        Of a trained weight's copy in autocast's precision nothing is kept: the backward pass rounds again.
        """
        this = _Pass(self._last)
        self._last = weakref.ref(this)
        frozen = {parameter.shape for parameter in block.parameters() if not parameter.requires_grad}
        before = this.before()
        earlier = None if before is None else before.before()
        if self._copies is not None and earlier is not None and earlier.has_left is not None:
            # Freed now, since what computes from here on waits until it has left the GPU.
            torch.cuda.current_stream(self._copies.device).wait_event(earlier.has_left)
            for kept in earlier.alive():
                kept.on_device = None
        with torch.autograd.graph.saved_tensors_hooks(functools.partial(self._keep, this, frozen), self._bring_back):
            yield
        if self._copies is not None:
            this.has_left = self._copies.record_event()

    def _keep(self, this: _Pass, frozen: Container[torch.Size], tensor: torch.Tensor) -> Any:
        base = tensor if tensor._base is None else tensor._base
        is_weight = isinstance(base, torch.nn.Parameter) or (base.grad_fn is None and base.shape in frozen)
        if is_weight or tensor.nbytes < _LEAST_BYTES:
            return tensor
        if (weight := _rounded_weight(base)) is not None:
            dtype, layout = base.dtype, (tensor.size(), tensor.stride(), tensor.storage_offset())
            return lambda: weight.detach().to(dtype).as_strided(*layout)
        on_gpu = tensor.device.type == "cuda"
        kept = _Kept(torch.empty_like(tensor, device="cpu", pin_memory=on_gpu, requires_grad=False), this)
        if not on_gpu:
            kept.values.copy_(tensor)
            return kept
        this.kept.append(weakref.ref(kept))
        kept.on_device = tensor.detach()  # with its history it would keep itself alive
        self._copies = self._copies or torch.cuda.Stream(tensor.device)
        self._copy(self._copies, kept.values, kept.on_device)
        return kept

    def _bring_back(self, kept: Any) -> torch.Tensor:
        if not isinstance(kept, _Kept):
            tensor: torch.Tensor = kept() if callable(kept) else kept
            return tensor
        if self._copies is None:
            return kept.values
        for saved in (kept.saved_by, kept.saved_by.before()):  # the one before ahead of time
            if saved is not None and saved.is_back is None:
                for each in saved.alive():
                    if each.on_device is None:
                        each.on_device = torch.empty_like(each.values, device=self._copies.device)
                        self._copy(self._copies, each.on_device, each.values)
                saved.is_back = self._copies.record_event()
        assert kept.saved_by.is_back is not None
        torch.cuda.current_stream(self._copies.device).wait_event(kept.saved_by.is_back)
        found, kept.on_device = kept.on_device, None
        return found if found is not None else kept.values.to(self._copies.device)  # asked for a second time

    def _copy(self, stream: torch.cuda.Stream, target: torch.Tensor, source: torch.Tensor) -> None:
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)


def _rounded_weight(tensor: torch.Tensor) -> torch.nn.Parameter | None:
    """Return the weight that a tensor is autocast's copy of, if it is one."""
    if tensor.grad_fn is None or tensor.grad_fn.name() != "ToCopyBackward0":
        return None
    weight = getattr(tensor.grad_fn.next_functions[0][0], "variable", None)
    return weight if isinstance(weight, torch.nn.Parameter) else None


def multiply_in_float8(blocks: Sequence[torch.nn.Module], *, emulate: bool = False) -> None:
    """Replace the linear layers of the blocks, in place; names and weights stay. `emulate` computes in fp32."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    def is_suitable(layer: torch.nn.Module, name: str) -> bool:
        return isinstance(layer, torch.nn.Linear) and not any(size % _MULTIPLE for size in layer.weight.shape)

    for block in blocks:
        convert_to_float8_training(block, module_filter_fn=is_suitable, config=Float8LinearConfig(emulate=emulate))
