"""Whether batch sizes multiply out: micro-batch × accumulation × world size = global batch."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.plan.values import whole_number_input
from trainyard.spec.model import Job, Pipeline


@dataclass(frozen=True)
class BatchArithmetic:
    """The numbers of a job's batches, in samples; `accumulation_steps` is None where no whole number fits.

    `nearest_global_batch_sizes` are those closest to the wanted one that do fit, smaller first; empty when it fits.
    """

    micro_batch_size: int
    world_size: int
    global_batch_size: int
    accumulation_steps: int | None
    nearest_global_batch_sizes: tuple[int, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the numbers multiply out."""
        return not self.nearest_global_batch_sizes

    def __str__(self) -> str:
        ranks = f"{self.world_size} {'process' if self.world_size == 1 else 'processes'}"
        if self.fits:
            return (
                f"{self.micro_batch_size} micro × {self.accumulation_steps} accumulation × {ranks} "
                f"= {self.global_batch_size} samples"
            )
        nearest = " or ".join(str(size) for size in self.nearest_global_batch_sizes)
        times = f" × {self.accumulation_steps} accumulation" if self.accumulation_steps is not None else ""
        return (
            f"{self.micro_batch_size} micro{times} × {ranks} does not make {self.global_batch_size} samples; "
            f"nearest that fits: {nearest}"
        )


def batch_arithmetic(job: Job, world_size: int, pipeline: Pipeline) -> BatchArithmetic | None:
    """The arithmetic of a job whose inputs are called micro_batch_size and global_batch_size; None for others.

    `accumulation_steps` follows from the two, or is an input of that name and has to agree with them.
    """
    micro = whole_number_input(job, "micro_batch_size", pipeline)
    wanted = whole_number_input(job, "global_batch_size", pipeline)
    if micro is None or wanted is None:
        return None
    accumulation = whole_number_input(job, "accumulation_steps", pipeline)
    if accumulation is not None:
        product = micro * accumulation * world_size
        return BatchArithmetic(micro, world_size, wanted, accumulation, () if product == wanted else (product,))
    at_once = micro * world_size
    whole, rest = divmod(wanted, at_once)
    if rest == 0:
        return BatchArithmetic(micro, world_size, wanted, whole)
    nearest = tuple(steps * at_once for steps in (whole, whole + 1) if steps > 0)
    return BatchArithmetic(micro, world_size, wanted, None, nearest)
