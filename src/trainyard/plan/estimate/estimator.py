"""The estimate of one training: whether it fits, how long a step is, what it costs; how it scales to 1,024 nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from trainyard.errors import UsageError
from trainyard.plan.estimate.compute import efficiency_curves, model_flops
from trainyard.plan.estimate.memory import Memory, main_memory_bytes, memory_of
from trainyard.plan.estimate.money import Money, WholeTraining, money_of, usd_per_billion, whole_training_of
from trainyard.plan.estimate.step_time import StepTime, samples_per_second_per_gpu, step_time_of, with_offload
from trainyard.plan.estimate.training import TrainingShape

SCALING_NODES = tuple(2**power for power in range(11))
"""1 to 1,024."""

# Of a GPU's memory: docs/estimates.md has trainings that take a tenth more than was predicted.
_SURE_SHARE = 0.9


@dataclass(frozen=True)
class Estimate:
    """What a training takes. `time` is None where nothing is known to compute it from; `time_reason` says why.

    Where the time rests on the efficiency of another GPU generation, `time_reason` says that.
    """

    training: TrainingShape
    memory: Memory
    time: StepTime | None
    time_reason: str
    money: Money

    @property
    def fits(self) -> bool:
        """Whether the tensors, and what libraries take beside them, fit in a GPU's memory and in main memory."""
        return has_room(self.training, 0.0, self.memory)

    @property
    def verdict(self) -> str:
        """ "fits", "does not fit", or "may not fit" where it leaves less than a tenth of a GPU's memory."""
        if not self.fits:
            return "does not fit"
        return "fits" if has_room(self.training, 1 - _SURE_SHARE, self.memory) else "may not fit"

    @property
    def memory_finding(self) -> str:
        """What to say of its memory where it does not fit, or may not; empty where it does."""
        if self.verdict == "fits":
            return ""
        if reason := main_memory_reason(self.training):
            return reason
        needs = f"needs about {self.memory.total / 1e9:.0f} GB of a GPU's {self.available_bytes / 1e9:.0f} GB"
        return f"{needs}: may not fit" if self.fits else needs

    @property
    def available_bytes(self) -> float:
        """What of a GPU's memory is left for tensors, beside what libraries take."""
        return self.training.machines.memory_bytes_per_gpu - self.training.machines.runtime_bytes

    @property
    def samples_per_second_per_gpu(self) -> float | None:
        """The rate of one GPU, in rows of text or images."""
        return None if self.time is None else samples_per_second_per_gpu(self.training, self.time.total)

    @property
    def samples_per_second(self) -> float | None:
        """The rate of all GPUs."""
        each = self.samples_per_second_per_gpu
        return None if each is None else each * self.training.machines.world_size

    @property
    def tokens_per_second_per_gpu(self) -> float | None:
        """The rate of one GPU; None for images."""
        each = self.samples_per_second_per_gpu
        return None if each is None or self.training.is_of_images else each * self.training.sequence_length

    @property
    def tokens_per_second(self) -> float | None:
        """The rate of all GPUs; None for images."""
        each = self.tokens_per_second_per_gpu
        return None if each is None else each * self.training.machines.world_size

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation: of the peak in the precision that matrices are multiplied in."""
        peak = self.training.machines.gpu.peak_tflops(self.training.product_precision)
        if self.time is None or peak is None:
            return None
        return model_flops(self.training) * self.training.accumulation_steps / self.time.total / (peak * 1e12)

    @property
    def usd_per_billion_tokens(self) -> float | None:
        """The price of a billion tokens on demand; None for images."""
        return self._usd_per_billion(self.tokens_per_second)

    @property
    def usd_per_billion_samples(self) -> float | None:
        """The price of a billion rows or images on demand."""
        return self._usd_per_billion(self.samples_per_second)

    def whole_training(self, samples: float) -> WholeTraining | None:
        """Return what a training of so many rows or images takes; None where the time of a step is not known."""
        if self.time is None:
            return None
        steps = math.ceil(samples / self.training.global_batch_size)
        return whole_training_of(self.money, steps, steps * self.time.total)

    def _usd_per_billion(self, rate: float | None) -> float | None:
        price = self.money.on_demand
        return None if rate is None or price is None else usd_per_billion(price.usd_per_hour, rate)


def main_memory_reason(training: TrainingShape) -> str:
    """Return why a node's main memory is too small for what is offloaded; nothing if it is not, or without a size."""
    sku, needed = training.machines.sku, main_memory_bytes(training)
    if sku is None or needed <= sku.ram_gib * 2**30:
        return ""
    return f"each node offloads {needed / 1e9:,.0f} GB to its {sku.ram_gib * 2**30 / 1e9:,.0f} GB of main memory"


def has_room(training: TrainingShape, share: float, memory: Memory | None = None) -> bool:
    """Return whether a training fits and leaves this share of each GPU's memory. `memory` is given if it is known.

    What the allocator keeps beyond tensors counts only where some memory is to be left: it gives that back if need be.
    """
    found = memory or memory_of(training)
    used = (found.reserved if share else found.total) + training.machines.runtime_bytes
    return used <= (1 - share) * training.machines.memory_bytes_per_gpu and not main_memory_reason(training)


def estimate(training: TrainingShape) -> Estimate:
    """Return what a training takes. UsageError for a precision that the GPU lacks."""
    gpu = training.machines.gpu
    if gpu.peak_tflops(training.product_precision) is None:
        possible = ", ".join(each for each in ("bf16", "fp16", "fp32", "fp8") if gpu.peak_tflops(each) is not None)
        raise UsageError(f"{gpu.name} has no {training.product_precision}; it has {possible}")
    curve = efficiency_curves().get(gpu.generation)
    reason = f"no published training on {gpu.generation} GPUs to take their efficiency from"
    if curve is not None:
        reason = f"{reason}; taken from {curve.taken_from}" if curve.taken_from else ""
    return Estimate(
        training,
        memory_of(training),
        with_offload(step_time_of(training, curve), training) if curve else None,
        reason,
        money_of(training.architecture.parameters, training.machines),
    )


def scaling_curve(training: TrainingShape) -> list[tuple[int, float]]:
    """Return (nodes, share of one node's rate per GPU) with the same work on each GPU.

    It is empty where the time is not known, or the network.
    """
    if not training.machines.network_gbyte_per_second:
        return []
    rates = [(nodes, estimate(on_nodes(training, nodes)).samples_per_second_per_gpu) for nodes in SCALING_NODES]
    first = rates[0][1]
    return [(nodes, rate / first) for nodes, rate in rates if rate is not None and first is not None]


def on_nodes(training: TrainingShape, nodes: int) -> TrainingShape:
    """Return the same training on another number of nodes."""
    return replace(training, machines=replace(training.machines, nodes=nodes))
