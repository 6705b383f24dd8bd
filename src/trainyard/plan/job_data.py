"""What is known of the data that a job reads: from a prepared dataset on this machine, or from the jobs before."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator

from trainyard.project_files import read_text
from trainyard.spec.literals import whole_number
from trainyard.spec.resolution import JobUse, Resolution
from trainyard.spec.resolved import DataPath, Known
from trainyard.spec.step_settings import place_of


def number_of_data(job: JobUse, resolution: Resolution, name: str) -> int | None:
    """Return a number of a job's data, such as `sequence_length`; None where it is not known.

    It is that of the dataset, where that is on this machine, else of the nearest job that the data come from.
    """
    of_jobs = (positive_setting(source, name) for source in jobs_before(job, resolution))
    return dataset_numbers(job).get(name) or next((number for number in of_jobs if number is not None), None)


def dataset_numbers(job: JobUse, port: str = "data") -> dict[str, int]:
    """Return what the manifest of a prepared dataset says, by name; nothing where a job's dataset is not here.

    `samples` are those to train on. Text has `sequence_length` and `vocabulary_size`; images have `channels`,
    `height`, `width` and `classes`.
    """
    found = job.setting(port)
    if not isinstance(found, Known) or not isinstance(found.value, DataPath):
        return {}
    try:
        manifest = json.loads(read_text(place_of(found.value.text, found.written.span) / "manifest.json"))
        numbers = {"samples": manifest["splits"]["train"]["samples"]}
        if manifest.get("text"):
            numbers["vocabulary_size"] = manifest["text"]["vocabulary_size"]
            numbers["sequence_length"] = manifest["source"].get("sequence_length")
        if images := manifest["arrays"].get("images"):
            numbers |= zip(("channels", "height", "width"), images["shape"], strict=True)
            numbers["classes"] = len(manifest["classes"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    return {name: number for name, number in numbers.items() if type(number) is int and number > 0}


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


def positive_setting(job: JobUse, name: str) -> int | None:
    """Return a setting or an input that is a positive whole number; None for others."""
    found = job.setting(name)
    number = whole_number(found.value) if isinstance(found, Known) else None
    return number if number is not None and number > 0 else None
