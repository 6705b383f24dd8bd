"""What is estimated: a model's training on machines, with every setting that memory and time depend on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainyard.catalogue.gpus import Gpu, gpu_of
from trainyard.catalogue.skus import Sku
from trainyard.errors import UsageError
from trainyard.plan.estimate import CHECKPOINTING, ENGINES, STACK_YEAR
from trainyard.plan.estimate.architectures import Architecture, Linear
from trainyard.plan.estimate.image_models import ImageModel
from trainyard.settings.batch_arithmetic import sums_every_micro_batch

ALL_LINEAR = "all-linear"

QUANTIZED_BYTES = 0.5 + 0.127 / 8
"""Of a weight in NF4: 4 bits, and 0.127 bits for its share of the constants of its block, which are rounded too
(Dettmers et al. 2023, QLoRA, arXiv:2305.14314, section 3)."""

_RUNTIME_BYTES = {1: 0.35e9, 2: 0.35e9 + 544 * 2**20, 3: 0.35e9 + 688 * 2**20}
"""With one, two, and more GPUs: CUDA's context, whose kernels are loaded as they are needed since version 11.7
(https://github.com/pytorch/pytorch/issues/107667), and NCCL's buffers on A100 with NVLink
(https://github.com/NVIDIA/nccl/issues/964). Both were 1.06 GB on 8 H100 (https://github.com/NVIDIA/nccl/issues/1685)."""


@dataclass(frozen=True)
class Machines:
    """The nodes of a training. `network_gbyte_per_second` is what one node sends to the others, in one direction.

    It is 0 where it is not known, which only one node can do without. `sku` is None where only the GPU was named; then
    there is no price.
    """

    gpu: Gpu
    nodes: int
    gpus_per_node: int
    network_gbyte_per_second: float
    has_rdma: bool
    sku: Sku | None = None

    @property
    def world_size(self) -> int:
        """One process for each GPU."""
        return self.nodes * self.gpus_per_node

    @property
    def runtime_bytes(self) -> float:
        """What CUDA and NCCL take of a GPU's memory beside tensors."""
        return _RUNTIME_BYTES[min(self.world_size, 3)]

    @property
    def memory_bytes_per_gpu(self) -> float:
        """The memory of one GPU, in bytes; vendors' GB of HBM are 2^30 bytes."""
        of_size = self.sku.gpu_memory_gb_each if self.sku is not None else None
        return min(self.gpu.memory_gb, of_size or self.gpu.memory_gb) * 2**30

    @property
    def link_gbyte_per_second(self) -> float:
        """What a GPU sends to the others of its machine, in one direction: over a bridge, if there are two of them.

        More than two talk over PCIe between bridged pairs: the floors of Azure's node health check are 193 GB/s on
        NC48ads A100 v4 and 25 GB/s on NC96ads. Machines with up to eight V100 have no switch: two V100 share two of
        the six links of each, and four of them four (NVIDIA's DGX-1 with V100, WP-08437-002).
        """
        is_bridged = self.sku is not None and (self.sku.nvlink or "").startswith("bridge") and self.gpus_per_node == 2
        if is_bridged:
            return self.gpu.bridge_gbyte_per_second or 0.0
        share = min(1.0, self.gpus_per_node / 6) if self.gpu.link == "NVLink 2" else 1.0
        return self.gpu.link_gbyte_per_second * share


def machines_of_sku(sku: Sku, nodes: int, gpus_per_node: int | None = None) -> Machines:
    """Return nodes of an Azure size, with all GPUs of each unless told. UsageError for a size without known GPUs."""
    gpu = gpu_of(sku)
    if gpu is None:
        what = f"the GPU {sku.gpu_model} is not in the table of GPUs" if sku.gpu_count else "it has no GPU"
        raise UsageError(f"{sku.name} cannot be estimated: {what}")
    count = gpus_per_node or sku.gpu_count
    if count > sku.gpu_count:
        raise UsageError(f"{sku.name} has {sku.gpu_count} GPUs; --gpus-per-node {count} is more")
    gbit = sku.infiniband_gbit_per_second_total or sku.ethernet_gbit_per_second or 10.0
    return Machines(gpu, nodes, count, gbit / 8 * (count / sku.gpu_count if sku.rdma else 1), sku.rdma, sku)


def machines_of_gpu(
    gpu: Gpu, nodes: int, gpus_per_node: int | None = None, network_gbit_per_second: float | None = None
) -> Machines:
    """Return nodes with a GPU in the machines it is usually in, whose network grows with the GPUs of a node.

    `network_gbit_per_second` is of a node, where it is known. UsageError for several nodes whose network is not known.
    """
    count = gpus_per_node or gpu.gpus_per_node
    if network_gbit_per_second is None and gpu.network_gbit_per_second_per_gpu is None:
        if nodes > 1:
            raise UsageError(f"the network of machines with {gpu.name} is not known; give it with --network-gbit")
        return Machines(gpu, nodes, count, 0.0, has_rdma=False)
    gbit = network_gbit_per_second or max((gpu.network_gbit_per_second_per_gpu or 0.0) * count, 10.0)
    return Machines(gpu, nodes, count, gbit / 8, has_rdma=gbit >= 100)


@dataclass(frozen=True)
class Adapters:
    """Low-rank adapters (LoRA, Hu et al. 2021, arXiv:2106.09685) beside the layers that `targets` names, as peft does.

    `is_quantized` is of the frozen weights; `drops_out` is whether inputs of the adapters are dropped out, each by
    itself.
    """

    rank: int
    targets: str = ALL_LINEAR
    is_quantized: bool = False
    drops_out: bool = False

    def __str__(self) -> str:
        return f"{'QLoRA' if self.is_quantized else 'LoRA'} of rank {self.rank}"

    def matrices(self, model: Architecture | ImageModel) -> list[Linear]:
        """Return all adapted matrices of a model. UsageError for targets that it lacks."""
        names = tuple(name.strip() for name in self.targets.split(","))
        ends = tuple(f".{name}" for name in names)
        found = [
            each
            for each in model.linear_layers
            if self.targets == ALL_LINEAR or each.name in names or each.name.endswith(ends)
        ]
        if not model.linear_layers:
            raise UsageError(f"a {model.name} has no linear layers to put adapters beside")
        if not found:
            expected = ", ".join(
                filter(None, dict.fromkeys([ALL_LINEAR, *(each.name for each in model.linear_layers)]))
            )
            raise UsageError(f"no layer of {model.name} is called {self.targets}; expected one of: {expected}")
        return found

    def parameters(self, model: Architecture | ImageModel) -> int:
        """Return the parameters of all adapters, two matrices of this rank for each adapted one, and of a new head."""
        # Of images, the last layer outside of the blocks, which classifies, with its biases.
        heads = model.around.linear[-1:] if isinstance(model, ImageModel) else []
        head = sum((each.takes + 1) * each.gives for each in heads)
        return head + self.rank * sum(each.times * (each.takes + each.gives) for each in self.matrices(model))

    def quantized_parameters(self, model: Architecture | ImageModel) -> int:
        """Return how many weights are kept in 4 bits: the layers' matrices, or none."""
        weights = sum(each.times * each.takes * each.gives for each in model.linear_layers)
        return weights if self.is_quantized else 0


def engines_that_train(adapters: Adapters | None) -> tuple[str, ...]:
    """Return the engines of the training steps that train these adapters, or all weights without adapters.

    DeepSpeed has no frozen weights, and FSDP cannot shard weights of 4 bits. Other software can: published trainings
    are estimated with any engine.
    """
    if adapters is None:
        return ENGINES
    return ("ddp",) if adapters.is_quantized else ("ddp", "fsdp")


@dataclass(frozen=True)
class TrainingShape:
    """One optimizer step's work: micro_batch_size x accumulation_steps x world size samples of sequence_length tokens.

    An image is one token. `reshard_after_forward` (FSDP and ZeRO 3) gathers parameters again for the backward pass.
    FSDP with a `shard_size` has replicas of the model, each spread over so many GPUs. `loss_chunk_tokens` are the
    tokens whose logits exist at one time; 0 is all of a micro-batch. Of other software: `is_fsdp1` recomputes layers by
    torch's reentrant checkpoint in the first FSDP, and not all `upcasts_logits` to fp32 for the loss. With
    `is_deterministic` deterministic algorithms are chosen, the default of Trainyard's steps: attention is
    FlashAttention-2's then. Other software `copies_gradients` to DistributedDataParallel's buckets, torch's default.
    """

    architecture: Architecture | ImageModel
    machines: Machines
    engine: str
    micro_batch_size: int
    accumulation_steps: int
    sequence_length: int
    precision: str = "bf16"
    activation_checkpointing: str = "none"
    compiled: bool = False
    reshard_after_forward: bool = True
    shard_size: int = 0
    has_moving_average: bool = False
    offload_optimizer: bool = False
    offload_parameters: bool = False
    loss_chunk_tokens: int = 0
    adapters: Adapters | None = None
    optimizer: str = "adamw"
    offload_activations: bool = False
    gradient_sync: str = "auto"
    stack: str = "sdpa"
    stack_year: int = STACK_YEAR
    channels_last: bool = False
    is_fsdp1: bool = False
    upcasts_logits: bool = True
    is_deterministic: bool = False
    copies_gradients: bool = False

    @property
    def fuses_attention(self) -> bool:
        """Whether attention is one kernel, which never writes its scores."""
        return self.machines.gpu.flash_attention and self.stack != "eager"

    @property
    def keeps_scores(self) -> bool:
        """Whether attention's scores are kept: torch's memory-efficient kernel takes what flash attention does not, in
        fp16 and fp32 on older GPUs too (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp)."""
        return not self.fuses_attention and (self.stack != "sdpa" or "bf16" in self.precision)

    @property
    def fuses_operations(self) -> bool:
        """Whether the operations between products are in a few kernels: compiled, or written by hand."""
        return self.compiled or self.precision == "fp8" or self.stack == "fused"

    @property
    def is_under_autocast(self) -> bool:
        """Whether weights, and what goes from layer to layer, are fp32 and are cast for each product."""
        return self.engine == "ddp" and self.precision in ("bf16", "fp16") and self.stack != "fused"

    @property
    def language_model(self) -> Architecture:
        """The model, where it is one of language."""
        assert isinstance(self.architecture, Architecture)
        return self.architecture

    @property
    def is_of_images(self) -> bool:
        """Whether samples are images, so that nothing is counted in tokens."""
        return isinstance(self.architecture, ImageModel)

    @property
    def checkpointing_choices(self) -> tuple[str, ...]:
        """The kinds of activation checkpointing that are estimated: of images, all layers or none."""
        return ("none", "full") if self.is_of_images else CHECKPOINTING

    @property
    def trained_parameters(self) -> int:
        """The parameters with gradients and optimizer state: all, or the adapters'."""
        if self.adapters is None:
            return self.architecture.parameters
        return self.adapters.parameters(self.architecture)

    @property
    def has_buckets_beside_gradients(self) -> bool:
        """Whether DistributedDataParallel's buckets take as much as the gradients that are copied to them."""
        return self.copies_gradients and self.engine == "ddp" and self.machines.world_size > 1

    @property
    def tokens_per_micro_batch(self) -> int:
        """Tokens of one forward pass on one GPU."""
        return self.micro_batch_size * self.sequence_length

    @property
    def global_batch_size(self) -> int:
        """Samples of one optimizer step."""
        return self.micro_batch_size * self.accumulation_steps * self.machines.world_size

    @property
    def whole_gradient_bytes(self) -> float:
        """The gradient of all that is trained as FSDP sums it over ranks: in fp32, or in bf16 with weights in bf16."""
        return (2 if self.precision == "bf16-true" else 4) * self.trained_parameters

    @property
    def sums_every_micro_batch(self) -> bool:
        """Whether FSDP sums gradients after every micro-batch, and not only after a step's last."""
        return sums_every_micro_batch(self.gradient_sync, self.whole_gradient_bytes, self.machines.memory_bytes_per_gpu)

    @property
    def bytes_per_value(self) -> int:
        """The size of a parameter or activation as layers compute with it; fp8 keeps them in bf16."""
        return 4 if self.precision == "fp32" else 2

    @property
    def product_precision(self) -> str:
        """The type that the layers' matrices are multiplied in."""
        return "bf16" if self.precision == "bf16-true" else self.precision

    @property
    def shards(self) -> int:
        """Over how many GPUs one copy of the optimizer's state, and of what is kept like it, is spread."""
        if self.engine == "fsdp":
            return min(self.shard_size or self.machines.world_size, self.machines.world_size)
        return 1 if self.engine in ("ddp", "zero0") else self.machines.world_size

    @property
    def shards_within_replicas(self) -> bool:
        """Whether FSDP spreads each of several replicas over some of the GPUs."""
        return self.engine == "fsdp" and 0 < self.shard_size < self.machines.world_size

    @property
    def machines_of_replica(self) -> Machines:
        """The machines, or the part of one, that gather parameters from each other."""
        if not self.shards_within_replicas:
            return self.machines
        per_node = min(self.shard_size, self.machines.gpus_per_node)
        return replace(self.machines, nodes=max(1, self.shard_size // per_node), gpus_per_node=per_node)

    @property
    def is_deepspeed(self) -> bool:
        """Whether DeepSpeed runs it."""
        return self.engine.startswith("zero")
