"""A job of the training steps as what is estimated: its model, engine and settings, read from its settings."""

from __future__ import annotations

import json
import math
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.catalogue.skus import Sku
from trainyard.errors import UsageError
from trainyard.plan.estimate.architectures import Architecture
from trainyard.plan.estimate.config_file import architecture_for_data, image_model_of, read_config
from trainyard.plan.estimate.image_models import CLASSES, IMAGE_SIZE, ImageModel, Images
from trainyard.plan.estimate.training import ALL_LINEAR, Adapters, TrainingShape, engines_that_train, machines_of_sku
from trainyard.plan.job_data import dataset_numbers, jobs_before, number_of_data
from trainyard.plan.job_sizes import JobBatch
from trainyard.printing import short
from trainyard.project_files import is_within_root
from trainyard.settings.small_image_models import small_image_settings
from trainyard.settings.written_settings import MIXED_DATASETS, read_weights
from trainyard.spec.literals import whole_number
from trainyard.spec.model import ProcessCounts
from trainyard.spec.resolution import JobUse, Resolution
from trainyard.spec.resolved import DataPath, JobOutput, Known
from trainyard.spec.step_settings import place_of

_STEP = re.compile(r"\btrainyard[./]steps[./]train_(ddp|single|horovod|lightning|fsdp|deepspeed|tensorflow)\b")
_WHOLE_MODEL = ("ddp", "single", "horovod", "lightning")
"""The steps that keep the whole model on every GPU; they differ in how they exchange the same gradients."""
_LANGUAGE_TASKS = ("language_modeling", "preferences")
_TASKS = (*_LANGUAGE_TASKS, "image_classification")
_IMAGES = {"digits": Images(8, 8, 1, 10)}
"""What the formats of prepare_images hold that are of one dataset."""
_OFFLOADED = ("cpu", "nvme")


def is_training(job: JobUse) -> bool:
    """Return whether a job runs one of the training steps."""
    return _STEP.search(str(job.component.command.data)) is not None


@dataclass(frozen=True)
class Stated:
    """What a user states of a pipeline, as its files do not: the base model, and how much the training data is."""

    base_model: Architecture | ImageModel | None = None
    tokens: float | None = None
    images: float | None = None


NOTHING_STATED = Stated()


@dataclass(frozen=True)
class TrainingJobs:
    """The trainings of a pipeline, with what is stated of it."""

    resolution: Resolution
    stated: Stated

    def training_of(
        self, job: JobUse, sku: Sku | None, processes: ProcessCounts, batch: JobBatch | None
    ) -> TrainingShape:
        """Return what a training job does in a step. UsageError says why there is nothing to estimate."""
        step = _STEP.search(str(job.component.command.data))
        if step is None:
            raise UsageError("only Trainyard's training steps are estimated")
        if step.group(1) == "tensorflow":
            raise UsageError("Keras models are not counted")
        task = _value(job, "task")
        if task is None:
            raise UsageError("the task is not known")
        if task not in _TASKS:
            own = _estimate_of_own_task(job, step.group(1), sku, processes, batch)
            raise UsageError(f"only the tasks {', '.join(_TASKS)} are; of your own, with prepared DATA: {own}")
        if _value(job, "module") is not None:
            raise UsageError("the model is a LightningModule of your own")
        if sku is None:
            raise UsageError("the machine is not known")
        is_text = task in _LANGUAGE_TASKS
        if batch is None or batch.accumulation_steps is None or (is_text and batch.sequence_length is None):
            raise UsageError("batch size or sequence length is not known")
        machines = machines_of_sku(sku, processes.nodes, min(processes.processes_per_node, sku.gpu_count) or None)
        model = self._language_model(job, batch.sequence_length) if is_text else self._image_model(job)
        adapters = _adapters(job, model)
        engine, offloads_optimizer, offloads_parameters = _engine(job, step.group(1))
        possible = engines_that_train(adapters)
        if engine not in possible:
            raise UsageError(f"the engine {engine} does not train these adapters; {' or '.join(possible)} does")
        optimizer = str(_value(job, "optimizer") or "adamw")
        if optimizer != "adamw" and engine != "ddp":
            raise UsageError(f"the optimizer {optimizer} does not work with this step")
        if optimizer == "adafactor" and not is_text:
            raise UsageError("Adafactor's state is estimated for language models only")
        return TrainingShape(
            architecture=model,
            machines=machines,
            engine=engine,
            micro_batch_size=batch.micro_batch_size,
            accumulation_steps=batch.accumulation_steps,
            sequence_length=(batch.sequence_length or 1) if is_text else 1,
            precision=str(_value(job, "precision") or "fp32"),
            activation_checkpointing=_checkpointing(job, is_text),
            compiled=_value(job, "compile") is True,
            reshard_after_forward=_value(job, "reshard_after_forward") is not False,
            shard_size=whole_number(_value(job, "shard_size")) or 0,
            has_moving_average=bool(_value(job, "ema_decay")),
            offload_optimizer=offloads_optimizer,
            offload_parameters=offloads_parameters,
            loss_chunk_tokens=whole_number(_value(job, "loss_chunk_tokens")) or 0,
            adapters=adapters,
            optimizer=optimizer,
            offload_activations=_value(job, "activation_offload") is True,
            gradient_sync=str(_value(job, "gradient_sync") or "auto"),
            is_deterministic=_value(job, "deterministic") is not False,
        )

    def _language_model(self, job: JobUse, length: int | None) -> Architecture:
        """Return the base model, or one with the vocabulary and the length of the dataset, as the step makes it."""
        found = self._from_folder(job, None)
        if found is None:
            model_type, settings = _model_settings(job)
            vocabulary = number_of_data(job, self.resolution, "vocabulary_size")
            if vocabulary is None:
                raise UsageError("the vocabulary is not known")
            found = architecture_for_data(model_type, settings, vocabulary, length or 1)
        if not isinstance(found, Architecture):
            raise UsageError(f"{found.name} is an image classifier; the task is {_value(job, 'task')}")
        return found

    def _image_model(self, job: JobUse) -> ImageModel:
        """Return the base model, or one for the images of the dataset, as the step makes it."""
        images = self._images(job)
        found = self._from_folder(job, images)
        if found is None:
            model_type, settings = _model_settings(job)
            small = small_image_settings(model_type, max(images.height, images.width))
            found = image_model_of(model_type, {**small, **settings}, images)
        if not isinstance(found, ImageModel):
            raise UsageError(f"{found.name} is a language model; the task is image_classification")
        return found

    def _from_folder(self, job: JobUse, images: Images | None) -> Architecture | ImageModel | None:
        """Return the model of a folder with a config.json, or of a base model; None where the job names neither."""
        if job.outputs_read.get("base_model"):
            raise UsageError("the base model is what another job writes")
        for name in ("base_model", "model_type"):
            value = _value(job, name)
            text = value.text if isinstance(value, DataPath) else value
            if not isinstance(text, str) or not (name == "base_model" or "/" in text or Path(text).is_dir()):
                continue
            if text.startswith("azureml:"):
                if self.stated.base_model is not None:
                    return self.stated.base_model
                hint = "say what it is by --base-model, such as llama-3.2-1b or the path of its config.json"
                raise UsageError(f"the base model {text} is kept in Azure ML; {hint}")
            place = job.setting(name)
            is_data = isinstance(value, DataPath)
            folder = place_of(text, place.written.span) if isinstance(place, Known) and is_data else Path(text)
            configs = folder.rglob("config.json") if is_within_root(folder) else ()
            found = sorted(configs, key=lambda file: len(file.parts))
            if not found:
                if name == "base_model" and self.stated.base_model is not None:
                    return self.stated.base_model
                raise UsageError(f"the model is in a folder that is not here: {text}")
            return read_config(found[0], images)
        return None

    def _images(self, job: JobUse) -> Images:
        """Return what the dataset, or the job that prepares it, says of images, with ImageNet's values for the rest."""
        data = dataset_numbers(job)
        if "height" in data:
            return Images(data["height"], data["width"], data["channels"], data["classes"])
        named = (_value(source, "format") for source in jobs_before(job, self.resolution))
        kind = next((value for value in named if isinstance(value, str)), "")
        if kind in _IMAGES:
            return _IMAGES[kind]
        side = number_of_data(job, self.resolution, "image_size")
        known = f"{CLASSES} classes are assumed"
        if side:
            return Images(side, side, assumed=known)
        return Images(assumed=f"{IMAGE_SIZE} × {IMAGE_SIZE} images and {known}")


def steps_of(job: JobUse, batch: JobBatch | None, stated: Stated) -> int | None:
    """Return how many optimizer steps a training takes: the least that max_steps, max_tokens and epochs allow.

    Epochs count where it is stated how much the data is, or all of its prepared datasets are on this machine.
    """
    steps, tokens, epochs = (whole_number(_value(job, name)) for name in ("max_steps", "max_tokens", "epochs"))
    limits = [steps] if steps else []
    if batch and tokens and batch.tokens_per_step:
        limits.append(math.ceil(tokens / batch.tokens_per_step))
    if batch and epochs:
        amount = stated.tokens if batch.sequence_length else stated.images
        named = (name for name in MIXED_DATASETS if _value(job, name) is not None)
        counts = [dataset_numbers(job, name).get("samples", math.nan) for name in named]
        samples = amount / (batch.sequence_length or 1) if amount else sum(counts)
        if samples and not math.isnan(samples):
            limits.append(epochs * math.ceil(samples / batch.global_batch_size))
    return min(limits, default=None)


def data_shares_of(job: JobUse) -> dict[str, float | None]:
    """Return the share of a training's samples that comes from each dataset, by the job or path that it is from.

    It is empty where nothing is mixed. A share is None where each sample comes once: how many there are is not known.
    """
    datasets = [_value(job, name) for name in MIXED_DATASETS]
    known = [each for each in datasets if isinstance(each, (JobOutput, DataPath))]
    named = [each.job if isinstance(each, JobOutput) else each.text for each in known]
    if len(named) < 2:
        return {}
    text = _value(job, "data_weights")
    if text is None:
        return dict.fromkeys(named)
    weights = read_weights(str(text), len(named))
    return {name: float(weight / sum(weights)) for name, weight in zip(named, weights, strict=True)}


def _model_settings(job: JobUse) -> tuple[str, dict[str, Any]]:
    model_type, overrides = _value(job, "model_type"), _value(job, "model_overrides")
    if not isinstance(model_type, str):
        raise UsageError("the model is not known")
    return model_type, json.loads(overrides) if isinstance(overrides, str) and overrides else {}


def _checkpointing(job: JobUse, is_text: bool) -> str:
    """Return what is computed again; of images, selective checkpointing is not estimated."""
    if _value(job, "activation_checkpointing") is not True:
        return "none"
    if _value(job, "checkpointed_operators") != "cheap":
        return "full"
    if not is_text:
        raise UsageError("what image classifiers keep with checkpointed_operators: cheap is not known")
    return "selective"


def _adapters(job: JobUse, model: Architecture | ImageModel) -> Adapters | None:
    tuning = _value(job, "tuning") or "full"
    if tuning == "full":
        return None
    rank = whole_number(_value(job, "lora_rank"))
    if rank is None:
        raise UsageError("the rank of the adapters is not known")
    targets = str(_value(job, "lora_targets") or ALL_LINEAR)
    adapters = Adapters(rank, targets, tuning == "qlora", drops_out=bool(_value(job, "lora_dropout")))
    adapters.matrices(model)
    return adapters


def _engine(job: JobUse, step: str) -> tuple[str, bool, bool]:
    if step in _WHOLE_MODEL:
        return "ddp", False, False
    if step == "fsdp":
        offloads = _value(job, "cpu_offload") is True
        return "fsdp", offloads, offloads
    read = job.step_settings.deepspeed if job.step_settings is not None else None
    if read is None:
        raise UsageError("DeepSpeed's configuration is not known, or cannot be read")
    zero = read.data.get("zero_optimization")
    settings: dict[str, Any] = zero if isinstance(zero, dict) else {}
    stage = settings.get("stage", 0)
    if stage not in (0, 1, 2, 3):
        raise UsageError(f"the ZeRO stage is {stage!r}")
    sections = (settings.get(key) for key in ("offload_optimizer", "offload_param"))
    optimizer, parameters = (isinstance(each, dict) and each.get("device") in _OFFLOADED for each in sections)
    return f"zero{stage}", optimizer, parameters


def _estimate_of_own_task(
    job: JobUse, step: str, sku: Sku | None, processes: ProcessCounts, batch: JobBatch | None
) -> str:
    """Return the command that estimates a training of the user's own task: by the settings file, if that names it."""
    task = job.setting("task")
    file = task.written.span.file if isinstance(task, Known) else None
    has_settings = file is not None and file not in (job.job.key_span.file, job.component.file)
    named = shlex.quote(str(short(file) if file and has_settings else _value(job, "task")))
    machines = f"--sku {sku.name if sku is not None else 'SIZE'} --nodes {processes.nodes}"
    if sku is not None and processes.processes_per_node < sku.gpu_count:
        machines += f" --gpus-per-node {processes.processes_per_node}"
    try:
        engine = _engine(job, step)[0]
    except UsageError:
        engine = "ENGINE"
    settings = f"--engine {engine} --micro-batch-size {batch.micro_batch_size if batch else 'N'}"
    if batch and (batch.accumulation_steps or 1) > 1:
        settings += f" --accumulation-steps {batch.accumulation_steps}"
    if (checkpointing := _checkpointing(job, is_text=True)) != "none":
        settings += f" --activation-checkpointing {checkpointing}"
    precision = _value(job, "precision") or "fp32"
    return f"trainyard estimate --task {named} --data DATA {machines} {settings} --precision {precision}"


def _value(job: JobUse, name: str) -> Any:
    """Return the value of a setting or an input; None where the job has none, and where it is not known."""
    found = job.setting(name)
    return found.value if isinstance(found, Known) else None
