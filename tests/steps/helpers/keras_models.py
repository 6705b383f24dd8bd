"""Keras models as a team brings them."""

from __future__ import annotations

import keras


def with_dropout(hidden_size: int = 64) -> keras.Model:
    """Dropout and BatchNormalization: both have state besides the weights."""
    inputs = keras.Input((8, 8, 1))
    x = keras.layers.Rescaling(1 / 16)(inputs)
    x = keras.layers.Conv2D(16, 3, activation="relu")(x)
    x = keras.layers.BatchNormalization()(x)
    x = keras.layers.Flatten()(x)
    x = keras.layers.Dropout(0.2)(keras.layers.Dense(hidden_size, activation="relu")(x))
    return keras.Model(inputs, keras.layers.Dense(10)(x))


def compiled() -> keras.Model:
    """A model with its own optimizer and loss, and probabilities as outputs."""
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Flatten(),
            keras.layers.Rescaling(1 / 16),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(optimizer=keras.optimizers.SGD(0.5), loss="sparse_categorical_crossentropy")
    return model


def one_output() -> keras.Model:
    """A probability, as for two classes."""
    inputs = keras.Input((8, 8, 1))
    return keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(keras.layers.Flatten()(inputs)))


def not_a_model() -> str:
    """Not a Keras model."""
    return "a model"
