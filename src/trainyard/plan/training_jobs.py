"""A job of the training steps as what is estimated: its model, engine and settings, read from its inputs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from trainyard.catalogue.skus import Sku
from trainyard.errors import UsageError
from trainyard.estimate.architectures import FAMILIES, Architecture
from trainyard.estimate.config_file import architecture_of, read_config
from trainyard.estimate.training import TrainingShape, machines_of_sku
from trainyard.plan.batches import JobBatch
from trainyard.spec.literals import whole_number
from trainyard.spec.resolution import DataPath, JobUse, Known, ProcessCounts, Resolution

_STEP = re.compile(r"\btrainyard[./]steps[./]train_(ddp|fsdp|deepspeed)\b")
_OFFLOADED = ("cpu", "nvme")


class NotEstimated(ValueError):
    """A job of which memory and time are not estimated; the message is the reason."""


def is_training(job: JobUse) -> bool:
    """Return whether a job runs one of the training steps."""
    return _STEP.search(str(job.component.command.data)) is not None


def training_of(
    job: JobUse, resolution: Resolution, sku: Sku | None, processes: ProcessCounts, batch: JobBatch | None
) -> TrainingShape:
    """Return what a training job does in a step. NotEstimated says why there is nothing to estimate."""
    step = _STEP.search(str(job.component.command.data))
    if step is None:
        raise NotEstimated("only the training steps are estimated")
    if _value(job, "task") != "language_modeling":
        raise NotEstimated("only language models are estimated")
    if sku is None:
        raise NotEstimated("the machine is not known")
    if batch is None or batch.accumulation_steps is None or batch.sequence_length is None:
        raise NotEstimated("batch size or sequence length is not known")
    try:
        machines = machines_of_sku(sku, processes.nodes, min(processes.processes_per_node, sku.gpu_count) or None)
        architecture = _architecture(job, resolution, batch.sequence_length)
    except UsageError as error:
        raise NotEstimated(str(error)) from None
    engine, offloads_optimizer, offloads_parameters = _engine(job, step.group(1))
    return TrainingShape(
        architecture=architecture,
        machines=machines,
        engine=engine,
        micro_batch_size=batch.micro_batch_size,
        accumulation_steps=batch.accumulation_steps,
        sequence_length=batch.sequence_length,
        precision=str(_value(job, "precision") or "fp32"),
        activation_checkpointing="full" if _value(job, "activation_checkpointing") is True else "none",
        compiled=_value(job, "compile") is True,
        reshard_after_forward=_value(job, "reshard_after_forward") is not False,
        offload_optimizer=offloads_optimizer,
        offload_parameters=offloads_parameters,
    )


def steps_of(job: JobUse) -> int | None:
    """Return how many optimizer steps a training takes at most, where the pipeline says so."""
    return whole_number(_value(job, "max_steps"))


def _architecture(job: JobUse, resolution: Resolution, length: int) -> Architecture:
    """Return the model with the vocabulary and the length of the dataset, as the step makes it."""
    model_type, overrides = _value(job, "model_type"), _value(job, "model_overrides")
    if not isinstance(model_type, str):
        raise UsageError("the model is not known")
    if "/" in model_type or Path(model_type).is_dir():
        config = Path(model_type) / "config.json"
        if not config.is_file():
            raise UsageError(f"the model is in a folder that is not here: {model_type}")
        return read_config(config)
    vocabulary = _vocabulary_size(job, resolution)
    if vocabulary is None:
        raise UsageError("the vocabulary is not known")
    settings: dict[str, Any] = json.loads(overrides) if isinstance(overrides, str) and overrides else {}
    family = FAMILIES.get(model_type)
    needs = {"vocab_size": vocabulary}
    if family is not None:
        needs = {family.names["vocabulary_size"]: vocabulary, family.names["positions"]: length}
    return architecture_of(model_type, {**needs, **settings}, model_type)


def _vocabulary_size(job: JobUse, resolution: Resolution) -> int | None:
    """Return the vocabulary of a job whose output this one trains on; None where none has it."""
    sources = (source for name, source in resolution.jobs.items() if name in job.reads_from)
    sizes = (whole_number(_value(source, "vocabulary_size")) for source in sources)
    return next((size for size in sizes if size is not None), None)


def _engine(job: JobUse, step: str) -> tuple[str, bool, bool]:
    """Return the engine, and whether it offloads the optimizer and the parameters."""
    if step == "ddp":
        return "ddp", False, False
    if step == "fsdp":
        offloads = _value(job, "cpu_offload") is True
        return "fsdp", offloads, offloads
    zero = _deepspeed_config(job).get("zero_optimization")
    settings: dict[str, Any] = zero if isinstance(zero, dict) else {}
    stage = settings.get("stage", 0)
    if stage not in (0, 1, 2, 3):
        raise NotEstimated(f"the ZeRO stage is {stage!r}")
    optimizer, parameters = (_is_offloaded(settings.get(key)) for key in ("offload_optimizer", "offload_param"))
    return f"zero{stage}", optimizer, parameters


def _deepspeed_config(job: JobUse) -> dict[str, Any]:
    found = job.input("deepspeed_config") if "deepspeed_config" in job.component.inputs else None
    if not isinstance(found, Known) or not isinstance(found.value, DataPath):
        raise NotEstimated("DeepSpeed's configuration is not known")
    file = found.written.span.file.parent / found.value.text
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise NotEstimated(f"DeepSpeed's configuration cannot be read: {found.value.text}") from None
    return config if isinstance(config, dict) else {}


def _is_offloaded(section: object) -> bool:
    return isinstance(section, dict) and section.get("device") in _OFFLOADED


def _value(job: JobUse, name: str) -> Any:
    """Return an input's value; None where the job has no such input, and where it is not known."""
    found = job.input(name) if name in job.component.inputs else None
    return found.value if isinstance(found, Known) else None
