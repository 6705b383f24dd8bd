"""What a training's layers multiply, keep and move: a language model's by its sizes, an image model's as counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trainyard.plan.estimate.architectures import OTHER_FAMILY, Architecture, Linear
from trainyard.plan.estimate.image_models import ImageModel, ModelBlock, Product
from trainyard.plan.estimate.training import TrainingShape

_GATED_LAUNCHES, _OTHER_LAUNCHES, _AUTOCAST_LAUNCHES = 40, 18, 10
"""Operations of one layer's forward pass: eager with RMSNorm and rotary positions, fused or with LayerNorm, and more
under autocast, which casts weights. A third of what both passes of the models in
benchmarks/results/launch_overhead.json start: the backward pass starts twice as many."""

_ADAPTER_LAUNCHES = 4
"""More of them for each matrix with an adapter: two products, the scaling and the sum."""

_ROTATED = 10
"""What rotary positions read and write of each query and key, in values: two products, a half negated, both halves put
together, and a sum."""

_DROPS_OUT = ("gpt2", "opt", OTHER_FAMILY)
"""Families that drop out, by default, what attention and the MLP give: read, and written with a mask."""

_RMS_NORM_BYTES = {2: 36, 4: 28}
"""What RMSNorm reads and writes of each value, of 2 and 4 bytes: it becomes fp32, is squared, averaged, scaled, made as
it was, and multiplied by a weight."""


def blocks_of(training: TrainingShape) -> tuple[Sequence[ModelBlock], ModelBlock]:
    """Return the layers of a training's model, and everything outside of them, for one row of text or one image.

    Two FLOPs for each parameter of a matrix and token; attention's two products take 4 s h for each token and layer,
    half of that where the kernel leaves out what is masked (Narayanan et al. 2021, arXiv:2104.04473, appendix; Dao
    2023, arXiv:2307.08691, section 4.1).
    """
    model, tokens = training.architecture, training.sequence_length
    if isinstance(model, ImageModel):
        return [_in_training(block, training) for block in model.blocks], _in_training(model.around, training)
    values = training.micro_batch_size * training.bytes_per_value
    selective = 0
    if training.activation_checkpointing == "selective":
        # As torchtitan's `selective` with the option `op`: the output of attention, and of every second matrix product,
        # which are the queries, the values, one of the MLP's inner products, and its result. The rest is recomputed.
        selective = 2 * model.query_width + model.kv_width + model.intermediate_size + model.hidden_size
    attention = 2.0 * tokens * tokens * model.query_width
    computed = 0.5 if training.fuses_attention else 1.0
    launches = _GATED_LAUNCHES if model.is_gated and not training.fuses_operations else _OTHER_LAUNCHES
    if training.is_under_autocast and not training.fuses_operations:
        launches += _AUTOCAST_LAUNCHES
    layer = ModelBlock(
        entering=tokens * (model.hidden_size + selective),
        # Of attention's two products, one sums over the head's values and one over the sequence.
        products=[
            *(Product(2.0 * tokens * each.takes * each.gives, each.takes) for each in model.linear_layers),
            *(Product(attention, inner, attends=True, computed=computed) for inner in (model.head_size, tokens)),
        ],
        kept=layer_activation_bytes(training) / values,
        moved=layer_traffic_bytes(training) / values,
        operations=launches,
        # Gradients of an MLP's inner values, of a gated one two more than it frees, and of its result.
        working=tokens * ((1 + model.is_gated) * model.intermediate_size + model.hidden_size),
        times=model.layers,
    )
    # The loss, forward and backward together: a copy in fp32, the log of the softmax, its gradient, and that in 16 bits
    # again; compiled, once each way.
    loss = tokens * model.vocabulary_size * (8 if training.compiled else 32) / training.bytes_per_value
    prediction = Product(2.0 * tokens * model.embedding_parameters, model.hidden_size)
    last_norm = tokens * model.hidden_size * (_kept_by_norm(training) / training.bytes_per_value + 1)
    return [layer], ModelBlock(products=[prediction], kept=last_norm, moved=loss / 3)


def _in_training(block: ModelBlock, training: TrainingShape) -> ModelBlock:
    """Return a classifier's block with what adapters keep, and as compiled: half of the operations are in a kernel with
    their neighbours."""
    share, kept = 0.5 if training.compiled else 1.0, block.kept
    moved = share * block.moved
    if not training.channels_last and training.precision != "fp32":
        # The backward pass has two convolutions, and half as much again of all other traffic.
        moved += (1 + 2) / (1 + 1.5) * block.convolved
    if training.is_under_autocast and not training.compiled:
        moved += 7 * block.normalized
    if training.is_under_autocast:
        # Norms have inputs of fp32, and every matrix its own copy of its input.
        kept += block.normalized + (0 if training.compiled else block.shared)
    if training.keeps_scores:
        kept += block.scores * _kept_of_scores(training, drops_out=False) / training.bytes_per_value
    if not training.fuses_attention:
        moved += 9 * block.scores * (2 if training.is_under_autocast else 1)
    if training.adapters is not None:
        kept += training.adapters.rank * sum(layer.rows for layer in block.linear) - block.kept_for_weights
    return replace(block, kept=kept, moved=moved, operations=share * block.operations)


def adapters_of(training: TrainingShape) -> ModelBlock:
    """Return what adapters add to a forward pass, for one row of text or one image: two products for each matrix.

    Eager: scaled (read and written), and added to what the matrix gives (both read, and written); compiled at once.
    """
    found, tokens, times = ModelBlock(), training.sequence_length, 2 if training.compiled else 5
    if training.adapters is None:
        return found
    rank = training.adapters.rank
    for each in training.adapters.matrices(training.architecture):
        rows = 2.0 * rank * tokens * each.rows * each.times
        found.products += [Product(rows * each.takes, each.takes), Product(rows * each.gives, rank)]
        found.moved += times * tokens * each.rows * each.gives * each.times
        found.operations += _ADAPTER_LAUNCHES * each.times
    return found


def layer_activation_bytes(training: TrainingShape) -> float:
    """Return what one layer of a language model keeps for its backward pass, without checkpointing.

    Korthikanti et al. 2022 (arXiv:2205.05198), section 4.1, counted operation by operation for each family: the inputs
    of every matrix, norm and nonlinearity, and with fused attention its queries, keys, values and output. Without it,
    scores are kept too. A compiled model recomputes norms and products.
    Autocast keeps the input of each matrix, cast, and peft that of each adapter, if it is cast or dropped out; adapters
    that compute in the model's precision share the norm's result. Frozen matrices keep no inputs, but for those of
    bitsandbytes before July 2024 (https://github.com/bitsandbytes-foundation/bitsandbytes/pull/1270), in an attribute
    that the graph of the step before holds too, unless layers are computed again: the graph is one layer's then.
    """
    shape, adapters, tokens = training.language_model, training.adapters, training.tokens_per_micro_batch
    hidden, inner, size = shape.hidden_size, shape.intermediate_size, training.bytes_per_value
    if training.compiled:
        inputs, mlp = hidden + inner, inner * (1 + shape.is_gated)
    else:
        inputs = hidden * (_matrices_after_norms(shape) if training.is_under_autocast else 2) + inner
        if training.is_under_autocast and shape.family == OTHER_FAMILY:
            # Its queries, keys and values are three matrices, whose parameters alone are counted as one.
            inputs += 2 * hidden
        mlp = inner * (3 if shape.is_gated else shape.eager.kept_by_mlp - 1)
        if training.is_under_autocast and shape.eager.moved_by_mlp > 2:
            # A GPU's autocast computes powers in fp32, and so three of these five are wide.
            mlp += 3 * inner
    if adapters is not None:
        adapted = adapters.matrices(shape)
        copied, shared = sum(each.takes for each in adapted), _shared_inputs(adapted)
        inputs = copied if adapters.drops_out or training.is_under_autocast else shared
        inputs += adapters.rank * len(adapted) + (copied // size if adapters.drops_out else 0)
        if adapters.is_quantized and training.stack_year < 2025:
            inputs += _shared_inputs(shape.linear_layers) * (1 + (training.activation_checkpointing == "none"))
    dropped = hidden if shape.family in _DROPS_OUT else 0
    values = 2 * shape.query_width + 2 * shape.kv_width + inputs + mlp + dropped
    kept = float(tokens * (2 * hidden * _kept_by_norm(training) + values * size))
    if shape.family == "gpt_neox":
        # Both norms take the layer's input. Values are a part of what one matrix gives, so queries and keys are kept
        # before their rotation too; what attention gives is copied for a matrix that is trained.
        twice = shape.query_width * (1 if adapters else 2) + shape.kv_width
        kept += tokens * (twice * size - hidden * _kept_by_norm(training))
    if shape.family == "qwen3":
        # Queries and keys have norms too.
        kept += tokens * (shape.query_width + shape.kv_width) * (4 + (size if adapters is None else 0))
    if training.keeps_scores:
        drops_out = shape.family in (*_DROPS_OUT, "megatron") and shape.family != "opt"
        scores = training.micro_batch_size * shape.heads * training.sequence_length**2
        kept += scores * _kept_of_scores(training, drops_out=drops_out)
    return kept


def _kept_of_scores(training: TrainingShape, *, drops_out: bool) -> int:
    """Return the bytes that eager attention keeps of each score: section 4.1's 5 in 16 bits where it drops out.

    The softmax's result is in fp32 under autocast, and in transformers' models that drop nothing out there; then it is
    cast for the product with the values. What is dropped out has a mask of a byte.
    """
    size = training.bytes_per_value
    softmax = 4 if training.is_under_autocast or not drops_out else size
    return softmax + (size if drops_out or softmax > size else 0) + drops_out


def _kept_by_norm(training: TrainingShape) -> int:
    """Return the bytes that a norm keeps of each value: its input, of an eager RMSNorm in fp32 and as it is scaled."""
    wide = 4 if training.is_under_autocast else training.bytes_per_value
    if training.fuses_operations or not training.language_model.is_gated:
        return wide
    return 4 + (wide if training.adapters is None else 0)


def _shared_inputs(matrices: Sequence[Linear]) -> int:
    """Return the widths of the different inputs of a layer's matrices: those of one module take the same norm's."""
    return sum(takes for _, takes in {(each.name.split(".")[0], each.takes) for each in matrices})


def _matrices_after_norms(shape: Architecture) -> int:
    """Return how many matrices of a layer take what a norm gives: all that are as wide, but attention's output."""
    return sum(each.takes == shape.hidden_size for each in shape.linear_layers) - 1


def layer_traffic_bytes(training: TrainingShape) -> float:
    """Return what one layer of a language model reads and writes forward outside its matrix products, in bytes.

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
    is_fused = training.fuses_operations
    values = (8 if training.compiled else 10) * hidden + attention
    if shape.is_gated:
        values += 2 * heads + 3 * inner if is_fused else _ROTATED * heads + 5 * inner
    elif is_fused:
        values += 2 * inner
    traffic = float(training.tokens_per_micro_batch * values * size)
    wide = 4 if training.is_under_autocast else size
    if not shape.is_gated and not is_fused:
        # Autocast computes powers in fp32, and so what follows them.
        operand = wide if shape.eager.moved_by_mlp > 2 else size
        traffic += training.tokens_per_micro_batch * shape.eager.moved_by_mlp * inner * operand
    if not is_fused and wide > size:
        # Norms and sums read and write fp32; each matrix but the output's has its input cast.
        traffic += training.tokens_per_micro_batch * hidden * (16 + 6 * _matrices_after_norms(shape))
    if not is_fused and shape.family in _DROPS_OUT:
        traffic += training.tokens_per_micro_batch * hidden * 2 * (2 * size + 1)
    if shape.is_gated and not is_fused:
        traffic += training.tokens_per_micro_batch * 2 * hidden * (_RMS_NORM_BYTES[size] - 2 * size)
    if training.precision == "fp8":
        # Each product's input is read, and written in 8 bits as it is and transposed.
        traffic += training.tokens_per_micro_batch * 4 * (2 * hidden + shape.query_width + inner)
    if not training.fuses_attention:
        # Its softmax is in fp32 too; queries, keys, values and the result are copied head by head. Compiled, one kernel
        # reads the scores and writes what the product with the values reads.
        scores = training.micro_batch_size * shape.heads * training.sequence_length**2
        moved = 3 * size if training.compiled else shape.eager.moved_scores * wide
        traffic += moved * scores + training.tokens_per_micro_batch * attention * size
    return traffic
