"""Validation while training: when it is due, on which samples, which figure is better, and when to stop early.

What it must know of earlier validations is in `Progress`, and so in every checkpoint: a resumed training decides as an
uninterrupted one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from trainyard.settings.steps.training import Training
from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.samples.plan import Progress, Step
from trainyard.steps.training.tasks.task import Task

SPLIT = "validation"


@dataclass(frozen=True)
class Metric:
    """The figure of a validation by which models are compared."""

    name: str = "loss"
    best_is: Literal["lowest", "highest"] = "lowest"

    def value(self, figures: Mapping[str, float]) -> float:
        """Return this figure. StepError if it is not among them."""
        if self.name not in figures:
            known = ", ".join(figures)
            raise StepError(f"the validation has no figure {self.name} (--best-metric); it has {known}; choose another")
        return figures[self.name]

    def is_better(self, value: float, than: float | None, by: float = 0.0) -> bool:
        """Return whether a value is better than another by more than some amount. One that is not finite never is."""
        if not math.isfinite(value) or than is None:
            return math.isfinite(value)
        return (than - value if self.best_is == "lowest" else value - than) > by


class Validation:
    """The validations of one training. Every rank decides the same, because all have the same figures."""

    def __init__(self, settings: Training, task: Task, split: SplitReader | None) -> None:
        self.split = split
        self.metric = Metric(settings.best_metric, task.best_is[settings.best_metric])
        self._every_epochs, self._every_steps = settings.evaluate_every_epochs, settings.evaluate_every_steps
        self._most_samples = settings.evaluation_batches * settings.global_batch_size
        self._patience, self._minimum_change = settings.early_stop_patience, settings.early_stop_minimum_change

    @property
    def samples(self) -> int:
        """How many samples of the split are evaluated."""
        assert self.split is not None
        return min(self._most_samples or self.split.samples, self.split.samples)

    def is_due(self, step: Step) -> bool:
        """Return whether to validate after a step: at the epochs and steps of the settings, and at the very end."""
        ends_epochs = step.ends_epoch and self._every_epochs > 0 and step.epoch % self._every_epochs == 0
        ends_steps = self._every_steps > 0 and step.number % self._every_steps == 0
        return self.split is not None and (step.is_last or ends_epochs or ends_steps)

    def judged(self, progress: Progress, figures: Mapping[str, float]) -> Progress:
        """Return the progress with what the figures of its step mean for stopping early."""
        progress = replace(progress, validated_step=progress.step)
        if self._patience == 0:
            return progress
        value = self.metric.value(figures)
        if self.metric.is_better(value, progress.figure_to_beat, self._minimum_change):
            return replace(progress, figure_to_beat=value, idle_validations=0)
        return replace(progress, idle_validations=progress.idle_validations + 1)

    def ends(self, progress: Progress) -> bool:
        """Return whether the training is to end early."""
        return 0 < self._patience <= progress.idle_validations

    def why_it_ends(self, progress: Progress) -> str:
        """Return in words why the training ends early."""
        best = "was never finite" if progress.figure_to_beat is None else f"is {progress.figure_to_beat:.6g} at best"
        return (
            f"the training ends after step {progress.step}: the validation {self.metric.name} {best}, and has not "
            f"improved by more than {self._minimum_change:g} in {progress.idle_validations} evaluations "
            "(--early-stop-patience)"
        )


def check_validation(settings: Training, task: Task, splits: Collection[str]) -> None:
    """StepError for a metric that the task does not have, and for what needs validations where there are none."""
    if settings.best_metric not in task.best_is:
        raise StepError(
            f"--best-metric {settings.best_metric}: the task {settings.task} has {', '.join(task.best_is)}; choose one "
            "of them, or name it in best_is of your own task"
        )
    for name in ("keep_best_checkpoint", "early_stop_patience", "evaluate_every_steps", "evaluation_batches"):
        if getattr(settings, name) and SPLIT not in splits:
            raise StepError(
                f"--{name.replace('_', '-')} needs a validation split, which the dataset lacks; prepare it with one, "
                "or leave the setting out"
            )
    if settings.early_stop_patience and not (settings.evaluate_every_epochs or settings.evaluate_every_steps):
        raise StepError(
            "--early-stop-patience needs evaluations before the end; set --evaluate-every-epochs or "
            "--evaluate-every-steps"
        )
