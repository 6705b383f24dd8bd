"""Labelled images: one module per format, each returning an `ImageSource`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from trainyard.settings.steps.preparation import PrepareImages
from trainyard.steps.data.images import image_folder, image_table
from trainyard.steps.data.images.image_source import ImagePart, ImageSource
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.files import require_folder
from trainyard.steps.runtime.imports import from_extra, require_packages

_DARKEST_DIGIT_PIXEL = 16


def open_source(settings: PrepareImages) -> ImageSource:
    """Return the images that the settings name. Raise StepError when they are missing or invalid."""
    if settings.format != "digits":
        if settings.source is None:
            raise StepError(f"--format {settings.format} needs --source, the folder that holds the images")
        require_folder("--source", settings.source)
    elif settings.source is not None:
        others = ", ".join(name for name in _FORMATS if name != "digits")
        raise StepError(f"--format digits reads no --source, but it is {settings.source}; say what it holds: {others}")
    return _FORMATS[settings.format](settings)


def _open_digits(_: PrepareImages) -> ImageSource:
    """Return scikit-learn's handwritten digits: 1,797 images of 8×8 pixels, so that the first run needs no data.

    They are the test set of UCI's "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak, 1998), whose pixels
    go from 0 to 16; here these 17 levels are spread over 0 to 255.
    """
    require_packages("--format digits", from_extra("train"), "sklearn.datasets")
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.rint(digits.images * (255 / _DARKEST_DIGIT_PIXEL)).astype(np.uint8)[:, None]
    labels = digits.target.astype(np.int64)
    part = ImagePart(labels, lambda sample_ids: iter([(labels[sample_ids], images[sample_ids])]))
    return ImageSource([str(name) for name in digits.target_names], (1, 8, 8), {"train": part})


_FORMATS: Mapping[str, Callable[[PrepareImages], ImageSource]] = {
    "digits": _open_digits,
    "folder": image_folder.open_source,
    "table": image_table.open_source,
}
"""How each `--format` is opened. Packages that only one format needs are imported when it is opened."""
