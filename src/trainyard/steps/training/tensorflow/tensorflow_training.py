"""From settings to a SavedModel: the tasks of the cluster meet, train, evaluate and export."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainyard.settings.batch_arithmetic import BatchArithmetic, divide_batch
from trainyard.settings.quantities import EVALUATION_FORMAT
from trainyard.settings.steps.train_tensorflow import TrainTensorFlow
from trainyard.steps.data.dataset.manifest import Manifest, read_manifest
from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.data.dataset.shards import verify_dataset
from trainyard.steps.evaluation.confusion import class_figures
from trainyard.steps.runtime.errors import STOPPED_EXIT_CODE, SetupError, StepError
from trainyard.steps.runtime.files import require_writable, write_json
from trainyard.steps.runtime.flags import GivenSettings
from trainyard.steps.runtime.imports import python_and_packages
from trainyard.steps.training.observing.measures import StepGuards, StepMeasures, Work
from trainyard.steps.training.observing.mlflow_log import MlflowLog
from trainyard.steps.training.observing.recorder import Recorder, SampleRecord, settings_record
from trainyard.steps.training.samples.plan import AgreedStep, Progress, Step, TrainingPlan
from trainyard.steps.training.schedule import Schedule
from trainyard.steps.training.stopping import ScheduledEvents, StopRequest, choose_url, stop_in_words
from trainyard.steps.training.tensorflow.cluster import ClusterPlace, Tasks, meet, read_cluster
from trainyard.steps.training.tensorflow.keras_checkpoints import TensorFlowCheckpoints
from trainyard.steps.training.tensorflow.keras_models import ModelBuilder, write_saved_model
from trainyard.steps.training.tensorflow.keras_samples import KerasSamples
from trainyard.steps.training.tensorflow.mirrored import MirroredTrainer, mirrored_strategy
from trainyard.steps.training.tensorflow.parameter_server import (
    OwnWorker,
    ParameterServerTrainer,
    coordinating_strategy,
    serve,
)
from trainyard.steps.training.tensorflow.trainer import SplitSums, Trainer
from trainyard.steps.training.used_settings import UsedSettings

_PACKAGES = ("tensorflow", "tensorflow-cpu", "keras", "numpy", "mlflow-skinny")
_LOST_TASK = (
    *(tf.errors.UnavailableError, tf.errors.DeadlineExceededError, tf.errors.AbortedError, tf.errors.CancelledError),
)


@dataclass
class TensorFlowRun:
    """Everything that the loop needs."""

    settings: TrainTensorFlow
    tasks: Tasks
    manifest: Manifest
    plan: TrainingPlan
    trainer: Trainer
    own_ranks: list[int]
    """Whose micro-batches this process takes: its own, or those of all workers that it gives work to."""
    samples: KerasSamples
    schedule: Schedule
    checkpoints: TensorFlowCheckpoints
    recorder: Recorder
    measures: StepMeasures
    guards: StepGuards
    stop_request: StopRequest
    progress: Progress
    sample_record: SampleRecord | None = None


def run_tensorflow(given: GivenSettings[TrainTensorFlow], stop_request: StopRequest) -> int:
    """Train, evaluate and save the model. Return the step's exit code: 0, or STOPPED_EXIT_CODE.

    Every task of the cluster runs this; what can be checked without the others is checked before they meet.
    """
    settings = given.step
    place = read_cluster(os.environ)
    _check_strategy(settings, place)
    events_url = choose_url(settings.scheduled_events_url, os.environ)
    manifest = read_manifest(settings.data)
    try:
        batch = divide_batch(settings.global_batch_size, settings.micro_batch_size, len(place.workers))
    except ValueError as error:
        raise StepError(str(error)) from None
    builder = ModelBuilder(settings, manifest)
    evaluated = SplitReader(settings.data, manifest, settings.evaluate_split)
    if not place.is_parameter_server:
        require_writable((settings.model, settings.checkpoints, settings.metrics, settings.evaluation), place.index)
    tasks = meet(place, settings.process_group_timeout_seconds)
    with ExitStack() as opened:
        opened.callback(tasks.close)
        used = UsedSettings(settings, None, given.origins)
        tasks.require_same({**used.for_mlflow(), "dataset": manifest.digest()})
        tasks.log(_banner(place, settings))
        tasks.log(str(used))
        # What all tasks do, before parameter servers do nothing else than serve.
        verify_dataset(settings.data, manifest.shards(), tasks, settings.verify_data)
        tasks.end_when_one_is_lost()
        if events_url is not None:
            opened.callback(ScheduledEvents(events_url, stop_request.ask).close)
        if settings.strategy == "parameter_server" and not tasks.is_main:
            return serve(place, tasks, lambda: stop_request.reason if stop_request.is_raised() else None)
        for gpu in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(gpu, True)
        keras.utils.set_random_seed(settings.seed)
        if settings.deterministic and settings.strategy == "multi_worker_mirrored":
            tf.config.experimental.enable_op_determinism()
        keras.mixed_precision.set_global_policy("mixed_bfloat16" if settings.precision == "bf16" else "float32")
        if settings.strategy == "parameter_server":
            tasks.leave_training_to_main()
        run = _build(used, settings, tasks, manifest, batch, builder, stop_request, opened)
        try:
            return tasks.leave(_train_and_save(run, builder, evaluated))
        except _LOST_TASK as failure:
            raise tasks.explain_loss(failure) from None


def _check_strategy(settings: TrainTensorFlow, place: ClusterPlace) -> None:
    servers = len(place.parameter_servers)
    if settings.strategy == "multi_worker_mirrored" and servers:
        raise SetupError(
            f"TF_CONFIG has {servers} parameter servers, which --strategy multi_worker_mirrored does not use; leave "
            "out parameter_server_count, or give --strategy parameter_server"
        )
    if settings.strategy == "parameter_server" and not servers:
        raise SetupError(
            "--strategy parameter_server needs parameter servers, and TF_CONFIG has none (type ps); set "
            "parameter_server_count in the distribution"
        )


def _build(
    used: UsedSettings,
    settings: TrainTensorFlow,
    tasks: Tasks,
    manifest: Manifest,
    batch: BatchArithmetic,
    builder: ModelBuilder,
    stop_request: StopRequest,
    opened: ExitStack,
) -> TensorFlowRun:
    samples = KerasSamples(SplitReader(settings.data, manifest, "train"), manifest, settings.micro_batch_size)
    plan = TrainingPlan(samples.samples, batch, settings.epochs, settings.max_steps)
    trainer: Trainer
    if settings.strategy == "parameter_server":
        opened.callback(OwnWorker(tasks.place).close)
        trainer = ParameterServerTrainer(settings, coordinating_strategy(tasks.place), builder)
    else:
        strategy = mirrored_strategy(tasks.place, settings.process_group_timeout_seconds)
        trainer = MirroredTrainer(settings, strategy, builder, tasks)
    checkpoints = TensorFlowCheckpoints(
        settings.checkpoints,
        tasks,
        {**used.compared("identity"), "dataset": manifest.digest()},
        used.defaults(),
        used.compared("numbers"),
        keep=settings.keep_checkpoints,
        failed_saves_limit=settings.failed_saves_limit,
    )
    progress = checkpoints.resume(settings.resume, trainer)
    parameters = sum(math.prod(variable.shape) for variable in trainer.model.trainable_variables)
    tasks.log(
        f"{plan.batch}\n{parameters:,} parameters; {plan.samples} training samples, {plan.steps_per_epoch} steps per "
        f"epoch, {plan.total_steps} steps"
    )
    recorder = Recorder(tasks, settings.metrics, settings.log_every_steps, plan.total_steps)
    opened.callback(recorder.close)
    record = settings_record("train_tensorflow", used, batch, parameters, python_and_packages(_PACKAGES))
    starts_over = settings.resume == "never" and progress.step == 0
    recorder.begin(progress.step, record, used.for_mlflow() | batch._asdict(), starts_over=starts_over)
    run = TensorFlowRun(
        settings=settings,
        tasks=tasks,
        manifest=manifest,
        plan=plan,
        trainer=trainer,
        own_ranks=[tasks.rank] if settings.strategy == "multi_worker_mirrored" else list(range(batch.world_size)),
        samples=samples,
        schedule=Schedule(settings, plan.total_steps),
        checkpoints=checkpoints,
        recorder=recorder,
        measures=StepMeasures(Work(), lambda: samples.wait_seconds, lambda: checkpoints.stall_seconds),
        guards=StepGuards(settings.nonfinite_steps_limit, settings.loss_spike_factor, progress.skipped_steps),
        stop_request=stop_request,
        progress=progress,
    )
    if settings.record_samples is not None:
        folder = Path(settings.record_samples)
        run.sample_record = SampleRecord(folder, tasks.rank, tasks.size, progress.step)
        opened.callback(run.sample_record.close)
    return run


def _train_and_save(run: TensorFlowRun, builder: ModelBuilder, evaluated: SplitReader) -> int:
    started, steps_before = time.monotonic(), run.progress.step
    if not train(run):
        reasons, has_stepped = run.tasks.gather(run.stop_request.reason), run.progress.step > steps_before
        run.tasks.log(stop_in_words(reasons, run.progress.step, run.plan.total_steps, has_stepped=has_stepped))
        return STOPPED_EXIT_CODE
    figures = "".join(f", validation {name} {value:.4f}" for name, value in run.recorder.last_validation.items())
    run.tasks.log(f"trained {run.progress.step - steps_before} steps in {time.monotonic() - started:.1f} s{figures}")
    run.trainer.align()
    try:
        run.tasks.main(lambda: _export(run, builder, evaluated))
    finally:  # whatever is wrong with the model, its training is kept
        try:
            run.checkpoints.save(run.trainer, run.progress, must_succeed=True)
        except StepError as error:
            run.tasks.log(f"warning: cannot write the last checkpoint, which does not affect the model: {error}")
    sums = evaluate(run, evaluated)
    run.recorder.complete()
    run.tasks.main(lambda: _write_evaluation(run.settings, run.manifest, sums))
    return 0


def _export(run: TensorFlowRun, builder: ModelBuilder, split: SplitReader) -> None:
    sample_ids = np.arange(min(split.samples, run.settings.micro_batch_size), dtype=np.int64)
    batch = KerasSamples(split, run.manifest, len(sample_ids)).batch(sample_ids)
    folder = run.settings.model
    largest = write_saved_model(folder, builder.build(), run.trainer.state(), run.manifest, batch.inputs)
    print(f"{folder}: a SavedModel; outputs differ by at most {largest:.1g} when loaded again", flush=True)


def train(run: TensorFlowRun) -> bool:
    """Take every step that is left. Return False if the training was asked to stop before its end."""
    settings, trainer = run.settings, run.trainer
    if not _may_begin(run):
        return False
    batches = run.samples.planned(run.plan, settings.seed, run.own_ranks, run.progress.step)
    for number in range(run.progress.step + 1, run.plan.total_steps + 1):
        step, began = run.plan.step(number), time.perf_counter()
        count = sum(len(run.plan.micro_batches(step, rank)) for rank in run.own_ranks)
        taken = list(islice(batches, count))
        if run.sample_record is not None:
            run.sample_record.write(step, taken)
        learning_rate = trainer.learning_rate(run.schedule(number))
        if reason := run.tasks.reason_from_servers():
            run.stop_request.ask(reason)
        figures = trainer.take_step(taken, learning_rate, stop=run.stop_request.is_raised())
        seconds = time.perf_counter() - began
        agreed = AgreedStep(step, learning_rate, figures.loss, figures.gradient_norm, figures.stop, [0.0], seconds)
        run.measures.add(agreed)
        if warning := run.guards.observe(agreed):
            run.tasks.log(warning)
        run.progress = run.progress.after(step, run.guards.skipped_steps)
        if _close_step(run, agreed):
            return False
    return True


def _may_begin(run: TensorFlowRun) -> bool:
    """Make up for a validation that a stopped attempt left out. Return False if any worker is asked to stop before."""
    step_number = run.progress.step
    if 0 < step_number != run.progress.validated_step and _validation_is_due(run, run.plan.step(step_number)):
        if any(run.tasks.gather(run.stop_request.is_raised())):
            return False
        run.recorder.add_validation(step_number, _validate(run))
    return True


def _close_step(run: TensorFlowRun, agreed: AgreedStep) -> bool:
    """Evaluate, record and save what is due. Return whether to stop before the end."""
    step = agreed.step
    validation_is_due = _validation_is_due(run, step)
    validation: Mapping[str, float] = MappingProxyType({})
    if validation_is_due and not agreed.stop:
        validation = _validate(run)
    # The next attempt makes up for a validation that did not happen, in this step's line.
    failed_saves = run.checkpoints.failed_saves
    run.recorder.record(
        agreed, run.measures, run.guards, validation, failed_saves=failed_saves, always=validation_is_due
    )
    every = run.settings.checkpoint_every_steps
    # The model comes before the last checkpoint, whose folder may be full, unless this process may be killed soon.
    if agreed.stop or (every > 0 and step.number % every == 0 and not step.is_last):
        run.trainer.align()
        run.checkpoints.save(run.trainer, run.progress, must_succeed=agreed.stop)
    return agreed.stop and (validation_is_due or not step.is_last)


def _validate(run: TensorFlowRun) -> Mapping[str, float]:
    """Return the figures of the validation split, and note that it was validated."""
    run.trainer.align()
    figures = evaluate(run, SplitReader(run.settings.data, run.manifest, "validation")).figures()
    run.progress = replace(run.progress, validated_step=run.progress.step)
    return figures


def _validation_is_due(run: TensorFlowRun, step: Step) -> bool:
    every = run.settings.evaluate_every_epochs
    is_due = step.is_last or (step.ends_epoch and every > 0 and step.epoch % every == 0)
    return is_due and "validation" in run.manifest.splits


def evaluate(run: TensorFlowRun, split: SplitReader) -> SplitSums:
    """Return the sums over every sample of a split, each once, the same on every worker."""
    classes = len(run.manifest.classes)
    sums = SplitSums(confusion=np.zeros((classes, classes), dtype=np.int64) if classes else None)
    return run.trainer.evaluate(KerasSamples(split, run.manifest, run.settings.micro_batch_size), sums)


def _write_evaluation(settings: TrainTensorFlow, manifest: Manifest, sums: SplitSums) -> None:
    """Write and log the figures of the whole split. StepError afterwards if the accuracy is too low."""
    figures, folder, split = sums.figures(), settings.evaluation, settings.evaluate_split
    document: dict[str, Any] = {
        "format": EVALUATION_FORMAT,
        "task": "language_modeling" if sums.confusion is None else "image_classification",
        "split": split,
        "samples": sums.samples,
        **({"tokens": int(sums.terms)} if sums.confusion is None else {}),
        **figures,
    }
    if sums.confusion is not None:
        document["classes"] = class_figures(sums.confusion, manifest.classes)
        most_frequent = float(sums.confusion.sum(axis=1).max() / sums.samples)
        document["before"] = {"model": "guessing", "accuracy": most_frequent}
        matrix = {"classes": list(manifest.classes), "matrix": sums.confusion.tolist()}
        write_json(folder / "confusion_matrix.json", {"format": "trainyard.confusion_matrix/1", **matrix})
    write_json(folder / "evaluation.json", document)
    mlflow = MlflowLog()
    mlflow.metrics({f"{split}_{name}": value for name, value in figures.items()}, step=0)
    mlflow.artifact(folder / "evaluation.json")
    mlflow.close()
    text = ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
    print(f"{split}: {text} on {sums.samples} samples; {folder}", flush=True)
    if not figures["accuracy"] >= settings.minimum_accuracy:
        raise StepError(
            f"accuracy {figures['accuracy']:.4f} on {split} is below --minimum-accuracy "
            f"{settings.minimum_accuracy:g}; the results are in {folder}"
        )


def _banner(place: ClusterPlace, settings: TrainTensorFlow) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in python_and_packages(_PACKAGES).items())
    gpus = len(tf.config.list_physical_devices("GPU"))
    servers = f", {len(place.parameter_servers)} parameter servers" if place.parameter_servers else ""
    devices = f"{gpus} GPUs each" if gpus else "cpu"
    return f"{versions}; {settings.strategy}: {len(place.workers)} workers{servers} on {devices} (from TF_CONFIG)"
