"""Other numbers of processes than a profile was written for: its global batches stay as they are, or nearly so.

`--set nodes=4` alone would double the global batch of a profile for two nodes, and train another model with it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainyard.render.layers import Layers
from trainyard.render.profile_schema import settings_file
from trainyard.settings.quantities import counted
from trainyard.settings.steps.training import Training

_BATCH_KEYS = ("micro_batch_size", "accumulation_steps")


@dataclass(frozen=True)
class Batch:
    """A pipeline's settings that depend on how many processes share a batch."""

    micro_batch_size: int
    accumulation_steps: int

    def samples(self, processes: int) -> int:
        """Samples of one optimizer step."""
        return self.micro_batch_size * self.accumulation_steps * processes


@dataclass(frozen=True)
class Sharing:
    """How many share a batch: `processes`, or in pipelines with one worker per machine (TensorFlow's) `workers`.

    A worker divides its micro-batches among `gpus_per_worker`; 1 without GPUs.
    """

    processes: int
    workers: int
    gpus_per_worker: int


def scaled(batch: Batch, before: int, after: int, multiple_of: int = 1) -> Batch:
    """Return the settings for `after` processes that train as these do on `before`.

    The global batch stays, with micro-batches that are not larger, and multiples as these are. Where it does not
    divide, it becomes the nearest that does.
    """
    if batch.micro_batch_size % multiple_of:
        multiple_of = 1
    each = max(1, round(batch.samples(before) / after / multiple_of)) * multiple_of
    sizes = range(min(batch.micro_batch_size, each), 0, -1)
    micro = next(size for size in sizes if each % size == 0 and size % multiple_of == 0)
    return Batch(micro, each // micro)


def keep_batches(
    layers: Layers,
    accepted: Mapping[str, Sequence[str]],
    shared_by_workers: Collection[str],
    given: Mapping[str, object],
    sharing: tuple[Sharing, Sharing],
) -> Iterator[str]:
    """Change the batches of a profile's pipelines where others share them now, and yield what was done to each.

    `accepted` are the settings of each pipeline, `sharing` who shared the profile's batches and who shares them now.
    Pipelines that take no micro-batch are left alone, and so are those of which `given` (`--set`) says a batch setting
    itself.
    """
    for pipeline, settings in accepted.items():
        by_workers = pipeline in shared_by_workers
        before, after = (each.workers if by_workers else each.processes for each in sharing)
        if before == after:
            continue
        is_given = any(f"pipelines.{pipeline}.{key}" in given for key in _BATCH_KEYS)
        if "micro_batch_size" not in settings or is_given:
            continue
        profiled: dict[str, Any] = layers.data.get("pipelines", {}).get(pipeline, {})
        batch = Batch(
            profiled.get("micro_batch_size", Training.micro_batch_size),
            profiled.get("accumulation_steps", 1),
        )
        changed = scaled(batch, before, after, sharing[1].gpus_per_worker if by_workers else 1)
        if "accumulation_steps" not in settings and changed.accumulation_steps != 1:
            yield (
                f"{pipeline}: its batches are {after}/{before} of the profile's, since it takes no accumulation_steps"
            )
            continue
        differing = [k for k in _BATCH_KEYS if k in settings and getattr(changed, k) != getattr(batch, k)]
        samples = batch.samples(before), changed.samples(after)
        if not differing and samples[0] == samples[1]:
            continue
        into = layers.data.setdefault("pipelines", {}).setdefault(pipeline, {})
        into.update({key: getattr(changed, key) for key in differing})
        changes = [f"{key} {getattr(batch, key)} → {getattr(changed, key)}" for key in differing]
        changes = changes or [f"micro_batch_size stays {batch.micro_batch_size}"]
        number = counted(after, "worker" if by_workers else "process")
        consequence = _consequence(*samples, settings_file(pipeline, profiled))
        yield f"{pipeline}: {', '.join(changes)} for {number} instead of {before}; {consequence}"


def _consequence(before: int, after: int, file: str) -> str:
    """What became of the global batch, and what Adam's learning rate should do (Malladi et al., arXiv:2205.10287)."""
    if before == after:
        return f"global batch stays {before}"
    return f"global batch {before} → {after}, so multiply learning_rate in {file} by {math.sqrt(after / before):.3g}"
