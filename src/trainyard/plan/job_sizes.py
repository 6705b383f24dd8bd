"""How many samples a job takes in a step, and how many machines at one time, be it a sweep, parallel or a Spark job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainyard.catalogue.skus import Sku
from trainyard.plan.job_data import number_of_data, positive_setting
from trainyard.settings.batch_arithmetic import UnevenBatch, divide_batch
from trainyard.settings.quantities import as_text, counted
from trainyard.spec.literals import whole_number
from trainyard.spec.model import Parallel, Spark, Sweep
from trainyard.spec.resolution import JobUse, Resolution
from trainyard.spec.resolved import Known

Facts = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class JobKind:
    """The type of a job, how many machines it takes at one time, and what there is to say of that."""

    name: str
    machines: int
    facts: Facts = ()


def kind_of_job(job: JobUse, nodes: int, sku: Sku | None) -> JobKind:
    """Return the kind of a job whose command takes so many nodes, of this size where it is known."""
    task = job.component.task
    if isinstance(task, Sweep):
        at_once = min(task.max_concurrent_trials, task.max_total_trials)
        text = f"{counted(task.max_total_trials, 'trial')}, at most {at_once} at one time, sampling {task.sampling}"
        searched = ", ".join(f"{name} {_space(space.data)}" for name, space in task.search_space.items())
        aim = f"{task.goal} {task.primary_metric}"
        return JobKind("sweep", at_once * nodes, (("sweep", text), ("searches", f"{searched}: {aim}")))
    if isinstance(task, Parallel):
        each = _mini_batches_at_once(job, task, sku)
        size = f" of {as_text(task.mini_batch_size.data)}" if task.mini_batch_size is not None else ""
        at_once_text = f", {each * nodes} at one time ({each} on each node)" if each is not None else ""
        return JobKind("parallel", nodes, (("parallel", f"mini-batches{size}{at_once_text}"),))
    if isinstance(task, Spark):
        executors = whole_number(task.conf.get("spark.executor.instances", "")) or 1
        parts = ", ".join(f"{role} with {_spark(task, role)}" for role in ("driver", "executor"))
        return JobKind("spark", executors + 1, (("Spark", f"1 driver and {counted(executors, 'executor')}: {parts}"),))
    return JobKind("command", nodes)


def _first_drawn(job: JobUse, name: str) -> int | None:
    """Return the first of the whole numbers that a sweep chooses an input from; None where it draws no such choice."""
    task = job.component.task
    space = task.search_space.get(name) if isinstance(task, Sweep) else None
    values = space.data.get("values") if space is not None and isinstance(space.data, dict) else None
    return whole_number(values[0]) if isinstance(values, list) and values else None


def _mini_batches_at_once(job: JobUse, task: Parallel, sku: Sku | None) -> int | None:
    """Return how many mini-batches a node works on: as the job says, else one with GPUs, and one for each processor.

    Source of the defaults: https://learn.microsoft.com/azure/machine-learning/reference-yaml-job-parallel.
    """
    stated = task.max_concurrency_per_instance
    if stated is not None:
        found = job.resolve(stated)
        return whole_number(found.value) if isinstance(found, Known) else None
    if sku is None:
        return None
    return 1 if sku.gpu_count else sku.vcpus


def _space(space: Any) -> str:
    """Return `choice of 64, 128, 256` or `loguniform(-7.6, -3.9)`."""
    if not isinstance(space, dict):
        return as_text(space)
    kind = str(space.get("type", ""))
    if kind == "choice" and isinstance(space.get("values"), list):
        return f"choice of {', '.join(map(as_text, space['values']))}"
    return f"{kind}({', '.join(as_text(value) for key, value in space.items() if key != 'type')})"


def _spark(task: Spark, role: str) -> str:
    """Return `2 cores and 1g memory`."""
    cores, memory = (task.conf.get(f"spark.{role}.{key}") or "the default" for key in ("cores", "memory"))
    return f"{cores} cores and {memory} memory"


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
        positive_setting(job, name) or _first_drawn(job, name) for name in ("micro_batch_size", "global_batch_size")
    )
    if micro is None or wanted is None:
        return None
    length = number_of_data(job, resolution, "sequence_length")
    accumulation = positive_setting(job, "accumulation_steps")
    if accumulation is not None:
        product = micro * accumulation * world_size
        return JobBatch(micro, world_size, wanted, accumulation, () if product == wanted else (product,), length)
    try:
        steps = divide_batch(wanted, micro, world_size).accumulation_steps
    except UnevenBatch as error:
        return JobBatch(micro, world_size, wanted, None, error.nearest_global_batch_sizes, length)
    return JobBatch(micro, world_size, wanted, steps, sequence_length=length)
