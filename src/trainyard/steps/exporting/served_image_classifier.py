"""Loads an exported image classifier for MLflow.

This file travels with the model, so it imports nothing of Trainyard.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from transformers import AutoModelForImageClassification

_HALF_RANGE = 127.5
"""Pixels 0…255 become -1…1, as in training."""


class ImageClassifier:
    """Says what is in images."""

    def __init__(self, folder: str) -> None:
        found = AutoModelForImageClassification.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        self._model = found.float().eval()
        names = self._model.config.id2label
        self._labels = [names[number] for number in range(len(names))]

    def predict(self, images: npt.NDArray[np.uint8], params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Return a row per image of uint8 [images, channels, height, width].

        `label` is the most probable class, `probability` its probability; `probabilities` are of all classes, in order.
        """
        with torch.inference_mode():
            pixels = torch.from_numpy(np.array(images, dtype=np.uint8)).float() / _HALF_RANGE - 1
            probabilities = self._model(pixel_values=pixels).logits.float().softmax(dim=1)
        values, numbers = probabilities.max(dim=1)
        return pd.DataFrame(
            {
                "label": [self._labels[number] for number in numbers.tolist()],
                "probability": values.tolist(),
                "probabilities": probabilities.tolist(),
            }
        )


def _load_pyfunc(folder: str) -> ImageClassifier:
    """Return what MLflow serves."""
    return ImageClassifier(folder)
