"""An engine without a model: named tensors, divided among ranks in one of the ways that engines do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import torch

from trainyard.steps.runtime.files import write_durably
from trainyard.steps.training.checkpoints.commit import Commit, SavedFile, write_commit
from trainyard.steps.training.checkpoints.saving import HostCopy
from trainyard.steps.training.checkpoints.state_files import (
    in_file_order,
    share_to_write,
    state_file_header,
    state_file_name,
)
from trainyard.steps.training.engines.engine import Engine
from trainyard.steps.training.fragments import Fragment, whole_tensor
from trainyard.steps.training.samples.plan import Progress, even_part

Tensors = dict[str, torch.Tensor]


def some_tensors(seed: int, width: int = 40) -> Tensors:
    """State like an engine's: matrices, a vector, scalars, integers; all numbers differ."""
    torch.manual_seed(seed)
    return {
        "model/0.weight": torch.randn(width, 3 * width),
        "model/0.bias": torch.randn(7),
        "model/1.count": torch.randint(0, 1 << 40, ()),
        "model/1.half": torch.randn(width, 5).to(torch.bfloat16),
        "optimizer/0.weight/exp_avg": torch.randn(width, 3 * width),
        "optimizer/0.weight/step": torch.tensor(float(seed)),
    }


def fragments_of(tensors: Tensors, rank: int, world_size: int, *, divided: bool) -> list[Fragment]:
    """Whole tensors on every rank, or each flattened tensor divided evenly over the ranks."""
    if not divided:
        return [whole_tensor(key, tensor) for key, tensor in tensors.items()]
    fragments = []
    for key, tensor in tensors.items():
        start, stop = even_part(tensor.numel(), rank, world_size)
        fragments.append(Fragment(key, tuple(tensor.shape), start, tensor.view(-1)[start:stop]))
    return fragments


class NumbersEngine(Engine):
    """Holds tensors; never trains."""

    name = "numbers"

    def __init__(self, tensors: Tensors, rank: int = 0, world_size: int = 1, *, divided: bool = False) -> None:
        self.tensors = tensors
        self._fragments = fragments_of(tensors, rank, world_size, divided=divided)
        self.given_scalars: dict[str, float] = {"loss_scale": 0.1}

    def fragments(self) -> list[Fragment]:
        return self._fragments

    def scalars(self) -> dict[str, float]:
        return self.given_scalars

    def restore_scalars(self, scalars: Mapping[str, float]) -> None:
        self.given_scalars = dict(scalars)

    def align_ranks(self) -> None:
        pass

    def micro_batch(self, *, is_last: bool) -> AbstractContextManager[object]:
        raise AssertionError("a checkpoint asks for none of this")

    def warm_up(self, loss: Callable[[], torch.Tensor]) -> None:
        raise AssertionError("a checkpoint asks for none of this")

    def backward(self, loss_sum: torch.Tensor, step_terms: torch.Tensor | float) -> None:
        raise AssertionError("a checkpoint asks for none of this")

    def step(self, learning_rate: float) -> torch.Tensor:
        raise AssertionError("a checkpoint asks for none of this")

    def evaluation_model(self) -> torch.nn.Module:
        raise AssertionError("a checkpoint asks for none of this")

    def parameter_count(self) -> int:
        raise AssertionError("a checkpoint asks for none of this")


def write_as_ranks(folder: Path, tensors: Tensors, world_size: int, progress: Progress, *, divided: bool) -> None:
    """A committed checkpoint as so many ranks write it, one after the other in this process."""
    folder.mkdir(parents=True)
    files = {}
    for rank in range(world_size):
        pieces = in_file_order(
            share_to_write(fragments_of(tensors, rank, world_size, divided=divided), rank, world_size)
        )
        copy = HostCopy(torch.device("cpu"))
        copy.begin(pieces, pieces)
        name = state_file_name(rank)
        files[name] = SavedFile(*write_durably(folder / name, [state_file_header(pieces), copy.wait()]))
    write_commit(folder, Commit(progress, world_size, "numbers", {"seed": 1}, {"loss_scale": 0.5}, files=files))


def same(left: Tensors, right: Tensors) -> bool:
    """Whether two sets of tensors have the same bits."""
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)
