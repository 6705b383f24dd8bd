"""Counts the optimizer's steps of a job's process, and ends it when all of its processes have taken enough.

`public_scripts.py` puts this folder on a job's PYTHONPATH: the scripts stay as they are.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any


def _count(folder: Path, wanted: int, processes: int) -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    own = folder / str(os.getpid())
    taken = 0

    def after_step(*_: Any) -> None:
        nonlocal taken
        taken += 1
        own.write_text(str(taken))
        if taken < wanted:
            return
        # A process that ends early would break what the others still wait for.
        ends = time.monotonic() + 60
        while time.monotonic() < ends and _that_have(folder, wanted) < processes:
            time.sleep(0.05)
        os._exit(0)

    register_optimizer_step_post_hook(after_step)


def _that_have(folder: Path, wanted: int) -> int:
    return sum(int(file.read_text() or 0) >= wanted for file in folder.iterdir())


if "COUNT_STEPS" in os.environ:
    _folder, _wanted, _processes = os.environ["COUNT_STEPS"].split(":")
    _count(Path(_folder), int(_wanted), int(_processes))
