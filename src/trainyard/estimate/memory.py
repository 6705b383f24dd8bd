"""The memory that a training takes on each GPU, in bytes, by what it is for."""

from __future__ import annotations

from dataclasses import dataclass, fields

from trainyard.estimate.training import TrainingShape

RUNTIME_BYTES = 1.5e9
"""What CUDA's context, NCCL's buffers and libraries take beside tensors: 1 to 2 GB of `nvidia-smi` that
`torch.cuda.memory_allocated` does not count (PyTorch, "Understanding CUDA Memory Usage")."""


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU. The first three are the model states of Rajbhandari et al. 2020 (ZeRO), section 3.1."""

    parameters: float
    gradients: float
    optimizer: float
    buffers: float
    activations: float
    logits: float

    @property
    def total(self) -> float:
        """All of it, as torch's allocator counts it."""
        return sum(self.parts().values())

    @property
    def model_states(self) -> float:
        """Parameters, gradients and optimizer state."""
        return self.parameters + self.gradients + self.optimizer

    def parts(self) -> dict[str, float]:
        """Return each part by its name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def memory_of(training: TrainingShape) -> Memory:
    """Return what a training takes on each GPU at its peak."""
    parameters, gradients, optimizer = model_states(training)
    logits = _logits(training)
    return Memory(parameters, gradients, optimizer, _buffers(training), _activations(training), logits)


def zero_model_states(parameters: float, ranks: int, stage: int, *, optimizer_bytes: int = 12) -> tuple[float, ...]:
    """Return bytes of parameters, gradients and optimizer state on each of `ranks`, at a ZeRO stage from 0 to 3.

    Rajbhandari et al. 2020 (arXiv:1910.02054), section 5 and figure 1: 2 bytes for a parameter, 2 for its gradient and
    K = 12 for Adam in mixed precision, of which stage 1 shards the last, stage 2 the last two, stage 3 all.
    """
    shards = [ranks if stage >= least else 1 for least in (3, 2, 1)]
    each = (2, 2, optimizer_bytes)
    return tuple(size * parameters / shard for size, shard in zip(each, shards, strict=True))


def deepspeed_model_states(
    parameters: float,
    largest_layer: float,
    ranks: int,
    stage: int,
    *,
    offload_optimizer: bool = False,
    offload_parameters: bool = False,
) -> float:
    """Return the bytes on each GPU as DeepSpeed's `estimate_zero{2,3}_model_states_mem_needs` count them.

    Beside ZeRO's model states these are fp32 gradients with the optimizer (4 bytes, sharded), and in stage 3 the
    largest layer, gathered, with its gradient. Source: deepspeed/runtime/zero/stage_1_and_2.py and stage3.py.
    """
    if stage == 3:
        gathered = 4 * largest_layer
        if offload_optimizer:
            return gathered + (0 if offload_parameters else 2 * parameters / ranks)
        return gathered + 18 * parameters / ranks
    if offload_optimizer:
        return 2 * parameters
    return sum(zero_model_states(parameters, ranks, stage)) + 4 * parameters / (ranks if stage else 1)


def model_states(training: TrainingShape) -> tuple[float, ...]:
    """Return bytes of parameters, gradients and optimizer state on each GPU.

    ZeRO's are as in the paper. DDP and FSDP keep parameters, gradients and AdamW's two moments in fp32 (4 + 4 + 8), or
    in bf16 where the precision is bf16-true; FSDP spreads all of them over the ranks (Zhao et al. 2023, PyTorch FSDP,
    arXiv:2304.11277, section 3.2).
    """
    count, ranks = training.architecture.parameters, training.machines.world_size
    if training.is_deepspeed:
        parameters, gradients, optimizer = zero_model_states(count, ranks, int(training.engine[-1]))
        if training.offload_optimizer:
            gradients, optimizer = (gradients if training.engine[-1] == "3" else 0), 0.0
        return (0.0 if training.offload_parameters else parameters), gradients, optimizer
    shards = ranks if training.engine == "fsdp" else 1
    if training.offload_optimizer:
        return 0.0, 0.0, 0.0
    size = 2 if training.precision == "bf16-true" else 4
    return size * count / shards, size * count / shards, 2 * size * count / shards


def _buffers(training: TrainingShape) -> float:
    """Return what an engine keeps beside the model states.

    ZeRO: what DeepSpeed's own estimators add to them. DDP: the buckets that gradients are views of are the gradients;
    autocast keeps a 16-bit copy of each matrix. FSDP: two layers gathered at once, the embedding and prediction
    gathered for the whole step, and their whole gradients; with accumulation, the whole gradient of every layer.
    """
    architecture, count, ranks = training.architecture, training.architecture.parameters, training.machines.world_size
    size = training.bytes_per_value
    around = count - architecture.layers * architecture.layer_parameters
    largest = max(architecture.layer_parameters, around)
    if training.is_deepspeed:
        stage = int(training.engine[-1])
        states = deepspeed_model_states(
            count,
            largest,
            ranks,
            stage,
            offload_optimizer=training.offload_optimizer,
            offload_parameters=training.offload_parameters,
        )
        return max(0.0, states - sum(model_states(training)))
    if training.engine == "ddp":
        return float(size * count) if training.precision in ("bf16", "fp16", "fp8") else 0.0
    if ranks == 1:
        return 0.0
    gathered = around + (2 * architecture.layer_parameters if training.reshard_after_forward else count - around)
    summed_in = 2 if training.precision == "bf16-true" else 4
    whole_gradients = summed_in * count if training.accumulation_steps > 1 else size * gathered
    return float(size * gathered + whole_gradients)


def _logits(training: TrainingShape) -> float:
    """Return the prediction's memory at the loss, where it peaks.

    torch's cross entropy computes in fp32: beside the logits there are a copy in fp32, the log of the softmax, and its
    gradient; a compiled one makes no copy.
    """
    words = training.tokens_per_micro_batch * training.architecture.vocabulary_size
    return float(words * (training.bytes_per_value + (8 if training.compiled else 12)))


def _activations(training: TrainingShape) -> float:
    """Return what the backward pass needs of the layers: every layer's values, or the inputs and one layer again."""
    tokens, layers = training.tokens_per_micro_batch, training.architecture.layers
    one_layer = layer_activation_bytes(training)
    inputs = tokens * training.architecture.hidden_size * training.bytes_per_value
    if training.activation_checkpointing == "full":
        return float(layers * inputs + one_layer)
    if training.activation_checkpointing == "selective":
        return float(layers * (inputs + _selective_bytes(training)) + one_layer)
    return float(layers * one_layer)


def layer_activation_bytes(training: TrainingShape) -> float:
    """Return what one layer keeps for its backward pass, without checkpointing.

    Korthikanti et al. 2022 (arXiv:2205.05198), section 4.1, counted operation by operation for each family: the inputs
    of every matrix, norm and nonlinearity, and with fused attention its queries, keys, values and output. Without it,
    the scores of section 4.1 (5 a s^2 b bytes in 16 bits) are kept too. A compiled model recomputes norms and products.
    """
    shape, tokens = training.architecture, training.tokens_per_micro_batch
    hidden, inner, size = shape.hidden_size, shape.intermediate_size, training.bytes_per_value
    norms = 2 * hidden * (1 if training.compiled else 2)
    attention = 2 * shape.query_width + 2 * shape.kv_width
    if shape.is_gated:
        mlp = inner * (3 if training.compiled else 4)
        rotated = 0 if training.compiled else shape.query_width + shape.kv_width
    else:
        mlp, rotated = 2 * inner, 0
    values = norms + attention + rotated + hidden + mlp
    kept = float(tokens * values * size)
    if not training.machines.gpu.flash_attention:
        kept += training.micro_batch_size * shape.heads * training.sequence_length**2 * (2 * size + 1)
    return kept


def _selective_bytes(training: TrainingShape) -> float:
    """Return what selective checkpointing keeps of a layer beside its input; the rest is computed again.

    As torchtitan's `selective` with the option `op`: the output of attention, and of every second matrix product, which
    are the queries, the values, one of the MLP's inner products, and its result.
    """
    shape = training.architecture
    kept = 2 * shape.query_width + shape.kv_width + shape.intermediate_size + shape.hidden_size
    return float(training.tokens_per_micro_batch * training.bytes_per_value * kept)
