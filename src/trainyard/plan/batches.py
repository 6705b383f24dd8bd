"""Whether batch sizes multiply out: micro-batch × accumulation × world size = global batch."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.plan.values import whole_number_input
from trainyard.spec.graph import bindings_of_value
from trainyard.spec.model import Job, Pipeline


@dataclass(frozen=True)
class BatchArithmetic:
    """The numbers of a job's batches, in samples; `accumulation_steps` is None where no whole number fits.

    `nearest_global_batch_sizes` are those closest to the wanted one that do fit, smaller first; empty when it fits.
    `sequence_length` is how many tokens a sample has, where it is text and the pipeline says so.
    """

    micro_batch_size: int
    world_size: int
    global_batch_size: int
    accumulation_steps: int | None
    nearest_global_batch_sizes: tuple[int, ...] = ()
    sequence_length: int | None = None

    @property
    def fits(self) -> bool:
        """Whether the numbers multiply out."""
        return not self.nearest_global_batch_sizes

    @property
    def tokens_per_step(self) -> int | None:
        """Tokens that one optimizer step takes, where samples are of tokens."""
        return self.global_batch_size * self.sequence_length if self.sequence_length is not None else None

    def __str__(self) -> str:
        ranks = f"{self.world_size} {'process' if self.world_size == 1 else 'processes'}"
        if self.fits:
            tokens = f" × {self.sequence_length} = {self.tokens_per_step:,} tokens" if self.sequence_length else ""
            return (
                f"{self.micro_batch_size} micro × {self.accumulation_steps} accumulation × {ranks} "
                f"= {self.global_batch_size} samples{tokens}"
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
    length = _sequence_length(job, pipeline)
    if accumulation is not None:
        product = micro * accumulation * world_size
        fitting = () if product == wanted else (product,)
        return BatchArithmetic(micro, world_size, wanted, accumulation, fitting, length)
    at_once = micro * world_size
    whole, rest = divmod(wanted, at_once)
    if rest == 0:
        return BatchArithmetic(micro, world_size, wanted, whole, sequence_length=length)
    nearest = tuple(steps * at_once for steps in (whole, whole + 1) if steps > 0)
    return BatchArithmetic(micro, world_size, wanted, None, nearest, length)


def _sequence_length(job: Job, pipeline: Pipeline) -> int | None:
    """What the job whose output this one trains on has as its `sequence_length`; None where none has it."""
    sources = (
        pipeline.jobs[binding.path[2]]
        for value in job.inputs.values()
        for binding in bindings_of_value(value.data)
        if binding.path[:2] == ("parent", "jobs") and binding.path[3:4] == ("outputs",)
        if binding.path[2] in pipeline.jobs
    )
    lengths = (whole_number_input(source, "sequence_length", pipeline) for source in sources)
    return next((length for length in lengths if length is not None), None)
