"""Training images varied and mixed on the device, as 64 random bits of each sample say.

The bits are a pure function of seed, epoch and sample: a sample is varied alike at any world size and after any resume.
With which other one it is mixed depends on the micro-batch, and so on the world size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.nn import functional

_LARGEST_SHIFT = 1 / 8
"""A share of an image's side; at least one pixel."""
_BITS = 16
"""Random bits per decision, which is uniform to within 2^-16."""
_MIRROR_BIT = 2 * _BITS
_SMALLEST_AREA, _WIDEST_RATIO = 0.08, 4 / 3
"""Of a crop: Szegedy et al. 2014 (arXiv:1409.4842, section 6), the defaults of torchvision's RandomResizedCrop."""
_CROPPING, _MIXING = 1, 2
"""Which further bits of a sample a decision takes."""


def augment(images: torch.Tensor, draws: torch.Tensor, how: str) -> torch.Tensor:
    """Return images [samples, channels, height, width] varied in a way that the setting `augmentation` names.

    `draws` int64 [samples] holds 64 random bits for each. Shifts keep the images' type; crops return fp32.
    """
    is_mirrored = ((draws >> _MIRROR_BIT) & int(how.endswith("_flip"))).bool()  # left to right: half of them, or none
    return _WAYS[how.removesuffix("_flip")](images, draws, is_mirrored)


def _shift(images: torch.Tensor, draws: torch.Tensor, is_mirrored: torch.Tensor) -> torch.Tensor:
    """Shift by up to an eighth. Shifted-in pixels repeat the image's edge."""
    samples, channels, height, width = images.shape
    rows = _shifted(height, draws)
    columns = _shifted(width, draws >> _BITS)
    columns = torch.where(is_mirrored[:, None], columns.flip(1), columns)
    sample = torch.arange(samples, device=images.device)[:, None, None, None]
    channel = torch.arange(channels, device=images.device)[None, :, None, None]
    return images[sample, channel, rows[:, None, :, None], columns[:, None, None, :]]


def _shifted(side: int, draws: torch.Tensor) -> torch.Tensor:
    """Return which row (or column) of the image each one of the result shows: int64 [samples, side]."""
    largest = max(1, round(side * _LARGEST_SHIFT))
    shift = ((draws & ((1 << _BITS) - 1)) * (2 * largest + 1) >> _BITS) - largest
    return (torch.arange(side, device=draws.device) + shift[:, None]).clamp(0, side - 1)


def _crop(images: torch.Tensor, draws: torch.Tensor, is_mirrored: torch.Tensor) -> torch.Tensor:
    """Cut out a rectangle of 8 to 100 % of the area, anywhere, and enlarge it to the image's size, bilinearly."""
    height, width = images.shape[2:]
    area, ratio, top, left = _uniform(draws, _CROPPING)
    area = _SMALLEST_AREA + (1 - _SMALLEST_AREA) * area
    ratio = torch.exp((2 * ratio - 1) * math.log(_WIDEST_RATIO))
    # Shares of the image's sides, in which a square image's ratio is that of pixels.
    pixels_ratio = ratio * height / width
    tall, wide = (area / pixels_ratio).sqrt().clamp(max=1.0), (area * pixels_ratio).sqrt().clamp(max=1.0)
    rows = _places(height, tall, top)
    columns = _places(width, torch.where(is_mirrored, -wide, wide), left, wide)
    grid = torch.stack(torch.broadcast_tensors(columns[:, None, :], rows[:, :, None]), dim=-1)
    return functional.grid_sample(images.float(), grid, padding_mode="border", align_corners=False)


def _places(side: int, scale: torch.Tensor, start: torch.Tensor, share: torch.Tensor | None = None) -> torch.Tensor:
    """Return where each row of the result lies in the image, [samples, side], from -1 to 1 as grid_sample counts.

    The rectangle has a share of the side, `scale` without its sign, and starts at a part of what is left of it.
    """
    share = scale if share is None else share
    middle = (2 * start - 1) * (1 - share)
    own = (2 * torch.arange(side, device=scale.device) + 1) / side - 1
    return middle[:, None] + scale[:, None] * own


_WAYS: Mapping[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "shift": _shift,
    "crop": _crop,
}


class Mixing:
    """Each image mixed with another of its micro-batch: blended (mixup, arXiv:1710.09412), or with a rectangle of it
    (CutMix, arXiv:1905.04899). Where both are on, half of the images take each."""

    def __init__(self, mixup_alpha: float, cutmix_alpha: float) -> None:
        self._alphas = (mixup_alpha, cutmix_alpha)
        self.is_on = any(self._alphas)

    def mix(self, images: torch.Tensor, draws: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mixed images in fp32, and the share of each that is its own: fp32 [samples]."""
        height, width = images.shape[2:]
        share, which, down, right = _uniform(draws, _MIXING)
        mixup, cutmix = self._alphas
        is_cut = which < (0.5 if mixup and cutmix else float(cutmix > 0))
        index = (share * (1 << _BITS)).long()
        blended, kept = (table.to(images.device)[index] for table in self._tables)
        side = (1 - kept).sqrt()
        is_cut_out = _between(height, down, side)[:, :, None] & _between(width, right, side)[:, None, :]
        own = torch.where(is_cut[:, None, None], (~is_cut_out).float(), blended[:, None, None])
        images = images.float()
        mixed = own[:, None] * images + (1 - own[:, None]) * partners_of(images)
        return mixed, own.mean(dim=(1, 2))

    @cached_property
    def _tables(self) -> list[torch.Tensor]:
        """Return 2^16 quantiles of Beta(alpha, alpha) for each of both; ones where it is off."""
        return [torch.from_numpy(_beta_quantiles(alpha)) for alpha in self._alphas]


def partners_of(values: torch.Tensor) -> torch.Tensor:
    """Return for each sample the value of the one that it is mixed with: the one before it in the micro-batch."""
    return values.roll(1, 0)


def _beta_quantiles(alpha: float) -> Any:
    """Return 2^16 values of Beta(alpha, alpha) in order, drawn with a fixed seed: float32."""
    if alpha == 0:
        return np.ones(1 << _BITS, dtype=np.float32)
    return np.sort(np.random.default_rng(0).beta(alpha, alpha, 1 << _BITS)).astype(np.float32)


def _between(side: int, centre: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """Return which rows (or columns) are in a stretch around a centre, cut off at the image's edge: [samples, side]."""
    places = (torch.arange(side, device=centre.device) + 0.5) / side
    return (places - centre[:, None]).abs() < share[:, None] / 2


def _uniform(draws: torch.Tensor, purpose: int) -> list[torch.Tensor]:
    """Return four numbers between 0 and 1 for each sample, fp32, from bits that belong to a purpose."""
    bits = _other_bits(draws, purpose)
    fields = ((bits >> (_BITS * place)) & ((1 << _BITS) - 1) for place in range(4))
    return [(field.float() + 0.5) / (1 << _BITS) for field in fields]


def _other_bits(draws: torch.Tensor, purpose: int) -> torch.Tensor:
    """Return 64 further bits for each sample: SplitMix64's finaliser (Steele et al. 2014, doi:10.1145/2714064.2660195).

    Sums and products of int64 wrap around, the same on every device.
    """
    mixed = draws + _signed(purpose * 0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ _shifted_right(mixed, shift)) * _signed(factor)
    return mixed ^ _shifted_right(mixed, 31)


def _shifted_right(values: torch.Tensor, places: int) -> torch.Tensor:
    """Shift without copies of the sign."""
    return (values >> places) & ((1 << (64 - places)) - 1)


def _signed(bits: int) -> int:
    return (bits & (2**64 - 1)) - (2**64 if bits & 2**63 else 0)
