"""How long a GPU computes: matrix products at a measured share of its peak, everything else at its memory's rate."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from trainyard.catalogue.csv_rows import rows_of
from trainyard.plan.estimate.image_models import ImageModel
from trainyard.plan.estimate.training import TrainingShape

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

_ADAPTER_LAUNCHES = 4
"""More of them for each matrix with an adapter: two products, the scaling and the sum."""

_ROTATED = 10
"""What rotary positions read and write of each query and key, in values: two products, a half negated, both halves put
together, and a sum."""

_RMS_NORM_BYTES = {2: 36, 4: 28}
"""What RMSNorm reads and writes of each value, of 2 and 4 bytes: it becomes fp32, is squared, averaged, scaled, made as
it was, and multiplied by a weight."""

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
    return {curve.generation: curve for curve in rows_of(Efficiency, _CSV_FILE)}


_STAND_INS = {
    "Turing": "Volta",
    "Pascal": "Volta",
    "Ada": "Ampere",
    "Blackwell": "Hopper H200",
    "CDNA2": "CDNA3",
}
"""Generations that no curve was fitted to, and the nearest one with a curve. Turing has Volta's tensor cores; Pascal
has none, and its own peaks in fp32 and fp16 are in the catalogue."""


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
    shape, tokens = training.language_model, training.tokens_per_micro_batch
    matrices = 2.0 * tokens * shape.layers * shape.layer_matrix_parameters
    attention = 4.0 * tokens * training.sequence_length * shape.query_width * shape.layers
    if training.machines.gpu.flash_attention:
        attention /= 2
    return matrices, attention, 2.0 * tokens * shape.embedding_parameters


def model_flops(training: TrainingShape) -> float | None:
    """Return the FLOPs of one micro-batch that count for MFU, by the definition of `steps/training/observing/flops.py`.

    The backward pass has two products for each of the forward's, of frozen weights one. Attention counts whole, and
    nothing that is computed again. None for adapters of an image classifier, whose attention is not told apart.
    """
    model, adapters = training.architecture, training.adapters
    if isinstance(model, ImageModel):
        products = sum(product.flops for part in model.parts for product in part.products)
        return None if adapters else 3 * training.micro_batch_size * products
    tokens, layers = training.tokens_per_micro_batch, model.layers
    weights = 2.0 * tokens * (layers * model.layer_matrix_parameters + model.embedding_parameters)
    attention = 4.0 * tokens * training.sequence_length * model.query_width * layers
    if adapters is None:
        return 3 * (weights + attention)
    return 2 * weights + 3 * (attention + 2.0 * tokens * adapters.parameters(model))


@dataclass(frozen=True)
class _Forward:
    """Seconds of one micro-batch's forward pass, by what they are for. `loss` is of both passes."""

    matrices: float
    attention: float
    other: float
    prediction: float
    loss: float
    started: float


def compute_of(training: TrainingShape, curve: Efficiency) -> ComputeTime:
    """Return how long one GPU computes. The precision must be one that the GPU has."""
    is_image = training.is_of_images
    forward = _image_forward(training, curve) if is_image else _language_forward(training, curve)
    layers = forward.matrices + forward.attention + forward.other
    # The backward pass has two products for each of the forward's, of frozen weights one; fused attention also
    # computes its scores again.
    products, predictions = (2, 2) if training.adapters is None else (1, 1)
    attention = forward.attention * (2.5 if training.machines.gpu.flash_attention else 2)
    backward = products * forward.matrices + attention + 2 * forward.other
    recomputed = {
        "none": 0.0,
        "selective": layers if is_image else forward.matrices / 2 + forward.other,
        "full": layers,
    }[training.activation_checkpointing]
    if training.loss_chunk_tokens:
        predictions += 1
    adapters = _adapters_forward(training, curve)
    started = forward.started + adapters.started
    sharded_over = 1 if training.engine in ("ddp", "zero0") else training.machines.world_size
    # Backward, an adapter's sum passes its gradient on: only the scaling reads and writes.
    backward = backward + 2 * adapters.products + adapters.moved / 2 + recomputed
    backward = backward + predictions * forward.prediction + forward.loss * 2 / 3
    return ComputeTime(
        forward=max(started, layers + adapters.products + adapters.moved + forward.prediction + forward.loss / 3),
        backward=max(2 * started, backward),
        optimizer=_OPTIMIZER_BYTES * training.trained_parameters / sharded_over / _memory_rate(training),
    )


def _language_forward(training: TrainingShape, curve: Efficiency) -> _Forward:
    gpu, shape = training.machines.gpu, training.language_model
    peak = gpu.peak_tflops(training.product_precision)
    # Only the layers' matrices are multiplied in fp8; attention and the prediction stay in bf16.
    peak_16 = gpu.peak_tflops("bf16" if training.precision == "fp8" else training.product_precision)
    assert peak is not None
    assert peak_16 is not None
    matrices, attention, prediction = forward_flops(training)
    rate = _memory_rate(training)
    matrix_seconds = matrices / (peak * 1e12 * curve.of(shape.hidden_size)) + _dequantizing_seconds(training)
    return _Forward(
        matrices=matrix_seconds,
        # Of attention's two products, one sums over the head's values and one over the sequence.
        attention=sum(
            attention / 2 / (peak_16 * 1e12 * curve.of(inner)) for inner in (shape.head_size, training.sequence_length)
        ),
        other=shape.layers * layer_traffic_bytes(training) / rate,
        prediction=prediction / (peak_16 * 1e12 * curve.of(shape.hidden_size)),
        loss=_loss_traffic_bytes(training) / rate,
        started=shape.layers * _LAUNCHES[training.compiled] * LAUNCH_SECONDS,
    )


def _dequantizing_seconds(training: TrainingShape) -> float:
    """Return how long weights of 4 bits take to be read, and written in 16, in each pass."""
    if training.adapters is None:
        return 0.0
    return 2.5 * training.adapters.quantized_parameters(training.architecture) / _memory_rate(training)


def _image_forward(training: TrainingShape, curve: Efficiency) -> _Forward:
    """Return the same of an image classifier, whose attention and prediction are among its products.

    A compiled model does the neighbours of an operation in one kernel: about half of them, and of what they move.
    """
    model, images = training.architecture, training.micro_batch_size
    assert isinstance(model, ImageModel)
    gpu, precision = training.machines.gpu, training.product_precision
    peak, ordinary = gpu.peak_tflops(precision), gpu.peak_tflops("fp32")
    assert peak is not None
    assert ordinary is not None
    seconds = sum(
        product.flops / ((ordinary if product.is_depthwise else peak) * 1e12 * curve.of(product.inner))
        for part in model.parts
        for product in part.products
    )
    fused = 0.5 if training.compiled else 1.0
    moved = sum(part.moved for part in model.parts) * training.bytes_per_value * fused
    operations = sum(part.operations for part in model.parts) * fused
    return _Forward(
        matrices=images * seconds + _dequantizing_seconds(training),
        attention=0.0,
        other=images * moved / _memory_rate(training),
        prediction=0.0,
        loss=0.0,
        started=operations * LAUNCH_SECONDS,
    )


@dataclass(frozen=True)
class _AdaptersForward:
    """Seconds of the adapters' forward pass: in products, in what they read and write, and of starting operations."""

    products: float = 0.0
    moved: float = 0.0
    started: float = 0.0


def _adapters_forward(training: TrainingShape, curve: Efficiency) -> _AdaptersForward:
    if training.adapters is None:
        return _AdaptersForward()
    rank, size = training.adapters.rank, training.bytes_per_value
    peak = training.machines.gpu.peak_tflops("bf16" if training.precision == "fp8" else training.product_precision)
    assert peak is not None
    adapted, count = training.adapters.matrices(training.architecture), training.tokens_per_micro_batch
    products = sum(each.rows * (each.takes / curve.of(each.takes) + each.gives / curve.of(rank)) for each in adapted)
    # Eager: scaled (read and written), and added to what the matrix gives (both read, and written); compiled at once.
    times = 2 if training.compiled else 5
    return _AdaptersForward(
        products=2.0 * count * rank * products / (peak * 1e12),
        moved=count * size * times * sum(each.rows * each.gives for each in adapted) / _memory_rate(training),
        started=len(adapted) * _ADAPTER_LAUNCHES * LAUNCH_SECONDS,
    )


def _memory_rate(training: TrainingShape) -> float:
    """Return the bytes a second that a GPU reads and writes."""
    return training.machines.gpu.memory_gbyte_per_second * 1e9 * MEMORY_EFFICIENCY


def layer_traffic_bytes(training: TrainingShape) -> float:
    """Return what one layer's forward pass reads and writes outside its matrix products, in bytes.

    Every operation of the eager model reads its inputs and writes its result: two norms, two residual sums, rotary
    positions, the nonlinearity (and its product with the gate), attention's own values. A compiled model does the
    neighbours of a norm, and the nonlinearity with its product, in one kernel each. LayerNorm is always one kernel;
    RMSNorm and rotary positions are operations of their own, as in transformers' modeling_llama.py, but in fp8: the
    layers of Transformer Engine have a kernel for each (https://github.com/NVIDIA/TransformerEngine).
    """
    shape, size = training.language_model, training.bytes_per_value
    hidden, inner = shape.hidden_size, shape.intermediate_size
    heads = shape.query_width + shape.kv_width
    attention = 2 * shape.query_width + 2 * shape.kv_width
    is_fused = training.compiled or training.precision == "fp8"
    values = (8 if training.compiled else 10) * hidden + attention
    if shape.is_gated:
        values += 2 * heads + 3 * inner if is_fused else _ROTATED * heads + 5 * inner
    elif is_fused:
        values += 2 * inner
    traffic = float(training.tokens_per_micro_batch * values * size)
    if not shape.is_gated and not is_fused:
        # Autocast, which only DDP leaves parameters in fp32 for, computes powers in fp32, and so what follows them.
        operand = 4 if training.engine == "ddp" and shape.eager.moved_by_mlp > 2 else size
        traffic += training.tokens_per_micro_batch * shape.eager.moved_by_mlp * inner * operand
    if shape.is_gated and not is_fused:
        traffic += training.tokens_per_micro_batch * 2 * hidden * (_RMS_NORM_BYTES[size] - 2 * size)
    if training.precision == "fp8":
        # Each product's input is read, and written in 8 bits as it is and transposed.
        traffic += training.tokens_per_micro_batch * 4 * (2 * hidden + shape.query_width + inner)
    if not training.machines.gpu.flash_attention:
        scores = training.micro_batch_size * shape.heads * training.sequence_length**2
        traffic += shape.eager.moved_scores * size * scores
    return traffic


def _loss_traffic_bytes(training: TrainingShape) -> float:
    """Return what the loss reads and writes for logits and their gradient, forward and backward together.

    Eager: a copy in fp32, the log of the softmax, its gradient, and that in 16 bits again; compiled: once each way.
    """
    words = training.tokens_per_micro_batch * training.language_model.vocabulary_size
    return float(words * (8 if training.compiled else 32))
