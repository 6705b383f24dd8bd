"""The Keras model that is trained: one of the user's own, or a small convolutional network; its loss and optimizer;
and the SavedModel that it is exported as."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainyard.settings.steps.tasks import HALF_RANGE
from trainyard.settings.steps.train_tensorflow import TrainTensorFlow
from trainyard.steps.data.dataset.manifest import Manifest
from trainyard.steps.runtime.errors import SetupError, StepError
from trainyard.steps.runtime.files import empty_folder, write_json
from trainyard.steps.runtime.imports import arguments_from_json, call_named, import_named

_CHANNELS = (32, 64)
CLASSES_FILE = "classes.json"
_TOLERANCE = 1e-4
"""TensorFlow fuses layers of a SavedModel, which changes the last digits."""


class ModelBuilder:
    """Builds the model that the settings name, a new one at each call. SetupError if its function does not exist."""

    def __init__(self, settings: TrainTensorFlow, manifest: Manifest) -> None:
        self._settings, self._manifest = settings, manifest
        if settings.keras_model_arguments is not None and settings.keras_model is None:
            raise SetupError("--keras-model-arguments is given without --keras-model, whose arguments they are")
        self._arguments = arguments_from_json("--keras-model-arguments", settings.keras_model_arguments)
        self._function = None if settings.keras_model is None else _function(settings.keras_model)
        if self._function is None and "images" not in manifest.arrays:
            raise SetupError("there is no built-in model for text, which this dataset is; give --keras-model")

    def build(self) -> keras.Model:
        """Return a new model, its weights drawn from Keras's seed."""
        if self._function is None:
            return _small_network(self._manifest)
        name = self._settings.keras_model
        model = call_named("--keras-model", name, self._function, self._arguments)
        if not isinstance(model, keras.Model):
            raise StepError(f"--keras-model {name} returned {type(model).__name__}; expected a keras.Model")
        if not model.built:
            raise StepError(
                f"--keras-model {name} returned a model without weights yet; give it a keras.Input, or call "
                "model.build(…) before returning it"
            )
        _require_outputs(f"--keras-model {name}", model, self._manifest)
        return model


def optimizer_of(model: keras.Model, settings: TrainTensorFlow) -> tuple[Any, bool]:
    """Return the optimizer, with its state, and whether it is the model's own: then so is its learning rate."""
    own = model.optimizer if getattr(model, "compiled", False) else None
    if own is not None:
        own.build(model.trainable_variables)
        return own, True
    optimizer = keras.optimizers.AdamW(
        learning_rate=settings.learning_rate, weight_decay=settings.weight_decay, beta_2=0.999, epsilon=1e-8
    )
    # On matrices and convolutions only, as in the other steps.
    optimizer.exclude_from_weight_decay(var_list=[v for v in model.trainable_variables if len(v.shape) < 2])
    optimizer.build(model.trainable_variables)
    return optimizer, False


class Loss:
    """A loss with one term per weight of a batch: per sample, or per token."""

    def __init__(self, model: keras.Model, label_smoothing: float) -> None:
        own = model.loss if getattr(model, "compiled", False) else None
        self._own = None if own is None else keras.losses.get(own)
        self._label_smoothing = label_smoothing

    def terms(self, targets: Any, outputs: Any, *, training: bool) -> Any:
        """Return the loss of each sample or token. Without a loss of the model's own, outputs are logits."""
        if self._own is not None:
            call = self._own.call if isinstance(self._own, keras.losses.Loss) else self._own
            return call(targets, outputs)
        logits = tf.cast(outputs, tf.float32)
        if not training or self._label_smoothing == 0:
            return tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
        classes = logits.shape[-1]
        spread = self._label_smoothing / classes
        labels = tf.one_hot(targets, classes, 1.0 - self._label_smoothing + spread, spread)
        return tf.nn.softmax_cross_entropy_with_logits(labels, logits)

    def weighted(self, targets: Any, outputs: Any, weights: Any, *, training: bool) -> Any:
        """Return the weighted terms, float32, in the shape of the weights."""
        terms = tf.cast(self.terms(targets, outputs, training=training), tf.float32)
        extra = list(range(len(weights.shape), len(terms.shape)))
        return (tf.reduce_mean(terms, extra) if extra else terms) * weights


def write_saved_model(
    folder: Path, model: keras.Model, state: Mapping[str, Any], manifest: Manifest, inputs: Any
) -> float:
    """Give a newly built model the trained variables, and write it. Return how far outputs differ when loaded again.

    `model` was built outside any strategy, so that nothing of one is in the SavedModel. StepError if it does
    not compute what the model computes.
    """
    trained = [array for name, array in state.items() if name.startswith("model/")]
    for variable, array in zip(model.variables, trained, strict=True):
        variable.assign(array)
    empty_folder(folder)
    model.export(str(folder), verbose=False)
    if manifest.classes:
        write_json(folder / CLASSES_FILE, list(manifest.classes))
    expected = _outputs(model(inputs, training=False))
    loaded = tf.saved_model.load(str(folder))  # its variables live as long as this
    found = _outputs(loaded.serve(inputs))
    largest = max(float(np.abs(e - f).max() / max(1.0, np.abs(e).max())) for e, f in zip(expected, found, strict=True))
    if not largest <= _TOLERANCE:
        raise StepError(
            f"the SavedModel in {folder}, loaded again, does not compute what the model computes: outputs differ by "
            f"{largest:.2g}"
        )
    return largest


def _outputs(value: Any) -> list[Any]:
    return [np.asarray(each, dtype=np.float64) for each in tf.nest.flatten(value)]


def _small_network(manifest: Manifest) -> keras.Model:
    channels, height, width = manifest.arrays["images"].shape
    layers = keras.layers
    inputs = keras.Input((height, width, channels), dtype="uint8", name="images")
    x = layers.Rescaling(1 / HALF_RANGE, offset=-1.0)(inputs)
    for filters in _CHANNELS:
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        if min(x.shape[1:3]) > 2:
            x = layers.MaxPooling2D()(x)
    x = layers.Dense(128, activation="relu")(layers.Flatten()(x))
    # Logits in fp32, also where the layers compute in bf16.
    return keras.Model(inputs, layers.Dense(len(manifest.classes), dtype="float32", name="logits")(x))


def _function(path: str) -> Any:
    found = import_named("--keras-model", path, "function")
    if not callable(found):
        raise SetupError(f"--keras-model {path}: {type(found).__name__} is not a function that returns a keras.Model")
    return found


def _require_outputs(named: str, model: keras.Model, manifest: Manifest) -> None:
    """StepError unless the model returns one number per class: what evaluation takes the largest of."""
    if "images" in manifest.arrays:
        channels, height, width = manifest.arrays["images"].shape
        inputs = keras.KerasTensor((None, height, width, channels), "uint8")
        expected: tuple[int | None, ...] = (None, len(manifest.classes))
        of_what = f"one number for each of the {len(manifest.classes)} classes"
    else:
        assert manifest.text is not None
        (tokens,) = manifest.arrays["tokens"].shape
        inputs = keras.KerasTensor((None, tokens - 1), "int32")
        expected = (None, tokens - 1, manifest.text.vocabulary_size)
        of_what = f"for each token one number for each of the {manifest.text.vocabulary_size} entries of the vocabulary"
    found = getattr(model.compute_output_spec(inputs), "shape", None)
    if (
        found is None
        or len(found) != len(expected)
        or any(a not in (b, None) for a, b in zip(found, expected, strict=True))
    ):
        raise StepError(
            f"{named} returns outputs of the shape {found}; expected {expected}, {of_what}: end the model with "
            f"Dense({expected[-1]})"
        )
