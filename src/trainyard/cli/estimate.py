"""`trainyard estimate`: what a training takes, from flags alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from trainyard.catalogue.gpus import find_gpu
from trainyard.catalogue.skus import find_sku
from trainyard.cli import working_folder
from trainyard.cli.parameters import Amount, AtLeast, OneOf, PathOf
from trainyard.errors import UsageError
from trainyard.plan.estimate import (
    CHECKPOINTING,
    ENGINES,
    OFFLOADS,
    OPTIMIZERS,
    PRECISIONS,
    STACK_YEAR,
    STACKS,
    TUNINGS,
    estimator,
    reporters,
)
from trainyard.plan.estimate.architectures import Architecture
from trainyard.plan.estimate.config_file import find_model
from trainyard.plan.estimate.estimator import SCALING_NODES
from trainyard.plan.estimate.image_models import ImageModel
from trainyard.plan.estimate.meta_model import model_of_task
from trainyard.plan.estimate.search import Scope, current_sizes, search, what_if
from trainyard.plan.estimate.training import Adapters, Machines, TrainingShape, machines_of_gpu, machines_of_sku
from trainyard.render.project import NoProject
from trainyard.settings.steps.training import Training

_LONGEST_DEFAULT = 8192
_NEEDS = "needs --search or --what-if"
_EXAMPLES = "--sku Standard_ND96isr_H100_v5 or --gpu H100-SXM"
_WHAT_IF_FORMATS = ("markdown", "html")
_FORMATS = ("text", "json", *_WHAT_IF_FORMATS)
_ENGINES_THAT_OFFLOAD = {"optimizer": ("zero1", "zero2", "zero3"), "all": ("fsdp", "zero3")}


@click.command()
@click.option("--model", metavar="NAME|PATH", help="A model such as llama-3.1-8b, or a config.json.")
@click.option("--task", metavar="MODULE:CLASS|FILE", help="A task of your own, or its settings file; needs --data.")
@click.option("--data", type=PathOf("folder"), help="With --task: a dataset that a step prepared.")
@click.option("--sku", metavar="NAME", multiple=True, help="An Azure size; several with --search and --what-if.")
@click.option("--gpu", metavar="NAME", help="A GPU such as H100-SXM, in the machines it is usually in.")
@click.option("--nodes", type=AtLeast(1), default=1, show_default=True)
@click.option("--gpus-per-node", type=AtLeast(1), help="GPUs to use on each node.  [default: all]")
@click.option("--network-gbit", type=click.FloatRange(0, min_open=True), help="Gbit/s of a node, with --gpu.")
@click.option("--engine", type=OneOf(ENGINES), default="fsdp", show_default=True)
@click.option("--micro-batch-size", type=AtLeast(1), default=1, show_default=True, help="Samples of a forward pass.")
@click.option("--accumulation-steps", type=AtLeast(1), default=1, show_default=True)
@click.option("--sequence-length", type=AtLeast(1), help="Tokens of a sample.  [default: the model's, to 8192]")
@click.option("--precision", type=OneOf(PRECISIONS), help="bf16-true keeps AdamW in bf16 too.  [default: bf16]")
@click.option("--activation-checkpointing", type=OneOf(CHECKPOINTING), default="none", show_default=True)
@click.option("--compile", "compiled", is_flag=True, help="Compile the model with torch.compile.")
@click.option(
    "--deterministic/--no-deterministic",
    "is_deterministic",
    default=True,
    help="Attention's kernel on Hopper and Blackwell, as the setting of the training steps.  [default: deterministic]",
)
@click.option("--stack", type=OneOf(STACKS), default="sdpa", show_default=True, help="Which operations are one kernel.")
@click.option("--stack-year", type=AtLeast(2016), default=STACK_YEAR, show_default=True, help="Year of the software.")
@click.option("--loss-chunk-tokens", type=AtLeast(0), default=0, help="Compute logits for N tokens at a time; 0: all.")
@click.option("--tuning", type=OneOf(TUNINGS), default="full", show_default=True, help="What is trained.")
@click.option("--lora-rank", type=AtLeast(1), help="Rank of the adapters.  [default: the training steps']")
@click.option("--lora-targets", default="all-linear", show_default=True, help="Or endings of names: q_proj,v_proj.")
@click.option("--optimizer", type=OneOf(OPTIMIZERS), default="adamw", show_default=True, help="All but adamw need ddp.")
@click.option("--shard-size", type=AtLeast(1), help="With fsdp: GPUs of a replica.  [default: all]")
@click.option("--no-reshard", "keeps_gathered", is_flag=True, help="With fsdp: gather weights once a micro-batch.")
@click.option("--offload", type=OneOf(OFFLOADS), default="none", show_default=True, help="With fsdp, zero1 to zero3.")
@click.option("--activation-offload", "offload_activations", is_flag=True, help="Activations in main memory.")
@click.option("--ema-decay", type=click.FloatRange(0, 1), default=0.0, help="Average the weights, if not 0.")
@click.option("--tokens", type=Amount(), help="Tokens of the data, such as 300B or 2T: how long all of it takes.")
@click.option("--images", type=Amount(), help="The same for an image classifier or a --task, such as 1.28M.")
@click.option("--epochs", type=AtLeast(1.0), help="How often the training goes through them.  [default: 1]")
@click.option("--what-if", "compares", is_flag=True, help="Compare 1, 2, 4 … --nodes machines and all engines.")
@click.option("--search", "searches", is_flag=True, help="Find what is fastest or cheapest on up to --nodes machines.")
@click.option("--headroom", type=AtLeast(0.0), default=12.0, show_default=True, help="Percent of memory to keep free.")
@click.option("--global-batch-size", type=AtLeast(1), help="With --what-if, --search: samples per step, all GPUs.")
@click.option("--format", "output_format", type=OneOf(_FORMATS), default="text", help="markdown, html: with --what-if.")
def estimate(
    model: str | None,
    task: str | None,
    data: Path | None,
    sku: tuple[str, ...],
    gpu: str | None,
    nodes: int,
    gpus_per_node: int | None,
    network_gbit: float | None,
    tokens: float | None,
    images: float | None,
    epochs: float | None,
    compares: bool,
    searches: bool,
    headroom: float,
    global_batch_size: int | None,
    output_format: str,
    **flags: Any,
) -> None:
    """Estimate what a training takes, before there is any YAML: memory of a GPU, time of a step, price.

    \b
    Examples:
      trainyard estimate --model llama-3.1-8b --sku Standard_ND96isr_H100_v5 --activation-checkpointing full
      trainyard estimate --model gpt2-xl --gpu A100-SXM-40GB --engine zero2 --micro-batch-size 4 --format json
      trainyard estimate --model llama-3.1-8b --sku Standard_NC24ads_A100_v4 --engine ddp --tuning qlora
      trainyard estimate --model llama-3.1-8b --sku Standard_ND96isr_H100_v5 --nodes 16 --tokens 300B --what-if
      trainyard estimate --model llama-3.1-8b --nodes 8 --tokens 300B --what-if --format html > what_if.html
      trainyard estimate --model path/to/config.json --nodes 4 --sequence-length 4096 --search
      trainyard estimate --task settings/train.yaml --data data/prepared --sku Standard_NC64as_T4_v3 --engine ddp
    """
    explores = searches or compares
    _refuse(
        {
            "expected --sku or --gpu, not both": sku and gpu,
            "--network-gbit needs --gpu; an Azure size has a network of its own": network_gbit and not gpu,
            "--gpus-per-node needs --sku or --gpu": gpus_per_node and not (sku or gpu),
            f"--format {output_format} needs --what-if": output_format in _WHAT_IF_FORMATS and not compares,
            "expected --search or --what-if, not both": searches and compares,
            f"--headroom {headroom:g}: expected less than 100 percent": headroom >= 100,
            f"--global-batch-size {_NEEDS}; a step has as many samples as follow": global_batch_size and not explores,
            f"several --sku: that {_NEEDS}": len(sku) > 1 and not explores,
        }
    )
    architecture = _model(model, task, data, flags)
    if not (sku or gpu or explores):
        raise UsageError(f"missing --sku or --gpu, such as {_EXAMPLES}; --search tries all sizes")
    sizes = [find_sku(name) for name in sku] if sku or gpu else current_sizes()

    def machines_of(count: int) -> list[Machines]:
        if gpu:
            return [machines_of_gpu(find_gpu(gpu), count, gpus_per_node, network_gbit)]
        return [machines_of_sku(each, count, gpus_per_node) for each in sizes]

    if explores:
        numbers = [*(count for count in SCALING_NODES if count < nodes), nodes]
        candidates = [each for count in numbers for each in machines_of(count)]
        if len(sizes) > 1:
            flags["precision"] = flags["precision"] or "bf16"
        wanted = _training(architecture, candidates[-1], flags)
        samples = _samples(wanted, tokens, images, epochs)
        scope = Scope(headroom / 100, _fixed(), global_batch_size)
        if searches:
            click.echo(reporters.search_as(output_format, search(wanted, candidates, scope), samples))
            return
        found = what_if(wanted, candidates, scope)
        if output_format == "html" and found:
            from trainyard.report.plan_page import what_if_as_html  # Jinja takes a tenth of a second to import

            click.echo(what_if_as_html(found, samples))
        else:
            click.echo(reporters.what_if_as(output_format, found, samples))
        return
    training = _training(architecture, machines_of(nodes)[0], flags)
    samples = _samples(training, tokens, images, epochs)
    report = reporters.as_json if output_format == "json" else reporters.as_text
    click.echo(report(estimator.estimate(training), samples))


def _refuse(reasons: Mapping[str, object]) -> None:
    """Raise UsageError with the first reason that applies."""
    if found := [reason for reason, applies in reasons.items() if applies]:
        raise UsageError(found[0])


def _fixed() -> frozenset[str]:
    """Return what flags say of a training, by the names of its fields: a search keeps it."""
    context = click.get_current_context()
    names = {*(field.name for field in fields(TrainingShape)), "offload"} & context.params.keys()
    given = {name for name in names if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    return frozenset(given | ({"offload_optimizer", "offload_parameters"} if "offload" in given else set()))


def _samples(training: TrainingShape, tokens: float | None, images: float | None, epochs: float | None) -> float | None:
    """Return how many rows or images a whole training goes through; None where the flags do not say."""
    amounts = {"images": images, "tokens": tokens} if training.is_of_images else {"tokens": tokens, "images": images}
    (unit, amount), (other, unsuited) = amounts.items()
    if unsuited is not None:
        raise UsageError(f"--{other}: {training.architecture.name} is measured in {unit}; use --{unit}")
    if epochs and amount is None:
        raise UsageError(f"--epochs needs --{unit}: how much the data is")
    return None if amount is None else amount * (epochs or 1) / training.sequence_length


def _model(
    model: str | None, task: str | None, data: Path | None, flags: Mapping[str, Any]
) -> Architecture | ImageModel:
    """Return the model that the flags name: of the table, of a file, or of a task of the user's own."""
    if model is None and task is None:
        raise UsageError("missing --model, or --task and --data for a task of your own")
    if (model is not None and task is not None) or (task is None) != (data is None):
        raise UsageError("expected --model alone, or --task with --data, the folder of a prepared dataset")
    if model is not None:
        return find_model(model)
    assert task is not None
    assert data is not None
    for flag, untouched in {"tuning": "full", "sequence_length": None, "loss_chunk_tokens": 0}.items():
        if flags[flag] != untouched:
            raise UsageError(f"--{flag.replace('_', '-')} is of language models, and --task of any task")
    try:
        folder = working_folder.project().source
    except NoProject:
        folder = Path.cwd()
    return model_of_task(task, data, folder)


def _training(model: Architecture | ImageModel, machines: Machines, flags: Mapping[str, Any]) -> TrainingShape:
    """Return the training that the flags describe; most are fields of it, under the same names."""
    engine, optimizer, offload, shard_size = (flags[name] for name in ("engine", "optimizer", "offload", "shard_size"))
    adapters = None
    if flags["tuning"] != "full":
        rank, is_quantized = flags["lora_rank"] or Training.lora_rank, flags["tuning"] == "qlora"
        adapters = Adapters(rank, flags["lora_targets"], is_quantized)
        adapters.matrices(model)
    engines = _ENGINES_THAT_OFFLOAD.get(offload, (engine,))
    of_fsdp, all_gpus = "shard-size" if shard_size else "no-reshard", machines.world_size
    needs_ddp = optimizer != "adamw" and engine != "ddp"
    is_uncounted = optimizer == "adafactor" and isinstance(model, ImageModel)
    _refuse(
        {
            f"--optimizer {optimizer} needs --engine ddp: the other engines have AdamW only": needs_ddp,
            "--optimizer adafactor: its state is estimated for language models only": is_uncounted,
            f"--{of_fsdp} needs --engine fsdp": engine != "fsdp" and (shard_size or flags["keeps_gathered"]),
            f"--shard-size {shard_size}: {all_gpus} GPUs are not whole replicas of it": all_gpus % (shard_size or 1),
            f"--offload {offload} needs --engine {' or '.join(engines)}": engine not in engines,
        }
    )
    length = 1
    if isinstance(model, Architecture):
        length = flags["sequence_length"] or min(model.positions or _LONGEST_DEFAULT, _LONGEST_DEFAULT)
    others = {
        "sequence_length": length,
        "precision": flags["precision"] or ("bf16" if machines.gpu.bf16_tflops else "fp16"),
        "adapters": adapters,
        "reshard_after_forward": not flags["keeps_gathered"],
        "shard_size": shard_size or 0,
        "has_moving_average": flags["ema_decay"] > 0,
        "offload_optimizer": offload != "none",
        "offload_parameters": offload == "all",
    }
    same = {field.name: flags[field.name] for field in fields(TrainingShape) if field.name in flags}
    return TrainingShape(model, machines, **{**same, **others})
