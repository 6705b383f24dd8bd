"""`trainyard estimate`: what a training takes, from flags alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import click

from trainyard.catalogue.gpus import find_gpu
from trainyard.catalogue.skus import find_sku
from trainyard.cli.parameters import AtLeast, OneOf
from trainyard.errors import UsageError
from trainyard.plan.estimate import (
    CHECKPOINTING,
    ENGINES,
    OFFLOADS,
    OPTIMIZERS,
    PRECISIONS,
    TUNINGS,
    estimator,
    reporters,
)
from trainyard.plan.estimate.adapters import Adapters
from trainyard.plan.estimate.architectures import Architecture
from trainyard.plan.estimate.config_file import find_model
from trainyard.plan.estimate.image_models import ImageModel
from trainyard.plan.estimate.search import current_machines, search
from trainyard.plan.estimate.training import Machines, TrainingShape, machines_of_gpu, machines_of_sku
from trainyard.settings.steps.training import Training

_LONGEST_DEFAULT = 8192


@click.command()
@click.option("--model", required=True, metavar="NAME|PATH", help="A model such as llama-3.1-8b, or a config.json.")
@click.option("--sku", metavar="NAME", help="An Azure size; prices come with it.")
@click.option("--gpu", metavar="NAME", help="A GPU such as H100-SXM, in the machines it is usually in.")
@click.option("--nodes", type=AtLeast(1), default=1, show_default=True)
@click.option("--gpus-per-node", type=AtLeast(1), help="If not all of a node's.")
@click.option("--network-gbit", type=click.FloatRange(0, min_open=True), help="Gbit/s of a node, with --gpu.")
@click.option("--engine", type=OneOf(ENGINES), default="fsdp", show_default=True)
@click.option(
    "--micro-batch-size",
    type=AtLeast(1),
    default=1,
    show_default=True,
    help="Samples of a forward pass.",
)
@click.option("--accumulation-steps", type=AtLeast(1), default=1, show_default=True)
@click.option("--sequence-length", type=AtLeast(1), help="Tokens of a sample.  [default: the model's, to 8192]")
@click.option("--precision", type=OneOf(PRECISIONS), help="bf16-true keeps AdamW in bf16 too.  [default: bf16]")
@click.option("--activation-checkpointing", type=OneOf(CHECKPOINTING), default="none", show_default=True)
@click.option("--compile", "compiled", is_flag=True, help="Compile the model with torch.compile.")
@click.option(
    "--loss-chunk-tokens",
    type=AtLeast(0),
    default=0,
    help="Compute the logits of this many tokens at a time; 0: all at once.",
)
@click.option("--tuning", type=OneOf(TUNINGS), default="full", show_default=True, help="What is trained.")
@click.option("--lora-rank", type=AtLeast(1), help="Rank of the adapters.  [default: the training steps']")
@click.option(
    "--lora-targets",
    default="all-linear",
    show_default=True,
    help="Layers that get adapters: all-linear, or endings of names such as q_proj,v_proj.",
)
@click.option("--optimizer", type=OneOf(OPTIMIZERS), default="adamw", show_default=True, help="With ddp: what steps.")
@click.option("--shard-size", type=AtLeast(1), help="With fsdp: GPUs of a replica.  [default: all]")
@click.option("--no-reshard", "keeps_gathered", is_flag=True, help="With fsdp: gather weights once a micro-batch.")
@click.option(
    "--offload", type=OneOf(OFFLOADS), default="none", show_default=True, help="With fsdp and zero1 to zero3."
)
@click.option(
    "--ema-decay", type=click.FloatRange(0, 1), default=0.0, help="A moving average of the weights, if not 0."
)
@click.option("--search", "searches", is_flag=True, help="Find what fits and is fastest or cheapest.")
@click.option("--format", "output_format", type=OneOf(("text", "json")), default="text", show_default=True)
def estimate(output_format: str, searches: bool, **flags: Any) -> None:
    """Estimate what a training takes, before there is any YAML: memory of a GPU, time of a step, price.

    \b
    Examples:
      trainyard estimate --model llama-3.1-8b --sku Standard_ND96isr_H100_v5 --nodes 2 --micro-batch-size 2
      trainyard estimate --model gpt2-xl --gpu A100-SXM-40GB --engine zero2 --micro-batch-size 4 --format json
      trainyard estimate --model llama-3.1-8b --sku Standard_NC24ads_A100_v4 --engine ddp --tuning qlora
      trainyard estimate --model path/to/config.json --nodes 4 --sequence-length 4096 --search
    """
    click.echo(estimate_as(EstimateOptions(**flags), output_format, searches=searches))


@dataclass(frozen=True)
class EstimateOptions:
    """The flags of `trainyard estimate`; None is a flag that was not given."""

    model: str
    sku: str | None
    gpu: str | None
    nodes: int
    gpus_per_node: int | None
    network_gbit: float | None
    engine: str
    micro_batch_size: int
    accumulation_steps: int
    sequence_length: int | None
    precision: str | None
    activation_checkpointing: str
    compiled: bool
    loss_chunk_tokens: int
    tuning: str
    lora_rank: int | None
    lora_targets: str
    optimizer: str
    shard_size: int | None
    keeps_gathered: bool
    offload: str
    ema_decay: float


def estimate_as(options: EstimateOptions, output_format: str, *, searches: bool) -> str:
    """Return what to print. UsageError for an unknown model, size or GPU, and for flags that contradict each other."""
    if options.sku and options.gpu:
        raise UsageError("expected --sku or --gpu, not both")
    architecture = find_model(options.model)
    machines = _machines(options)
    if searches:
        candidates = [machines] if machines else list(current_machines(options.nodes))
        if not machines:
            options = replace(options, precision=options.precision or "bf16")
        found = search(_training(options, architecture, candidates[0]), candidates)
        return reporters.search_as_json(found) if output_format == "json" else reporters.search_as_text(found)
    if machines is None:
        raise UsageError(
            "missing --sku or --gpu, such as --sku Standard_ND96isr_H100_v5 or --gpu H100-SXM; --search tries all sizes"
        )
    estimated = estimator.estimate(_training(options, architecture, machines))
    return reporters.as_json(estimated) if output_format == "json" else reporters.as_text(estimated)


def _machines(options: EstimateOptions) -> Machines | None:
    if options.network_gbit and not options.gpu:
        raise UsageError("--network-gbit needs --gpu; an Azure size has a network of its own")
    if options.sku:
        return machines_of_sku(find_sku(options.sku), options.nodes, options.gpus_per_node)
    if options.gpu:
        return machines_of_gpu(find_gpu(options.gpu), options.nodes, options.gpus_per_node, options.network_gbit)
    if options.gpus_per_node:
        raise UsageError("--gpus-per-node needs --sku or --gpu")
    return None


def _training(options: EstimateOptions, model: Architecture | ImageModel, machines: Machines) -> TrainingShape:
    adapters = None
    if options.tuning != "full":
        adapters = Adapters(
            options.lora_rank or Training.lora_rank, options.lora_targets, is_quantized=options.tuning == "qlora"
        )
        adapters.matrices(model)
    if options.optimizer != "adamw" and options.engine != "ddp":
        raise UsageError(f"--optimizer {options.optimizer} needs --engine ddp: the other engines have AdamW only")
    if options.optimizer == "adafactor" and isinstance(model, ImageModel):
        raise UsageError("--optimizer adafactor: its state is estimated for language models only")
    _check_engine(options, machines)
    length = 1
    if isinstance(model, Architecture):
        length = options.sequence_length or min(model.positions or _LONGEST_DEFAULT, _LONGEST_DEFAULT)
    return TrainingShape(
        architecture=model,
        machines=machines,
        engine=options.engine,
        micro_batch_size=options.micro_batch_size,
        accumulation_steps=options.accumulation_steps,
        sequence_length=length,
        precision=options.precision or ("bf16" if machines.gpu.bf16_tflops else "fp16"),
        activation_checkpointing=options.activation_checkpointing,
        compiled=options.compiled,
        loss_chunk_tokens=options.loss_chunk_tokens,
        adapters=adapters,
        optimizer=options.optimizer,
        reshard_after_forward=not options.keeps_gathered,
        shard_size=options.shard_size or 0,
        has_moving_average=options.ema_decay > 0,
        offload_optimizer=options.offload != "none",
        offload_parameters=options.offload == "all",
    )


def _check_engine(options: EstimateOptions, machines: Machines) -> None:
    """Raise UsageError for what an engine does not have, in the words of its own step."""
    engine, size = options.engine, options.shard_size
    if engine != "fsdp" and (size or options.keeps_gathered):
        raise UsageError(f"--{'shard-size' if size else 'no-reshard'} needs --engine fsdp")
    if size and machines.world_size % size:
        raise UsageError(f"--shard-size {size}: {machines.world_size} GPUs are not whole replicas of {size}")
    allowed = {"optimizer": ("zero1", "zero2", "zero3"), "all": ("fsdp", "zero3")}.get(options.offload, (engine,))
    if engine not in allowed:
        raise UsageError(f"--offload {options.offload} needs --engine {' or '.join(allowed)}")
