"""`trainyard estimate`: what a training takes, from flags alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from trainyard.catalogue.gpus import find_gpu
from trainyard.catalogue.skus import find_sku
from trainyard.errors import UsageError
from trainyard.estimate import reporters
from trainyard.estimate.architectures import Architecture, find_architecture
from trainyard.estimate.config_file import read_config
from trainyard.estimate.estimator import estimate
from trainyard.estimate.search import current_machines, search
from trainyard.estimate.training import Machines, TrainingShape, machines_of_gpu, machines_of_sku

_LONGEST_DEFAULT = 8192


@dataclass(frozen=True)
class EstimateOptions:
    """The flags of `trainyard estimate`; None is a flag that was not given."""

    model: str
    sku: str | None
    gpu: str | None
    nodes: int
    gpus_per_node: int | None
    engine: str
    micro_batch_size: int
    accumulation_steps: int
    sequence_length: int | None
    precision: str | None
    activation_checkpointing: str
    compiled: bool


def estimate_as(options: EstimateOptions, output_format: str, *, searches: bool) -> str:
    """Return what to print. UsageError for an unknown model, size or GPU, and for flags that contradict each other."""
    if options.sku and options.gpu:
        raise UsageError("expected --sku or --gpu, not both")
    architecture = _architecture(options.model)
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
    estimated = estimate(_training(options, architecture, machines))
    return reporters.as_json(estimated) if output_format == "json" else reporters.as_text(estimated)


def _architecture(model: str) -> Architecture:
    """Return the model of a config.json, of a folder that has one, or of the table."""
    path = Path(model)
    if path.is_dir():
        path = path / "config.json"
        if not path.is_file():
            raise UsageError(f"{model}: no config.json in this folder")
    if path.is_file():
        return read_config(path)
    if path.suffix == ".json":
        raise UsageError(f"{model}: no such file")
    return find_architecture(model)


def _machines(options: EstimateOptions) -> Machines | None:
    if options.sku:
        return machines_of_sku(find_sku(options.sku), options.nodes, options.gpus_per_node)
    if options.gpu:
        return machines_of_gpu(find_gpu(options.gpu), options.nodes, options.gpus_per_node)
    if options.gpus_per_node:
        raise UsageError("--gpus-per-node needs --sku or --gpu")
    return None


def _training(options: EstimateOptions, architecture: Architecture, machines: Machines) -> TrainingShape:
    return TrainingShape(
        architecture=architecture,
        machines=machines,
        engine=options.engine,
        micro_batch_size=options.micro_batch_size,
        accumulation_steps=options.accumulation_steps,
        sequence_length=options.sequence_length or min(architecture.positions or _LONGEST_DEFAULT, _LONGEST_DEFAULT),
        precision=options.precision or ("bf16" if machines.gpu.bf16_tflops else "fp16"),
        activation_checkpointing=options.activation_checkpointing,
        compiled=options.compiled,
    )
