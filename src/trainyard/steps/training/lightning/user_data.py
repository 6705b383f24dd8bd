"""A user's own LightningDataModule in place of a prepared dataset: its samples, in the order of all train steps.

What a sample draws at random follows from the seed, the epoch and the sample, as in the other train steps. So neither
the number of ranks, nor that of worker processes, nor a resume changes what a sample looks like.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import random
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler

from trainyard.settings.step_fields import flag_of
from trainyard.settings.steps.training import IGNORED_WITH_DATA_MODULE, Training, TrainLightning
from trainyard.steps.data.dataset.manifest import Manifest, Split
from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.data.mixture import Mixture
from trainyard.steps.data.sample_order import Ids, SampleOrder
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.imports import arguments_from_json, call_named
from trainyard.steps.runtime.world import World
from trainyard.steps.training.lightning.user_module import lightning_class
from trainyard.steps.training.samples.batches import Batches, MicroBatch, Tensors, draws_of_samples
from trainyard.steps.training.samples.plan import Step, TrainingPlan
from trainyard.steps.training.samples.training_data import TrainingData
from trainyard.steps.training.validation import SPLIT

_FOLDER_ARGUMENT = "data_dir"
"""What Lightning's documentation calls the folder with the data."""
_NOT_DRAWN = 0
"""The epoch whose draws held-out samples have. Training counts its epochs from 1."""
_CONTENT = "samples of a LightningDataModule"


class PlannedLoaders(LightningDataModule):
    """What is mixed into the user's class: Lightning takes the planned samples, and nothing is prepared twice."""

    planned: tuple[Iterable[Any], Iterable[Any] | None] | None = None
    """What Lightning takes for the loaders of training and validation, once they are known."""

    def prepare_data(self) -> None:
        """Prepare once, before the plan."""
        if self.planned is None:
            super().prepare_data()

    def setup(self, stage: str) -> None:
        """Set up once, before the plan."""
        if self.planned is None:
            super().setup(stage)

    def train_dataloader(self) -> Any:
        """Return the user's own loader before the plan, and the planned samples afterwards."""
        return super().train_dataloader() if self.planned is None else self.planned[0]

    def val_dataloader(self) -> Any:
        """Return the user's own loader before the plan, and this rank's share of its samples afterwards."""
        return super().val_dataloader() if self.planned is None else self.planned[1]


class _Request(NamedTuple):
    """A micro-batch to make: its samples, and 64 random bits for each."""

    sample_ids: Ids
    draws: Ids


class _MicroBatches(Dataset[Any]):
    """A user's samples, a micro-batch at a time: the samples that were asked for, put together by its collate_fn."""

    def __init__(self, samples: Any, collate: Callable[[list[Any]], Any]) -> None:
        self._samples, self._collate = samples, collate

    def __getitem__(self, request: _Request) -> tuple[Ids, Any]:
        python, numpy, torchs = random.getstate(), np.random.get_state(), torch.get_rng_state()
        try:
            samples = []
            for number, draw in zip(*(numbers.tolist() for numbers in request), strict=True):
                random.seed(draw)
                np.random.seed(draw % 2**32)
                torch.default_generator.manual_seed(draw)
                samples.append(self._samples[number])
            return request.sample_ids, self._collate(samples)
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
            torch.set_rng_state(torchs)


@dataclass(frozen=True)
class UserData(TrainingData):
    """A LightningDataModule as what a training trains on. How many samples it has is known once it is `ready`."""

    module: PlannedLoaders
    path: str
    arguments: str

    def digest(self) -> str:
        """Return a SHA-256 of the module's name and arguments and the numbers of samples, but not of what they hold."""
        samples = {name: split.samples for name, split in self.first.splits.items()}
        return hashlib.sha256(json.dumps([self.path, self.arguments, samples]).encode()).hexdigest()

    def ready(self, world: World, how: str, while_waiting: Callable[[], None]) -> TrainingData:
        """Let the module prepare its data, once per node or in all, as it says; and set it up on every rank."""
        prepares = world.local_rank == 0 if self.module.prepare_data_per_node else world.is_main
        world.let_some_work(self.module.prepare_data, while_waiting, works=prepares)
        self.module.setup("fit")
        splits = {name: Split(_count(self._loader(name)), ()) for name in self.first.splits}
        return replace(self, manifests=(replace(self.first, splits=splits),))

    def batches(
        self,
        split: SplitReader | Mixture,
        plan: TrainingPlan,
        settings: Training,
        world: World,
        steps_done: int,
        **_: Any,
    ) -> Batches:
        """Return the steps that are left."""
        return UserBatches(self, plan, settings.seed, world.rank, steps_done)

    def loader_of(self, split: str, requests: Iterable[_Request]) -> DataLoader[Any]:
        """Return the user's loader with other requests: its worker processes and collate_fn stay."""
        own = self._loader(split)
        return DataLoader(
            _MicroBatches(own.dataset, own.collate_fn),
            batch_size=None,
            sampler=requests,
            collate_fn=_as_it_is,
            num_workers=own.num_workers,
            pin_memory=own.pin_memory,
            timeout=own.timeout,
            worker_init_fn=partial(_begin_worker, own.worker_init_fn),
            multiprocessing_context=own.multiprocessing_context,
            generator=torch.Generator(),  # not the one that the training draws from
            prefetch_factor=own.prefetch_factor,
            persistent_workers=own.persistent_workers,
        )

    def _loader(self, split: str) -> DataLoader[Any]:
        """Return the user's loader. StepError if its samples have no numbers, or an order of their own."""
        name = "train_dataloader" if split == "train" else "val_dataloader"
        where = f"--data-module {self.path}: {name}"
        loader = self.module.train_dataloader() if split == "train" else self.module.val_dataloader()
        if not isinstance(loader, DataLoader):
            raise StepError(f"{where} returned a {type(loader).__name__}; expected one torch.utils.data.DataLoader")
        if loader.batch_sampler is None and not isinstance(loader.dataset, IterableDataset):
            raise StepError(f"{where} has no batch_size, so samples could not be counted; give it any")
        if isinstance(loader.dataset, IterableDataset) or not hasattr(loader.dataset, "__len__"):
            raise StepError(
                f"{where} reads a {type(loader.dataset).__name__}, whose samples have no indices to divide and resume "
                "by; give it a map-style Dataset, with __len__ and __getitem__, or write the samples with a prepare "
                "step of your own"
            )
        is_plain = isinstance(loader.sampler, SequentialSampler) or (
            isinstance(loader.sampler, RandomSampler)
            and not loader.sampler.replacement
            and loader.sampler.num_samples == _count(loader)
        )
        if not is_plain or type(loader.batch_sampler) is not BatchSampler:
            own = loader.sampler if not is_plain else loader.batch_sampler
            raise StepError(
                f"{where} has a {type(own).__name__} of its own, which could not resume exactly; leave it out: every "
                "sample comes once per epoch, in an order that follows from --seed"
            )
        if not _count(loader):
            raise StepError(f"{where} has no samples")
        return loader


class UserBatches:
    """The steps that are left, each with this rank's micro-batches, as the user's collate_fn makes them."""

    def __init__(self, data: UserData, plan: TrainingPlan, seed: int, rank: int, steps_done: int) -> None:
        self.wait_seconds = 0.0
        self.data = data
        self._plan, self._seed, self._rank, self._steps_done = plan, seed, rank, steps_done
        self._loader = data.loader_of("train", self._requests())
        self._taken: Iterator[Any] = iter(())

    def __iter__(self) -> Iterator[tuple[Step, list[MicroBatch]]]:
        self._taken = iter(self._loader)
        for step in self._steps():
            micro_batches = []
            for each in self._plan.micro_batches(step, self._rank):
                asked = time.perf_counter()
                sample_ids, tensors = next(self._taken)
                self.wait_seconds += time.perf_counter() - asked
                micro_batches.append(MicroBatch(tensors, sample_ids, each.is_stand_in, each.is_last))
            yield step, micro_batches

    def first_sample(self) -> Tensors:
        """Return nothing: a LightningModule is not warmed up."""
        return {}

    def close(self) -> None:
        """End the worker processes."""
        self._taken = iter(())

    def validation(self, pieces: Sequence[Ids]) -> DataLoader[Any]:
        """Return what loads samples to validate on: their numbers, and the batch."""
        requests = [_Request(each, draws_of_samples(each, self._seed, _NOT_DRAWN)) for each in pieces]
        return self.data.loader_of(SPLIT, requests)

    def _steps(self) -> Iterator[Step]:
        for number in range(self._steps_done + 1, self._plan.total_steps + 1):
            yield self._plan.step(number)

    def _requests(self) -> Iterator[_Request]:
        for step in self._steps():
            order = SampleOrder(self._plan.samples, self._seed, step.epoch)
            for each in self._plan.micro_batches(step, self._rank):
                sample_ids = order.sample_ids(each.start, each.stop)
                yield _Request(sample_ids, draws_of_samples(sample_ids, self._seed, step.epoch))


def choose_data(path: str, settings: TrainLightning) -> UserData:
    """Return a LightningDataModule as data, not prepared yet.

    SetupError if it cannot be found or lacks a method that it needs, and StepError for settings without effect on it.
    """
    arguments = arguments_from_json("--data-module-arguments", settings.data_module_arguments)
    found = lightning_class("--data-module", path, LightningDataModule, ("train_dataloader",))
    for name in IGNORED_WITH_DATA_MODULE:
        if getattr(settings, name) != getattr(TrainLightning, name):
            raise StepError(
                f"{flag_of(name)} has no effect on --data-module {path}, which reads its data itself; leave it out"
            )
    if _FOLDER_ARGUMENT in inspect.signature(found).parameters:
        arguments = {_FOLDER_ARGUMENT: str(settings.data), **arguments}
    # Under its own name, by which Lightning's checkpoints know it.
    planned: type[PlannedLoaders] = type(found.__name__, (PlannedLoaders, found), {"__module__": found.__module__})
    module = call_named("--data-module", path, planned, arguments)
    names = ("train", SPLIT) if is_overridden("val_dataloader", found, parent=LightningDataModule) else ("train",)
    manifest = Manifest(_CONTENT, {}, {name: Split(0, ()) for name in names}, folder=settings.data)
    given = json.dumps({name: value for name, value in arguments.items() if name != _FOLDER_ARGUMENT}, sort_keys=True)
    return UserData((manifest,), (Fraction(1),), module, path, given)


def _count(loader: DataLoader[Any]) -> int:
    samples: Any = loader.dataset
    return len(samples)


def _as_it_is(made: Any) -> Any:
    """The user's collate_fn was called already."""
    return made


def _begin_worker(own: Callable[[int], None] | None, number: int) -> None:
    """Leave signals to the training, which may be asked to stop together with all of its processes."""
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_IGN)
    if own is not None:
        own(number)
