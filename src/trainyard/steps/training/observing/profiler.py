"""Traces of chosen steps with torch's profiler, one file per rank, for chrome://tracing or ui.perfetto.dev."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from trainyard.steps.runtime.errors import StepError

PROFILE_FOLDER = "profile"


@dataclass(frozen=True)
class ProfiledSteps:
    """The steps from first to last, both included, counted from 1."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}:{self.last}"


def parse_profile_steps(text: str | None) -> ProfiledSteps | None:
    """Return the steps that A:B names, or None for None. StepError if invalid."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+):(\d+)", text.strip())
    if match is None:
        raise StepError(f"--profile-steps {text!r}: expected A:B, such as 10:12 for steps 10 to 12")
    first, last = int(match[1]), int(match[2])
    if first < 1 or last < first:
        raise StepError(f"--profile-steps {text}: steps count from 1, and the last must not be before the first")
    return ProfiledSteps(first, last)


class StepProfiler:
    """Profiles some steps of one rank. A training that resumes after them writes no trace."""

    def __init__(self, steps: ProfiledSteps, folder: Path, rank: int, device: torch.device) -> None:
        self._steps, self._device = steps, device
        self._file = folder / PROFILE_FOLDER / f"rank-{rank:05d}.json"
        self._profile: profile | None = None
        self._step: record_function | None = None

    def step_begins(self, number: int) -> None:
        """Start profiling if the step is one of those to profile."""
        if not self._steps.first <= number <= self._steps.last:
            return
        if self._profile is None:
            activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (self._device.type == "cuda")
            self._profile = profile(activities=activities)
            self._profile.start()
        self._step = record_function(f"step {number}")
        self._step.__enter__()

    def step_ends(self, number: int) -> None:
        """Write the trace after the last of the steps."""
        if self._step is None:
            return
        self._step.__exit__(None, None, None)
        self._step = None
        if number == self._steps.last:
            self.close()

    def close(self) -> None:
        """Write the trace, if the steps have begun."""
        if self._profile is None:
            return
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        running, self._profile = self._profile, None
        running.stop()
        self._file.parent.mkdir(parents=True, exist_ok=True)
        running.export_chrome_trace(str(self._file))
        print(f"steps {self._steps.first} to {self._steps.last} traced: {self._file}", flush=True)
