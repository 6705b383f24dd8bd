"""How saving, restoring and writing the model grow with the number of ranks: 8, 64 and 512, for a Llama of 70 billion.

    python benchmarks/at_scale.py [--processes 8]

For each number of ranks, each rank's files, ranges and messages are computed by the code that a training runs, on
tensors without memory and against a store that only records. FSDP shards over all ranks; HSDP over 8, with as many
replicas as there are. Printed is the most of any rank, and the total over all as a multiple of the state (weights and
AdamW's moments, fp32) or of the model (bf16). Bars: totals of at most 1.1, and no more files or bytes per rank at 512
ranks than at 8. What is read includes the verification, which reads every file once before anything is restored.

Then so many real processes write a small model together: their files must be the bytes of transformers' own. Results go
to benchmarks/results/at_scale.json. Exit 1 when a bar is missed. About three minutes.
"""

from __future__ import annotations

import argparse
import math
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from results import save_results
from trainyard.steps.runtime.world import join_world
from trainyard.steps.training.checkpoints.state_files import (
    SavedTensor,
    StateReader,
    in_file_order,
    nearest_first,
    shape_text,
    share_to_write,
    state_file_header,
    state_file_name,
)
from trainyard.steps.training.engines.shared_model import RowsOfRank, without_memory
from trainyard.steps.training.fragments import MODEL_KEY, OPTIMIZER_KEY, Fragment, named_once
from trainyard.steps.training.from_transformers import save_model
from trainyard.steps.training.weights_to_files import Saving, divided, held_ranges, planned_files, wanted_tensors

RANKS = (8, 64, 512)
SHARD_SIZE = 8
BAR = 1.1
SHARD_BYTES = 5_000_000_000
SIZES_70B = {
    "vocab_size": 128_256,
    "hidden_size": 8192,
    "intermediate_size": 28_672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
}
SIZES_OF_PROCESSES = {**SIZES_70B, "vocab_size": 1024, "hidden_size": 128, "intermediate_size": 512}
SIZES_OF_PROCESSES |= {"num_hidden_layers": 8, "num_attention_heads": 8}
Shapes = dict[str, tuple[int, ...]]


def main() -> int:
    logging.disable_progress_bar()
    if "RANK" in os.environ:
        return _write_as_rank(Path(sys.argv[1]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=8, help="how many write a small model together")
    arguments = parser.parse_args()
    model = without_memory(lambda: LlamaForCausalLM(LlamaConfig(**SIZES_70B, dtype="bfloat16")))
    shapes = {name: tuple(tensor.shape) for tensors in named_once(model) for name, tensor in tensors.items()}
    figures: dict[str, Any] = {}
    missed = []
    for engine in ("fsdp", "hsdp"):
        for ranks in RANKS:
            shards = ranks if engine == "fsdp" else SHARD_SIZE
            found = {**_checkpoint(shapes, ranks, shards), "write": _write(model, shapes, ranks, shards)}
            figures[f"{engine} {ranks}"] = found
            for what, numbers in found.items():
                shown = ", ".join(f"{key} {value:,}" for key, value in numbers.items())
                print(f"{engine} {ranks:>4} {what:<8} {shown}", flush=True)
                missed += [f"{engine} {ranks} {what}: {numbers['total']}"] if numbers["total"] > BAR else []
                before = figures[f"{engine} {RANKS[0]}"][what]
                grown = [key for key in ("files", "bytes") if numbers[key] > BAR * before[key]]
                missed += [f"{engine} {ranks} {what}: more {key} per rank" for key in grown]
    same = _processes_write(arguments.processes)
    print(f"{arguments.processes} processes write the bytes that transformers writes: {same}")
    print("bars met" if not missed else "bars missed: " + "; ".join(missed))
    save_results("at_scale", {"ranks": figures, "processes": arguments.processes, "same_bytes": same, "missed": missed})
    return int(bool(missed) or not same)


def _fragments(shapes: Shapes, rank: int, ranks: int, shards: int, *, state: bool) -> list[Fragment]:
    """What a rank of FSDP holds, without memory."""
    shard, found = RowsOfRank(rank % shards, shards), []
    for name, shape in shapes.items():
        width = math.prod(shape[1:])
        first, last = shard.rows(shape[0])
        keys = [MODEL_KEY + name]
        keys += [f"{OPTIMIZER_KEY}{name}/exp_avg", f"{OPTIMIZER_KEY}{name}/exp_avg_sq"] if state else []
        values = torch.empty((last - first) * width, device="meta")
        copies = {"copy": rank // shards, "copies": ranks // shards}
        found += [Fragment(key, shape, first * width, values, **copies) for key in keys]
    return found


@dataclass
class _Slice:
    """A piece of a file that records how much of it is read."""

    piece: Fragment
    record: _Record

    def __getitem__(self, part: slice) -> torch.Tensor:
        values = self.piece.values[part]
        self.record.bytes += values.nbytes
        return values


@dataclass
class _Record:
    files: int = 0
    bytes: int = 0


@dataclass
class _RecordedReader(StateReader):
    """Reads from pieces that were never written."""

    pieces: dict[str, list[Fragment]]
    record: _Record = field(default_factory=_Record)

    def __init__(self, names: Sequence[str], pieces: dict[str, list[Fragment]]) -> None:
        super().__init__(Path(), names)
        self.pieces, self.record = pieces, _Record()

    def _open(self, file_name: str) -> None:
        self.record.files += 1
        for piece in self.pieces[file_name]:
            saved = self._tensors.setdefault(piece.key, SavedTensor(shape_text(piece.shape)))
            saved.pieces.append((piece.start, piece.stop, _Slice(piece, self.record)))


def _checkpoint(shapes: Shapes, ranks: int, shards: int) -> dict[str, dict[str, Any]]:
    """What ranks write, and what they read when as many resume."""
    state_bytes = 3 * 4 * sum(map(math.prod, shapes.values()))
    held = [_fragments(shapes, rank, ranks, shards, state=True) for rank in range(ranks)]
    shares = [in_file_order(share_to_write(held[rank], rank, ranks)) for rank in range(ranks)]
    pieces = {state_file_name(rank): share for rank, share in enumerate(shares)}
    written = [len(state_file_header(share)) + sum(piece.values.nbytes for piece in share) for share in shares]
    read, files = [], []
    for rank in range(ranks):
        reader = _RecordedReader(nearest_first(list(pieces), rank, ranks), pieces)
        for fragment in held[rank]:
            reader.read_into(fragment)
        read.append(reader.record.bytes + written[rank])
        files.append(reader.record.files + 1)
    return {
        "save": {"files": 1, "bytes": max(written), "total": round(sum(written) / state_bytes, 3)},
        "restore": {"files": max(files), "bytes": max(read), "total": round(sum(read) / state_bytes, 3)},
    }


def _write(model: torch.nn.Module, shapes: Shapes, ranks: int, shards: int) -> dict[str, Any]:
    """What ranks send and write of the model, in bf16."""
    model_bytes = 2 * sum(map(math.prod, shapes.values()))
    with tempfile.TemporaryDirectory() as folder:
        files = planned_files(model.to(torch.bfloat16), lambda saved: save_model(saved, Path(folder), SHARD_BYTES))
    assert files is not None
    by_rank = divided(files, ranks)
    wanted = [wanted_tensors(own, {}) for own in by_rank]
    sent, messages, received = [0] * ranks, [0] * ranks, [0] * ranks
    for rank in range(ranks):
        held = held_ranges(wanted, _fragments(shapes, rank, ranks, shards, state=False), rank)
        for by, parts in enumerate(held):
            own = [stop - start for start, stop in parts if stop > start and by != rank]
            sent[rank] += 2 * sum(own)
            messages[rank] += len(own)
            received[by] += len(own)
    written = [2 * sum(tensor.elements for tensor in tensors) for tensors in wanted]
    return {
        "files": max(map(len, by_rank)),
        "bytes": max(written),
        "bytes_sent": max(sent),
        "messages_sent": max(messages),
        "messages_received": max(received),
        "largest_in_memory_bytes": 2 * max(tensor.elements for tensors in wanted for tensor in tensors),
        "total_sent": round(sum(sent) / model_bytes, 3),
        "total": round(sum(written) / model_bytes, 3),
    }


def _small_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES_OF_PROCESSES))


def _processes_write(processes: int) -> bool:
    """Whether real processes, each with its rows, write the files that one with the whole model writes."""
    with tempfile.TemporaryDirectory(prefix="at-scale-") as folder:
        alone, together = Path(folder) / "alone", Path(folder) / "together"
        together.mkdir()
        save_model(_small_model(), alone, 1_000_000)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        started = []
        for rank in range(processes):
            variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
            variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
            environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
            started.append(subprocess.Popen([sys.executable, __file__, str(together)], env=environment))
        codes = [process.wait(timeout=600) for process in started]
        found = {file.name: file.read_bytes() for file in together.iterdir()}
        return codes == [0] * processes and found == {file.name: file.read_bytes() for file in alone.iterdir()}


def _write_as_rank(folder: Path) -> int:
    with join_world(300) as world:
        model, own = _small_model(), []
        shard = RowsOfRank(world.rank, world.size)
        for tensors in named_once(model):
            for name, tensor in tensors.items():
                width = math.prod(tensor.shape[1:])
                first, last = (row * width for row in shard.rows(tensor.shape[0]))
                values = tensor.detach().view(-1)[first:last].clone()
                own.append(Fragment(MODEL_KEY + name, tuple(tensor.shape), first, values))
        engine: Any = SimpleNamespace(world=world, replica=None, model=model, weights=lambda: own)

        def save(saved: torch.nn.Module) -> None:
            save_model(saved, folder, 1_000_000)

        return int(not Saving(engine, lambda: None).in_parts(_small_model, save, torch.float32))


if __name__ == "__main__":
    raise SystemExit(main())
