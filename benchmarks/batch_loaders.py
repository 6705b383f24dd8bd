"""One rank that iterates a dataset with one loader: what benchmarks/batches.py starts, times and compares.

    python batch_loaders.py LOADER WORKLOAD FOLDER --batch 32 --workers 2

LOADER is trainyard, dataloader, dataloader_batched or streaming; "write" creates the data for all of them. A rank first
iterates one epoch untimed, which starts workers and fills caches, and prints the sum of its samples, so that the
benchmark can check that all loaders returned the same. Then it reads a number of batches from each line of its input,
iterates that many (the same on every rank, since mosaicml-streaming's ranks begin an epoch together), and prints
batches/s. RANK, WORLD_SIZE and the like are set as in a training.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

SEED = 7
TOKENS, IMAGES, LABELS = "tokens", "images", "labels"


@dataclass(frozen=True)
class Workload:
    """A synthetic dataset: arrays with dtype and shape of a sample."""

    rows: int
    arrays: dict[str, tuple[str, tuple[int, ...]]]

    def blocks(self) -> Iterator[dict[str, np.ndarray]]:
        """Yield the samples, a few thousand at a time; the same at each call."""
        random = np.random.default_rng(SEED)
        for start in range(0, self.rows, 4000):
            length = min(4000, self.rows - start)
            yield {
                name: random.integers(0, 10 if name == LABELS else 256, (length, *shape)).astype(dtype)
                for name, (dtype, shape) in self.arrays.items()
            }


WORKLOADS = {
    "tokens-1024": Workload(40_000, {TOKENS: ("uint16", (1025,))}),
    "tokens-128": Workload(200_000, {TOKENS: ("uint16", (129,))}),
    "images-3x32x32": Workload(50_000, {IMAGES: ("uint8", (3, 32, 32)), LABELS: ("int64", ())}),
}


class Epochs(ABC):
    """Iterates epoch after epoch; a batch is a dictionary of tensors."""

    @abstractmethod
    def epoch(self) -> Iterator[dict[str, torch.Tensor]]:
        """This rank's batches of the next epoch."""


class Trainyard(Epochs):
    """This rank's TrainingBatches over the shards that a prepare step writes."""

    def __init__(self, folder: Path, rank: int, world_size: int, batch: int, workers: int) -> None:
        from trainyard.settings.batch_arithmetic import divide_batch
        from trainyard.steps.data.dataset.manifest import read_manifest
        from trainyard.steps.data.dataset.reader import SplitReader
        from trainyard.steps.training.samples.batches import TrainingBatches
        from trainyard.steps.training.samples.plan import TrainingPlan

        split = SplitReader(folder / "trainyard", read_manifest(folder / "trainyard"), "train")
        plan = TrainingPlan(split.samples, divide_batch(batch * world_size, batch, world_size), epochs=1_000_000)
        self._batches = iter(TrainingBatches(split, plan, SEED, rank, 0, torch.device("cpu")))

    def epoch(self) -> Iterator[dict[str, torch.Tensor]]:
        """This rank's batches of the next epoch."""
        for step, micro_batches in self._batches:
            for micro_batch in micro_batches:
                yield micro_batch.tensors
            if step.ends_epoch:
                return


class MemoryMapped(Dataset[dict[str, torch.Tensor]]):
    """numpy's memory maps, a sample at a time: what most projects write."""

    def __init__(self, folder: Path) -> None:
        self._arrays = {file.stem: np.load(file, mmap_mode="r") for file in sorted((folder / "numpy").glob("*.npy"))}

    def __len__(self) -> int:
        return len(next(iter(self._arrays.values())))

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        return {name: torch.from_numpy(np.array(array[number])) for name, array in self._arrays.items()}


class MemoryMappedBatched(MemoryMapped):
    """The same, a batch at a time: what a project writes that was optimised for speed."""

    def __getitems__(self, numbers: list[int]) -> dict[str, torch.Tensor]:
        return {name: torch.from_numpy(array[numbers]) for name, array in self._arrays.items()}


class Torch(Epochs):
    """DataLoader and DistributedSampler over memory maps."""

    def __init__(self, folder: Path, rank: int, world_size: int, batch: int, workers: int, *, batched: bool) -> None:
        dataset = MemoryMappedBatched(folder) if batched else MemoryMapped(folder)
        self._sampler = DistributedSampler(dataset, world_size, rank, shuffle=True, seed=SEED)
        self._loader = DataLoader(
            dataset,
            batch_size=batch,
            sampler=self._sampler,
            num_workers=workers,
            persistent_workers=workers > 0,
            collate_fn=(lambda gathered: gathered) if batched else None,
        )
        self._epoch = 0

    def epoch(self) -> Iterator[dict[str, torch.Tensor]]:
        """This rank's batches of the next epoch."""
        self._sampler.set_epoch(self._epoch)
        self._epoch += 1
        yield from self._loader


class Streaming(Epochs):
    """mosaicml-streaming over its own shards, with its own shuffle and its own DataLoader."""

    def __init__(self, folder: Path, rank: int, world_size: int, batch: int, workers: int) -> None:
        base = streaming_base()
        dataset = base.StreamingDataset(local=str(folder / "mds"), shuffle=True, shuffle_seed=SEED, batch_size=batch)
        self._loader = base.StreamingDataLoader(
            dataset, batch_size=batch, num_workers=workers, persistent_workers=workers > 0
        )

    def epoch(self) -> Iterator[dict[str, torch.Tensor]]:
        """This rank's batches of the next epoch."""
        yield from self._loader


LOADERS: dict[str, Callable[..., Epochs]] = {
    "trainyard": Trainyard,
    "dataloader": lambda *arguments: Torch(*arguments, batched=False),
    "dataloader_batched": lambda *arguments: Torch(*arguments, batched=True),
    "streaming": Streaming,
}


def streaming_base() -> Any:
    """Import streaming.base without its package, which imports torchvision for datasets not used here."""
    spec = importlib.util.find_spec("streaming")
    assert spec is not None
    package = types.ModuleType("streaming")
    package.__path__ = list(spec.submodule_search_locations or ())
    sys.modules["streaming"] = package
    return importlib.import_module("streaming.base")


def write(loader: str, folder: Path, workload: Workload) -> None:
    {"trainyard": write_trainyard, "dataloader": write_numpy, "streaming": write_mds}[loader](folder, workload)


def write_trainyard(folder: Path, workload: Workload) -> None:
    from trainyard.steps.data.dataset.manifest import ArrayType
    from trainyard.steps.data.dataset.writer import DatasetWriter

    arrays = {name: ArrayType(dtype, shape) for name, (dtype, shape) in workload.arrays.items()}
    with DatasetWriter(folder / "trainyard", arrays, shard_samples=10_000) as dataset:
        with dataset.split("train") as split:
            for block in workload.blocks():
                split.add(block)
        dataset.finish("made up", [], {})


def write_numpy(folder: Path, workload: Workload) -> None:
    (folder / "numpy").mkdir(parents=True, exist_ok=True)
    blocks = list(workload.blocks())
    for name in workload.arrays:
        np.save(folder / "numpy" / f"{name}.npy", np.concatenate([block[name] for block in blocks]))


def write_mds(folder: Path, workload: Workload) -> None:
    columns = {
        name: "int" if not shape else f"ndarray:{dtype}:{','.join(map(str, shape))}"
        for name, (dtype, shape) in workload.arrays.items()
    }
    with streaming_base().MDSWriter(out=str(folder / "mds"), columns=columns) as writer:
        for block in workload.blocks():
            for number in range(len(next(iter(block.values())))):
                writer.write(
                    {name: int(of[number]) if columns[name] == "int" else of[number] for name, of in block.items()}
                )


def checksum(epochs: Epochs) -> dict[str, int]:
    """Return the number of samples of an epoch, and the sum of all their values."""
    samples = total = 0
    for batch in epochs.epoch():
        samples += len(next(iter(batch.values())))
        total += sum(int(tensor.numpy().sum(dtype=np.int64)) for tensor in batch.values())
    return {"samples": samples, "sum": total}


def endless(epochs: Epochs) -> Iterator[dict[str, torch.Tensor]]:
    while True:
        yield from epochs.epoch()


def batches_per_second(batches: Iterator[dict[str, torch.Tensor]], count: int) -> float:
    """Return batches/s over `count` batches, after skipping those that may have been prefetched untimed."""
    for _ in range(count // 5):
        next(batches)
    started = time.perf_counter()
    for _ in range(count):
        next(batches)
    return count / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=[*LOADERS, "write"])
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--loader", choices=LOADERS)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.what == "write":
        write(arguments.loader, arguments.folder, WORKLOADS[arguments.workload])
        return
    torch.set_num_threads(1)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    epochs = LOADERS[arguments.what](arguments.folder, rank, world_size, arguments.batch, arguments.workers)
    print(json.dumps(checksum(epochs)), flush=True)
    batches = endless(epochs)
    for count in sys.stdin:
        print(batches_per_second(batches, int(count)), flush=True)
    os._exit(0)  # in the middle of an epoch, some loaders' threads and workers would be waited for without end


if __name__ == "__main__":
    main()
