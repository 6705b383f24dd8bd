"""New weights of a model, drawn where they are needed: each rank draws the part of a tensor that it holds.

While a model is built, its parameters take no memory. What initializes each is noted, and done later to chunks of the
flattened tensor, each with random numbers of its own. So the values depend on torch's seed alone: not on the engine,
the number of ranks or the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import init
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trainyard.steps.runtime.imports import replaced

SCHEME = 1
"""The version of how values follow from the seed, which checkpoints name. Other chunks are another version."""
CHUNK_ELEMENTS = 2**13
"""Few, so that ranks whose rows share a chunk draw little twice; enough to take longer than to seed a generator."""
_SEEDS = 2**32
"""Torch's generator on CPUs takes no more of a seed."""
_SPREAD = 0x9E3779B1
"""Odd, so that no two chunks of a model have the same seed; large, so that seeds are no neighbours."""

_truncated_normal = init._no_grad_trunc_normal_
_aten = torch.ops.aten
_RANDOM = {_aten.normal_, _aten.uniform_}
_DRAWN = {torch.float32, torch.float16, torch.bfloat16}
_FILLS = _RANDOM | {_aten.fill_, _aten.zero_, _aten.copy_}
_Fill = Callable[[torch.Tensor, int, torch.Generator], None]
"""Gives values to a chunk that begins at some element of a tensor, or to the part of it that it is about."""


class CannotDraw(Exception):
    """A model does something with its weights that cannot be done to chunks of them later: it has to be built."""


@dataclass(frozen=True)
class NewWeight:
    """How to draw any range of a tensor."""

    shape: tuple[int, ...]
    fills: Sequence[_Fill]
    drawn_as: torch.dtype
    first_chunk: int
    """The number of the first chunk, from which its seed follows."""

    def values(self, start: int, stop: int) -> torch.Tensor:
        """Return a range of the flattened tensor in fp32, in main memory."""
        found, elements = torch.empty(stop - start, dtype=torch.float32), math.prod(self.shape)
        for first in chunks(start, stop):
            generator = torch.Generator()
            generator.manual_seed((self.first_chunk + first // CHUNK_ELEMENTS) * _SPREAD % _SEEDS)
            drawn = torch.empty(min(CHUNK_ELEMENTS, elements - first), dtype=self.drawn_as)
            for fill in self.fills:
                fill(drawn, first, generator)
            wanted = drawn[max(start - first, 0) : stop - first]
            found[max(first - start, 0) :][: len(wanted)] = wanted
        return found


def chunks(start: int, stop: int) -> range:
    """Return where the chunks begin that have some of a range: each is drawn as a whole."""
    return range(start // CHUNK_ELEMENTS * CHUNK_ELEMENTS, stop, CHUNK_ELEMENTS)


def to_draw(build: Callable[[], Any]) -> tuple[Any, dict[torch.Tensor, NewWeight]]:
    """Return the model that `build` returns with all parameters on the meta device, and how to draw these.

    CannotDraw if that is not known of one of them, or what the model raises without memory. Takes one number from
    torch's generator.
    """
    # Models import it, which fails while tensors are not what they were.
    import torch._dynamo

    first_chunk, noting = int(torch.randint(_SEEDS, ())), _Noting()
    truncated = replaced(init, _truncated_normal.__name__, noting.truncated)
    # Torch skips some initializations of tensors that say they are on the meta device.
    with replaced(torch.Tensor, "is_meta", value=False), truncated, noting:
        model = build()
    if any(_is_on_meta(value) for each in model.modules() for value in (*each.buffers(), *vars(each).values())):
        raise CannotDraw("something was computed from weights")
    weights = {}
    for name, tensor in model.named_parameters():
        fills = noting.fills.pop(storage_id(tensor), None)
        if not fills or not tensor.is_contiguous() or tensor.dtype not in _DRAWN:
            raise CannotDraw(f"it is not known what initializes {name}")
        weights[tensor] = NewWeight(tuple(tensor.shape), fills, tensor.dtype, first_chunk)
        first_chunk += math.ceil(tensor.numel() / CHUNK_ELEMENTS)
    return model, weights


class _Noting(TorchDispatchMode):
    """Notes what initializes tensors on the meta device."""

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self)
        self.fills: dict[int, list[_Fill]] = {}
        """By storage, which they keep. The first is of the whole tensor."""

    def __torch_dispatch__(self, function: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        """Do what is asked for. What a model computes for its parameters, it computes in main memory."""
        kind, kwargs = function.overloadpacket, dict(kwargs or {})
        if kind is not _aten._to_copy and any(argument.name == "device" for argument in function._schema.arguments):
            kwargs["device"] = "cpu"
        elif function._schema.is_mutable and any(map(_is_on_meta, tree_leaves((args, kwargs)))):
            if kwargs.get("generator") is not None:
                raise CannotDraw("drawn by a generator of the model's own")
            self._note(function, kind, *args)
        return function(*args, **kwargs)

    def truncated(self, tensor: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        """Note what torch does in a way that depends on what it has drawn."""
        if not _is_on_meta(tensor):
            return _truncated_normal(tensor, *arguments, **options)
        self._note(_truncated_normal, _aten.normal_, tensor, *arguments)
        return tensor

    def _note(self, function: Any, kind: Any, target: torch.Tensor, *arguments: Any) -> None:
        if kind not in _FILLS or any(map(_is_on_meta, arguments)) or not target.is_contiguous():
            raise CannotDraw(f"initialized by {function}")
        first = target.storage_offset()
        # Copied, as the model may change it afterwards. A tensor to fill with is a single number.
        values = [each.clone() if torch.is_tensor(each) else each for each in arguments]
        if kind is _aten.copy_:
            values[0] = values[0].expand(target.shape).flatten()

        def fill(drawn: torch.Tensor, chunk_start: int, generator: torch.Generator) -> None:
            start, stop = max(first - chunk_start, 0), max(first + target.numel() - chunk_start, 0)
            part, skipped = drawn[start:stop], chunk_start + start - first
            own = [each[skipped:][: len(part)] if torch.is_tensor(each) and each.dim() else each for each in values]
            function(part, *own, **({"generator": generator} if kind in _RANDOM else {}))

        before = self.fills.setdefault(storage_id(target), [])
        if target.nbytes == target.untyped_storage().nbytes():
            before.clear()
        elif not before:
            raise CannotDraw(f"initialized in parts by {function}")
        before.append(fill)


def _is_on_meta(value: Any) -> bool:
    return torch.is_tensor(value) and value.device.type == "meta"


def storage_id(tensor: torch.Tensor) -> int:
    """Return what distinguishes a tensor's storage from others, on the meta device too."""
    return int(tensor.untyped_storage()._cdata)
