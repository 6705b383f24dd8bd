"""How to run: the options of `trainyard run`."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

from trainyard.rehearse.local_data import KeptData
from trainyard.rehearse.machine import available_gpus

EnvironmentChoice = Literal["current", "venv", "docker"]
"""What jobs run in: the Python that is given, a virtual environment of each, or containers of each one's image."""
ENVIRONMENT_CHOICES: tuple[EnvironmentChoice, ...] = get_args(EnvironmentChoice)


@dataclass(frozen=True)
class RunOptions:
    """How to run: the options of `trainyard run`.

    `grace_seconds` is the time between SIGTERM and SIGKILL, `notice_seconds` that of a preemption: Azure gives 30.
    With `reuse_imports` a change of code that a job does not import does not run it again.
    `devices` has a file for each GPU; with `without_gpus` the CPU stands in for GPUs in the jobs' PyTorch.
    """

    runs_folder: Path
    name: str | None = None
    run_folder: Path | None = None
    overrides: dict[str, str] = field(default_factory=dict)
    max_processes: int | None = None
    only: str | None = None
    from_job: str | None = None
    use_cache: bool = True
    reuse_imports: bool = False
    grace_seconds: float = 10.0
    strict: bool = False
    python: Path = Path(sys.executable)
    preempt: tuple[str, ...] = ()
    kill: tuple[str, ...] = ()
    notice_seconds: float = 30.0
    environments: EnvironmentChoice = "current"
    without_gpus: bool = False
    devices: Path = Path("/dev")

    @property
    def state_folder(self) -> Path:
        """What runs share: the cache, the tracking store, downloads, datastores."""
        return self.runs_folder.resolve().parent

    @cached_property
    def gpus(self) -> list[str]:
        """This machine's GPUs, as far as CUDA_VISIBLE_DEVICES lets jobs see them; none in a run without GPUs."""
        return [] if self.without_gpus else available_gpus(os.environ, self.devices)

    @property
    def kept(self) -> KeptData:
        """Where data with an address lies."""
        return KeptData(self.state_folder / "cache" / "downloads", self.state_folder / "datastores")
