"""What a training trains on: one dataset, or several that fit together, mixed by weight; and how
many samples of it have a number of tokens."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from trainyard.settings.steps.training import Training
from trainyard.settings.written_settings import read_weights
from trainyard.steps.data.dataset.local_copies import LocalCopies, default_folder
from trainyard.steps.data.dataset.manifest import Manifest, read_manifest
from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.data.dataset.shards import Shard, verify_dataset
from trainyard.steps.data.mixture import Mixture, contributions_of
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.world import World
from trainyard.steps.training.samples.batches import Batches, Tensors, TrainingBatches, as_tensors
from trainyard.steps.training.samples.plan import TrainingPlan, even_part

TokensOfSamples = npt.NDArray[np.int32] | int
"""By stored sample; a single number where all have as many."""
_ROWS_AT_ONCE, _IDS_AT_ONCE = 1 << 10, 1 << 20


@dataclass(frozen=True)
class TrainingData:
    """The datasets of a training, in the order of its settings. The first decides the task's model, and validates."""

    manifests: tuple[Manifest, ...]
    weights: tuple[Fraction, ...]
    """One for each dataset; of a single dataset without meaning."""

    @property
    def first(self) -> Manifest:
        """The manifest of `data`."""
        return self.manifests[0]

    def digest(self) -> str:
        """Return a SHA-256 of what identifies the samples and, where there are several datasets, their shares."""
        if len(self.manifests) == 1:
            return self.first.digest()
        parts = (*(manifest.digest() for manifest in self.manifests), *map(str, self.contributions()))
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()

    def contributions(self) -> list[int]:
        """Return how many samples of an epoch come from each dataset."""
        return contributions_of(self.weights, sum(manifest.splits["train"].samples for manifest in self.manifests))

    def training_split(self, settings: Training, world: World, opened: ExitStack) -> SplitReader | Mixture:
        """Return the samples to train on, read as the settings say. What has to be closed is put on `opened`."""
        copy_of = self._copies(settings, world, opened)
        splits = [SplitReader(_folder(manifest), manifest, "train", copy_of) for manifest in self.manifests]
        return splits[0] if len(splits) == 1 else Mixture(splits, self.weights)

    def _copies(self, settings: Training, world: World, opened: ExitStack) -> Callable[[Shard], Path | None] | None:
        """Return what says where the copy of a shard is; None to read the datasets through memory maps.

        What is read most often per stored sample is copied first, as all may not fit.
        """
        if settings.data_cache_mb == 0:
            return None if settings.read_threads == 1 else lambda shard: None
        reads_of_sample = [
            contribution / manifest.splits["train"].samples
            for manifest, contribution in zip(self.manifests, self.contributions(), strict=True)
        ]
        most_read_first = sorted(range(len(self.manifests)), key=lambda number: -reads_of_sample[number])
        copies = LocalCopies(
            {_folder(self.manifests[n]): self.manifests[n].splits["train"].shards for n in most_read_first},
            default_folder(),
            settings.data_cache_mb * 1_000_000,
            threads=settings.read_threads,
            copier=world.local_rank,
            copiers=world.variables.processes_per_node,
        )
        opened.callback(copies.close)
        return copies.copy_of

    def ready(self, world: World, how: str, while_waiting: Callable[[], None]) -> TrainingData:
        """Return the data as it can be read, once the files of every dataset are checked as `verify_dataset` does."""
        for manifest in self.manifests:
            verify_dataset(_folder(manifest), manifest.shards(), world, how)
        return self

    def batches(
        self,
        split: SplitReader | Mixture,
        plan: TrainingPlan,
        settings: Training,
        world: World,
        steps_done: int,
        **how: Any,
    ) -> Batches:
        """Return the steps that are left, of what `training_split` returned: `how` is what `TrainingBatches` takes."""
        parts = (split, plan, settings.seed, world.rank, steps_done, world.device)
        return TrainingBatches(*parts, threads=settings.read_threads, **how)

    def __str__(self) -> str:
        """What a log says of a mixture."""
        parts = [
            f"{contribution} samples from {_folder(manifest)} (which has {manifest.splits['train'].samples})"
            for manifest, contribution in zip(self.manifests, self.contributions(), strict=True)
        ]
        return f"each epoch takes {', '.join(parts)}"


def read_training_data(settings: Training) -> TrainingData:
    """Read the manifests. StepError for datasets that do not fit together, and for invalid weights."""
    others = [folder for folder in (settings.data_2, settings.data_3, settings.data_4) if folder is not None]
    manifests = tuple(read_manifest(folder) for folder in (settings.data, *others))
    for manifest in manifests:
        if "train" not in manifest.splits:
            raise StepError(
                f"the dataset in {manifest.folder} has no split 'train'; it has {', '.join(manifest.splits)}"
            )
    for other in manifests[1:]:
        _require_alike(manifests[0], other)
    weights = tuple(Fraction(manifest.splits["train"].samples) for manifest in manifests)
    if settings.data_weights is not None:
        try:
            weights = read_weights(settings.data_weights, len(manifests))
        except ValueError as error:
            raise StepError(f"--data-weights {error}") from None
    data = TrainingData(manifests, weights)
    for manifest, contribution in zip(manifests, data.contributions(), strict=True):
        if contribution == 0:
            raise StepError(
                f"--data-weights {settings.data_weights}: not one sample of an epoch would come from "
                f"{manifest.folder}; raise its weight, or leave it out"
            )
    return data


def _require_alike(first: Manifest, other: Manifest) -> None:
    """StepError names what keeps two datasets from being one."""

    def refuse(what: str, hint: str) -> None:
        raise StepError(f"{other.folder} cannot be mixed with {first.folder}: {what}; {hint}")

    if other.content != first.content:
        refuse(f"it holds {other.content}, the other {first.content}", "mix datasets of one kind")
    if first.text is not None and other.text is not None:
        named = ("tokenizer_sha256", "vocabulary_size", "end_of_text", "padding")
        if any(getattr(first.text, name) != getattr(other.text, name) for name in named):
            refuse("it has another vocabulary", f"prepare it with the tokenizer in {first.folder}")
    if other.classes != first.classes:
        refuse("it has other classes", "prepare both from the same folders of classes")
    for name in sorted({*first.arrays, *other.arrays}):
        if first.arrays.get(name) != other.arrays.get(name):
            found, expected = (
                f"{array.dtype} {list(array.shape)}" if (array := manifest.arrays.get(name)) else "missing"
                for manifest in (other, first)
            )
            refuse(f"its array {name} is {found}, the other's {expected}", "prepare both with the same settings")


def _folder(manifest: Manifest) -> Path:
    assert manifest.folder is not None
    return manifest.folder


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
