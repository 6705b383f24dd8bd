"""What the loop asks of a strategy: steps, figures of a split, and the state that a checkpoint holds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from trainyard.settings.steps.train_tensorflow import TrainTensorFlow
from trainyard.settings.steps.training import LEAST_NORM
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.tensorflow.keras_models import Loss, ModelBuilder, optimizer_of
from trainyard.steps.training.tensorflow.keras_samples import KerasBatch, KerasSamples

State = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class StepFigures:
    """What a step came to, the same on every worker."""

    loss: float
    gradient_norm: float
    """Not finite if the step was skipped."""
    stop: bool
    """Whether any worker was asked to stop."""


@dataclass
class SplitSums:
    """Sums over samples of a split, exact for any number of workers."""

    loss: float = 0.0
    terms: float = 0.0
    correct: int = 0
    samples: int = 0
    confusion: npt.NDArray[np.int64] | None = None

    def add(self, batch: KerasBatch, losses: Any, predictions: Any) -> None:
        """Count a batch, of which only samples with a weight count."""
        weights, targets = np.asarray(batch.weights), np.asarray(batch.targets)
        self.loss += float(np.asarray(losses, dtype=np.float64).sum())
        self.terms += float(weights.astype(np.float64).sum())
        self.samples += len(batch.sample_ids)
        counts = weights > 0
        predicted, expected = np.asarray(predictions)[counts], targets[counts]
        self.correct += int((predicted == expected).sum())
        if self.confusion is not None:
            np.add.at(self.confusion, (expected, predicted), 1)

    def merge(self, other: Mapping[str, Any]) -> None:
        """Add the sums of another worker, as `document` returned them."""
        self.loss += other["loss"]
        self.terms += other["terms"]
        self.correct += other["correct"]
        self.samples += other["samples"]
        if self.confusion is not None:
            self.confusion += np.asarray(other["confusion"], dtype=np.int64)

    def document(self) -> dict[str, Any]:
        """Return the sums as JSON."""
        confusion = None if self.confusion is None else self.confusion.tolist()
        return {**vars(self), "confusion": confusion}

    def figures(self) -> dict[str, float]:
        """Return loss and accuracy, and for text the perplexity."""
        loss = self.loss / max(1.0, self.terms)
        figures = {"loss": loss, "accuracy": self.correct / max(1.0, self.terms)}
        return figures if self.confusion is not None else {**figures, "perplexity": float(np.exp(min(loss, 700.0)))}


class Trainer(ABC):
    """The model and its optimizer within a strategy."""

    model: keras.Model
    optimizer: Any

    def __init__(self, settings: TrainTensorFlow, strategy: Any, builder: ModelBuilder) -> None:
        self.settings, self.strategy = settings, strategy
        with strategy.scope():
            self.model = builder.build()
            self.optimizer, self.sets_own_rate = optimizer_of(self.model, settings)
            self.loss = Loss(self.model, settings.label_smoothing)

    @abstractmethod
    def take_step(self, batches: Sequence[KerasBatch], learning_rate: float, *, stop: bool) -> StepFigures:
        """Take one step over this process's micro-batches; `stop` is whether this process was asked to stop."""

    @abstractmethod
    def evaluate(self, samples: KerasSamples, sums: SplitSums) -> SplitSums:
        """Return the sums over every sample of a split, the same on every worker."""

    @abstractmethod
    def align(self) -> None:
        """Copy what is not trained, such as BatchNorm's means, from worker 0 to every worker."""

    def predict(self, inputs: Any, targets: Any, weights: Any) -> Any:
        """Return the weighted losses and the predicted classes of a batch, from each replica."""

        def in_replica(inputs: Any, targets: Any, weights: Any) -> Any:
            outputs = self.model(inputs, training=False)
            losses = self.loss.weighted(targets, outputs, weights, training=False)
            return losses, tf.argmax(outputs, axis=-1)

        return self.strategy.run(in_replica, args=(inputs, targets, weights))

    def clip(self, gradients: Sequence[Any]) -> tuple[list[Any], Any]:
        """Return the gradients clipped to the largest allowed norm, and the norm before."""
        norm = tf.linalg.global_norm(gradients)
        if self.settings.gradient_clip_norm == 0:
            return list(gradients), norm
        divisor = tf.maximum(1.0, (norm + LEAST_NORM) / self.settings.gradient_clip_norm)
        return [gradient / divisor for gradient in gradients], norm

    def learning_rate(self, planned: float) -> float:
        """Return the rate of the next step: the planned one, or what the optimizer of a compiled model sets itself."""
        return float(keras.ops.convert_to_numpy(self.optimizer.learning_rate)) if self.sets_own_rate else planned

    def apply(self, gradients: Sequence[Any], learning_rate: Any) -> None:
        """Let the optimizer take its step, in a replica."""
        if not self.sets_own_rate:
            self.optimizer.learning_rate.assign(learning_rate)
        self.optimizer.apply(gradients, self.model.trainable_variables)

    def state(self) -> State:
        """Return every variable of model and optimizer, seeds of dropout included, by a name that stays the same."""
        return {name: np.array(variable.numpy()) for name, variable in self._variables().items()}

    def restore(self, state: State, source: object) -> None:
        """Restore what `state` returned. StepError names a variable that does not fit."""
        variables = self._variables()
        if different := sorted(variables.keys() ^ state.keys()):
            raise StepError(f"{source} holds other variables than this model: {', '.join(different[:3])}")
        for name, variable in variables.items():
            if tuple(variable.shape) != state[name].shape:
                raise StepError(f"{source}: {name} has the shape {state[name].shape}; expected {tuple(variable.shape)}")
            variable.assign(state[name])

    def _variables(self) -> dict[str, Any]:
        groups = {"model": self.model.variables, "optimizer": self.optimizer.variables}
        return {
            f"{group}/{number:04d}/{variable.name}": variable
            for group, variables in groups.items()
            for number, variable in enumerate(variables)
        }
