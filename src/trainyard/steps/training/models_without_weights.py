"""A model without its weights, so that each rank gets the part that it holds: it reads it in the safetensors files of
the model's folder, or draws it if the weights are new."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from trainyard.settings.quantities import first_names
from trainyard.steps.runtime.errors import StepError, first_line
from trainyard.steps.runtime.imports import replaced
from trainyard.steps.runtime.rank_variables import read_rank_variables
from trainyard.steps.training.new_weights import NewWeight, noting_now, to_draw

WEIGHTS_FILE = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
"""Lists the files of weights that are spread over several."""
_FORMER_BUFFERS = (r"rotary_emb\.inv_freq", "position_ids")
"""Of which transformers says nothing either: `PreTrainedModel._adjust_missing_and_unexpected_keys`, version 5."""

DTYPES_IN_FILES = {
    "I64": torch.int64,
    "F64": torch.float64,
    "F32": torch.float32,
    "I32": torch.int32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""By their names in safetensors files, in the order in which its writer sorts tensors."""


class CannotLeaveOut(Exception):
    """Weights are neither in files as they are in the model, nor drawn: it has to be built to have them."""


class _LeftToTask(BaseException):
    """Ends the noting of a model that a task makes of one that can be had without weights."""


class _Asked(BaseException):
    """Ends the building of a model once it is known that it can be built without weights."""


@dataclass(frozen=True)
class WeightInFile:
    """Where a tensor of a model is, and what it is read as."""

    file: Path
    key: str
    shape: tuple[int, ...]
    rounded_to: torch.dtype
    """The type that the model's configuration asks for, which may lose digits of what is in the file."""
    dtype: torch.dtype
    """The type in the model."""


Weight = WeightInFile | NewWeight


@dataclass(frozen=True)
class ModelWithoutWeights:
    """A model without memory for those of its tensors that are in files or new."""

    module: torch.nn.Module
    weights: dict[torch.Tensor, Weight]
    """By the tensors on the meta device that stand for them. All others are as they are."""


_found: ContextVar[dict[torch.Tensor, Weight] | None] = ContextVar("found", default=None)
"""While a model is built without its weights: those found so far, by what stands for them."""


@torch.random.fork_rng(devices=[])  # whoever builds the model after all has the random numbers of one who did not ask
def model_without_weights(new_model: Callable[[], torch.nn.Module]) -> ModelWithoutWeights:
    """Return the model without its weights, if all are in files or new. CannotLeaveOut says why it has to be built."""
    try:
        with suppress(_Asked), _without_weights({}), torch.device("meta"):
            new_model()
            raise CannotLeaveOut("only its task knows where its weights come from")
        with _without_weights({}) as found:
            model = new_model()
        _move_to_meta(model, found)
        return ModelWithoutWeights(model, found)
    except Exception as failure:  # if the user can fix it, building the model says so in full
        raise CannotLeaveOut(first_line(failure)) from None


def weights_may_stay_out() -> bool:
    """Return whether a model is to be built without its weights. Its building may end here."""
    if noting_now.get() is not None:
        raise _LeftToTask
    if _found.get() is None:
        return False
    if only_shapes_are_wanted():
        raise _Asked
    return True


def only_shapes_are_wanted() -> bool:
    """Return whether only names and shapes are asked for: a rank does not read weights that another rank sends."""
    return torch.get_default_device().type == "meta"


def leave_in_files(folder: Path, config: Any, build: Callable[[], Any]) -> Any:
    """Return a model of transformers whose tensors are in files as they are. CannotLeaveOut for any other.

    `build` makes it with new weights, for which there is no memory; buffers that are not in files have their values. In
    the place of each tensor is one of its shape that takes none.
    """
    files = _files_by_key(folder)
    if getattr(config, "quantization_config", None) is not None:
        raise CannotLeaveOut("quantized")
    dtype = config.dtype if config.dtype is not None else _first_floating_dtype(files)
    with _parameters_without_memory():
        model = build()
    names: dict[torch.Tensor, list[str]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        names.setdefault(tensor, []).append(name)
    keys = {tensor: [name for name in named if name in files] for tensor, named in names.items()}
    if any(len(found) != 1 for found in keys.values()):
        _refuse_conversions(model, list(files))
        raise CannotLeaveOut("a tensor is missing, or one with several names is there several times")
    found = {tensor: key for tensor, (key,) in keys.items()}
    _refuse_conversions(model, list(found.values()))
    warn_of_differences(folder, unused=tuple(_unused(model, files.keys() - set().union(*names.values()))))
    weights = _located(found, files, dtype, model)
    _leave_out(model, weights)
    model._weight_conversions = []  # as transformers notes of what it read, for when it is saved
    return model.eval()


def with_new_weights(build: Callable[[], Any]) -> Any:
    """Return the model that `build` returns, with new weights in fp32 that any rank could draw a part of, or without.

    Where that cannot be, as it is built; if it should have no weights, an exception says why. Where `build` itself asks
    for new weights or for those of a folder, only these stay out.
    """
    stay_out, state = weights_may_stay_out(), torch.get_rng_state()
    if only_shapes_are_wanted():
        return build()
    try:
        with _parameters_without_memory():
            model, weights = to_draw(build)
    except (Exception, _LeftToTask) as failure:
        if stay_out and isinstance(failure, Exception):
            raise
        torch.set_rng_state(state)
        return build()
    if stay_out:
        _leave_out(model, weights)
    else:
        reader = WeightReader()
        for tensor, weight in weights.items():
            exchange_values(tensor, reader.elements(weight).view(tensor.shape))
    return model


@lru_cache  # a model may be built several times
def warn_of_differences(folder: Path, *, new: tuple[str, ...] = (), unused: tuple[str, ...] = ()) -> None:
    """Print, once and on rank 0, which weights are new because a folder has none that fit, and which it has in vain."""
    if read_rank_variables(os.environ).rank != 0:
        return
    if new:
        print(f"warning: {folder} has no matching weights for {first_names(new)}; they start at random", flush=True)
    if unused:
        print(f"warning: {folder} has {first_names(unused)}, which the model lacks: not used", flush=True)


class WeightReader:
    """Reads weights, and keeps the files open for as long as it exists."""

    def __init__(self) -> None:
        self.bytes_read = 0
        """Of the files."""
        self._open: dict[Path, Any] = {}

    def elements(self, weight: Weight, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Return a range of the flattened tensor, in main memory. Raise StepError if the file cannot be read."""
        stop = math.prod(weight.shape) if stop is None else stop
        if isinstance(weight, NewWeight):
            return weight.values(start, stop)
        if start >= stop:
            return torch.empty(0, dtype=weight.dtype)
        width = math.prod(weight.shape[1:])
        first = start // width
        try:
            if weight.file not in self._open:
                self._open[weight.file] = safe_open(weight.file, framework="pt")
            part = self._open[weight.file].get_slice(weight.key)
            values: torch.Tensor = part[first : -(-stop // width)] if weight.shape else part[...]
        except (SafetensorError, OSError) as failure:
            raise StepError(f"cannot read {weight.file}: {failure}") from None
        self.bytes_read += values.nbytes
        flat = values.to(weight.rounded_to).to(weight.dtype).contiguous().view(-1)
        return flat[start - first * width : stop - first * width]


@contextmanager
def _without_weights(found: dict[torch.Tensor, Weight]) -> Iterator[dict[torch.Tensor, Weight]]:
    token = _found.set(found)
    try:
        yield found
    finally:
        _found.reset(token)


def _files_by_key(folder: Path) -> dict[str, Path]:
    if (folder / WEIGHTS_FILE).is_file():
        with safe_open(folder / WEIGHTS_FILE, framework="pt") as opened:
            return dict.fromkeys(opened.keys(), folder / WEIGHTS_FILE)
    index = json.loads((folder / WEIGHTS_INDEX).read_bytes())
    return {key: folder / name for key, name in index["weight_map"].items()}


def _unused(model: Any, keys: Iterable[str]) -> list[str]:
    """Return those keys that the model's class does not expect to find in vain, as buffers of older versions are."""
    expected = [*_FORMER_BUFFERS, *(model._keys_to_ignore_on_load_unexpected or ())]
    return sorted(key for key in keys if not any(re.search(pattern, key) for pattern in expected))


def _first_floating_dtype(files: dict[str, Path]) -> torch.dtype:
    """Return what transformers loads a model as whose configuration says nothing: as the first floating tensor."""
    with safe_open(min(files.values()), framework="pt") as opened:
        dtypes = (DTYPES_IN_FILES.get(opened.get_slice(key).get_dtype()) for key in opened.keys())  # noqa: SIM118
        return next(dtype for dtype in dtypes if dtype is not None and dtype.is_floating_point)


@contextmanager
def _parameters_without_memory() -> Iterator[None]:
    """A context in which modules' parameters move to the meta device as they are registered; buffers do not."""
    register = torch.nn.Module.register_parameter

    def register_on_meta(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> None:
        if parameter is not None and parameter.device.type != "meta":
            if (noting := noting_now.get()) is not None:
                noting.add(parameter)
            # In place: others may refer to it too.
            exchange_values(parameter, parameter.detach().to("meta"))
        register(module, name, parameter)

    with replaced(torch.nn.Module, "register_parameter", register_on_meta):
        yield


def _refuse_conversions(model: Any, keys: Sequence[str]) -> None:
    """CannotLeaveOut if transformers would rename or compute some of the tensors while it loads them."""
    from transformers.conversion_mapping import get_model_conversion_mapping

    for transform in get_model_conversion_mapping(model):
        if any(transform.rename_source_key(key)[1] is not None for key in keys):
            raise CannotLeaveOut("converted when loaded")


def _located(
    found: dict[torch.Tensor, str], files: dict[str, Path], dtype: torch.dtype, model: Any
) -> dict[torch.Tensor, WeightInFile]:
    """Return where each tensor is. CannotLeaveOut for another shape, or a rounding from which a model exempts some."""
    weights = {}
    opened: dict[Path, Any] = {file: safe_open(file, framework="pt") for file in set(files.values())}
    for tensor, key in found.items():
        part = opened[files[key]].get_slice(key)
        if tuple(part.get_shape()) != tuple(tensor.shape):
            raise CannotLeaveOut("of another shape")
        is_floating = tensor.is_floating_point()
        in_file = DTYPES_IN_FILES.get(part.get_dtype())
        if in_file is None or in_file.is_floating_point != is_floating:
            raise CannotLeaveOut("of another type")
        rounded_to = dtype if is_floating else in_file
        if rounded_to != in_file and (model._keep_in_fp32_modules or model._keep_in_fp32_modules_strict):
            raise CannotLeaveOut("rounded in parts")
        final = torch.float32 if is_floating else tensor.dtype
        weights[tensor] = WeightInFile(files[key], key, tuple(tensor.shape), rounded_to, final)
    return weights


def _leave_out(model: torch.nn.Module, weights: Mapping[torch.Tensor, Weight]) -> None:
    """Put a tensor that takes no memory in the place of each of the weights."""
    for tensor in weights:
        exchange_values(tensor, _stand_in(tensor))
    if (all_found := _found.get()) is not None:
        all_found.update(weights)


def _stand_in(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same shape in fp32 that takes no memory. In main memory: peft would follow it to meta."""
    is_floating = tensor.is_floating_point()
    value = torch.full((), math.nan) if is_floating else torch.zeros((), dtype=tensor.dtype)
    return value.expand(tensor.shape)


def _is_as_made(stand_in: torch.Tensor) -> bool:
    """Return whether nothing was written to what `_stand_in` returned, nor other values put in its place."""
    value = stand_in.detach().flatten()[:1]
    is_one = stand_in.untyped_storage().nbytes() == stand_in.element_size()
    return is_one and bool((value.isnan() if stand_in.is_floating_point() else value == 0).all())


def _move_to_meta(model: torch.nn.Module, weights: dict[torch.Tensor, Weight]) -> None:
    """Move what stands for weights to the meta device.

    CannotLeaveOut if something was made from it, or if it has values, which a user's task may have given it.
    """
    present = {tensor for owner in model.modules() for _, _, tensor in own_tensors(owner)}
    if not weights or not weights.keys() <= present:
        raise CannotLeaveOut("not all of it is used")
    if not all(map(_is_as_made, weights)):
        raise CannotLeaveOut("weights were changed after the model was built")
    for tensor in present - weights.keys():
        if tensor.is_meta or (tensor.is_floating_point() and tensor.isnan().any()):
            raise CannotLeaveOut("something was computed from weights")
    for tensor in weights:
        exchange_values(tensor, torch.empty(tensor.shape, dtype=tensor.dtype, device="meta"))


def own_tensors(owner: torch.nn.Module) -> Iterator[tuple[dict[str, Any], str, torch.Tensor]]:
    """Yield a module's own parameters and buffers: the dictionary that holds each, its name there, and the tensor."""
    for tensors in (owner._parameters, owner._buffers):
        for name, tensor in tensors.items():
            if tensor is not None:
                yield tensors, name, tensor


def exchange_values(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Give a tensor values of the same shape, on any device. It stays the same one for all who refer to it."""
    # As torch.utils.swap_tensors does, but also for those that torch's recurrent layers have weak references to.
    torch._C._swap_tensor_impl(tensor, of_same_kind(tensor, values))


def of_same_kind(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return the values as a parameter if the tensor is one, trained if that is; else as they are."""
    return torch.nn.Parameter(values, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else values
