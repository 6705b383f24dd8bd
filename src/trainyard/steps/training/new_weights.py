"""New weights of a model, drawn where they are needed: each rank draws the part of a tensor that it holds.

While a model is built, its parameters take no memory. What initializes each is noted, and done later to chunks of the
flattened tensor, each with random numbers of its own. So the values depend on torch's seed alone: not on the engine,
the number of ranks or the device.
"""

from __future__ import annotations

import gc
import itertools
import math
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import init
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trainyard.settings.quantities import memory
from trainyard.steps.runtime.errors import first_line
from trainyard.steps.runtime.imports import replaced

SCHEME = 1
"""The version of how values follow from the seed, which checkpoints name. Other chunks are another version."""
CHUNK_ELEMENTS = 2**13
"""Few, so that ranks whose rows share a chunk draw little twice; enough to take longer than to seed a generator."""
_SEEDS = 2**32
"""Torch's generator on CPUs takes no more of a seed."""
_SPREAD = 0x9E3779B1
"""Odd, so that no two chunks of a model have the same seed; large, so that seeds are no neighbours."""
_MOST_KEPT_BYTES = 2**28
"""Of values that a model computes for its parameters while it is built, since every rank keeps them."""

_truncated_normal, _tensor = init._no_grad_trunc_normal_, torch.tensor
_aten = torch.ops.aten
_RANDOM = {_aten.normal_, _aten.uniform_}
_FILLS = _RANDOM | {_aten.fill_, _aten.zero_, _aten.copy_}
"""What leaves nothing of the values before."""
_EMPTY = {_aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty, _aten.new_empty_strided}
noting_now: ContextVar[_Noting | None] = ContextVar("noting_now", default=None)
"""While a model is being built for `to_draw`: what notes it."""


class CannotDraw(Exception):
    """A model does something with its weights that cannot be done to chunks of them later: it has to be built."""


@dataclass(frozen=True, eq=False)
class _Values:
    """What a tensor holds at some time while its model is built, and how to make a chunk of it."""

    number: int
    """Later ones have a higher number."""
    make: Callable[..., torch.Tensor]
    """Takes where the chunk begins and ends, a generator, and this chunk of each of `made_of`."""
    made_of: tuple[_Values, ...] = ()

    def steps(self) -> list[_Values]:
        """Return these values and all that they are made of, in the order in which they are made."""
        found, left = {self}, [self]
        while left:
            new = set(left.pop().made_of) - found
            found |= new
            left += new
        return sorted(found, key=lambda values: values.number)


@dataclass(frozen=True)
class NewWeight:
    """How to draw any range of a tensor."""

    shape: tuple[int, ...]
    steps: Sequence[_Values]
    """The last are the tensor's."""
    first_chunks: Mapping[_Values, int]
    """The number of the first chunk of each, from which the seed of its random numbers follows."""

    def values(self, start: int, stop: int) -> torch.Tensor:
        """Return a range of the flattened tensor in fp32, in main memory."""
        found, elements = torch.empty(stop - start, dtype=torch.float32), math.prod(self.shape)
        for first in chunks(start, stop):
            last = min(first + CHUNK_ELEMENTS, elements)
            made: dict[_Values, torch.Tensor] = {}
            generators: dict[int, torch.Generator] = {}
            for step in self.steps:
                number = self.first_chunks[step] + first // CHUNK_ELEMENTS
                if number not in generators:
                    generators[number] = torch.Generator().manual_seed(number * _SPREAD % _SEEDS)
                made[step] = step.make(first, last, generators[number], *(made[each] for each in step.made_of))
            wanted = made[self.steps[-1]][max(start - first, 0) : stop - first]
            found[max(first - start, 0) :][: len(wanted)] = wanted
        return found


def chunks(start: int, stop: int) -> range:
    """Return where the chunks begin that have some of a range: each is drawn as a whole."""
    return range(start // CHUNK_ELEMENTS * CHUNK_ELEMENTS, stop, CHUNK_ELEMENTS)


def to_draw(build: Callable[[], Any]) -> tuple[Any, dict[torch.Tensor, NewWeight]]:
    """Return the model that `build` returns with all parameters on the meta device, and how to draw these.

    CannotDraw if that is not known of one of them, or if the model cannot be built without memory. Takes one number
    from torch's generator.
    """
    # Models import it, which fails while tensors are not what they were.
    import torch._dynamo

    _device_constructors()  # torch keeps at first use which these are: not one that is replaced below
    first_chunk, noting = int(torch.randint(_SEEDS, ())), _Noting()
    token = noting_now.set(noting)
    truncated = replaced(init, _truncated_normal.__name__, noting.truncated)
    # Torch skips some initializations of tensors that say they are on the meta device, and makes others out of sight.
    as_ever = replaced(torch.Tensor, "is_meta", value=False)
    in_sight = replaced(torch, "tensor", lambda data, device=None, **options: _tensor(data, **options).to(device))
    seeds = replaced(torch, "manual_seed", noting.refuse_seed)
    try:
        with as_ever, truncated, in_sight, seeds, noting:
            model = build()
    except Exception as failure:
        noting.failure = noting.failure or failure
    finally:
        noting_now.reset(token)
    if noting.failure is not None:  # which the model may have caught, and done something else
        raise CannotDraw(first_line(noting.failure) + _place_in_model(noting.failure)) from noting.failure
    parameters = {*model.parameters()}
    for path, owner in model.named_modules():
        if isinstance(owner, torch.jit.ScriptModule):
            raise CannotDraw(f"{path or 'the model'} is compiled by torch.jit")
        others = [value for name, value in vars(owner).items() if name not in ("_parameters", "_modules")]
        if any(_is_on_meta(value) and value not in parameters for value in tree_leaves(others)):
            raise CannotDraw(f"something was computed from weights in {path or type(owner).__name__}")
    if noting.has_more_than(parameters):
        raise CannotDraw("something that was computed from weights, or shares their memory, is kept beside the model")
    weights = {}
    first_chunks: dict[_Values, int] = {}
    first_drawn: dict[int, list[_Values]] = {}
    for name, tensor in model.named_parameters():
        values = noting.values_of(tensor)
        if values is None or tensor.dtype != torch.float32:
            raise CannotDraw(f"it is not known what initializes {name}")
        if tensor._backward_hooks or tensor._post_accumulate_grad_hooks:
            raise CannotDraw(f"{name} has hooks for its gradient")
        steps = values.steps()
        first_chunks |= {step: first_chunks.get(step, first_chunk) for step in steps}
        for number in {first_chunks[step] for step in steps}:
            # A generator's numbers depend on all that was drawn with it before.
            drawn = [step for step in steps if first_chunks[step] == number]
            if first_drawn.setdefault(number, drawn)[: len(drawn)] != drawn:
                raise CannotDraw(f"{name} and another weight are computed from each other's random numbers")
        weights[tensor] = NewWeight(tuple(tensor.shape), steps, first_chunks)
        first_chunk += math.ceil(tensor.numel() / CHUNK_ELEMENTS)
    return model, weights


def _place_in_model(failure: Exception) -> str:
    """Return the line of the model's code that led to a failure."""
    frames = traceback.extract_tb(failure.__traceback__)
    own = [each for each in frames if not {"torch", "trainyard"} & {*Path(each.filename).parts}]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


class _Noting(TorchDispatchMode):
    """Notes what initializes tensors on the meta device."""

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self)
        self.failure: Exception | None = None
        """The first of what could not be done, whether or not the model went on."""
        self._storages: dict[int, StorageWeakRef] = {}
        """All that were made, by their numbers, which no other gets while they are here."""
        self._on_meta: list[weakref.ref[torch.Tensor]] = []
        """All tensors that were made there, or moved."""
        self._values: dict[int, _Values | None] = {}
        """By the number of the storage, for those on the meta device; None if they are not known."""
        self._undefined: set[int] = set()
        """Those in main memory to which nothing was written yet."""
        self._kept_bytes, self._numbers, self._seed = 0, itertools.count(), torch.initial_seed()

    def __torch_dispatch__(self, function: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        """Do what is asked for, and note it."""
        try:
            if torch.initial_seed() != self._seed:
                self.refuse_seed()
            result = self._done(function, args, dict(kwargs or {}))
        except Exception as failure:
            self.failure = self.failure or failure
            raise
        for tensor in filter(torch.is_tensor, tree_leaves(result)):
            self._storages.setdefault(storage_id(tensor), StorageWeakRef(tensor.untyped_storage()))
            if _is_on_meta(tensor):
                self._on_meta.append(weakref.ref(tensor))
                self._values.setdefault(storage_id(tensor), None)
        return result

    def _done(self, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return a result. What a model computes for its parameters, it computes in main memory."""
        kind = function.overloadpacket
        if kind is not _aten._to_copy and any(argument.name == "device" for argument in function._schema.arguments):
            kwargs["device"] = "cpu"
        elif function._schema.is_mutable:
            if any(map(_is_on_meta, tree_leaves((args, kwargs)))):
                if kind not in _FILLS and not _is_of_each_element(function):
                    raise CannotDraw(f"initialized by {function}")
                self._note(partial(function, **kwargs), kind, *args)
            for tensor in filter(torch.is_tensor, args[:1]):
                self._undefined.discard(storage_id(tensor))
        result = function(*args, **kwargs)
        if kind in _EMPTY:
            self._undefined.add(storage_id(result))
        elif _is_on_meta(result) and _is_all_of_storage(result) and self._values.get(storage_id(result)) is None:
            is_copy = kind in (_aten.clone, _aten._to_copy) or (kind is _aten.constant_pad_nd and not any(args[1]))
            operands = args[:1] if is_copy else args
            is_known = all(self._is_known(each, result.shape) for each in operands)
            if is_known and (is_copy or (_is_of_each_element(function) and not kwargs)):
                compute = torch.positive if is_copy else function
                self._note(lambda part, *own: part.copy_(compute(*own)), _aten.copy_, result, *operands)
        return result

    def truncated(self, tensor: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        """Note what torch does in a way that depends on what it has drawn."""
        if not _is_on_meta(tensor):
            return _truncated_normal(tensor, *arguments, **options)
        self._note(partial(_truncated_normal, **options), _aten.normal_, tensor, *arguments)
        return tensor

    def values_of(self, tensor: torch.Tensor) -> _Values | None:
        """Return what a tensor on the meta device holds, if that is known."""
        return self._values.get(storage_id(tensor)) if _is_on_meta(tensor) and _is_all_of_storage(tensor) else None

    def refuse_seed(self, *_seed: object) -> NoReturn:
        """CannotDraw: these are not the numbers that are drawn later."""
        self.failure = self.failure or CannotDraw("it seeds torch's random numbers")
        raise self.failure

    def add(self, parameter: torch.Tensor) -> None:
        """Note a parameter before it moves. CannotDraw for one that was there before: it would lose its values."""
        if storage_id(parameter) not in self._storages:
            self.failure = self.failure or CannotDraw("a parameter was made before the model is built, or read")
            raise self.failure
        self._on_meta.append(weakref.ref(parameter))

    def has_more_than(self, parameters: set[Any]) -> bool:
        """Return whether other tensors on the meta device are still there."""
        gc.collect()  # else it might depend on the rank
        others = any(tensor is not None and tensor not in parameters for tensor in (each() for each in self._on_meta))
        storages = self._values.keys() - {*map(storage_id, parameters)}
        return others or not all(self._storages[each].expired() for each in storages)

    def _note(self, write: Callable[..., object], kind: Any, target: torch.Tensor, *arguments: Any) -> None:
        """Note what is written to a tensor, or to a range of its elements."""
        if isinstance(write, partial) and write.keywords.get("generator") is not None:
            raise CannotDraw("drawn by a generator of the model's own")
        is_all, known = _is_all_of_storage(target), self._values.get(storage_id(target))
        before = None if is_all and kind in _FILLS else known
        is_clear = before is not None or (is_all and kind in _FILLS)
        if (
            not is_clear
            or not target.is_contiguous()
            or not all(self._is_known(each, target.shape) for each in arguments)
        ):
            raise CannotDraw("initialized in parts, or by what is not known")
        operands = [self._operand(each, target.shape) for each in arguments]
        made_of = tuple(each for each in (before, *operands) if isinstance(each, _Values))
        if made_of != (before,) and not is_all:
            raise CannotDraw("initialized in parts, by what was computed from weights")
        offset, elements, dtype = int(target.storage_offset()), target.numel(), target.dtype

        def make(first: int, last: int, generator: torch.Generator, *made: torch.Tensor) -> torch.Tensor:
            left = iter(made)
            values = next(left).clone() if before else torch.empty(last - first, dtype=dtype)
            start, stop = max(offset - first, 0), max(offset + elements - first, 0)
            part, skipped = values[start:stop], first + start - offset
            flat = [each[skipped:][: len(part)] if torch.is_tensor(each) and each.dim() else each for each in operands]
            own = [next(left) if isinstance(each, _Values) else each for each in flat]
            write(part, *own, **({"generator": generator} if kind in _RANDOM else {}))
            return values

        self._values[storage_id(target)] = _Values(next(self._numbers), make, made_of)

    def _is_known(self, value: Any, shape: torch.Size) -> bool:
        """Return whether an argument is a number or in main memory, or has a known value for each element."""
        if _is_on_meta(value):
            return self.values_of(value) is not None and value.numel() == math.prod(shape)
        return not torch.is_tensor(value) or storage_id(value) not in self._undefined

    def _operand(self, value: Any, shape: torch.Size) -> Any:
        """Return an argument as it is now: a model may change it. A tensor of a single value is a number."""
        if _is_on_meta(value) or not torch.is_tensor(value):
            return self.values_of(value) if _is_on_meta(value) else value
        flat = value.detach().expand(shape).reshape(-1)
        if value.numel() and bool((flat == flat[0]).all()):
            return flat[0].clone()
        self._kept_bytes += flat.nbytes
        if self._kept_bytes > _MOST_KEPT_BYTES:
            raise CannotDraw(f"more than {memory(_MOST_KEPT_BYTES)} of weights are computed while the model is built")
        return flat.clone()


def _is_of_each_element(function: Any) -> bool:
    """Return whether what a function computes or writes depends, for each element, on the same one of its arguments."""
    is_one, is_out = torch.Tag.pointwise in function.tags, any(each.is_out for each in function._schema.arguments)
    return is_one and not is_out and torch.Tag.nondeterministic_seeded not in function.tags


def _is_on_meta(value: Any) -> bool:
    return torch.is_tensor(value) and value.device.type == "meta"


def _is_all_of_storage(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() and tensor.nbytes == tensor.untyped_storage().nbytes()


def storage_id(tensor: torch.Tensor) -> int:
    """Return what distinguishes a tensor's storage from others, on the meta device too."""
    return int(tensor.untyped_storage()._cdata)
