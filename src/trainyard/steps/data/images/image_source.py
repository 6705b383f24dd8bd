"""What every image format returns, labels at once and images in blocks, and how its samples are split."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from trainyard.steps.data.sample_order import SampleOrder
from trainyard.steps.runtime.errors import StepError

Labels: TypeAlias = npt.NDArray[np.int64]
SampleIds: TypeAlias = npt.NDArray[np.int64]
Images: TypeAlias = npt.NDArray[np.uint8]
Blocks: TypeAlias = Iterator[tuple[Labels, Images]]
"""Labels and images [samples, channels, height, width] of some samples, in the order requested."""


@dataclass(frozen=True)
class ImagePart:
    """A part into which the source itself is divided (train, validation, test): all labels, and images by number."""

    labels: Labels
    read: Callable[[SampleIds], Blocks]


@dataclass(frozen=True)
class ImageSource:
    """Labelled images of one shape [channels, height, width] in one or more parts, which always include `train`."""

    classes: Sequence[str]
    image_shape: tuple[int, int, int]
    parts: Mapping[str, ImagePart]


def split_parts(
    source: ImageSource, validation_fraction: float, test_fraction: float, seed: int
) -> dict[str, tuple[ImagePart, SampleIds]]:
    """Return, for each split, the part of the source it comes from and the samples of that part, in the source's order.

    The source's own parts stay as they are; a split that it lacks is held out of its training part: the same share of
    every class, chosen by the seed alone.
    """
    train = source.parts["train"]
    remaining = np.arange(len(train.labels))
    splits = {name: (part, np.arange(len(part.labels))) for name, part in source.parts.items()}
    for name, fraction in (("test", test_fraction), ("validation", validation_fraction)):
        if name not in splits:
            held_out = _stratified_share(train.labels, remaining, fraction, seed)
            remaining = np.setdiff1d(remaining, held_out, assume_unique=True)
            splits[name] = (train, held_out)
    if not len(remaining):
        raise StepError(
            f"no image is left for training: {len(train.labels)} images, --test-fraction {test_fraction:g}, "
            f"--validation-fraction {validation_fraction:g}"
        )
    splits["train"] = (train, remaining)
    return {name: splits[name] for name in ("train", "validation", "test") if len(splits[name][1])}


def _stratified_share(labels: Labels, candidates: SampleIds, fraction: float, seed: int) -> SampleIds:
    """Return about `fraction` of the candidates of each class; none of a class with only one candidate."""
    chosen = []
    for label in np.unique(labels[candidates]):
        of_class = candidates[labels[candidates] == label]
        count = min(int(fraction * len(of_class) + 0.5), len(of_class) - 1)
        order = SampleOrder(len(of_class), seed, epoch=int(label))
        chosen.append(of_class[order.sample_ids(0, count)])
    return np.sort(np.concatenate(chosen))
