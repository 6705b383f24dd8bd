"""Verbs that answer questions before anything runs: plan, estimate, graph, skus, doctor."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from trainyard.cli.parameters import AtLeast, OneOf, PathOf, chosen_file, file_argument
from trainyard.plan.estimate import CHECKPOINTING, ENGINES, OFFLOADS, OPTIMIZERS, PRECISIONS, TUNINGS

_PLAN_FORMATS = ("text", "json", "markdown", "html")
_GRAPH_FORMATS = ("text", "mermaid")


@click.command(short_help="Machines, memory, time and price of a pipeline.")
@file_argument
@click.option("--format", "output_format", type=OneOf(_PLAN_FORMATS), default="text", show_default=True)
@click.option("--from-run", metavar="PATH", help="A metrics.jsonl of this training on these machines, or its folder.")
@click.option("--against", metavar="REF", help="A branch, a commit or HEAD~1 of git: show only what changes since.")
@click.option("--base-model", metavar="NAME|PATH", help="What a base model that Azure ML keeps is: llama-3.2-1b.")
@click.option("--root", type=PathOf("folder"), help="Read nothing outside of it.  [default: the repository]")
def plan(
    file: str | None,
    file_option: str | None,
    output_format: str,
    from_run: str | None,
    against: str | None,
    base_model: str | None,
    root: Path | None,
) -> None:
    """Show what a pipeline takes: machines and batches, memory and time of its training, what it costs.

    A training's figures are estimated from published formulas (docs/plan.md). What a local run of the same pipeline
    measured is shown beside them; --from-run gives the metrics.jsonl of one on the same machines, which replaces them.
    --against compares with the same file at a git revision: batch, GPUs, memory, time and price, and every setting that
    Azure ML reads differently; not comments, order or spelling. Without FILE: every pipeline here that changed.

    \b
    Examples:
      trainyard plan pipelines/fsdp.yaml
      trainyard plan -f pipelines/fsdp.yaml --format markdown >> "$GITHUB_STEP_SUMMARY"
      trainyard plan pipelines/fsdp.yaml --format html > plan.html
      trainyard plan pipelines/fsdp.yaml --from-run metrics.jsonl
      trainyard plan pipelines/finetune.yaml --base-model llama-3.2-1b
      trainyard plan pipelines/fsdp.yaml --against main
      trainyard plan --against HEAD~1 --format markdown > comment.md
    """
    if against is not None:
        if from_run is not None:
            raise click.UsageError("--against and --from-run exclude each other: a run measured one version only")
        if base_model is not None:
            raise click.UsageError("--against and --base-model exclude each other; leave --base-model out")
        from trainyard.commands.plan_difference import plan_against, plan_all_against

        if file is None and file_option is None:
            text, left_out = plan_all_against(output_format, against)
            for said in left_out:
                click.echo(f"note: not compared: {said}", err=True)
            click.echo(text)
        else:
            click.echo(plan_against(chosen_file(file, file_option), output_format, against))
        return
    from trainyard.commands.plan import plan_as

    run = Path(from_run) if from_run else None
    click.echo(plan_as(chosen_file(file, file_option), output_format, run, base_model, root))


@click.command(short_help="Memory, time and price of a training without YAML.")
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
    from trainyard.commands.estimate import EstimateOptions, estimate_as

    click.echo(estimate_as(EstimateOptions(**flags), output_format, searches=searches))


@click.command(short_help="Draw a pipeline.")
@file_argument
@click.option("--format", "output_format", type=OneOf(_GRAPH_FORMATS), default="text", show_default=True)
def graph(file: str | None, file_option: str | None, output_format: str) -> None:
    """Draw a pipeline: its jobs and what flows between them, also of components that are kept in Azure ML.

    \b
    Example:
      trainyard graph pipelines/ddp.yaml --format mermaid
    """
    from trainyard.plan import drawing
    from trainyard.spec.loading import load_job

    pipeline = load_job(chosen_file(file, file_option), strict=True, on_azure=True)
    click.echo(drawing.as_mermaid(pipeline) if output_format == "mermaid" else drawing.as_text(pipeline))


@click.command(short_help="Azure's machines for training.")
@click.argument("name", required=False)
@click.option("--format", "output_format", type=OneOf(("text", "json")), default="text", show_default=True)
def skus(name: str | None, output_format: str) -> None:
    """List Azure's machines for training; with NAME, show one in full, with sources.

    \b
    Examples:
      trainyard skus
      trainyard skus Standard_ND96asr_v4
    """
    from trainyard.catalogue import tables
    from trainyard.catalogue.skus import all_skus, find_sku

    if output_format == "json":
        click.echo(tables.as_json([find_sku(name)] if name else all_skus()))
    elif name:
        click.echo(tables.one_in_full(find_sku(name)))
    else:
        click.echo(tables.overview(all_skus()))


@click.command(short_help="Is this machine ready?")
def doctor() -> None:
    """Check this machine: Python, packages against their pins, disk, GPUs, MPI, az, and whether the workspace answers.

    Each problem has its fix. Exit 1 if a local run is not possible.

    \b
    Example:
      trainyard doctor
    """
    from trainyard.commands.doctor import examine, print_check

    is_ready = True
    for check in examine(Path.cwd()):
        print_check(check)
        is_ready = is_ready and check.state != "missing"
    if not is_ready:
        sys.exit(1)
