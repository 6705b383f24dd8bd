"""Which samples train, which validate, which test: the same share of every class, decided by the seed alone."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from trainyard.steps.data.images.source import ImagePart, ImageSource, Labels
from trainyard.steps.data.sample_order.order import SampleOrder
from trainyard.steps.runtime.errors import StepError

SampleIds: TypeAlias = npt.NDArray[np.int64]


def split_parts(
    source: ImageSource, validation_fraction: float, test_fraction: float, seed: int
) -> dict[str, tuple[ImagePart, SampleIds]]:
    """For each split, the part of the source it comes from and the samples of that part, in the source's order.

    Parts that the source makes itself stay as they are; what it does not have is held out of its training part.
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
    """About `fraction` of the candidates of each class; of a class's only candidate, none."""
    chosen = []
    for label in np.unique(labels[candidates]):
        of_class = candidates[labels[candidates] == label]
        count = min(int(fraction * len(of_class) + 0.5), len(of_class) - 1)
        order = SampleOrder(len(of_class), seed, epoch=int(label))
        chosen.append(of_class[order.sample_ids(0, count)])
    return np.sort(np.concatenate(chosen))
