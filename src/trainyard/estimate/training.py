"""What is estimated: a model's training on machines, with every setting that memory and time depend on."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.catalogue.gpus import Gpu, gpu_of
from trainyard.catalogue.skus import Sku
from trainyard.errors import UsageError
from trainyard.estimate.architectures import Architecture


@dataclass(frozen=True)
class Machines:
    """The nodes of a training. `network_gbyte_per_second` is what one node sends to the others, in one direction.

    `sku` is None where only the GPU was named; then there is no price.
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
    def memory_bytes_per_gpu(self) -> float:
        """The memory of one GPU, in bytes; vendors' GB of HBM are 2^30 bytes."""
        gigabytes = self.gpu.memory_gb if self.sku is None else self.sku.gpu_memory_gb_each or self.gpu.memory_gb
        return gigabytes * 2**30


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


def machines_of_gpu(gpu: Gpu, nodes: int, gpus_per_node: int | None = None) -> Machines:
    """Return nodes with a GPU in the machines it is usually in, whose network grows with the GPUs of a node."""
    count = gpus_per_node or gpu.gpus_per_node
    gbit = gpu.network_gbit_per_second_per_gpu * count
    return Machines(gpu, nodes, count, max(gbit, 10.0) / 8, has_rdma=gbit >= 100)


@dataclass(frozen=True)
class TrainingShape:
    """One optimizer step's work: micro_batch_size x accumulation_steps x world size samples of sequence_length tokens.

    `reshard_after_forward` (FSDP and ZeRO 3) gathers parameters again for the backward pass.
    """

    architecture: Architecture
    machines: Machines
    engine: str
    micro_batch_size: int
    accumulation_steps: int
    sequence_length: int
    precision: str = "bf16"
    activation_checkpointing: str = "none"
    compiled: bool = False
    reshard_after_forward: bool = True
    offload_optimizer: bool = False
    offload_parameters: bool = False

    @property
    def tokens_per_micro_batch(self) -> int:
        """Tokens of one forward pass on one GPU."""
        return self.micro_batch_size * self.sequence_length

    @property
    def global_batch_size(self) -> int:
        """Samples of one optimizer step."""
        return self.micro_batch_size * self.accumulation_steps * self.machines.world_size

    @property
    def bytes_per_value(self) -> int:
        """The size of a parameter or activation as layers compute with it; fp8 keeps them in bf16."""
        return 4 if self.precision == "fp32" else 2

    @property
    def product_precision(self) -> str:
        """The type that the layers' matrices are multiplied in."""
        return "bf16" if self.precision == "bf16-true" else self.precision

    @property
    def shards_parameters(self) -> bool:
        """Whether parameters are spread over the ranks."""
        return self.engine in ("fsdp", "zero3")

    @property
    def is_deepspeed(self) -> bool:
        """Whether DeepSpeed runs it."""
        return self.engine.startswith("zero")
