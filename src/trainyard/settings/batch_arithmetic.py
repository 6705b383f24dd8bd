"""How a global batch divides: micro_batch_size x accumulation_steps x world_size = global_batch_size, always."""

from __future__ import annotations

from typing import NamedTuple

_MOST_OF_A_GPU = 0.25
"""The share of a GPU's memory that a whole gradient may take. Beside it there are weights, optimizer state and
activations; below it the traffic of a sum for every micro-batch buys little. Stated, not fitted."""


def sums_every_micro_batch(gradient_sync: str, whole_gradient_bytes: float, gpu_memory_bytes: float) -> bool:
    """Return whether FSDP sums gradients over ranks after every micro-batch: the setting `gradient_sync`, or by size.

    `gpu_memory_bytes` is 0 for a CPU, which sums after the last one.
    """
    if gradient_sync == "auto":
        return 0 < gpu_memory_bytes * _MOST_OF_A_GPU < whole_gradient_bytes
    return gradient_sync == "every"


class BatchArithmetic(NamedTuple):
    """The four numbers, of which three decide the fourth."""

    global_batch_size: int
    micro_batch_size: int
    accumulation_steps: int
    world_size: int

    def __str__(self) -> str:
        return (
            f"global batch {self.global_batch_size} = micro-batch {self.micro_batch_size} "
            f"x {self.accumulation_steps} accumulation steps x {self.world_size} ranks"
        )


class UnevenBatch(ValueError):
    """A global batch that does not divide; `nearest_global_batch_sizes` are those that do, the smaller first.

    `nearest_micro_batch_size` is one that divides this global batch; None where none does.
    """

    def __init__(self, global_batch_size: int, micro_batch_size: int, world_size: int) -> None:
        at_once = micro_batch_size * world_size
        below = global_batch_size // at_once * at_once
        self.nearest_global_batch_sizes = tuple(size for size in (below, below + at_once) if size)
        choices = [f"--global-batch-size {' or '.join(map(str, self.nearest_global_batch_sizes))}"]
        self.nearest_micro_batch_size: int | None = None
        if global_batch_size % world_size == 0:
            per_rank = global_batch_size // world_size
            divisors = [size for size in range(1, per_rank + 1) if per_rank % size == 0]
            self.nearest_micro_batch_size = min(divisors, key=lambda size: (abs(size - micro_batch_size), -size))
            choices.append(f"--micro-batch-size {self.nearest_micro_batch_size}")
        super().__init__(
            f"global_batch_size {global_batch_size} is not a multiple of micro_batch_size {micro_batch_size} x "
            f"world size {world_size} = {at_once}. The nearest that divide: {', or '.join(choices)}"
        )


def divide_batch(global_batch_size: int, micro_batch_size: int, world_size: int) -> BatchArithmetic:
    """Return the arithmetic with its accumulation steps. Raises UnevenBatch, a ValueError, where there are none."""
    steps, rest = divmod(global_batch_size, micro_batch_size * world_size)
    if rest or not steps:
        raise UnevenBatch(global_batch_size, micro_batch_size, world_size)
    return BatchArithmetic(global_batch_size, micro_batch_size, steps, world_size)
