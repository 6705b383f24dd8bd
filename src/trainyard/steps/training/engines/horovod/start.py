"""How Horovod is started: its ranks agree over gloo, around a server of rank 0's, or over MPI if that is asked for.

Gloo works under every launcher, and waits without keeping a processor busy, unlike Open MPI. What GPUs exchange goes
over NCCL in both cases.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from trainyard.steps.runtime.errors import SetupError
from trainyard.steps.runtime.world import World

_CONTROLLER = "HOROVOD_CONTROLLER"
"""Horovod's own variable: `mpi` or `gloo`."""
_OF_MPIRUN = "PMIX_NAMESPACE"
"""Set by Open MPI's mpirun, not by what only sets the variables of ranks."""


def start_horovod(world: World) -> Any:
    """Start Horovod on every rank and return its module. SetupError if its build lacks what this world needs."""
    import horovod.torch as horovod

    if horovod.is_initialized():
        return horovod
    # Each bucket by itself: fused with whichever others are ready, its numbers would be added in another order.
    os.environ.setdefault("HOROVOD_FUSION_THRESHOLD", "0")
    if world.device.type == "cuda" and not (horovod.nccl_built() or horovod.rocm_built()):
        raise SetupError("this build of Horovod has no GPU operations; build it with HOROVOD_GPU_OPERATIONS=NCCL")
    if os.environ.get(_CONTROLLER) == "mpi":
        if not horovod.mpi_built():
            raise SetupError(f"{_CONTROLLER}=mpi: this build of Horovod has no MPI; build it with HOROVOD_WITH_MPI=1")
        if _OF_MPIRUN not in os.environ:
            raise SetupError(f"{_CONTROLLER}=mpi: no mpirun of Open MPI started this process; leave the variable out")
        horovod.init()
    elif horovod.gloo_built():
        _start_with_gloo(world, horovod)
    else:
        raise SetupError("this build of Horovod has no gloo; build it with HOROVOD_WITH_GLOO=1")
    if (horovod.rank(), horovod.size()) != (world.rank, world.size):
        raise SetupError(
            f"Horovod says rank {horovod.rank()} of {horovod.size()}, {world.variables.launcher} says rank "
            f"{world.rank} of {world.size}; start the processes with one launcher only"
        )
    return horovod


def _start_with_gloo(world: World, horovod: Any) -> None:
    from horovod.runner.http.http_server import RendezvousServer

    variables, server, port = world.variables, None, 0
    if world.is_main:
        server = RendezvousServer()
        port = server.start()
        server.init([])
    place = {
        _CONTROLLER: "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_RANK": world.rank,
        "HOROVOD_SIZE": world.size,
        "HOROVOD_LOCAL_RANK": world.local_rank,
        "HOROVOD_LOCAL_SIZE": variables.processes_per_node,
        "HOROVOD_CROSS_RANK": variables.node_rank,
        "HOROVOD_CROSS_SIZE": variables.node_count,
        "HOROVOD_HOSTNAME": f"node-{variables.node_rank}",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": variables.master_address or "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": world.broadcast(port),
        "HOROVOD_GLOO_TIMEOUT_SECONDS": int(world.timeout.total_seconds()),
    }
    os.environ.update({name: str(value) for name, value in place.items()})
    # The interface over which the ranks have met already.
    if interface := os.environ.get("GLOO_SOCKET_IFNAME"):
        os.environ.setdefault("HOROVOD_GLOO_IFACE", interface)
    horovod.init()
    world.barrier()
    if server is not None:
        with suppress(OSError):
            server.stop()
