"""What offloading adds to a step: copies between a GPU and main memory, and an optimizer on the node's processors."""

from __future__ import annotations

from dataclasses import replace

from trainyard.plan.estimate.memory import memory_of
from trainyard.plan.estimate.step_time import LINK_EFFICIENCY, OVERLAP, StepTime
from trainyard.plan.estimate.training import TrainingShape

_CPU_ADAM_SECONDS = 0.257e-9 * 96
"""For each parameter, on one vCPU: DeepSpeed's vectorized CPU-Adam takes 2.57 s for 10 billion on the 96 of a DGX-2
(quoted from Ren et al. 2021, ZeRO-Offload, arXiv:2101.06840, table 4; not verified). Torch's is vectorized alike."""

_VCPUS_PER_GPU = 12
"""Where no Azure size is named: those of the ND sizes with 8 GPUs."""


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
