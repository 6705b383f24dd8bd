"""What every image format gives: labels at once, images in blocks, and the source's own parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Labels = npt.NDArray[np.int64]
Images = npt.NDArray[np.uint8]
Blocks = Iterator[tuple[Labels, Images]]
"""Labels and images [samples, channels, height, width] of some samples, in the order asked for."""

BLOCK_SAMPLES = 1024
"""How many samples are in memory at once, whatever the size of the source."""


@dataclass(frozen=True)
class ImagePart:
    """A part that the source itself makes (train, validation, test): all labels, and images by their number."""

    labels: Labels
    read: Callable[[npt.NDArray[np.int64]], Blocks]


@dataclass(frozen=True)
class ImageSource:
    """Labelled images of one shape [channels, height, width] in one or more parts, `train` always among them."""

    classes: Sequence[str]
    image_shape: tuple[int, int, int]
    parts: Mapping[str, ImagePart]


def part_in_memory(labels: Labels, images: Images) -> ImagePart:
    """A part whose images are one array, in memory or mapped from a file."""

    def read(sample_ids: npt.NDArray[np.int64]) -> Blocks:
        for start in range(0, len(sample_ids), BLOCK_SAMPLES):
            ids = sample_ids[start : start + BLOCK_SAMPLES]
            yield labels[ids], images[ids]

    return ImagePart(labels, read)
