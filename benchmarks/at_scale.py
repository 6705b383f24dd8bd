"""How starting, saving, restoring and writing the model grow with the number of ranks: 8, 64 and 512, for a Llama of
70 billion.

    python benchmarks/at_scale.py [--processes 8 32]

For each number of ranks, each rank's files, ranges and messages are computed by the code that a training runs, on
tensors without memory and on headers of files that were never written. FSDP shards over all ranks; HSDP over 8, with as
many replicas as there are. Printed is the most of any rank, and the total over all as a multiple of the model (bf16) or
of the state (weights and AdamW's moments, fp32). A start is one with weights in the model's folder, or with new ones
(fp32), of which one rank of 512 draws its part here, in "draw_seconds". What is restored includes the verification.
Bars: totals of at most 1.1, and no more files or bytes per rank at 512 ranks than at 8.

First, so many real processes start with new weights, save, restore and write a small model together, with FSDP and with
HSDP, as nodes of 8 ranks. What they restored must be what they saved, what they read (by /proc/self/io) at most 1.1
times the state, and what they wrote the bytes of transformers' own files, of a model that one process drew. Their
sockets are counted, and at most as many as computed. So are those of ranks with GPUs, but for NCCL's: as many
processes have the host groups of a training and its checkpoints, and a default group that connects nobody. Rank 0 also
has a connection of each rank to its store.

Computed are also the sockets of up to 512 ranks: at most 300.

Results go to benchmarks/results/at_scale.json. Exit 1 when a bar is missed. About three minutes.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import multiprocessing
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed import fake_pg
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from results import save_results
from trainyard.settings.batch_arithmetic import divide_batch
from trainyard.settings.steps.training import TrainFSDP
from trainyard.steps.runtime.host_group import HostGroup
from trainyard.steps.runtime.rank_variables import RankVariables
from trainyard.steps.runtime.world import World, most_sockets
from trainyard.steps.training.checkpoints.checkpoints import Checkpoints
from trainyard.steps.training.checkpoints.collectives import Ranks
from trainyard.steps.training.checkpoints.restoring import files_of_rank, nearest_first, places_in
from trainyard.steps.training.checkpoints.state_files import (
    SavedPiece,
    in_file_order,
    parse_header,
    share_to_write,
    state_file_header,
    state_file_name,
)
from trainyard.steps.training.engines.engine import EngineParts
from trainyard.steps.training.engines.fsdp import FSDPEngine
from trainyard.steps.training.engines.shared_model import RowsOfRank, readers_in_turn, without_memory
from trainyard.steps.training.fragments import MODEL_KEY, OPTIMIZER_KEY, Fragment, named_once
from trainyard.steps.training.from_transformers import save_model
from trainyard.steps.training.models_without_weights import (
    ModelWithoutWeights,
    WeightReader,
    model_without_weights,
    with_new_weights,
)
from trainyard.steps.training.new_weights import CHUNK_ELEMENTS, chunks
from trainyard.steps.training.optimizer import OptimizerSettings
from trainyard.steps.training.samples.plan import Progress
from trainyard.steps.training.weights_to_files import (
    PlannedFile,
    Saving,
    divided,
    held_ranges,
    planned_files,
    wanted_tensors,
)

RANKS = (8, 64, 512)
SHARD_SIZE = NODE_RANKS = 8
BAR = 1.1
MOST_SOCKETS = 300
ENGINES = 2
"""Of each process: one that saves, one that restores. With replicas, each has groups of its own."""
STORE_SOCKETS = 3
"""To serve it, and of rank 0's own connection to it."""
SHARD_BYTES = 5_000_000_000
SIZES_70B = {
    "vocab_size": 128_256,
    "hidden_size": 8192,
    "intermediate_size": 28_672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
}
SIZES_OF_PROCESSES = {**SIZES_70B, "vocab_size": 8192, "hidden_size": 256, "intermediate_size": 512}
SIZES_OF_PROCESSES |= {"num_hidden_layers": 4, "num_attention_heads": 8}
SHARD_BYTES_OF_PROCESSES = 1_000_000
Shapes = dict[str, tuple[int, ...]]
Figures = dict[str, Any]


def main() -> int:
    logging.disable_progress_bar()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="*", default=[8, 32], help="how many train a small model")
    arguments = parser.parse_args()
    missed: list[str] = []
    processes = {}
    for count in arguments.processes:  # before torch has threads, which a fork would lack
        for engine in ("fsdp", "hsdp"):
            found = processes[f"{engine} {count}"] = _of_processes(count, SHARD_SIZE if engine == "hsdp" else 0)
            print(f"{count} processes, {engine}: {_shown(found)}", flush=True)
            good = found["restored_equals_saved"] and found["same_bytes_written"] and found["restore_total"] <= BAR
            missed += [] if good else [f"{count} processes, {engine}"]
            expected = _most_sockets(count, on_gpu=False)
            if engine == "hsdp" and count > SHARD_SIZE:
                replicas = _most_sockets(count, on_gpu=False, shard_size=SHARD_SIZE) - expected
                expected += ENGINES * replicas
            missed += (
                [] if found["sockets"] <= expected + 1 else [f"{count} processes, {engine}: over {expected} sockets"]
            )
        found = processes[f"gpu layout {count}"] = _sockets_with_gpus(count)
        print(f"{count} processes, as with GPUs: {_shown(found)}", flush=True)
        expected = _most_sockets(count, on_gpu=True)
        good = found["sockets"] <= expected + 1 and found["sockets_of_rank_0"] <= expected + count + STORE_SOCKETS
        missed += [] if good else [f"{count} processes as with GPUs: more than {expected} sockets"]
    model = without_memory(lambda: LlamaForCausalLM(LlamaConfig(**SIZES_70B, dtype="bfloat16"))).to(torch.bfloat16)
    with tempfile.TemporaryDirectory() as folder:
        files = planned_files(model, lambda saved: save_model(saved, Path(folder), SHARD_BYTES))
    assert files is not None
    new = model_without_weights(lambda: with_new_weights(lambda: LlamaForCausalLM(LlamaConfig(**SIZES_70B))))
    figures: dict[str, dict[str, Figures]] = {}
    for engine in ("fsdp", "hsdp"):
        for ranks in RANKS:
            shards = ranks if engine == "fsdp" else SHARD_SIZE
            figures[f"{engine} {ranks}"] = found = {
                "start": _start(model, files, ranks, shards),
                "new": _start_with_new_weights(new, ranks, shards),
                **_checkpoint(model, ranks, shards),
                "write": _write(model, files, ranks, shards),
            }
            for what, numbers in found.items():
                print(f"{engine} {ranks:>4} {what:<8} {_shown(numbers)}", flush=True)
                missed += [f"{engine} {ranks} {what}: {numbers['total']}"] if numbers["total"] > BAR else []
                before = figures[f"{engine} {RANKS[0]}"][what]
                grown = [key for key in ("files", "bytes") if numbers[key] > BAR * before[key]]
                missed += [f"{engine} {ranks} {what}: more {key} per rank" for key in grown]
    shard, started = RowsOfRank(1, RANKS[-1]), time.monotonic()
    for tensor, weight in new.weights.items():
        WeightReader().elements(weight, *shard.elements(tensor.shape))
    draw_seconds = round(time.monotonic() - started, 1)
    print(f"a rank of {RANKS[-1]} drew its new weights in {draw_seconds} s")
    sockets = {
        f"{ranks}": {kind: _most_sockets(ranks, on_gpu=kind == "gpu") for kind in ("cpu", "gpu")} for ranks in RANKS
    }
    for ranks, most in sockets.items():
        print(f"sockets of a rank of {ranks}: {_shown(most)}")
    missed += [f"sockets of 512 ranks, {kind}" for kind, most in sockets["512"].items() if most > MOST_SOCKETS]
    print("bars met" if not missed else "bars missed: " + "; ".join(missed))
    found = {"ranks": figures, "draw_seconds": draw_seconds, "sockets": sockets, "processes": processes}
    save_results("at_scale", {**found, "missed": missed})
    return int(bool(missed))


def _shown(numbers: Figures) -> str:
    return ", ".join(f"{key} {value:,}" for key, value in numbers.items())


def _most_sockets(ranks: int, *, on_gpu: bool, shard_size: int = 0) -> int:
    """Of any rank, as nodes of 8."""
    variables = RankVariables(world_size=ranks, node_count=ranks // NODE_RANKS)
    return most_sockets(variables, on_gpu=on_gpu, shard_size=shard_size)


def _shapes(model: torch.nn.Module) -> Shapes:
    return {name: tuple(tensor.shape) for tensors in named_once(model) for name, tensor in tensors.items()}


def _most(figures: list[Figures], whole_bytes: int) -> Figures:
    """Return the most of any rank, and the bytes of all as a multiple of the whole."""
    most = {key: max(found[key] for found in figures) for key in figures[0]}
    return {**most, "total": round(sum(found["bytes"] for found in figures) / whole_bytes, 4)}


def _start(model: torch.nn.Module, files: list[PlannedFile], ranks: int, shards: int) -> Figures:
    """What ranks read of the weights of a model folder, and get from other replicas."""
    file_of = {tensor.source: file.path for file in files for tensor in file.tensors}
    turns = readers_in_turn(model.parameters(), ranks // shards)
    found = []
    for rank in range(ranks):
        shard, opened, read, got = RowsOfRank(rank % shards, shards), set(), 0, 0
        for name, tensor in model.named_parameters():
            first, last = shard.elements(tensor.shape)
            size_bytes = (last - first) * tensor.itemsize
            if turns[tensor] != rank // shards:
                got += size_bytes
            elif size_bytes:
                read += size_bytes
                opened.add(file_of[name])
        found.append({"files": len(opened), "bytes": read, "bytes_received": got})
    return _most(found, sum(tensor.nbytes for tensor in model.parameters()))


def _start_with_new_weights(new: ModelWithoutWeights, ranks: int, shards: int) -> Figures:
    """What ranks draw of a new model, in whole chunks, and get from other replicas."""
    turns = readers_in_turn(new.weights, ranks // shards)
    found = []
    for rank in range(ranks):
        shard, drawn, got = RowsOfRank(rank % shards, shards), 0, 0
        for tensor in new.weights:
            first, last = shard.elements(tensor.shape)
            if turns[tensor] != rank // shards:
                got += last - first
            else:
                drawn += len(chunks(first, last)) * CHUNK_ELEMENTS
        found.append({"files": 0, "elements": drawn, "bytes": 4 * drawn, "bytes_received": 4 * got})
    return _most(found, sum(tensor.nbytes for tensor in new.module.parameters()))


def _fragments(shapes: Shapes, rank: int, ranks: int, shards: int, *, state: bool) -> list[Fragment]:
    """What a rank of FSDP holds, without memory."""
    shard, found = RowsOfRank(rank % shards, shards), []
    for name, shape in shapes.items():
        first, last = shard.elements(shape)
        keys = [MODEL_KEY + name]
        keys += [f"{OPTIMIZER_KEY}{name}/exp_avg", f"{OPTIMIZER_KEY}{name}/exp_avg_sq"] if state else []
        values = torch.empty(last - first, device="meta")
        copies = {"copy": rank // shards, "copies": ranks // shards}
        found += [Fragment(key, shape, first, values, **copies) for key in keys]
    scalar = torch.empty(1, device="meta")
    steps = [Fragment(f"{OPTIMIZER_KEY}{name}/step", (), 0, scalar, is_replicated=True) for name in shapes]
    return [*found, *(steps if state else [])]


def _checkpoint(model: torch.nn.Module, ranks: int, shards: int) -> dict[str, Figures]:
    """What ranks write, and what they read when as many resume."""
    shapes = _shapes(model)
    state_bytes = sum(4 + 3 * 4 * math.prod(shape) for shape in shapes.values())
    names = [state_file_name(rank) for rank in range(ranks)]
    by_name: dict[str, tuple[int, list[SavedPiece]]] = {}

    def file_of(name: str) -> tuple[int, list[SavedPiece]]:
        """Its size, and its pieces as its header says."""
        if name not in by_name:
            rank = names.index(name)
            share = in_file_order(share_to_write(_fragments(shapes, rank, ranks, shards, state=True), rank, ranks))
            header = state_file_header(share)
            size = len(header) + sum(piece.values.nbytes for piece in share)
            by_name[name] = size, parse_header(io.BytesIO(header), size)
        return by_name[name]

    saved, restored = [], []
    for rank, name in enumerate(names):
        saved.append({"files": 1, "bytes": file_of(name)[0]})
        held = _fragments(shapes, rank, ranks, shards, state=True)
        wanted: dict[str, list[Fragment]] = {}
        for fragment in share_to_write(held, rank, ranks):
            wanted.setdefault(fragment.key, []).append(fragment)
        own = files_of_rank(names, rank, ranks)
        opened, read = 0, 0
        for file in dict.fromkeys([*own, *nearest_first(names, rank, ranks)]):
            if file not in own and not wanted:
                break
            size, pieces = file_of(file)
            places = places_in(pieces, wanted, Path())
            header_bytes = size - sum((piece.stop - piece.start) * piece.dtype.itemsize for piece in pieces)
            opened += 1
            read += header_bytes + (size if file in own else sum(values.nbytes for _, values in places))
        assert not wanted
        got = sum(fragment.values.nbytes for fragment in held) - (file_of(name)[0] - header_bytes)
        restored.append({"files": opened, "bytes": read, "bytes_received": got})
    return {"save": _most(saved, state_bytes), "restore": _most(restored, state_bytes)}


def _write(model: torch.nn.Module, files: list[PlannedFile], ranks: int, shards: int) -> Figures:
    """What ranks send and write of the model, in bf16."""
    shapes = _shapes(model)
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
    found = [
        {
            "files": len(by_rank[rank]),
            "bytes": 2 * sum(tensor.elements for tensor in wanted[rank]),
            "bytes_sent": sent[rank],
            "messages_sent": messages[rank],
            "messages_received": received[rank],
            "largest_in_memory_bytes": 2 * max((tensor.elements for tensor in wanted[rank]), default=0),
        }
        for rank in range(ranks)
    ]
    model_bytes = 2 * sum(map(math.prod, shapes.values()))
    return {**_most(found, model_bytes), "total_sent": round(sum(sent) / model_bytes, 4)}


def _small_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    model: LlamaForCausalLM = with_new_weights(lambda: LlamaForCausalLM(LlamaConfig(**SIZES_OF_PROCESSES)))
    model.loss_type = "ForCausalLM"
    return model


def _of_processes(count: int, shard_size: int) -> Figures:
    """What real processes do with a small model: the most of any, and whether all is right."""
    started = time.monotonic()
    found = _found_by_ranks(count, _as_rank, shard_size)
    state_bytes = sum(each["share_bytes"] for each in found)
    return {
        **_sockets_found(found),
        "sockets_after_writing": max(each["sockets_after_writing"] for each in found[1:]),
        "restore_total": round(sum(each["read_bytes"] for each in found) / state_bytes, 3),
        "restored_equals_saved": all(each["is_equal"] for each in found),
        "same_bytes_written": all(each["same_bytes"] for each in found),
        "seconds": round(time.monotonic() - started, 1),
    }


def _sockets_with_gpus(count: int) -> Figures:
    return _sockets_found(_found_by_ranks(count, _as_rank_of_gpus))


def _sockets_found(found: list[Figures]) -> Figures:
    return {"sockets": max(each["sockets"] for each in found[1:]), "sockets_of_rank_0": found[0]["sockets"]}


def _found_by_ranks(count: int, work: Callable[..., Figures], *arguments: Any) -> list[Figures]:
    """Return what each of so many processes finds, by rank."""
    with tempfile.TemporaryDirectory(prefix="at-scale-") as name, socket.socket() as free:
        folder = Path(name)
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        forked = multiprocessing.get_context("fork")
        places = [(folder, rank, count, port, work, *arguments) for rank in range(count)]
        ranks = [forked.Process(target=_become_rank, args=place) for place in places]
        try:
            for rank in ranks:
                rank.start()
            for rank in ranks:
                rank.join(timeout=300)
            assert [rank.exitcode for rank in ranks] == [0] * count
        finally:
            for rank in ranks:
                rank.kill()
        return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(count)]


def _become_rank(folder: Path, rank: int, count: int, port: int, work: Callable[..., Figures], *arguments: Any) -> None:
    variables = {"RANK": rank, "LOCAL_RANK": rank % NODE_RANKS, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": NODE_RANKS}
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
    os.environ.update({name: str(value) for name, value in variables.items()})
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    (folder / f"rank-{rank}.json").write_text(json.dumps(work(folder, rank, count, *arguments)))


def _as_rank_of_gpus(folder: Path, rank: int, count: int) -> Figures:
    """Start as ranks of GPUs do, but for NCCL, and exchange something as a training and its checkpoints do."""
    before, initialize = _sockets(), dist.init_process_group
    assert fake_pg  # its import makes the backend known

    def init_process_group(backend: str, **options: Any) -> None:
        initialize("fake", **options)

    dist.init_process_group = init_process_group
    with World(300) as world:
        # With one node, a world of CPUs shares the default group.
        nodes = world.host.nodes
        host = HostGroup(nodes, rank, world.timeout) if len(nodes) == 1 else world.host
        assert host.gather(rank) == list(range(count))
        assert Ranks(world).each(lambda: rank) == list(range(count))
        return {"sockets": _sockets() - before}


def _as_rank(folder: Path, rank: int, count: int, shard_size: int) -> Figures:
    """Start, take a step, save, restore into another engine, and write the model."""
    settings = TrainFSDP(data=folder, model=folder, checkpoints=folder, metrics=folder, shard_size=shard_size)
    with World(300) as world:
        parts = EngineParts(_small_model, settings, OptimizerSettings(0.3), divide_batch(count, 1, count), world)
        engine = FSDPEngine(parts)
        tokens = torch.arange(16).view(1, 16) + rank
        engine.backward(engine.model(input_ids=tokens, labels=tokens).loss, count)
        engine.step(1e-3)
        checkpoints = Checkpoints(folder / "checkpoints", world, {})
        checkpoints.save(engine, Progress(step=1), wait=True)
        another = FSDPEngine(parts)
        before = _bytes_read()
        assert checkpoints.resume("auto", another, seed=0) is not None
        share = share_to_write(engine.state(), rank, count)
        found: Figures = {
            "read_bytes": _bytes_read() - before,
            "share_bytes": sum(piece.values.nbytes for piece in share),
            "is_equal": all(
                one.key == other.key and torch.equal(one.values, other.values)
                for one, other in zip(engine.state(), another.state(), strict=True)
            ),
            "sockets": _sockets(),
        }
        together, alone = folder / "together", folder / "alone"
        together.mkdir(exist_ok=True)
        world.barrier()

        def save(saved: torch.nn.Module) -> None:
            save_model(saved, together, SHARD_BYTES_OF_PROCESSES)

        # Without a step, so that the weights are those that the seed gives.
        written = Saving(FSDPEngine(parts), lambda: None).in_parts(_small_model, save, torch.float32)
        found["sockets_after_writing"] = _sockets()
        found["same_bytes"] = written
        if world.is_main:
            save_model(_small_model(), alone, SHARD_BYTES_OF_PROCESSES)
            files = {file.name: file.read_bytes() for file in alone.iterdir()}
            found["same_bytes"] = written and files == {file.name: file.read_bytes() for file in together.iterdir()}
        return found


def _bytes_read() -> int:
    """Return how many bytes this process has read from files, and from pipes and the like, whether cached or not."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("rchar"))


def _sockets() -> int:
    opened = (entry.path for entry in os.scandir("/proc/self/fd"))
    return sum(os.readlink(path).startswith("socket:") for path in opened if os.path.islink(path))


if __name__ == "__main__":
    sys.exit(main())
