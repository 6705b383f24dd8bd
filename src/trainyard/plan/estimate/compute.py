"""How long a GPU computes: matrix products at a measured share of its peak, everything else at its memory's rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import NormalDist

from trainyard.catalogue.csv_rows import rows_of
from trainyard.plan.estimate.blocks import adapters_of, blocks_of
from trainyard.plan.estimate.image_models import ModelBlock
from trainyard.plan.estimate.memory import FOREACH
from trainyard.plan.estimate.training import TrainingShape

_CSV_FILE = Path(__file__).parent / "efficiency.csv"

MEMORY_EFFICIENCY, _GDDR_EFFICIENCY, _HBM_EFFICIENCY = 0.8, 0.9, 0.7
"""The share of its memory's rate that a GPU reaches outside of products: 4.11 of 5.3 TB/s for a copy on MI300X
(https://github.com/samuel-bohman/AI-benchmarking-guide/blob/main/Azure_Results/ND_MI300X_v5_results.md), which Volta is
given too. Others were chosen by published trainings (docs/estimates.md): GPUs with GDDR have few bytes a second for
each multiprocessor, and its threads ask for enough of them at a time (Little's law). With HBM since Ampere they have
twice as many and more, and the threads ask for too few."""

_HBM_SINCE_AMPERE = ("Ampere", "Hopper", "Blackwell")

GPU_SPREAD = 0.07
"""The standard deviation of the times that GPUs of one kind take for the same work, as a share: they differ by 8 % on
average (Sinha et al. 2022, arXiv:2208.11035, abstract). Chosen among 0.05, 0.07 and 0.09."""

LAUNCH_SECONDS = 20e-6
"""How long Python and PyTorch take for each operation that they start: they, and not the GPU, set the pace of small
micro-batches. Our own measurements lie between 23 and 35 µs (benchmarks/results/launch_overhead.json). GPT-2 of gollem
(github.com/Jjschwartz/gollem), compiled with one row on H100, fits 13 µs; four rows of a course's eager model on B200
(github.com/csdiywithme/cs336-assignment2-systems) fit between 8 and 20 µs."""

KERNEL_SECONDS = 6e-6
"""How long a GPU takes for an operation beside what it computes and moves: to begin an empty one takes 3 µs
(https://forums.developer.nvidia.com/t/too-much-time-for-kernel-launch-latency/233645), others have to fill and drain
its multiprocessors too. Chosen among 0, 3 and 6 µs by published trainings (docs/estimates.md)."""

HALF_WAVE = 2**20
"""Results that a product on tensor cores might have beside its own in the same time: tiles of 128 x 128 leave half of
128 multiprocessors idle in the last round (wave quantization: Anthony et al. 2024, arXiv:2401.14489)."""

_OPTIMIZER_PASSES, _NORM_PASSES = 7, 1
"""Values read and written for each parameter, as wide as its gradient. AdamW reads it, its gradient and two moments,
and writes all but the gradient. Clipping reads the gradient for the norm of all; that a training clips is assumed."""

_BUCKET_PASSES = 4
"""DistributedDataParallel, unless told otherwise, copies gradients to its buckets, and sums back."""

_CAST_BYTES = 6
"""Autocast reads a weight in fp32 and writes it in 16 bits; of its gradient the backward pass does the reverse."""

FLASH_ATTENTION_2 = 0.35
"""The share of its peak that FlashAttention-2 reaches on H100, whose asynchronous instructions it does not use (Shah et
al. 2024, FlashAttention-3, arXiv:2407.08608, abstract). Deterministic attention has no other kernel there."""

_ATTENTION_OF_TORCH = {"Hopper": 0.55, "Blackwell": 0.25}
"""The share of its peak that attention reaches outside of Transformer Engine, on GPUs for which FlashAttention-2 is not
the fastest: published trainings seldom say which kernel they ran. On H100 it is the middle of FlashAttention-2 and
FlashAttention-3, which reaches 0.75 (the same source). Tensor cores of Blackwell, more than twice as fast, need
instructions of their own, which kernels before FlashAttention-4 do not use. Chosen among 0.35, 0.45, 0.5, 0.55, 0.6 and
0.7, and 0.2, 0.25, 0.3, 0.35, 0.5 and 0.7, by published trainings (docs/estimates.md)."""

VECTOR_EFFICIENCY = 0.93
"""The share of its peak in fp32 that a GPU reaches without tensor cores: 18.4 of 19.5 TFLOP/s on 729 machines with A100
(https://github.com/microsoft/superbench-results/tree/main/v0.4.0/Azure-NDmv4-A100)."""

_TURING_VECTOR_EFFICIENCY = 0.56
"""Of a T4, the only Turing GPU of the catalogue, whose clock falls under its limit of 70 W: fitted to six trainings of
one source."""

_WINOGRAD = 0.7
"""The time that the multiplications of a convolution of 3 x 3 in fp32 take, as a share of that of as many in a matrix
product: cuDNN's Winograd algorithm has 2.25 times fewer, and transforms its operands (Lavin & Gray 2015,
arXiv:1509.09308). It needs a stride of 1. Libraries of other makers are given it too. Chosen among 0.7, 0.8 and 1."""

_DEPTHWISE_EFFICIENCY = VECTOR_EFFICIENCY / 10
"""Of depthwise convolutions, a tenth of what GPUs other than a T4 reach: each multiplication loads both of its
operands, and the weights' gradients, few sums over all pixels, keep few multiprocessors busy. Chosen among a sixth, an
eighth and a tenth."""

_GROWING_YEARS = (2024, 2026)
"""The years in which software came to use a new generation's tensor cores: before and after these nothing changes."""


@dataclass(frozen=True)
class Efficiency:
    """The share of a GPU generation's peak that a matrix product reaches, beside writing its result.

    `highest` is of software of 2024 and before, `yearly` what each year of software since then adds. Both are fitted to
    the rows that the docs mark, where the source does not say otherwise. A generation without training or measurement
    has those of the nearest one, `taken_from`; of Pascal, which has no tensor cores, the peaks are its own.
    """

    generation: str
    taken_from: str
    highest: float
    yearly: float
    source: str

    def in_year(self, year: int) -> float:
        """Return the share with software of a year."""
        first, last = _GROWING_YEARS
        return self.highest + self.yearly * (min(max(year, first), last) - first)


@cache
def efficiency_curves() -> dict[str, Efficiency]:
    """Return the curves by GPU generation. A generation without one has no near one either."""
    return {curve.generation: curve for curve in rows_of(Efficiency, _CSV_FILE)}


@dataclass(frozen=True)
class ComputeTime:
    """Seconds of one micro-batch on one GPU, without exchange; and of the optimizer, once a step."""

    forward: float
    backward: float
    optimizer: float


def model_flops(training: TrainingShape) -> float:
    """Return the FLOPs of one micro-batch that count for MFU, by the definition of `steps/training/observing/flops.py`.

    The backward pass has two products for each of the forward's, of frozen weights one. Attention counts whole, and
    nothing that is computed again.
    """
    blocks, around = blocks_of(training)
    products = [(block.times * product.flops, product) for block in (*blocks, around) for product in block.products]
    attention = sum(flops for flops, product in products if product.attends)
    weights = sum(flops for flops, product in products if not product.attends)
    adapters = sum(product.flops for product in adapters_of(training).products)
    return training.micro_batch_size * ((2 if adapters else 3) * weights + 3 * (attention + adapters))


@dataclass(frozen=True)
class _Forward:
    """Seconds of a micro-batch's forward pass through blocks: in products with weights, in attention, and elsewhere."""

    matrices: float
    attention: float
    other: float

    def backward(self, products: int, training: TrainingShape) -> float:
        """Return the seconds of the backward pass. Fused attention also computes its scores again."""
        attention = 2.5 if training.fuses_attention else 2
        return products * self.matrices + self.attention * attention + _backward_traffic(training) * self.other


def compute_of(training: TrainingShape, curve: Efficiency) -> ComputeTime:
    """Return how long one GPU computes. The precision must be one that the GPU has."""
    blocks, around = blocks_of(training)
    # Only the layers' matrices are multiplied in fp8; attention and what is outside of layers stay in bf16.
    layers = _forward(training, curve, blocks, training.product_precision)
    rest = _forward(training, curve, [around], _precision_16(training))
    quantized = training.adapters.quantized_parameters(training.architecture) if training.adapters else 0
    # Weights of 4 bits are read, and written in 16, in each pass.
    matrices = layers.matrices + 2.5 * quantized / _memory_rate(training)
    layers = replace(layers, matrices=matrices)
    # The backward pass has two products for each of the forward's, of frozen weights one.
    products = 2 if training.adapters is None else 1
    passed = layers.matrices + layers.attention + layers.other
    recomputed = {"none": 0.0, "selective": matrices / 2 + layers.other, "full": passed}
    predicted_again = rest.matrices if training.loss_chunk_tokens else 0.0
    beside = adapters_of(training)
    adapters = _forward(training, curve, [beside], _precision_16(training))
    started = LAUNCH_SECONDS * sum(block.times * block.operations for block in (*blocks, around, beside))
    recomputes = training.activation_checkpointing != "none"
    # AdamW of many operations, as eager software and torch's `foreach` have it, moves about three times as much.
    is_one_kernel = training.stack != "eager" and training.optimizer != FOREACH
    updated = _OPTIMIZER_PASSES * (1 if is_one_kernel else 3) + _NORM_PASSES
    updated += _BUCKET_PASSES if training.has_buckets_beside_gradients else 0
    # DeepSpeed updates fp32 whatever the model computes in.
    gradient = 4.0 * training.trained_parameters if training.is_deepspeed else training.whole_gradient_bytes
    # Backward, an adapter's sum passes its gradient on: only the scaling reads and writes.
    backward = layers.backward(products, training) + 2 * adapters.matrices + adapters.other / 2
    backward += recomputed[training.activation_checkpointing]
    backward += rest.backward(products, training) + predicted_again
    forward = passed + adapters.matrices + adapters.other + rest.matrices + rest.attention + rest.other
    if training.is_under_autocast:
        casts = _CAST_BYTES * (training.architecture.parameters - quantized) / _memory_rate(training)
        forward += casts
        # Frozen weights have no gradients; layers that are computed again cast their weights again.
        backward += casts * ((training.adapters is None) + recomputes)
    slowest = _slowest(training.machines.world_size)
    return ComputeTime(
        forward=max(started, slowest * forward),
        backward=max((2 + recomputes) * started, slowest * backward),
        optimizer=slowest * updated * gradient / training.shards / _memory_rate(training),
    )


def _forward(training: TrainingShape, curve: Efficiency, blocks: Sequence[ModelBlock], precision: str) -> _Forward:
    samples, rate = training.micro_batch_size, _memory_rate(training)
    gpu, kinds = training.machines.gpu, ("fp32", precision, _precision_16(training))
    peaks = {name: 1e12 * (gpu.peak_tflops(name) or 0.0) for name in kinds}
    seconds = {True: 0.0, False: 0.0}
    size, highest = training.bytes_per_value, curve.in_year(training.stack_year)
    attends_at = _attention_share(training, highest)
    for block in blocks:
        for product in block.products:
            kind = _precision_16(training) if product.attends else "fp32" if product.is_depthwise else precision
            reached = highest
            if kind == "fp32":
                reached = _TURING_VECTOR_EFFICIENCY if gpu.generation == "Turing" else VECTOR_EFFICIENCY
            if product.is_depthwise:
                reached = _DEPTHWISE_EFFICIENCY
            if product.attends and kind != "fp32":
                reached = attends_at
            multiplied = product.flops * (_WINOGRAD if product.is_3_by_3 and kind == "fp32" else 1)
            writing = product.flops / (2 * product.inner) * size / rate
            idle = 0.0 if product.attends or kind == "fp32" else 2 * product.inner * HALF_WAVE / samples
            computing = product.computed * ((multiplied + idle) / peaks[kind] + writing) / reached
            moving = size * product.moved / rate
            seconds[product.attends] += samples * block.times * max(computing, moving)
    each = (block.times * (samples * size * block.moved / rate + KERNEL_SECONDS * block.operations) for block in blocks)
    return _Forward(seconds[False], seconds[True], sum(each))


def _attention_share(training: TrainingShape, highest: float) -> float:
    """Return the share of its peak that attention reaches in 16 bits, where other products reach the `highest`."""
    of_torch = _ATTENTION_OF_TORCH.get(training.machines.gpu.generation)
    if of_torch is None or not training.fuses_attention:
        return highest
    if training.is_deterministic:
        return min(FLASH_ATTENTION_2, of_torch)
    return of_torch if training.stack == "sdpa" else highest


def _slowest(gpus: int) -> float:
    """Return how much longer the slowest of so many GPUs takes than one of them on average, as all wait for it.

    Of normally distributed times the largest is expected at the quantile of Blom (1958).
    """
    return 1 + GPU_SPREAD * NormalDist().inv_cdf((gpus - 0.375) / (gpus + 0.25))


def _backward_traffic(training: TrainingShape) -> float:
    """Return what the backward pass reads and writes outside of products, as a multiple of the forward pass.

    A kernel for a norm or a nonlinearity reads its input and a gradient, and writes a gradient; a sum only passes one
    on. Where RMSNorm, rotary positions or GELU are many operations, most have two inputs, and so two gradients.
    """
    if training.is_of_images or training.fuses_operations:
        return 1.5
    model = training.language_model
    return 2.0 if model.is_gated or model.eager.moved_by_mlp > 2 else 1.5


def _precision_16(training: TrainingShape) -> str:
    """Return the type that is multiplied in where float8 is not."""
    return "bf16" if training.precision == "fp8" else training.product_precision


def _memory_rate(training: TrainingShape) -> float:
    """Return the bytes a second that a GPU reads and writes."""
    gpu = training.machines.gpu
    share = _HBM_EFFICIENCY if gpu.generation in _HBM_SINCE_AMPERE else MEMORY_EFFICIENCY
    return gpu.memory_gbyte_per_second * 1e9 * (_GDDR_EFFICIENCY if gpu.memory_type.startswith("GDDR") else share)
