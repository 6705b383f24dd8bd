"""A step that only joins the others: as `python -m joining SECONDS`, one process per rank."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from trainyard.settings.step_fields import parameter
from trainyard.steps.runtime.entrypoint import end_process, run_step


@dataclass(frozen=True)
class Joining:
    """Join the others, and say who is there."""

    timeout_seconds: int = parameter(60)
    """How long to wait for them."""


def join(settings: Joining) -> int:
    """Join, and say so."""
    print("waiting to import torch", flush=True)
    from trainyard.steps.runtime.world import World

    with World(settings.timeout_seconds) as world:
        print(f"joined: {world.gather(world.rank)}", flush=True)
    return 0


if __name__ == "__main__":
    end_process(run_step(Joining, "joining", join, sys.argv[1:]))
