"""The handwritten digits that scikit-learn ships: 1,797 real images of 8×8 pixels, so that the first run needs no data.

They are the test set of UCI's "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak, 1998), whose pixels
count from 0 to 16.
"""

from __future__ import annotations

import numpy as np

from trainyard.foundation.configs.prepare_images import PrepareImages
from trainyard.steps.data.images.source import ImageSource, part_in_memory
from trainyard.steps.runtime.errors import StepError

_DARKEST = 16


def open_source(settings: PrepareImages) -> ImageSource:
    """The digits as bytes: their 17 levels spread over 0 to 255."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as failure:
        raise StepError(f"--format digits reads the digits that scikit-learn ships: {failure}") from None
    digits = load_digits()
    images = np.rint(digits.images * (255 / _DARKEST)).astype(np.uint8)[:, None]
    part = part_in_memory(digits.target.astype(np.int64), images)
    return ImageSource([str(name) for name in digits.target_names], (1, 8, 8), {"train": part})
