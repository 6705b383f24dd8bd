"""The state of a training as fragments: what engines hand to checkpoints, and checkpoints hand back.

However an engine shards a tensor (not at all, by rows, by flat partitions), each rank holds a contiguous range of the
flattened tensor. In these terms a checkpoint of any engine at any world size can be read by any other: each rank asks
for the ranges that it now holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from trainyard.steps.runtime.errors import StepError

MODEL_KEY = "model/"
OPTIMIZER_KEY = "optimizer/"
AVERAGE_KEY = "average/"


@dataclass(frozen=True)
class Fragment:
    """A contiguous range of one flattened tensor, as one rank holds it.

    Keys are the same for every engine: `model/<name>` for parameters and buffers, `optimizer/<name>/exp_avg`,
    `…/exp_avg_sq` and `…/step` for AdamW's state, `average/<name>` for the moving average of a parameter. A tensor with
    several names in the model has the first of them.
    """

    key: str
    shape: tuple[int, ...]
    """Of the whole tensor."""
    start: int
    """The index of the first element in the flattened tensor."""
    values: torch.Tensor
    """One-dimensional, over the live memory: read to save, written to restore."""
    is_replicated: bool = False
    """Whether every rank holds this same range, so that one of them (or each a part) may write it."""
    copy: int = 0
    """Where some ranks hold this same range, but not all: which of the copies this is."""
    copies: int = 1
    """How many there are."""
    is_frozen: bool = False
    """Whether it is of a parameter that is not trained."""

    @property
    def stop(self) -> int:
        """The index after the last element."""
        return self.start + self.values.numel()

    def part(self, first: int, last: int) -> Fragment:
        """Return a range of this one, by the indices of its own values."""
        return replace(self, start=self.start + first, values=self.values[first:last])


def refuse_other_layouts(model: torch.nn.Module) -> None:
    """StepError names a parameter or saved buffer that is not contiguous in memory."""
    for name, tensor in tensors_of(model).items():
        if not tensor.is_contiguous():
            raise StepError(
                f"the model's {name} is not contiguous in memory, as after .to(memory_format=channels_last) or .t(); "
                "make it contiguous in the model (batches may be channels_last)"
            )


def whole_tensor(key: str, tensor: torch.Tensor) -> Fragment:
    """Return the fragment of a tensor that every rank has whole."""
    values = tensor.detach().view(-1)
    assert values.numel() == math.prod(tensor.shape)
    is_frozen = isinstance(tensor, torch.nn.Parameter) and not tensor.requires_grad
    return Fragment(key, tuple(tensor.shape), 0, values, is_replicated=True, is_frozen=is_frozen)


def named_once(model: torch.nn.Module) -> tuple[dict[str, torch.nn.Parameter], dict[str, torch.Tensor]]:
    """Return the model's parameters, and the buffers that are saved with it, each under the first of its names.

    What a state dict has beneath a parameter's name is not a buffer: bitsandbytes puts a copy of the scales of 4-bit
    weights there, which are frozen, and would be in every checkpoint.
    """
    parameters = dict(model.named_parameters())
    seen = {id(parameter) for parameter in parameters.values()}
    buffers = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        is_beneath = any(above in parameters for above in accumulate(name.split(".")[:-1], "{}.{}".format))
        if isinstance(tensor, torch.Tensor) and id(tensor) not in seen and not is_beneath:
            seen.add(id(tensor))
            buffers[name] = tensor
    return parameters, buffers


def tensors_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return what `named_once` does, parameters first."""
    parameters, buffers = named_once(model)
    return parameters | buffers


def replicated_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[Fragment]:
    """Return the fragments of a model and optimizer that every rank has whole."""
    parameters, buffers = named_once(model)
    tensors = [whole_tensor(f"{MODEL_KEY}{name}", tensor) for name, tensor in (parameters | buffers).items()]
    state = [
        whole_tensor(f"{OPTIMIZER_KEY}{name}/{key}", value)
        for name, parameter in parameters.items()
        for key, value in _plain(optimizer.state.get(parameter, {}))
    ]
    return tensors + state


def _plain(state: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a parameter's state; those of 8 bits as what they consist of: codes, scales, table."""
    for key, value in state.items():
        if is_traceable_wrapper_subclass(value):
            for part in value.__tensor_flatten__()[0]:
                yield f"{key}/{part}", getattr(value, part)
        else:
            yield key, value


class MovingAverage:
    """The average of what this rank holds of the weights. Nothing is exchanged: averaging is element-wise."""

    def __init__(self, state: Sequence[Fragment], decay: float) -> None:
        self._decay = decay
        trained = {fragment.key.split("/")[1] for fragment in state if fragment.key.startswith(OPTIMIZER_KEY)}
        self._weights = [
            fragment
            for fragment in state
            if fragment.key.startswith(MODEL_KEY) and fragment.key.removeprefix(MODEL_KEY) in trained
        ]
        self._average = [fragment.values.clone() for fragment in self._weights]

    @torch.no_grad()
    def update(self, step_number: int) -> None:
        """Move the average towards the weights, after step `step_number`, counted from 1.

        At first the decay is smaller, (1 + step) / (10 + step), so that the initial weights are soon forgotten: as
        `num_updates` of TensorFlow's tf.train.ExponentialMovingAverage.
        """
        decay = min(self._decay, (1 + step_number) / (10 + step_number))
        torch._foreach_lerp_(self._average, [fragment.values for fragment in self._weights], 1 - decay)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange average and weights. Twice leaves all bits as they were."""
        for fragment, average in zip(self._weights, self._average, strict=True):
            weights = fragment.values.clone()
            fragment.values.copy_(average)
            average.copy_(weights)

    def fragments(self) -> list[Fragment]:
        """Return the average for checkpoints, divided as the weights are."""
        return [
            replace(fragment, key=AVERAGE_KEY + fragment.key.removeprefix(MODEL_KEY), values=average)
            for fragment, average in zip(self._weights, self._average, strict=True)
        ]
