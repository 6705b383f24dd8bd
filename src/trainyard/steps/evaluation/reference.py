"""A reference model's log-probabilities of every answer of a dataset of preferences, written beside its tokens."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence

import numpy as np
import torch

from trainyard.settings.steps.models import ComputeReference
from trainyard.steps.data.dataset.manifest import ArrayType, Manifest, Split, read_manifest
from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.data.dataset.shards import Shard, verify_dataset
from trainyard.steps.data.dataset.writer import DatasetWriter
from trainyard.steps.data.tokenizing.vocabulary import CHAT_TEMPLATE_FILE, TOKENIZER_CONFIG_FILE, TOKENIZER_FILE
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.files import find_model
from trainyard.steps.runtime.long_work import ProgressLines
from trainyard.steps.runtime.world import World, ranks_joined
from trainyard.steps.training.engines.fsdp import shard_to_evaluate
from trainyard.steps.training.from_transformers import model_digest
from trainyard.steps.training.precision import Precision, set_matmul_precision
from trainyard.steps.training.randomness import ask_for_determinism
from trainyard.steps.training.samples.batches import as_tensors, to_device
from trainyard.steps.training.samples.plan import even_part
from trainyard.steps.training.tasks.chosen import choose_task
from trainyard.steps.training.tasks.preferences import REFERENCE_ARRAY, REFERENCE_MODEL, Preferences

_TOKENIZER_FILES = (TOKENIZER_FILE, TOKENIZER_CONFIG_FILE, CHAT_TEMPLATE_FILE)


def compute_reference(settings: ComputeReference) -> int:
    """Write the dataset again, each rank its share. StepError for another dataset, or a model that does not fit it."""
    if settings.prepared.resolve() == settings.data.resolve():
        raise StepError(f"--prepared {settings.prepared} is --data, which is only read; give another folder")
    manifest, base_model = read_manifest(settings.data), find_model(settings.base_model)
    chosen = choose_task("preferences", {"loss_chunk_tokens": settings.loss_chunk_tokens}).starting_from(base_model)
    task = chosen.on(manifest)
    assert isinstance(task, Preferences)
    with ranks_joined(settings.process_group_timeout_seconds, [settings.prepared]) as world:
        verify_dataset(settings.data, manifest.shards(), world, settings.verify_data)
        ask_for_determinism()
        set_matmul_precision("highest")
        digest = model_digest(base_model, world)
        model = shard_to_evaluate(task.new_model, world) if settings.shard_model else task.new_model().to(world.device)
        model.eval()
        _write(settings, manifest, digest, task, model, world)
        world.log(f"{settings.prepared}: with the log-probabilities of the model with the SHA-256 {digest}")
    return 0


def _write(
    settings: ComputeReference, manifest: Manifest, digest: str, task: Preferences, model: torch.nn.Module, world: World
) -> None:
    reference = ArrayType("float32", manifest.arrays["tokens"].shape)
    arrays = {**manifest.arrays, REFERENCE_ARRAY: reference}
    with DatasetWriter(settings.prepared, arrays, shard_samples=1, clears_folder=world.is_main) as dataset:
        world.barrier()  # nothing is written before rank 0 has cleared the folder
        for name, split in manifest.splits.items():
            kept = [shard for shard in split.shards if shard.array != REFERENCE_ARRAY]
            _copy(settings, [shard.file for shard in kept], world)
            reader = SplitReader(settings.data, manifest, name)
            own = _compute_share(settings, reader, name, task, model, world, dataset)
            added = [shard for shard in world.gather(own) if shard is not None]
            dataset.add_split(name, Split(split.samples, (*kept, *added)))
        _copy(settings, [name for name in _TOKENIZER_FILES if (settings.data / name).is_file()], world)
        world.barrier()  # the manifest comes last
        if world.is_main:
            dataset.finish(manifest.content, (), {**manifest.source, REFERENCE_MODEL: digest}, manifest.text)


@torch.no_grad()
def _compute_share(
    settings: ComputeReference,
    split: SplitReader,
    name: str,
    task: Preferences,
    model: torch.nn.Module,
    world: World,
    dataset: DatasetWriter,
) -> Shard | None:
    """Write this rank's share of a split, if it has one, as a shard of its own.

    Ranks that share a model make as many forward passes as the others: one without rows left repeats the first.
    """
    start, stop = even_part(split.samples, world.rank, world.size)
    most_rows = math.ceil(split.samples / world.size) if settings.shard_model else stop - start
    precision = Precision(settings.precision, world.device)
    progress = ProgressLines(f"{name}: computed", stop - start, "rows")
    shard = dataset.shard(name, world.rank, REFERENCE_ARRAY) if start < stop else None
    for first in range(start, start + most_rows, settings.micro_batch_size):
        rows = np.arange(first, min(first + settings.micro_batch_size, stop))
        read = split.gather(rows if rows.size else np.zeros(1, dtype=np.int64))
        batch = to_device(as_tensors(read, pin=world.device.type == "cuda"), world.device)
        with precision.autocast():
            values = task.log_probabilities(model, batch).float().cpu()
        if not values.isfinite().all():
            raise StepError(
                f"--base-model {settings.base_model}: its log-probabilities of row {first} of {name} or one soon after "
                f"are not finite in --precision {settings.precision}"
            )
        if shard is not None and rows.size:
            shard.add(values.numpy())
            progress.advance(len(rows))
    return None if shard is None else shard.close()


def _copy(settings: ComputeReference, names: Sequence[str], world: World) -> None:
    """Copy files of the dataset, each rank some of them."""
    for name in names[world.rank :: world.size]:
        (settings.prepared / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(settings.data / name, settings.prepared / name)
