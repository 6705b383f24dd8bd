"""After how many samples a training has read as many tokens as its settings allow."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.data.mixture import Mixture
from trainyard.steps.runtime.world import World
from trainyard.steps.training.samples.batches import Tensors, as_tensors
from trainyard.steps.training.samples.plan import even_part

TokensOfSamples = npt.NDArray[np.int32] | int
"""By stored sample; a single number where all have as many."""
_ROWS_AT_ONCE, _IDS_AT_ONCE = 1 << 10, 1 << 20


def count_tokens(
    split: SplitReader | Mixture,
    tokens_of: Callable[[Tensors], torch.Tensor],
    world: World,
    still_at_work: Callable[[], None],
) -> TokensOfSamples:
    """Return the number of tokens of each stored sample. Each rank counts a part; every rank calls this."""
    counts = torch.zeros(split.stored_samples, dtype=torch.int32)
    start, stop = even_part(split.stored_samples, world.rank, world.size)
    for first in range(start, stop, _ROWS_AT_ONCE):
        still_at_work()
        last = min(first + _ROWS_AT_ONCE, stop)
        counts[first:last] = tokens_of(as_tensors(split.gather(np.arange(first, last)), pin=False))
    counted: TokensOfSamples = world.sum(counts).numpy()
    return counted


def samples_with_tokens(
    split: SplitReader | Mixture, counts: TokensOfSamples, seed: int, epochs: int, tokens: int
) -> int:
    """Return how many samples, in the order of the training, have so many tokens; all of its epochs' at most.

    It follows from the dataset and the seed, so that every attempt ends at the same step.
    """
    if isinstance(counts, int):
        return math.ceil(tokens / counts)
    taken = 0
    for epoch in range(1, epochs + 1):
        order = split.order(seed, epoch)
        for start in range(0, split.samples, _IDS_AT_ONCE):
            positions = np.arange(start, min(start + _IDS_AT_ONCE, split.samples))
            read = counts[order.sample_ids_at(positions) % split.stored_samples].cumsum(dtype=np.int64)
            if read[-1] >= tokens:
                return taken + int(read.searchsorted(tokens)) + 1
            tokens, taken = tokens - int(read[-1]), taken + len(positions)
    return taken
