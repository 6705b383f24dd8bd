"""Horovod: gradients are summed by Horovod's own thread, over MPI, gloo or NCCL.

Horovod fuses whatever tensors are ready at the same moment, so with three or more ranks the order in which numbers are
added would change from step to step. A bucket is one tensor with always the same parameters, so a resumed training has
the bits of an uninterrupted one.

Ranks agree over gloo, around a server of rank 0's, or over MPI if that is asked for. Gloo works under every launcher,
and waits without keeping a processor busy, unlike Open MPI. What GPUs exchange goes over NCCL in both cases.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch

from trainyard.steps.runtime.errors import SetupError
from trainyard.steps.runtime.world import World
from trainyard.steps.training.engines.engine import EngineParts
from trainyard.steps.training.engines.replicas import ReplicaEngine
from trainyard.steps.training.optimizer import gradient_seed

_BUCKET_BYTES = 25 * 2**20
"""As DDP's: large enough for a network's full bandwidth, small enough to overlap with the backward pass."""
_CONTROLLER = "HOROVOD_CONTROLLER"
"""Horovod's own variable: `mpi` or `gloo`."""
_OF_MPIRUN = "PMIX_NAMESPACE"
"""Set by Open MPI's mpirun, not by what only sets the variables of ranks."""


class HorovodEngine(ReplicaEngine):
    """One replica per rank. Sums of gradients are asked for explicitly, so that micro-batches need none."""

    name = "horovod"

    def __init__(self, parts: EngineParts) -> None:
        horovod = start_horovod(parts.world)
        super().__init__(parts)
        horovod.broadcast_parameters(self._replica.state_dict(), root_rank=0)
        self._exchange = GradientExchange(horovod, self._trained)
        self._some_are_unused = False

    @contextmanager
    def micro_batch(self, *, is_last: bool) -> Iterator[None]:
        """Sum gradients over ranks in the step's last micro-batch only."""
        self._exchange.is_open = is_last
        try:
            yield
        finally:
            self._exchange.is_open = False

    def warm_up(self, loss: Callable[[], torch.Tensor]) -> None:
        """Find out whether there are parameters without a gradient."""
        self._some_are_unused = self.find_unused_parameters(loss)

    def backward(self, loss_sum: torch.Tensor, step_terms: torch.Tensor | float) -> None:
        """Add this rank's part of the gradient. Ranks' parts are summed, so each is of the whole step's mean."""
        loss_sum.backward(gradient_seed(loss_sum, 1 / step_terms, self.loss_scale))

    def step(self, learning_rate: float) -> torch.Tensor:
        """Wait for the sums, clip, and step with AdamW."""
        unused = []
        if self._some_are_unused:
            has_gradient = torch.tensor([float(parameter.grad is not None) for parameter in self._trained])
            counts = self.world.sum(has_gradient).tolist()
            unused = [parameter for parameter, count in zip(self._trained, counts, strict=True) if count == 0]
        self._exchange.finish()
        for parameter in unused:  # to which no rank has a gradient: as with DDP, they are not updated at all
            parameter.grad = None
        return super().step(learning_rate)


class Bucket:
    """The gradients of some parameters, one after another in one tensor."""

    def __init__(self, name: str, parameters: list[torch.nn.Parameter]) -> None:
        self.name, self.parameters = name, parameters
        first = parameters[0]
        self.values = torch.zeros(sum(p.numel() for p in parameters), dtype=first.dtype, device=first.device)
        pieces = self.values.split([parameter.numel() for parameter in parameters])
        self._pieces = {p: piece.view_as(p) for p, piece in zip(parameters, pieces, strict=True)}
        self._missing = set(parameters)

    def take(self, parameter: torch.nn.Parameter) -> bool:
        """Take a parameter's gradient, which becomes a view of the bucket. Return whether the bucket is full."""
        piece = self._pieces[parameter]
        if parameter.grad is None:
            piece.zero_()
        else:
            piece.copy_(parameter.grad)
        parameter.grad = piece
        self._missing.discard(parameter)
        return not self._missing

    def take_the_rest(self) -> bool:
        """Take what this step has no gradient for, as zeros. Return whether there was any. Then expect all again."""
        missing = [parameter for parameter in self.parameters if parameter in self._missing]
        for parameter in missing:
            self.take(parameter)
        self._missing = set(self.parameters)
        return bool(missing)


class GradientExchange:
    """Sums gradients over all ranks, bucket by bucket, while it is open."""

    def __init__(self, horovod: Any, parameters: list[torch.nn.Parameter]) -> None:
        self._horovod = horovod
        # The backward pass reaches the last layers first.
        self._buckets = [
            Bucket(f"gradients {number}", group) for number, group in enumerate(_grouped(reversed(parameters)))
        ]
        self._sums: list[Any] = []
        self.is_open = False
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(partial(self._take, bucket))

    def finish(self) -> None:
        """Wait until every rank's gradients are summed."""
        for bucket in self._buckets:
            if bucket.take_the_rest():
                self._begin(bucket)
        for handle in self._sums:
            self._horovod.synchronize(handle)
        self._sums.clear()

    def _take(self, bucket: Bucket, parameter: torch.nn.Parameter) -> None:
        if self.is_open and bucket.take(parameter):
            self._begin(bucket)

    def _begin(self, bucket: Bucket) -> None:
        self._sums.append(self._horovod.allreduce_async_(bucket.values, name=bucket.name, op=self._horovod.Sum))


def _grouped(parameters: Iterable[torch.nn.Parameter]) -> Iterator[list[torch.nn.Parameter]]:
    """Divide parameters, in their order, into groups of one type and of about the size of a bucket."""
    group: list[torch.nn.Parameter] = []
    size_bytes = 0
    for parameter in parameters:
        if group and (parameter.dtype != group[0].dtype or size_bytes >= _BUCKET_BYTES):
            yield group
            group, size_bytes = [], 0
        group.append(parameter)
        size_bytes += parameter.numel() * parameter.element_size()
    if group:
        yield group


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
