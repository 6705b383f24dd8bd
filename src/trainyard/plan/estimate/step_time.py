"""How long one optimizer step takes: what a GPU computes, what of exchange and copies it does not hide, and offload.

Collectives are rings over NVLink and the network, and hierarchies of rings.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainyard.plan.estimate.compute import Efficiency, compute_of
from trainyard.plan.estimate.memory import memory_of
from trainyard.plan.estimate.training import Machines, TrainingShape

LINK_EFFICIENCY = 0.8
"""The share of a link's rate that NCCL's rings reach with large messages: 228 of 300 GB/s on Azure's ND A100 v4 and
110 of 150 GB/s on ND40rs v2 are the floors of Azure's node health check (`health_check_allreduce_gbyte_per_second` of
the catalogue)."""

BASE_LATENCY = 8.4e-6
LINK_LATENCY = 3.4e-6
NETWORK_LATENCY = 14.0e-6
"""Seconds to begin, and for one hop within and between machines: NCCL's own model of a ring with the Simple protocol
(https://github.com/NVIDIA/nccl/blob/master/src/graph/tuning.cc, baseLat and hwLat)."""

OVERLAP = 0.5
"""The share of the shorter of computing and exchanging that runs beside the longer. Both at once slow each other down,
since NCCL's kernels take multiprocessors and memory from the products beside them; stated, not fitted."""

BETWEEN_STEPS_SECONDS = 0.025
"""What Python does between steps, where a GPU waits: batches, schedules, logs, the start of the update. Eight of our
trainings (benchmarks/results/measured_trainings.json) have 10 to 38 ms beside their layers' launch_overhead.json;
chosen among 20, 25 and 30. Of compiled and fused software, and of images, loaded ahead, a tenth is counted."""

_CPU_ADAM_SECONDS = 0.257e-9 * 96
"""For each parameter, on one vCPU: DeepSpeed's vectorized CPU-Adam takes 2.57 s for 10 billion on the 96 of a DGX-2
(quoted from Ren et al. 2021, ZeRO-Offload, arXiv:2101.06840, table 4; not verified). Torch's is vectorized alike."""

_VCPUS_PER_GPU = 12
"""Where no Azure size is named: those of the ND sizes with 8 GPUs."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of one optimizer step. `exposed_communication` is what of `communication` is not hidden.

    `copies` are what is not hidden of copies to and from main memory.
    """

    forward: float
    backward: float
    optimizer: float
    communication: float
    exposed_communication: float
    between_steps: float
    copies: float = 0.0

    def parts(self) -> dict[str, float]:
        """Return what the step consists of."""
        return {name: seconds for name, seconds in vars(self).items() if name != "communication"}

    @property
    def total(self) -> float:
        """All of the step."""
        return sum(self.parts().values())


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
        between_steps=BETWEEN_STEPS_SECONDS / (10 if training.fuses_operations or training.is_of_images else 1),
    )


def samples_per_second_per_gpu(training: TrainingShape, seconds: float) -> float:
    """Return the rate of one GPU at a step of so many seconds."""
    return training.micro_batch_size * training.accumulation_steps / seconds


def _exposed(communication: float, compute: float) -> float:
    """Return how much longer a phase takes than its computing alone."""
    return communication - OVERLAP * min(communication, compute)


def _communication(training: TrainingShape) -> tuple[float, float, float, float]:
    """Return the seconds of exchange in each forward, in each backward, in the last backward, and in the update."""
    machines, size, trained = training.machines, training.bytes_per_value, training.trained_parameters
    if machines.world_size == 1:
        return 0.0, 0.0, 0.0, 0.0
    if training.engine == "ddp":
        return 0.0, 0.0, all_reduce_seconds(training.whole_gradient_bytes, machines), 0.0
    if training.engine == "zero0":
        return 0.0, 0.0, all_reduce_seconds(float(size * trained), machines), 0.0
    if training.engine in ("zero1", "zero2"):
        scatter, gather = (gather_seconds(float(size * trained), machines) for _ in range(2))
        return (0.0, scatter, 0.0, gather) if training.engine == "zero2" else (0.0, 0.0, scatter, gather)
    # Layer by layer: as many collectives as there are layers.
    layers = training.architecture.layers + 1
    count = trained + (training.architecture.parameters if training.adapters else 0)
    replica = training.machines_of_replica
    gather = layers * gather_seconds(size * count / layers, replica)
    again = gather if training.reshard_after_forward else 0.0
    if training.engine == "zero3":
        return gather, again + layers * gather_seconds(size * trained / layers, machines), 0.0, 0.0
    # FSDP sums gradients within a replica; replicas sum theirs only with the step's last micro-batch.
    gradient = training.whole_gradient_bytes / layers
    summed = layers * gather_seconds(gradient, replica)
    between = layers * between_replicas_seconds(gradient / training.shards, replica, machines)
    if training.sums_every_micro_batch:
        return gather, again + summed, between, 0.0
    return gather, again, summed + between, 0.0


def ring_seconds(size: float, machines: Machines) -> float:
    """Return the seconds in which a ring over all GPUs gathers, or sums and scatters, `size` bytes.

    Each GPU sends (n - 1)/n of them (Patarasuk & Yuan 2009, "Bandwidth optimal all-reduce algorithms"); the slower of
    the links within a machine and the network of a machine, which all its GPUs' rings share, sets the rate.
    """
    ranks = machines.world_size
    if ranks == 1 or not size:
        return 0.0
    link = machines.link_gbyte_per_second if machines.gpus_per_node > 1 else float("inf")
    network = machines.network_gbyte_per_second if machines.nodes > 1 else float("inf")
    rate = min(link, network) * 1e9 * LINK_EFFICIENCY
    hops_between = machines.nodes if machines.nodes > 1 else 0
    latency = BASE_LATENCY + (ranks - 1 - hops_between) * LINK_LATENCY + hops_between * NETWORK_LATENCY
    return latency + (ranks - 1) / ranks * size / rate


def hierarchical_seconds(size: float, machines: Machines) -> float:
    """Return the same for two levels: within each machine, then between GPUs of the same place in all machines.

    The second level moves 1/k of the bytes over each GPU's share of the network (k GPUs a machine), as NCCL's trees and
    Horovod's hierarchical all-reduce do (Sergeev & Del Balso 2018, arXiv:1802.05799).
    """
    if machines.world_size == 1 or not size:
        return 0.0
    per_node, nodes = machines.gpus_per_node, machines.nodes
    within = (per_node - 1) / per_node * size / (machines.link_gbyte_per_second * 1e9 * LINK_EFFICIENCY)
    latency = BASE_LATENCY + (per_node - 1) * LINK_LATENCY
    if nodes == 1:
        return latency + within
    share = machines.network_gbyte_per_second * 1e9 * LINK_EFFICIENCY / per_node
    between = (nodes - 1) / nodes * size / per_node / share
    return latency + within + between + (nodes - 1).bit_length() * NETWORK_LATENCY


def gather_seconds(size: float, machines: Machines) -> float:
    """Return the seconds of an all-gather, or of a reduce-scatter, of `size` bytes: the quicker of the two ways."""
    return min(ring_seconds(size, machines), hierarchical_seconds(size, machines))


def all_reduce_seconds(size: float, machines: Machines) -> float:
    """Return the seconds of an all-reduce: a reduce-scatter and an all-gather of the same bytes."""
    return 2 * gather_seconds(size, machines)


def between_replicas_seconds(size: float, replica: Machines, machines: Machines) -> float:
    """Return the seconds in which GPUs of the same place in each replica sum `size` bytes, all places at once.

    The quicker of a ring, which sends (n - 1)/n of the bytes twice and waits for n - 1 hops, and of NCCL's two binary
    trees, which send all of them twice and wait for the hops up and down again (Sanders, Speck & Träff 2009, "Two-tree
    algorithms for full bandwidth broadcast, reduction and scan"). The GPUs of a machine share its network.
    """
    replicas = machines.world_size // replica.world_size
    if replicas == 1:
        return 0.0
    if machines.nodes == 1:
        rate, latency = machines.link_gbyte_per_second, LINK_LATENCY
    else:
        rate, latency = machines.network_gbyte_per_second / machines.gpus_per_node, NETWORK_LATENCY
    sent = 2 * size / (rate * 1e9 * LINK_EFFICIENCY)
    ring = (replicas - 1) * latency + (replicas - 1) / replicas * sent
    trees = 2 * (replicas - 1).bit_length() * latency + sent
    return BASE_LATENCY + min(ring, trees)


def with_offload(time: StepTime, training: TrainingShape) -> StepTime:
    """Return a step's time with what is not hidden of its copies, and with the time of its offloaded optimizer.

    In each micro-batch activations go to main memory and back, gradients go there, and offloaded parameters come from
    there for each pass; other parameters come back once they are updated. As of other exchange, a share is hidden.
    """
    machines, size = training.machines, training.bytes_per_value
    value = size if training.is_deepspeed or training.precision == "bf16-true" else 4
    updated = training.trained_parameters / training.shards
    moved, moved_back = 0.0, 0.0
    if training.offload_activations:
        moved += 2 * memory_of(replace(training, offload_activations=False)).activations
    if training.offload_optimizer:
        moved += value * updated
        moved_back = 0.0 if training.offload_parameters else value * updated
        vcpus = machines.sku.vcpus if machines.sku else _VCPUS_PER_GPU * machines.gpus_per_node
        time = replace(time, optimizer=updated * machines.gpus_per_node * _CPU_ADAM_SECONDS / vcpus)
    if training.offload_parameters:
        frozen = training.architecture.parameters if training.adapters else 0
        moved += (2 if training.reshard_after_forward else 1) * value * (updated + frozen / training.shards)
    rate = machines.gpu.host_gbyte_per_second * 1e9 * LINK_EFFICIENCY
    steps, copying = training.accumulation_steps, moved / rate
    hidden = OVERLAP * min(copying, (time.forward + time.backward) / steps)
    return replace(time, copies=steps * (copying - hidden) + moved_back / rate)
