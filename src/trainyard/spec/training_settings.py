"""What a job of Trainyard's own training steps would refuse, found before it starts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from trainyard.foundation.batch_arithmetic import UnevenBatch, divide_batch
from trainyard.spec.diagnostic import Diagnostic, Related
from trainyard.spec.literals import whole_number
from trainyard.spec.resolution import JobUse, Known
from trainyard.spec.rules.training import BATCH_DOES_NOT_DIVIDE, SETTINGS_NOT_JSON

_OWN_TRAINING = re.compile(r"\btrainyard[./]steps[./]train_")


def refused_settings(use: JobUse) -> Iterator[Diagnostic]:
    """Yield what the step of a command job would refuse; nothing for other people's steps, and for unknown values."""
    if _OWN_TRAINING.search(str(use.component.command.data)):
        yield from _uneven_batch(use)
        yield from _not_json(use)


def _uneven_batch(use: JobUse) -> Iterator[Diagnostic]:
    wanted, micro = (use.input(name) for name in ("global_batch_size", "micro_batch_size"))
    nodes, processes = use.instance_count, use.processes_per_node
    sizes = [whole_number(each.value) for each in (wanted, micro, nodes, processes) if isinstance(each, Known)]
    numbers = [size for size in sizes if size is not None and size > 0]
    if len(numbers) < 4 or not isinstance(wanted, Known) or not isinstance(micro, Known):
        return
    global_size, micro_size, *world = numbers
    try:
        divide_batch(global_size, micro_size, world[0] * world[1])
    except UnevenBatch as error:
        nearest = " or ".join(map(str, error.nearest_global_batch_sizes))
        at_once = f"{micro_size} micro × {world[0]} × {world[1]} processes"
        message = f"global_batch_size {global_size} is not a multiple of {at_once}"
        related = [Related(micro.written.span, f"micro_batch_size is {micro_size} here")]
        yield BATCH_DOES_NOT_DIVIDE.at(wanted.written.span, message, f"The nearest that fit: {nearest}.", related)


def _not_json(use: JobUse) -> Iterator[Diagnostic]:
    found = use.input("model_overrides") if "model_overrides" in use.component.inputs else None
    if not isinstance(found, Known) or not isinstance(found.value, str):
        return
    try:
        settings = json.loads(found.value)
    except ValueError as error:
        message = f"model_overrides is not JSON: {error}"
    else:
        if isinstance(settings, dict):
            return
        message = "model_overrides is JSON, but not an object"
    hint = "Write an object such as '{\"depths\": [2, 2]}'."
    yield SETTINGS_NOT_JSON.at(found.written.span, message, hint)
