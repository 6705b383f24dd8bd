"""Restoring from a checkpoint: each byte is read once, by one rank, which also compares its file with its digest.

What ranks hold alike they divide as they do to write it: each reads its share, and sends it to the others.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path

import torch
import torch.distributed as dist

from trainyard.settings.quantities import first_names
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.checkpoints.checkpoint_to_resume import read_file, verify_files
from trainyard.steps.training.checkpoints.collectives import Ranks
from trainyard.steps.training.checkpoints.commit import BrokenCheckpoint, Commit
from trainyard.steps.training.checkpoints.state_files import (
    RANDOM_PREFIX,
    SavedPiece,
    pieces_in,
    shape_text,
    share_to_write,
    shares_of_others,
)
from trainyard.steps.training.engines.engine import Engine
from trainyard.steps.training.fragments import Fragment
from trainyard.steps.training.randomness import restore_random_state, seed_everything

_BLOCK_BYTES = 4 << 20


def restore(folder: Path, commit: Commit, engine: Engine, ranks: Ranks, device: torch.device, seed: int) -> None:
    """Restore all state of the engine, and this rank's random state; at another world size, seed it again.

    BrokenCheckpoint, on every rank, names what is not as it was saved. Any other StepError names a tensor that does not
    fit, or a file that cannot be read, perhaps only for now: to resume from an older checkpoint would then cost the
    newer one. After either, the engine's tensors may hold anything.
    """
    try:
        random_state = _fill_engine(folder, commit, engine, ranks, device)
    except StepError as problem:
        if not isinstance(problem, BrokenCheckpoint):
            verify_files(folder, commit, ranks)  # what seems not to fit may be damaged
        raise
    engine.fragments_restored()
    engine.restore_scalars(commit.scalars)
    if random_state:
        restore_random_state(random_state, device)
    else:
        seed_everything(seed + commit.progress.step * ranks.size + ranks.rank)


def _fill_engine(
    folder: Path, commit: Commit, engine: Engine, ranks: Ranks, device: torch.device
) -> dict[str, torch.Tensor]:
    """Return this rank's random state, by name; nothing at another world size."""
    names = list(commit.files)
    own: dict[str, list[SavedPiece]] = {}

    def look() -> None:
        own.update({name: pieces_in(folder / name) for name in files_of_rank(names, ranks.rank, ranks.size)})
        engine.prepare_to_restore(folder, names)

    ranks.each(look)
    fragments, pieces = engine.state(), list(itertools.chain(*own.values()))
    _require_same_keys(folder, [piece.key for piece in pieces], fragments, ranks)
    random_state = [
        Fragment(piece.key, (piece.stop,), piece.start, torch.empty(piece.stop - piece.start, dtype=piece.dtype))
        for piece in pieces
        if piece.key.startswith(RANDOM_PREFIX) and commit.world_size == ranks.size
    ]
    share = [*share_to_write(fragments, ranks.rank, ranks.size), *random_state]
    ranks.each(lambda: read_share(folder, commit, share, own, nearest_first(names, ranks.rank, ranks.size)))
    for source, part in shares_of_others(fragments, ranks.size) if ranks.size > 1 else ():
        if part.values.numel() > 0:
            group = None if part.is_replicated else engine.replicas
            values = part.values.to(device)  # NCCL sends nothing that is in main memory
            dist.broadcast(values.view(torch.uint8), group=group, group_src=source)
            part.values.copy_(values)
    return {fragment.key.removeprefix(RANDOM_PREFIX): fragment.values for fragment in random_state}


def read_share(
    folder: Path,
    commit: Commit,
    share: Iterable[Fragment],
    own: Mapping[str, Sequence[SavedPiece]],
    others: Iterable[str],
) -> None:
    """Fill a rank's share of the state.

    Its `own` files, whose pieces are known, are read whole and compared with their digests; of `others` only what is
    not in those, in this order. BrokenCheckpoint if something is in none.
    """
    wanted: dict[str, list[Fragment]] = {}
    for fragment in share:
        wanted.setdefault(fragment.key, []).append(fragment)
    for name in dict.fromkeys([*own, *others]):
        if name not in own and not wanted:
            break
        places = places_in(own[name] if name in own else pieces_in(folder / name), wanted, folder)
        read_file(folder / name, commit.files[name], _in_blocks(places), is_whole=name in own)
    for key, (fragment, *_) in wanted.items():
        raise BrokenCheckpoint(f"{folder} lacks {key} from element {fragment.start} on")


def _in_blocks(places: Iterable[tuple[int, torch.Tensor]]) -> Iterator[tuple[int, memoryview]]:
    """Yield memory to be filled, for values on whatever device they are."""
    for position, values in places:
        for number, part in enumerate(values.view(torch.uint8).split(_BLOCK_BYTES)):
            on_host = part if part.device.type == "cpu" else torch.empty_like(part, device="cpu")
            yield position + number * _BLOCK_BYTES, on_host.numpy().data
            if on_host is not part:
                part.copy_(on_host)


def files_of_rank(names: Sequence[str], rank: int, ranks: int) -> list[str]:
    """Return the files that a rank reads whole, and compares with their digests: its own if there are as many ranks."""
    return [name for index, name in enumerate(names) if index * ranks // len(names) == rank]


def nearest_first(names: Sequence[str], rank: int, ranks: int) -> list[str]:
    """Return the files in the order in which a rank looks for what it holds: with its own and its neighbours' first."""
    own = rank * len(names) // ranks
    return [names[index] for index in sorted(range(len(names)), key=lambda index: abs(index - own))]


def places_in(
    pieces: Iterable[SavedPiece], wanted: dict[str, list[Fragment]], folder: Path
) -> list[tuple[int, torch.Tensor]]:
    """Return what of the wanted is in a file: where bytes begin there, in order, and the values that they are.

    It is no longer wanted then. StepError if its shape or type differs.
    """
    found = []
    for piece in pieces:
        left = []
        for fragment in wanted.pop(piece.key, ()):
            count = fragment.values.numel()
            first, last = (min(max(bound - fragment.start, 0), count) for bound in (piece.start, piece.stop))
            if first < last:
                _require_same_kind(folder, piece, fragment)
                begins_bytes = (fragment.start + first - piece.start) * piece.dtype.itemsize
                found.append((piece.offset_bytes + begins_bytes, fragment.values[first:last]))
                left += [part for part in (fragment.part(0, first), fragment.part(last, count)) if part.values.numel()]
            elif count:
                left.append(fragment)
        if left:
            wanted[piece.key] = left
    return sorted(found, key=itemgetter(0))


def _require_same_kind(folder: Path, piece: SavedPiece, fragment: Fragment) -> None:
    for what, saved, own, here in (
        ("shape", f"({piece.shape})", f"({shape_text(fragment.shape)})", "model"),
        ("type", str(piece.dtype), str(fragment.values.dtype), "training"),
    ):
        if saved != own:
            raise StepError(f"{folder}: {piece.key} has the {what} {saved}, but {own} in this {here}")


def _require_same_keys(folder: Path, keys: Iterable[str], fragments: Sequence[Fragment], ranks: Ranks) -> None:
    """Refuse missing and extra keys alike: a part of what was learnt must not be dropped silently.

    `keys` are those in this rank's files.
    """
    saved = _of_all_ranks({key for key in keys if not key.startswith(RANDOM_PREFIX)}, ranks)
    own = _of_all_ranks({fragment.key for fragment in fragments if math.prod(fragment.shape) > 0}, ranks)
    if saved != own:
        lacks = f"lacks {first_names(sorted(own - saved))}" if own - saved else ""
        has = f"has {first_names(sorted(saved - own))}, which this model does not have" if saved - own else ""
        raise StepError(f"{folder} does not fit this model: it {' and '.join(filter(None, (lacks, has)))}")


def _of_all_ranks(own: set[str], ranks: Ranks) -> set[str]:
    """Return the keys of all ranks. Usually all have the same, as a digest shows; else each sends its own."""
    digest = hashlib.sha256("\n".join(sorted(own)).encode()).hexdigest()
    if len(set(ranks.each(lambda: digest))) == 1:
        return own
    return set().union(*ranks.each(lambda: own))
