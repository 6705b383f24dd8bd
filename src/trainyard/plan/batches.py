"""Whether a job's batch sizes multiply out: micro-batch × accumulation × world size = global batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from trainyard.plan.job_kinds import first_drawn
from trainyard.settings.batch_arithmetic import UnevenBatch, divide_batch
from trainyard.spec.literals import whole_number
from trainyard.spec.resolution import JobUse, Resolution
from trainyard.spec.resolved import Known


@dataclass(frozen=True)
class JobBatch:
    """The sizes of a job's batches, in samples; `accumulation_steps` is None where no whole number fits.

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


def batch_of(job: JobUse, world_size: int, resolution: Resolution) -> JobBatch | None:
    """Return the sizes of a job with settings micro_batch_size and global_batch_size; None for others.

    `accumulation_steps` follows from the two, or is a setting of that name and has to agree with them. Of sizes that a
    sweep chooses from, the first one counts.
    """
    micro, wanted = (
        _positive(job, name) or first_drawn(job, name) for name in ("micro_batch_size", "global_batch_size")
    )
    if micro is None or wanted is None:
        return None
    accumulation, length = _positive(job, "accumulation_steps"), _sequence_length(job, resolution)
    if accumulation is not None:
        product = micro * accumulation * world_size
        return JobBatch(micro, world_size, wanted, accumulation, () if product == wanted else (product,), length)
    try:
        steps = divide_batch(wanted, micro, world_size).accumulation_steps
    except UnevenBatch as error:
        return JobBatch(micro, world_size, wanted, None, error.nearest_global_batch_sizes, length)
    return JobBatch(micro, world_size, wanted, steps, sequence_length=length)


def _sequence_length(job: JobUse, resolution: Resolution) -> int | None:
    """The `sequence_length` of the nearest job that this one's data come from; None where none has it."""
    lengths = (_positive(source, "sequence_length") for source in jobs_before(job, resolution))
    return next((length for length in lengths if length is not None), None)


def jobs_before(job: JobUse, resolution: Resolution) -> Iterator[JobUse]:
    """Yield the jobs whose outputs a job reads, then those whose outputs these read, and so on, each once."""
    found = {name: source for name, source in resolution.jobs.items() if name in job.reads_from}
    waiting = deque(found.values())
    while waiting:
        source = waiting.popleft()
        yield source
        new = {name: each for name, each in resolution.jobs.items() if name in source.reads_from and name not in found}
        found |= new
        waiting.extend(new.values())


def _positive(job: JobUse, name: str) -> int | None:
    """A setting or an input that is a positive whole number, or None."""
    found = job.setting(name)
    number = whole_number(found.value) if isinstance(found, Known) else None
    return number if number is not None and number > 0 else None
