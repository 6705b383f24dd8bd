"""How long one optimizer step takes: what a GPU computes, and what of the exchange between GPUs it does not hide."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.plan.estimate.communication import all_reduce_seconds, between_replicas_seconds, gather_seconds
from trainyard.plan.estimate.compute import Efficiency, compute_of
from trainyard.plan.estimate.training import TrainingShape

OVERLAP = 0.5
"""The share of the shorter of computing and exchanging that runs beside the longer. Both at once slow each other down,
since NCCL's kernels take multiprocessors and memory from the products beside them; stated, not fitted."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of one optimizer step. `exposed_communication` is what of `communication` is not hidden."""

    forward: float
    backward: float
    optimizer: float
    communication: float
    exposed_communication: float

    @property
    def total(self) -> float:
        """All of the step."""
        return self.forward + self.backward + self.optimizer + self.exposed_communication


def step_time_of(training: TrainingShape, curve: Efficiency) -> StepTime:
    """Return the time of one step: accumulation_steps micro-batches and one update.

    Traffic for each micro-batch and step as in Rajbhandari et al. 2020 (ZeRO), section 7: an all-reduce of the
    gradients (DDP, stages 0 and 1), a reduce-scatter of them (stage 2), and with sharded parameters an all-gather in
    the forward pass, another in the backward pass, and a reduce-scatter.
    """
    compute = compute_of(training, curve)
    steps = training.accumulation_steps
    in_forward, in_backward, last_backward, in_update = _communication(training)
    exposed = (
        steps * _exposed(in_forward, compute.forward)
        + (steps - 1) * _exposed(in_backward, compute.backward)
        + _exposed(in_backward + last_backward, compute.backward)
        + in_update
    )
    return StepTime(
        forward=steps * compute.forward,
        backward=steps * compute.backward,
        optimizer=compute.optimizer,
        communication=steps * (in_forward + in_backward) + last_backward + in_update,
        exposed_communication=exposed,
    )


def samples_per_second_per_gpu(training: TrainingShape, seconds: float) -> float:
    """Return the rate of one GPU at a step of so many seconds."""
    return training.micro_batch_size * training.accumulation_steps / seconds


def _exposed(communication: float, compute: float) -> float:
    """Return how much longer a phase takes than its computing alone."""
    hidden = OVERLAP * min(communication, compute)
    return communication - hidden


def _communication(training: TrainingShape) -> tuple[float, float, float, float]:
    """Return the seconds of exchange in each forward, in each backward, in the last backward, and in the update."""
    machines, size, trained = training.machines, training.bytes_per_value, training.trained_parameters
    if machines.world_size == 1:
        return 0.0, 0.0, 0.0, 0.0
    if training.engine == "ddp":
        return 0.0, 0.0, all_reduce_seconds(4.0 * trained, machines), 0.0
    if training.engine == "zero0":
        return 0.0, 0.0, all_reduce_seconds(float(size * trained), machines), 0.0
    if training.engine in ("zero1", "zero2"):
        scatter, gather = (gather_seconds(float(size * trained), machines) for _ in range(2))
        return (0.0, scatter, 0.0, gather) if training.engine == "zero2" else (0.0, 0.0, scatter, gather)
    # Layer by layer: as many collectives as there are layers.
    layers = training.architecture.layers + 1
    count = trained + training.frozen_parameters
    replica = training.machines_of_replica
    gather = layers * gather_seconds(size * count / layers, replica)
    again = gather if training.reshard_after_forward else 0.0
    if training.engine == "zero3":
        return gather, again + layers * gather_seconds(size * trained / layers, machines), 0.0, 0.0
    # FSDP sums gradients in fp32, and only with the step's last micro-batch: within a replica, then between replicas.
    summed = gather_seconds(4 * trained / layers, replica)
    between = between_replicas_seconds(4 * trained / layers / training.shards, replica, machines)
    return gather, again, layers * (summed + between), 0.0
