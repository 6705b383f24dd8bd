"""A few wrongly classified images: those that the model was most sure of, as pictures with both classes."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.runtime.files import write_json
from trainyard.steps.runtime.imports import from_extra, require_packages
from trainyard.steps.training.precision import Precision
from trainyard.steps.training.samples.batches import as_tensors, to_device
from trainyard.steps.training.tasks.task import Task

_MOST_MISTAKES = 24
_LARGEST_SIDE = 96
_LEAST_SAMPLES_SEARCHED, _SHARE_SEARCHED = 1024, 0.1
_PICTURE_MODES = {1: "L", 3: "RGB"}


@dataclass(frozen=True)
class Misclassified:
    """A sample, its true and its predicted class by number, and the probability that the model gave the latter."""

    sample: int
    true: int
    predicted: int
    probability: float


@dataclass(frozen=True)
class Mistakes:
    """The surest mistakes, at most 24, of all `found` among the first `searched` samples of a split."""

    surest: tuple[Misclassified, ...]
    found: int
    searched: int


@torch.no_grad()
def find_mistakes(
    task: Task,
    model: torch.nn.Module,
    split: SplitReader,
    precision: Precision,
    micro_batch_size: int,
    device: torch.device,
) -> Mistakes | None:
    """Return the mistakes, the surest first, in the split's first tenth, or its first 1,024 samples if they are more.

    A second look at a part costs less than keeping the predictions of all. None for a task without classes, and for
    what is not pictures.
    """
    manifest = task.manifest
    if manifest.content != "labelled_images" or manifest.arrays["images"].dtype != "uint8":
        return None
    searched = min(split.samples, max(_LEAST_SAMPLES_SEARCHED, int(split.samples * _SHARE_SEARCHED)))
    found: list[Misclassified] = []
    model.eval()
    for first in range(0, searched, micro_batch_size):
        sample_ids = np.arange(first, min(first + micro_batch_size, searched))
        batch = split.gather(sample_ids)
        with precision.autocast():
            probabilities = task.class_probabilities(model, to_device(as_tensors(batch, pin=False), device))
        if probabilities is None:
            return None
        surest, predicted = (each.cpu().numpy() for each in probabilities.float().max(dim=1))
        for place in np.flatnonzero(batch["labels"] != predicted):
            classes = int(batch["labels"][place]), int(predicted[place])
            found.append(Misclassified(first + int(place), *classes, round(float(surest[place]), 4)))
    found.sort(key=lambda mistake: (-mistake.probability, mistake.sample))
    return Mistakes(tuple(found[:_MOST_MISTAKES]), len(found), searched)


def write_mistakes(folder: Path, split: SplitReader, mistakes: Mistakes, classes: Sequence[str]) -> None:
    """Write mistakes.json, and a PNG of each of the surest mistakes in `mistakes/`, with sides of at most 96 pixels.

    Raise SetupError when Pillow is missing.
    """
    shutil.rmtree(folder / "mistakes", ignore_errors=True)
    (folder / "mistakes").mkdir()
    images = split.gather(np.array([mistake.sample for mistake in mistakes.surest], dtype=np.int64))["images"]
    listed = []
    for mistake, image in zip(mistakes.surest, images, strict=True):
        file = f"mistakes/{mistake.sample}.png"
        _draw(image, folder / file)
        names = {"true": classes[mistake.true], "predicted": classes[mistake.predicted]}
        listed.append({**asdict(mistake), **names, "file": file})
    document = {"format": "trainyard.mistakes/1", "searched": mistakes.searched, "found": mistakes.found}
    write_json(folder / "mistakes.json", {**document, "samples": listed})


def _draw(image: npt.NDArray[np.uint8], file: Path) -> None:
    """Write pixels [channels, height, width] as a PNG; of other than one or three channels only the first."""
    require_packages("drawing wrongly classified images", from_extra("train"), "PIL.Image")
    from PIL import Image

    pixels = image if len(image) in _PICTURE_MODES else image[:1]
    picture = Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0).squeeze()))
    picture.thumbnail((_LARGEST_SIDE, _LARGEST_SIDE))
    picture.save(file)
