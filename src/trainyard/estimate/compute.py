"""How long a GPU computes: matrix products at a measured share of its peak, everything else at its memory's rate."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from trainyard.estimate.training import TrainingShape

_CSV_FILE = Path(__file__).parent / "efficiency.csv"

MEMORY_EFFICIENCY = 0.8
"""The share of its memory's rate that a GPU reaches in a stream of reads and writes: 4.11 of 5.3 TB/s for a copy on
MI300X
(https://github.com/samuel-bohman/AI-benchmarking-guide/blob/main/Azure_Results/ND_MI300X_v5_results.md)."""

LAUNCH_SECONDS = 10e-6
"""How long Python and PyTorch take to start one operation of an eager model: they, and not the GPU, set the pace of
small models. The usual order of magnitude; stated, not fitted."""

_LAUNCHES = {False: 25, True: 12}
"""Operations of one layer's forward pass, eager and compiled; the backward pass starts twice as many."""

_OPTIMIZER_BYTES = 28
"""AdamW reads a parameter, its gradient and two moments in fp32, and writes all but the gradient."""


@dataclass(frozen=True)
class Efficiency:
    """The share of a GPU generation's peak that a matrix product reaches, by the length of its inner dimension.

    highest * k / (k + half_at): the one curve of each generation that is fitted, to the rows that the docs mark.
    """

    generation: str
    highest: float
    half_at: float
    source: str

    def of(self, inner: float) -> float:
        """Return the share of peak for a product with this inner dimension."""
        return self.highest * inner / (inner + self.half_at)


@cache
def efficiency_curves() -> dict[str, Efficiency]:
    """Return the curves by GPU generation. A generation without one has no published training to fit it to."""
    with _CSV_FILE.open(encoding="utf-8", newline="") as file:
        return {
            row["generation"]: Efficiency(
                row["generation"], float(row["highest"]), float(row["half_at"]), row["source"]
            )
            for row in csv.DictReader(file)
        }


_STAND_INS = {"Turing": "Volta", "Pascal": "Volta"}
"""Generations of which no training was published, and the nearest one with a curve. Turing has Volta's tensor cores;
Pascal has none, and its own peaks in fp32 and fp16 stand in the catalogue."""


def curve_for(generation: str) -> Efficiency | None:
    """Return the curve of a GPU generation, or that of the nearest one; None where there is neither."""
    return efficiency_curves().get(generation) or efficiency_curves().get(_STAND_INS.get(generation, ""))


@dataclass(frozen=True)
class ComputeTime:
    """Seconds of one micro-batch on one GPU, without exchange; and of the optimizer, once a step."""

    forward: float
    backward: float
    optimizer: float


def forward_flops(training: TrainingShape) -> tuple[float, float, float]:
    """Return the FLOPs of one micro-batch's forward pass: in the layers' matrices, in attention, in the prediction.

    Two for each parameter of a matrix and token; attention's two products take 4 s h for each token and layer, half of
    that where the kernel leaves out what is masked (Narayanan et al. 2021, arXiv:2104.04473, appendix; Dao 2023,
    arXiv:2307.08691, section 4.1).
    """
    shape, tokens = training.architecture, training.tokens_per_micro_batch
    matrices = 2.0 * tokens * shape.layers * shape.layer_matrix_parameters
    attention = 4.0 * tokens * training.sequence_length * shape.query_width * shape.layers
    if training.machines.gpu.flash_attention:
        attention /= 2
    return matrices, attention, 2.0 * tokens * shape.embedding_parameters


def compute_of(training: TrainingShape, curve: Efficiency) -> ComputeTime:
    """Return how long one GPU computes. The precision must be one that the GPU has."""
    gpu, shape = training.machines.gpu, training.architecture
    peak = gpu.peak_tflops(training.product_precision)
    # Only the layers' matrices are multiplied in fp8; attention and the prediction stay in bf16.
    peak_16 = gpu.peak_tflops("bf16" if training.precision == "fp8" else training.product_precision)
    assert peak is not None
    assert peak_16 is not None
    matrices, attention, prediction = forward_flops(training)
    matrix_seconds = matrices / (peak * 1e12 * curve.of(shape.hidden_size))
    prediction_seconds = prediction / (peak_16 * 1e12 * curve.of(shape.hidden_size))
    # Of attention's two products, one sums over the head's values and one over the sequence.
    attention_seconds = sum(
        attention / 2 / (peak_16 * 1e12 * curve.of(inner)) for inner in (shape.head_size, training.sequence_length)
    )
    rate = gpu.memory_gbyte_per_second * 1e9 * MEMORY_EFFICIENCY
    other_seconds = shape.layers * layer_traffic_bytes(training) / rate
    loss_seconds = _loss_traffic_bytes(training) / rate

    layers_forward = matrix_seconds + attention_seconds + other_seconds
    # The backward pass has two products for each of the forward's; fused attention also computes its scores again.
    attention_backward = attention_seconds * (2.5 if gpu.flash_attention else 2)
    layers_backward = 2 * matrix_seconds + attention_backward + 2 * other_seconds
    recomputed = {
        "none": 0.0,
        "selective": matrix_seconds / 2 + other_seconds,
        "full": layers_forward,
    }[training.activation_checkpointing]
    started = shape.layers * _LAUNCHES[training.compiled] * LAUNCH_SECONDS
    return ComputeTime(
        forward=max(started, layers_forward + prediction_seconds + loss_seconds / 3),
        backward=max(2 * started, layers_backward + recomputed + 2 * prediction_seconds + loss_seconds * 2 / 3),
        optimizer=_optimizer_seconds(training, rate),
    )


def layer_traffic_bytes(training: TrainingShape) -> float:
    """Return what one layer's forward pass reads and writes outside its matrix products, in bytes.

    Every operation of the eager model reads its inputs and writes its result: two norms, two residual sums, rotary
    positions, the nonlinearity (and its product with the gate), attention's own values. A compiled model does the
    neighbours of a norm, and the nonlinearity with its product, in one kernel each.
    """
    shape, size = training.architecture, training.bytes_per_value
    hidden, inner = shape.hidden_size, shape.intermediate_size
    heads = shape.query_width + shape.kv_width
    attention = 2 * shape.query_width + 2 * shape.kv_width
    if training.compiled:
        values = 8 * hidden + (2 * heads + 3 * inner if shape.is_gated else 2 * inner) + attention
    else:
        values = 10 * hidden + (6 * heads + 5 * inner if shape.is_gated else 2 * inner) + attention
    traffic = float(training.tokens_per_micro_batch * values * size)
    if training.precision == "fp8":
        # Each product's input is read, and written in 8 bits as it is and transposed.
        traffic += training.tokens_per_micro_batch * 4 * (2 * hidden + shape.query_width + inner)
    if not training.machines.gpu.flash_attention:
        # Scores written, read and written by a fused softmax, and read again.
        traffic += 4 * size * training.micro_batch_size * shape.heads * training.sequence_length**2
    return traffic


def _loss_traffic_bytes(training: TrainingShape) -> float:
    """Return what the loss reads and writes for logits and their gradient, forward and backward together.

    Eager: a copy in fp32, the log of the softmax, its gradient, and that in 16 bits again; compiled: once each way.
    """
    words = training.tokens_per_micro_batch * training.architecture.vocabulary_size
    return float(words * (8 if training.compiled else 32))


def _optimizer_seconds(training: TrainingShape, rate: float) -> float:
    parameters = training.architecture.parameters
    ranks = training.machines.world_size
    sharded = training.engine not in ("ddp", "zero0")
    return _OPTIMIZER_BYTES * parameters / (ranks if sharded else 1) / rate
