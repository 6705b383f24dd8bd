"""A prepared dataset as TensorFlow takes it: arrays for Keras, and a tf.data source in the order of all train steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from trainyard.steps.data.dataset.manifest import Manifest
from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.data.sample_order import Ids, SampleOrder
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.samples.plan import TrainingPlan, even_part

Array = npt.NDArray[Any]

_BATCHES_AHEAD = 4


class KerasBatch(NamedTuple):
    """One micro-batch, always of the same size: what is missing is filled with samples of weight 0."""

    inputs: Any
    targets: Any
    weights: Any
    """float32, in the shape of the loss: one per sample, or one per token."""
    sample_ids: Ids
    """Without the filling."""

    @property
    def is_stand_in(self) -> bool:
        """Whether no sample counts."""
        return len(self.sample_ids) == 0


class KerasSamples:
    """One split for a Keras model.

    Images become uint8 [samples, height, width, channels] with their labels, as Keras lays them out; text becomes
    tokens int32 [samples, length] with the tokens that follow.
    """

    def __init__(self, split: SplitReader, manifest: Manifest, batch_size: int) -> None:
        self.samples = split.samples
        self.wait_seconds = 0.0
        """How long the training has waited for samples in total."""
        self._split, self._manifest, self._batch_size = split, manifest, batch_size
        if not {"images", "labels"} <= manifest.arrays.keys() and "tokens" not in manifest.arrays:
            raise StepError(
                f"train_tensorflow reads images with labels, or tokens; this dataset has {', '.join(manifest.arrays)}"
            )

    def batch(self, sample_ids: Ids, *, is_stand_in: bool = False) -> KerasBatch:
        """Return at most `batch_size` samples, filled up to that number with the same ones again.

        With weight 0 they do not count, but BatchNormalization's statistics see them: they are of the same kind. All of
        a stand-in are filling.
        """
        arrays = self._split.gather(np.resize(sample_ids, self._batch_size))
        if is_stand_in:
            sample_ids = sample_ids[:0]
        if "images" in arrays:
            inputs, targets = np.moveaxis(arrays["images"], 1, 3), arrays["labels"]
            weights = np.ones(len(targets), dtype=np.float32)
        else:
            tokens = arrays["tokens"].astype(np.int64)
            inputs, targets = tokens[:, :-1].astype(np.int32), tokens[:, 1:]
            assert self._manifest.text is not None
            weights = (targets != self._manifest.text.padding).astype(np.float32)
            targets = np.where(weights > 0, targets, 0)
        weights[len(sample_ids) :] = 0.0
        return KerasBatch(np.ascontiguousarray(inputs), targets.astype(np.int32), weights, sample_ids)

    def planned(self, plan: TrainingPlan, seed: int, ranks: Sequence[int], steps_done: int) -> Iterator[KerasBatch]:
        """Yield the micro-batches of the steps that are left, as tensors: of each step those of `ranks` in turn.

        The samples and their order are those that the other train steps give these ranks.
        """

        def batches() -> Iterator[KerasBatch]:
            for number in range(steps_done + 1, plan.total_steps + 1):
                step = plan.step(number)
                order = SampleOrder(self.samples, seed, step.epoch)
                for rank in ranks:
                    for each in plan.micro_batches(step, rank):
                        sample_ids = order.sample_ids(each.start, each.stop)
                        yield self.batch(sample_ids, is_stand_in=each.is_stand_in)

        return self._as_dataset(batches)

    def whole_split(self, rank: int, ranks: int) -> Iterator[KerasBatch]:
        """Yield a rank's part of the split, in batches of tensors. Over all ranks, each sample comes once."""
        start, stop = even_part(self.samples, rank, ranks)

        def batches() -> Iterator[KerasBatch]:
            for first in range(start, stop, self._batch_size):
                yield self.batch(np.arange(first, min(first + self._batch_size, stop), dtype=np.int64))

        return self._as_dataset(batches)

    def _as_dataset(self, batches: Callable[[], Iterator[KerasBatch]]) -> Iterator[KerasBatch]:
        example = self.batch(np.zeros(1, dtype=np.int64))
        signature = tuple(tf.TensorSpec(array.shape, array.dtype) for array in example[:3])
        signature += (tf.TensorSpec((None,), tf.int64),)
        dataset = tf.data.Dataset.from_generator(lambda: map(tuple, batches()), output_signature=signature)
        taken = iter(dataset.prefetch(_BATCHES_AHEAD))
        while True:
            asked = time.perf_counter()
            arrays = next(taken, None)
            self.wait_seconds += time.perf_counter() - asked
            if arrays is None:
                return
            inputs, targets, weights, sample_ids = arrays
            yield KerasBatch(inputs, targets, weights, sample_ids.numpy())
