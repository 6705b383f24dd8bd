"""The memory that a training takes on each GPU, in bytes, by what it is for."""

from __future__ import annotations

from dataclasses import dataclass, fields

from trainyard.plan.estimate.blocks import blocks_of
from trainyard.plan.estimate.training import QUANTIZED_BYTES, TrainingShape

_CACHED, _CACHED_LOGITS = 0.12, 0.6
"""What PyTorch's allocator keeps beyond its tensors at their peak: shares of activations, whose blocks are of many
sizes, and of logits, whose blocks are too large for anything but as many activations. From 30 runs on A100 that publish
both (https://github.com/foundation-model-stack/fms-acceleration/tree/main/scripts/benchmarks/refs). The first
applies to everything but logits: published trainings take that much more than is counted."""

_FREES_GRADIENTS, _LIMITS_GATHERS = 2023, 2024
"""From these years on: torch 2.0's `zero_grad` frees gradients, before it filled them with zeros; FSDP of 2.1 gathers a
layer ahead, before it gathered as many as Python was ahead of the GPU (`limit_all_gathers`)."""

FOREACH, APEX = "adamw_foreach", "adamw_apex"
"""Of other software: torch's, if it is not asked for the fused AdamW, whose `foreach` takes about the size of the
parameters more (https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html), and Apex's, whose `zero_grad`
always freed gradients."""

_OFFLOADED_BYTES = 16
"""In main memory for each parameter that is trained: it, its gradient and two moments in fp32, as DeepSpeed's own
estimators count for an offloaded optimizer, before their allowance for buffers (deepspeed/runtime/zero/stage_1_and_2.py
and stage3.py); with ZeRO 3's parameters in 16 bits two more."""


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU at its peak. The first three are the model states of Rajbhandari et al. 2020 (ZeRO), 3.1.

    Where layers are computed again, the peak is at the loss, or in a layer's backward pass, where no logits are.
    """

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
    def reserved(self) -> float:
        """What the allocator takes of the GPU for it, with the free blocks it keeps; less where memory is short."""
        cached_logits = _CACHED_LOGITS * max(0.0, self.logits - self.activations)
        return self.total + _CACHED * (self.total - self.logits) + cached_logits

    def parts(self) -> dict[str, float]:
        """Return each part by its name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def memory_of(training: TrainingShape) -> Memory:
    """Return what a training takes on each GPU at its peak."""
    parameters, whole_gradients, optimizer = model_states(training)
    gradients = whole_gradients
    kept, again = _kept_and_computed_again(training)
    logits = _logits(training)
    if training.offload_activations:
        # Of the layer that computes, and of the next, whose copy is on its way.
        kept *= min(1.0, 2 / training.architecture.layers)
    # What a layer has in its backward pass comes after the loss: only the larger of that and the logits counts.
    activations, logits = (kept + again, 0.0) if again > logits else (kept, logits)
    if training.is_under_autocast and training.activation_checkpointing == "full" and training.adapters is None:
        # Before the backward pass, autocast has a copy of every matrix.
        model = training.architecture
        copies = training.bytes_per_value * (model.block_parameters - model.largest_block)
        activations += max(0.0, copies - (again if again > logits else logits / 6))
    is_alone = training.machines.world_size == 1 and not training.is_deepspeed
    frees_gradients = training.stack_year >= _FREES_GRADIENTS or training.optimizer == APEX
    if is_alone and training.accumulation_steps == 1 and frees_gradients:
        # Without anyone's buckets for them, gradients exist only from the backward pass to the update.
        # They take the place of activations: the peak is at the loss, or at the end of the backward pass.
        if activations + logits > gradients + again:
            gradients = 0.0
        else:
            activations, logits = again, 0.0
    buffers = _buffers(training)
    if training.has_buckets_beside_gradients:
        buffers += whole_gradients
    if training.has_moving_average and not training.offload_optimizer:
        # In fp32, and where the optimizer's state is.
        buffers += 4 * training.trained_parameters / training.shards
    # DeepSpeed's update has gradients in fp32, as its estimator counts (deepspeed/runtime/zero/stage_1_and_2.py).
    widened = 0.0 if training.offload_optimizer else 4 * training.trained_parameters / training.shards
    if training.engine in ("zero0", "zero1", "zero2") and widened > activations + logits:
        buffers, activations, logits = buffers + widened, 0.0, 0.0
    if training.optimizer == FOREACH and 2 * whole_gradients > gradients + buffers + activations + logits:
        # Its intermediates are as large as what is updated, when there is nothing but gradients beside them.
        return Memory(parameters, whole_gradients, optimizer + whole_gradients, 0.0, 0.0, 0.0)
    return Memory(parameters, gradients, optimizer, buffers, activations, logits)


def main_memory_bytes(training: TrainingShape) -> float:
    """Return what is offloaded to the main memory of each node; 0 where nothing is, activations aside."""
    if not training.offload_optimizer:
        return 0.0
    each = _OFFLOADED_BYTES + (2 if training.engine == "zero3" and training.offload_parameters else 0)
    frozen = _frozen_bytes(training) if training.offload_parameters else 0.0
    machines = training.machines
    replicas = machines.world_size / training.shards
    return (each * training.trained_parameters + frozen) * replicas / machines.nodes


def zero_model_states(parameters: float, ranks: int, stage: int, *, value_bytes: int = 2) -> tuple[float, ...]:
    """Return bytes of parameters, gradients and optimizer state on each of `ranks`, at a ZeRO stage from 0 to 3.

    Rajbhandari et al. 2020 (arXiv:1910.02054), section 5 and figure 1: 2 bytes for a parameter, 2 for its gradient and
    K = 12 for Adam in mixed precision, of which stage 1 shards the last, stage 2 the last two, stage 3 all. In fp32
    the first two take 4 bytes; DeepSpeed keeps its own copy of the parameters there too.
    """
    shards = [ranks if stage >= least else 1 for least in (3, 2, 1)]
    each = (value_bytes, value_bytes, 12)
    return tuple(size * parameters / shard for size, shard in zip(each, shards, strict=True))


def model_states(training: TrainingShape) -> tuple[float, ...]:
    """Return bytes of parameters, gradients and optimizer state on each GPU.

    ZeRO's are as in the paper. DDP and FSDP keep parameters, gradients and AdamW's two moments in fp32 (4 + 4 + 8), or
    in bf16 where the precision is bf16-true; FSDP spreads all of them over the ranks (Zhao et al. 2023, PyTorch FSDP,
    arXiv:2304.11277, section 3.2). Frozen weights have neither gradients nor moments.
    """
    count, ranks = training.trained_parameters, training.machines.world_size
    frozen = _frozen_bytes(training)
    if training.is_deepspeed:
        stage, size = int(training.engine[-1]), training.bytes_per_value
        parameters, gradients, optimizer = zero_model_states(count, ranks, stage, value_bytes=size)
        if training.offload_optimizer:
            gradients, optimizer = (gradients if stage == 3 else 0.0), 0.0
        held = parameters + frozen / (ranks if stage == 3 else 1)
        return 0.0 if training.offload_parameters else held, gradients, optimizer
    if training.offload_optimizer:
        return 0.0, 0.0, 0.0
    shards, size = training.shards, 2 if training.precision == "bf16-true" else 4
    return (size * count + frozen) / shards, size * count / shards, _optimizer_bytes(training, size) / shards


def _optimizer_bytes(training: TrainingShape, size: int) -> float:
    """Return the bytes of the optimizer's state of all that is trained, with values of `size` bytes in AdamW.

    8 bits: Dettmers et al. 2021 (arXiv:2110.02861), section 2, with an fp32 scale for each block of 256 values, as in
    torchao. Adafactor: Shazeer and Stern 2018 (arXiv:1804.04235), section 3, a row and a column of each matrix.
    """
    if training.optimizer == "adafactor":
        model, adapters = training.language_model, training.adapters
        if adapters is not None:
            return 4.0 * sum(
                each.times * (each.takes + each.gives + 2 * adapters.rank) for each in adapters.matrices(model)
            )
        words = (1 if model.tied else 2) * (model.vocabulary_size + model.hidden_size)
        return 4.0 * (words + sum(each.times * (each.takes + each.gives) for each in model.linear_layers))
    return (2 * (1 + 4 / 256) if training.optimizer == "adamw8bit" else 2 * size) * training.trained_parameters


def _frozen_bytes(training: TrainingShape) -> float:
    """Return the bytes of a frozen base model, on all ranks together; of one in 4 bits, the layers' matrices are."""
    if training.adapters is None:
        return 0.0
    size = training.bytes_per_value if training.is_deepspeed or training.precision == "bf16-true" else 4
    model = training.architecture
    matrices = training.adapters.quantized_parameters(model)
    return QUANTIZED_BYTES * matrices + size * (model.parameters - matrices)


def _buffers(training: TrainingShape) -> float:
    """Return what an engine keeps beside the model states.

    ZeRO 3: what DeepSpeed's own estimator adds (deepspeed/runtime/zero/stage3.py): fp32 gradients with the optimizer,
    and the largest layer, gathered, with its gradient. DDP: the buckets that gradients are views of are the gradients,
    and otherwise beside them; autocast keeps a 16-bit copy of each matrix. FSDP: two layers gathered at
    once, the embedding and prediction gathered for the whole step, and their whole gradients; with accumulation, the
    whole gradient of every layer unless gradients are summed after every micro-batch.
    Of frozen weights there are no gradients, and where layers are computed again, one layer's copies at a time.
    """
    model, count, ranks = training.architecture, training.architecture.parameters, training.machines.world_size
    size, trained = training.bytes_per_value, training.trained_parameters
    around = count - model.block_parameters
    if training.is_deepspeed:
        gathered = 4.0 * max(model.largest_block, around) if training.engine == "zero3" else 0.0
        shard = (2 if training.engine == "zero3" else 0) * trained / training.shards
        return max(0.0, gathered - shard) if training.offload_optimizer else gathered + shard
    if training.engine == "ddp":
        if training.precision not in ("bf16", "fp16", "fp8"):
            return float(_dequantized_bytes(training))
        copied = model.largest_block + around if training.activation_checkpointing == "full" else count
        if training.adapters is None:
            return float(size * (copied if training.is_under_autocast else count))
        return float(size * trained + (_dequantized_bytes(training) or size * copied))
    if ranks == 1:
        return 0.0
    is_limited = training.reshard_after_forward and training.stack_year >= _LIMITS_GATHERS
    blocks = 2 * model.largest_block if is_limited else count - around
    if training.adapters is not None:
        each = QUANTIZED_BYTES if training.adapters.is_quantized else size
        return size * around + each * blocks + _dequantized_bytes(training) + training.whole_gradient_bytes
    accumulates = training.accumulation_steps > 1 and not training.sums_every_micro_batch
    whole = training.whole_gradient_bytes if accumulates else size * (around + 2 * model.largest_block)
    return float(size * (around + blocks) + whole)


def _dequantized_bytes(training: TrainingShape) -> int:
    """Return the bytes of the largest matrix of a layer, which is computed from its 4 bits where it is needed."""
    if training.adapters is None or not training.adapters.is_quantized:
        return 0
    return 2 * max(layer.takes * layer.gives for layer in training.architecture.linear_layers)


def _logits(training: TrainingShape) -> float:
    """Return the prediction's memory at the loss, where it peaks.

    torch's cross entropy computes in fp32: in the backward pass there are the log of the softmax and two gradients, of
    it and of the logits in fp32; a compiled one has only one of these beside the logits. Software that gives it logits
    in 16 bits has all three in 16 bits; under autocast the log of the softmax is in 16, and again in fp32 with its
    gradient. With losses chunk by chunk, all that is of one chunk.
    """
    if training.is_of_images:
        return 0.0
    tokens = training.tokens_per_micro_batch
    if training.loss_chunk_tokens:
        tokens = min(tokens, training.loss_chunk_tokens)
    words = tokens * training.language_model.vocabulary_size
    if not training.upcasts_logits:
        return float(words * (10 if training.is_under_autocast else 3 * training.bytes_per_value))
    if training.stack == "fused":
        return float(words * (2 * training.bytes_per_value + 4))
    return float(words * (training.bytes_per_value + 8 if training.compiled else 12))


def _kept_and_computed_again(training: TrainingShape) -> tuple[float, float]:
    """Return what layers keep for the backward pass, and what one of them has beside that while it is passed.

    Kept is all that is computed, since the last layer's is freed first, or what is not computed again.
    """
    blocks, around = blocks_of(training)
    bytes_of_value = training.micro_batch_size * training.bytes_per_value
    if training.activation_checkpointing != "none":
        wide = 4 / training.bytes_per_value if training.is_under_autocast else 1
        entering = around.kept + wide * sum(block.times * block.entering for block in blocks)
        again = max((block.kept + block.working for block in blocks), default=0)
        if training.is_fsdp1 and training.adapters is not None:
            # The hooks that free frozen weights hold each layer's input, and its gradient, to the end of the pass:
            # torch.distributed.fsdp._runtime_utils._register_post_backward_reshard_only_hook.
            again += sum(block.times * block.entering for block in blocks)
        return bytes_of_value * entering, bytes_of_value * again
    kept, most = 0.0, 0.0
    for block in blocks:
        kept += block.times * block.kept
        most = max(most, kept + block.working)
    return bytes_of_value * (around.kept + kept), bytes_of_value * (most - kept)
