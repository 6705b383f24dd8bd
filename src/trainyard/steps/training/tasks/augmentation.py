"""Training images varied on the device: shifted and mirrored, all of a batch in one gather.

Each sample's variation comes from random bits that the loader gives it, a pure function of seed, epoch and sample. So a
training that resumes, also at another world size, varies each sample as it would have been.
"""

from __future__ import annotations

import torch

_LARGEST_SHIFT = 1 / 8
"""Of an image's side; at least one pixel."""
_BITS = 16
"""Random bits per decision; between them and 2^-16 lies how far from uniform it is."""


def augment(images: torch.Tensor, draws: torch.Tensor, *, flip: bool) -> torch.Tensor:
    """Images [samples, channels, height, width] shifted by up to an eighth and, with `flip`, every second one mirrored.

    `draws` int64 [samples] holds 64 random bits for each. What is shifted in repeats the image's edge.
    """
    samples, channels, height, width = images.shape
    rows = _shifted(height, draws)
    columns = _shifted(width, draws >> _BITS)
    if flip:
        is_mirrored = ((draws >> (2 * _BITS)) & 1).bool()
        columns = torch.where(is_mirrored[:, None], columns.flip(1), columns)
    sample = torch.arange(samples, device=images.device)[:, None, None, None]
    channel = torch.arange(channels, device=images.device)[None, :, None, None]
    return images[sample, channel, rows[:, None, :, None], columns[:, None, None, :]]


def _shifted(side: int, draws: torch.Tensor) -> torch.Tensor:
    """Which row (or column) of the image each one of the result shows: int64 [samples, side]."""
    largest = max(1, round(side * _LARGEST_SHIFT))
    shift = ((draws & ((1 << _BITS) - 1)) * (2 * largest + 1) >> _BITS) - largest
    return (torch.arange(side, device=draws.device) + shift[:, None]).clamp(0, side - 1)
