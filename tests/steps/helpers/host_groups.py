"""One rank of a world of several nodes that are all this machine, which does what a training does over its host groups.

LAYOUT is that on CPUs, or that on GPUs, with a default group that connects nobody in place of NCCL's. The rank LEAVES
ends without a word.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from numbers_engine import NumbersEngine, same, some_tensors
from torch.testing._internal.distributed import fake_pg

from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.world import World, lost_connections_explained
from trainyard.steps.training.checkpoints.checkpoints import Checkpoints
from trainyard.steps.training.checkpoints.collectives import Ranks
from trainyard.steps.training.samples.plan import Progress

assert fake_pg  # its import makes the backend known


def main(folder: str, ranks_of_nodes: str, layout: str, leaves: str) -> int:
    """Write what this rank found to a file of its own. Return the exit code."""
    rank, nodes = int(os.environ["RANK"]), json.loads(ranks_of_nodes)
    own = next(node for node in nodes if rank in node)
    os.environ.update({"LOCAL_RANK": str(own.index(rank)), "LOCAL_WORLD_SIZE": str(len(own))})
    socket.gethostname = lambda: f"node-{nodes.index(own)}"
    if layout == "gpu":
        dist.init_process_group = without_connections(dist.init_process_group)
    before = sockets()
    try:
        with lost_connections_explained(rank), World(60) as world:
            found = exchanged(world, Path(folder), leaves=rank == int(leaves), saves=layout == "cpu")
            found |= {"nodes": world.host.nodes, "sockets": found["sockets"] - before}
    except StepError as error:
        print(error, flush=True)
        return 1
    (Path(folder) / f"rank-{rank}.json").write_text(json.dumps(found))
    return 0


def without_connections(initialize: Callable[..., None]) -> Callable[..., None]:
    def init_process_group(backend: str, **options: Any) -> None:
        initialize("fake", **options)

    return init_process_group


def exchanged(world: World, folder: Path, *, leaves: bool, saves: bool) -> dict[str, Any]:
    """What this rank got from the others, while its other thread exchanges something else."""
    dist.new_group([0], backend="fake")  # of a user's code: rank 0 is in one group more than the others
    ranks, rank, size = Ranks(world), world.rank, world.size
    gathered: list[list[int]] = []
    thread = threading.Thread(target=lambda: gathered.extend(ranks.each(lambda: [rank] * rank) for _ in range(5)))
    thread.start()
    if leaves:
        os._exit(9)
    world.barrier()  # on CPUs, over the default group
    found: dict[str, Any] = {
        "gathered": [world.gather(f"{rank}") for _ in range(5)][-1],
        "broadcast": world.broadcast(rank),
        "sum": world.host.sum(torch.tensor([1, rank])).tolist(),
    }
    thread.join()
    found["by thread"] = gathered[-1]
    found["main"] = ranks.main(lambda: f"of rank {rank}")
    try:
        ranks.each(lambda: (folder / "missing" / f"{rank}").read_text() if rank == size - 1 else "")
    except StepError as error:
        found["error"] = str(error)
    found["sockets"] = sockets()
    if saves:
        saved, restored = some_tensors(7), some_tensors(8)
        saving = Checkpoints(folder / "checkpoints", world, {})
        saving.save(NumbersEngine(saved, rank, size, divided=True), Progress(3, 1, 30, 0), {})
        saving.save(NumbersEngine(saved, rank, size), Progress(4, 1, 40, 0), {})
        saving.finish()
        saving.resume("auto", NumbersEngine(restored, rank, size), seed=0)
        found["restored"] = same(saved, restored)
    return found


def sockets() -> int:
    opened = (entry.path for entry in os.scandir("/proc/self/fd"))
    return sum(os.readlink(path).startswith("socket:") for path in opened if os.path.islink(path))
