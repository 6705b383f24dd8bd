"""How a global batch divides: micro_batch_size x accumulation_steps x world_size = global_batch_size, always."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BatchArithmetic:
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


def divide_batch(global_batch_size: int, micro_batch_size: int, world_size: int) -> BatchArithmetic:
    """Find the accumulation steps. Raises `ValueError` with the three numbers and the nearest that do divide."""
    at_once = micro_batch_size * world_size
    if global_batch_size % at_once == 0:
        return BatchArithmetic(global_batch_size, micro_batch_size, global_batch_size // at_once, world_size)
    raise ValueError(
        f"global_batch_size {global_batch_size} is not a multiple of micro_batch_size {micro_batch_size} x "
        f"world size {world_size} = {at_once}. The nearest that divide: "
        + _nearest(global_batch_size, micro_batch_size, world_size)
    )


def _nearest(global_batch_size: int, micro_batch_size: int, world_size: int) -> str:
    at_once = micro_batch_size * world_size
    below = global_batch_size // at_once * at_once
    batches = [size for size in (below, below + at_once) if size]
    choices = [f"--global-batch-size {' or '.join(str(size) for size in batches)}"]
    if global_batch_size % world_size == 0:
        per_rank = global_batch_size // world_size
        divisors = [size for size in range(1, per_rank + 1) if per_rank % size == 0]
        nearest = min(divisors, key=lambda size: (abs(size - micro_batch_size), -size))
        choices.append(f"--micro-batch-size {nearest}")
    return ", or ".join(choices)
