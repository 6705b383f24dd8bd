"""What sweeps, parallel and Spark jobs take beside the machines of one command: trials, mini-batches, executors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainyard.catalogue.skus import Sku
from trainyard.settings.quantities import as_text, counted
from trainyard.spec.literals import whole_number
from trainyard.spec.model import Parallel, Spark, Sweep
from trainyard.spec.resolution import JobUse
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
        parts = ", ".join(
            f"{role} with {_spark(task, role, 'cores')} and {_spark(task, role, 'memory')}"
            for role in ("driver", "executor")
        )
        return JobKind("spark", executors + 1, (("Spark", f"1 driver and {counted(executors, 'executor')}: {parts}"),))
    return JobKind("command", nodes)


def first_drawn(job: JobUse, name: str) -> int | None:
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


def _spark(task: Spark, role: str, setting: str) -> str:
    """Return `2 cores`, `1g memory`."""
    return f"{task.conf.get(f'spark.{role}.{setting}') or 'the default'} {setting}"
