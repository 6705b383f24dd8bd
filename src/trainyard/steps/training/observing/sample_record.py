"""Which samples each rank took at each step, for debugging data: one file per rank.

A line of rank-00000.jsonl is `{"step": 7, "epoch": 1, "sample_ids": [31, 4, …]}`, in the order in which the rank took
them. Stand-ins, which keep a rank without samples in step and do not count, are left out. Over all files each step
appears once per rank, and each epoch has every sample once, also after a resume at another world size. The numbers of
several datasets go on from one to the next.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from trainyard.settings.files import os_error_reason
from trainyard.steps.data.sample_order import Ids
from trainyard.steps.training.samples.plan import Step

_FILE_NAME = re.compile(r"rank-(\d{5,})\.jsonl")


class TakenSamples(Protocol):
    """What a rank passes through its model at once."""

    @property
    def sample_ids(self) -> Ids:
        """The samples, in order."""

    @property
    def is_stand_in(self) -> bool:
        """Whether they do not count."""


class SampleRecord:
    """One rank's file. A resumed training continues it after the step that it resumes from."""

    def __init__(self, folder: Path, rank: int, world_size: int, steps_done: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for file in folder.iterdir():
            name = _FILE_NAME.fullmatch(file.name)
            # Files of ranks that only a larger world had are truncated by those that exist now.
            if name and int(name[1]) % world_size == rank:
                _truncate(file, steps_done)
        self._file = folder / f"rank-{rank:05d}.jsonl"
        self._stream = self._file.open("ab", buffering=0)
        self._has_failed = False

    def write(self, step: Step, micro_batches: Sequence[TakenSamples]) -> None:
        """Record a step's samples; its line is with the operating system when this returns.

        After a failed write the record ends with a warning in the log: a training is worth more than its record.
        """
        if self._has_failed:
            return
        batches = [batch for batch in micro_batches if not batch.is_stand_in]
        sample_ids = [number for batch in batches for number in batch.sample_ids.tolist()]
        line = json.dumps({"step": step.number, "epoch": step.epoch, "sample_ids": sample_ids}).encode() + b"\n"
        try:
            while line:
                line = line[self._stream.write(line) :]
        except OSError as failure:
            self._has_failed = True
            print(
                f"warning: cannot write {self._file}, and the training continues without: {os_error_reason(failure)}",
                flush=True,
            )

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


def _truncate(file: Path, steps_done: int) -> None:
    """Drop the steps after `steps_done`, and a half-written last line."""
    kept_bytes = 0
    with file.open("rb+") as lines:
        for line in lines:
            if _step_of(line) > steps_done:
                break
            kept_bytes += len(line)
        lines.truncate(kept_bytes)


def _step_of(line: bytes) -> float:
    try:
        step: int = json.loads(line)["step"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return math.inf
    return step if line.endswith(b"\n") else math.inf
