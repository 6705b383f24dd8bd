"""From a model's folder to evaluation.json, the confusion matrix, and a sample of what the model generates."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from trainyard.settings.quantities import EVALUATION_COUNTS, EVALUATION_FORMAT
from trainyard.settings.steps.models import Evaluate
from trainyard.steps.data.dataset.manifest import Manifest, read_manifest
from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.data.dataset.shards import verify_dataset
from trainyard.steps.evaluation.confusion import Counts, class_figures, draw_confusion_matrix
from trainyard.steps.evaluation.mistakes import find_mistakes, write_mistakes
from trainyard.steps.evaluation.whole_split import evaluate_split
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.files import find_model, write_json
from trainyard.steps.runtime.flags import GivenSettings
from trainyard.steps.runtime.world import ranks_joined
from trainyard.steps.training.adapters import load_trained_model, require_base_of_adapters
from trainyard.steps.training.engines.fsdp import shard_to_evaluate
from trainyard.steps.training.observing.mlflow_log import MlflowLog
from trainyard.steps.training.precision import Precision, set_matmul_precision
from trainyard.steps.training.randomness import ask_for_determinism
from trainyard.steps.training.tasks.chosen import ChosenTask, read_base_digest, task_of_model
from trainyard.steps.training.tasks.task import Sample, SampleRequest

_MOST_CLASSES_IN_PICTURE = 1000


def run_evaluation(given: GivenSettings[Evaluate]) -> int:
    """Evaluate over all ranks; rank 0 writes. Raise StepError, on every rank, if a figure misses its limit."""
    settings = given.step
    manifest = read_manifest(settings.data)
    split = SplitReader(settings.data, manifest, settings.split)
    chosen = task_of_model(settings.model, settings.task, given.task)
    task = chosen.on(manifest)
    load = partial(load_trained_model, chosen, manifest, settings.model, settings.base_model)
    model = None if settings.shard_model else load()
    with ranks_joined(settings.process_group_timeout_seconds, [settings.evaluation]) as world:
        verify_dataset(settings.data, manifest.splits[settings.split].shards, world, settings.verify_data)
        ask_for_determinism()
        set_matmul_precision("highest")
        require_base_of_adapters(chosen, settings.model, settings.base_model, world)
        base_digest = read_base_digest(settings.model)
        if base_digest is not None and (problem := task.base_model_problem(base_digest)):
            raise StepError(problem)
        precision = Precision(settings.precision, world.device)
        model = shard_to_evaluate(load, world) if model is None else model.to(world.device)
        measured = (split, world, precision, settings.micro_batch_size)
        sums = evaluate_split(task, model, *measured, in_lockstep=settings.shard_model)
        figures = task.summarise(sums, settings.split)
        if world.is_main or settings.shard_model:
            sample = None
            if settings.sample_tokens:
                how = (settings.sample_prompt, settings.sample_tokens, settings.sample_temperature)
                with torch.no_grad(), precision.autocast():
                    sample = task.sample(model.eval(), SampleRequest(split, *how, world.device))
            mistakes = find_mistakes(task, model, split, precision, settings.micro_batch_size, world.device)
        compared_with, before = task.untrained_is, task.untrained_figures(sums)
        is_comparable = chosen.takes_base_model and compared_with == "guessing"
        if settings.base_model is not None and settings.compare_with_base_model and is_comparable:
            del model  # that device memory holds one of them is enough
            load_base = chosen.starting_from(find_model(settings.base_model)).on(manifest).new_model
            base_model = shard_to_evaluate(load_base, world) if settings.shard_model else load_base().to(world.device)
            base_sums = evaluate_split(task, base_model, *measured, in_lockstep=settings.shard_model)
            compared_with, before = "base model", task.summarise(base_sums, settings.split)
        if world.is_main:
            _write_results(settings, chosen, manifest, figures, sums, sample, {"model": compared_with, **before})
            if mistakes is not None:
                write_mistakes(settings.evaluation, split, mistakes, manifest.classes)
        text = ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
        world.log(f"{settings.split}: {text} on {split.samples} samples; {settings.evaluation}")
    _check_limits(settings, chosen, figures)
    return 0


def _write_results(
    settings: Evaluate,
    chosen: ChosenTask,
    manifest: Manifest,
    figures: Mapping[str, float],
    sums: Mapping[str, torch.Tensor],
    sample: Sample | None,
    before: Mapping[str, str | float],
) -> None:
    mlflow = MlflowLog()
    mlflow.metrics({f"{settings.split}_{name}": value for name, value in figures.items()}, step=0)
    folder = settings.evaluation
    document: dict[str, Any] = {
        "format": EVALUATION_FORMAT,
        "task": chosen.name,
        "split": settings.split,
        **{name: int(sums[name]) for name in EVALUATION_COUNTS if name in sums},
        **figures,
        "before": before,
    }
    if "confusion" in sums:
        matrix: Counts = np.rint(sums["confusion"].cpu().numpy()).astype(np.int64)
        document["classes"] = class_figures(matrix, manifest.classes)
        _write_confusion(settings, manifest, matrix, figures)
        mlflow.artifact(folder / "confusion_matrix.json")
    if sample is not None:
        document["sample"] = dataclasses.asdict(sample)
        (folder / "sample.txt").write_bytes(f"{sample.text}\n".encode())
        mlflow.artifact(folder / "sample.txt")
        # Without control characters: a model of bytes may write anything.
        printable = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in sample.text)
        print(f"a sample of what the model writes, in {folder / 'sample.txt'}:\n{printable}", flush=True)
    write_json(folder / "evaluation.json", document)
    mlflow.artifact(folder / "evaluation.json")
    mlflow.close()


def _write_confusion(settings: Evaluate, manifest: Manifest, matrix: Counts, figures: Mapping[str, float]) -> None:
    document = {
        "format": "trainyard.confusion_matrix/1",
        "classes": list(manifest.classes),
        "matrix": matrix.tolist(),
    }
    write_json(settings.evaluation / "confusion_matrix.json", document)
    if len(manifest.classes) > _MOST_CLASSES_IN_PICTURE:
        print(f"too many classes for a picture of the confusion matrix: {len(manifest.classes)}", flush=True)
        return
    title = f"{settings.split}: {figures['accuracy']:.2%} of {int(matrix.sum())} correct"
    draw_confusion_matrix(matrix, manifest.classes, title, settings.evaluation / "confusion_matrix.png")


def _check_limits(settings: Evaluate, chosen: ChosenTask, figures: Mapping[str, float]) -> None:
    """Raise StepError if a figure misses its limit, is not a number, or does not exist."""
    least, most = settings.minimum_accuracy, settings.maximum_perplexity
    for name, limit, holds, missed in (
        ("accuracy", least or None, operator.ge, "below --minimum-accuracy"),
        ("perplexity", most, operator.le, "above --maximum-perplexity"),
    ):
        if limit is None:
            continue
        if name not in figures:
            raise StepError(f"a limit of {name} is set, but the task {chosen.name} has no {name}")
        if not holds(figures[name], limit):
            raise StepError(
                f"{name} {figures[name]:.4f} on {settings.split} is {missed} {limit:g}; the results are in "
                f"{settings.evaluation}"
            )
