"""A request to train: what one rank can check alone, what all ranks must share, and what is kept of its settings."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.settings.batch_arithmetic import BatchArithmetic, divide_batch
from trainyard.settings.files import file_sha256
from trainyard.settings.steps.training import Training
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.files import find_model
from trainyard.steps.runtime.flags import GivenSettings
from trainyard.steps.runtime.rank_variables import ranks_in_words
from trainyard.steps.runtime.world import World
from trainyard.steps.training.adapters import check_tuning
from trainyard.steps.training.engines.blocks import check_blocks
from trainyard.steps.training.engines.engine import Engine
from trainyard.steps.training.from_transformers import model_digest, model_folder
from trainyard.steps.training.observing.hang_watch import HangWatch
from trainyard.steps.training.observing.observer import parse_profile_steps
from trainyard.steps.training.samples.training_data import TrainingData, read_training_data
from trainyard.steps.training.tasks.chosen import ChosenTask, choose_task
from trainyard.steps.training.tasks.task import Task
from trainyard.steps.training.used_settings import UsedSettings, differing_values
from trainyard.steps.training.validation import check_validation


@dataclass(frozen=True)
class CheckedRequest:
    """A request to train, checked as far as one rank can before it meets the others."""

    settings: Training
    step_name: str
    engine_class: type[Engine]
    data: TrainingData
    batch: BatchArithmetic
    chosen_task: ChosenTask
    task: Task
    profiled_steps: range | None
    used: UsedSettings
    """All settings, those of the task too."""
    base_digest: str | None = None
    """The SHA-256 of the model that training starts from, if any, once `base_model_read` has read it."""

    def base_model_read(self, world: World, hang_watch: HangWatch) -> CheckedRequest:
        """Return the request with its `base_digest`. StepError if the data need another model. Every rank calls it."""
        with hang_watch.long_work("reading the model that training starts from"):
            folder = model_folder(self.chosen_task.values().get("model_type"))
            digest = None if folder is None else model_digest(folder, world)
        for each in self.data.manifests:
            if problem := self.chosen_task.on(each).base_model_problem(digest):
                raise StepError(problem)
        return dataclasses.replace(self, base_digest=digest)

    def identity(self) -> dict[str, Any]:
        """Return what must be the same for a checkpoint to be of the same training. The world size may change.

        A folder with a model is known by its content: where it lies may change from attempt to attempt.
        """
        identity = {**self.used.compared("identity"), "dataset": self.data.digest()}
        identity["ema"] = "on" if self.settings.ema_decay > 0 else "off"
        if self.base_digest is not None:
            identity["model_type"] = f"a folder with the SHA-256 {self.base_digest}"
        return self._without_unused_adapters(identity)

    def identity_defaults(self) -> dict[str, Any]:
        """Return what the identity is where nothing else is given."""
        return {**self.used.defaults(), "ema": "off"}

    def numbers(self) -> dict[str, Any]:
        """Return what else decides what is computed: a change in the middle of a training is logged."""
        return self._without_unused_adapters(self.used.compared("numbers"))

    def _without_unused_adapters(self, settings: dict[str, Any]) -> dict[str, Any]:
        if self.settings.tuning != "full":
            return settings
        return {name: value for name, value in settings.items() if not name.startswith("lora_")}


def check_request(
    given: GivenSettings[Training],
    step_name: str,
    engine_class: type[Engine],
    world_size: int,
    chosen_task: ChosenTask | None = None,
    data: TrainingData | None = None,
) -> CheckedRequest:
    """Read the datasets' manifests and create the task, if none are given. StepError for invalid settings."""
    settings = given.step
    profiled_steps = parse_profile_steps(settings.profile_steps)
    data = data or read_training_data(settings)
    try:
        batch = divide_batch(settings.global_batch_size, settings.micro_batch_size, world_size)
    except ValueError as error:
        raise StepError(str(error)) from None
    engine_class.check(settings, batch)
    check_blocks(settings)
    chosen_task = chosen_task or choose_task(settings.task, given.task)
    origins = dict(given.origins)
    if settings.base_model is not None:
        chosen_task = chosen_task.starting_from(find_model(settings.base_model))
        origins["model_type"] = "--base-model"
    check_tuning(settings, chosen_task)
    task, *_ = [chosen_task.on(manifest) for manifest in data.manifests]
    check_validation(settings, task, data.first.splits)
    if settings.max_tokens is not None and task.tokens_per_sample is None:
        raise StepError(
            f"--max-tokens {settings.max_tokens}: samples of the task {settings.task} have no tokens; use --max-steps"
        )
    return CheckedRequest(
        settings,
        step_name,
        engine_class,
        data,
        batch,
        chosen_task,
        task,
        profiled_steps,
        UsedSettings(settings, chosen_task.settings, origins),
    )


def require_same_settings(request: CheckedRequest, world: World) -> None:
    """StepError, on every rank, names the settings that differ between ranks, with their values."""
    used = request.used
    files = {name: value for name, value in used.values().items() if isinstance(value, Path) and value.is_file()}
    # Of files the content counts, since paths may differ by node.
    contents = {name: file_sha256(file) for name, file in files.items()}
    own = {**used.values("identity", "numbers", "nothing"), **contents, "dataset": request.data.digest()}
    if len(set(world.gather(hashlib.sha256(repr(sorted(own.items())).encode()).hexdigest()))) == 1:
        return
    differing = differing_values(world.gather(own), ranks_in_words)
    raise StepError(f"ranks were started differently: {differing}; start all with the same command")
