"""Checkpoints piece by piece: how state is divided, written, read, committed, kept, and marked as best."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_ranks import RankServer
from hypothesis import given, settings
from hypothesis import strategies as st
from numbers_engine import NumbersEngine, fragments_of, same, some_tensors, write_as_ranks
from rank_processes import Ranks as RankProcesses
from rank_processes import clean_environment, free_port, rank_variables, training_arguments
from safetensors.torch import load_file

from trainyard.steps.runtime.errors import StepError, StorageError
from trainyard.steps.runtime.world import World
from trainyard.steps.training.checkpoints.checkpoint_to_resume import (
    checkpoint_folders,
    keep_newest_and_best,
)
from trainyard.steps.training.checkpoints.checkpoints import Checkpoints
from trainyard.steps.training.checkpoints.collectives import Ranks
from trainyard.steps.training.checkpoints.commit import BrokenCheckpoint, Commit, read_commit
from trainyard.steps.training.checkpoints.restoring import nearest_first, read_share, restore
from trainyard.steps.training.checkpoints.saving import HostCopy
from trainyard.steps.training.checkpoints.state_files import share_to_write, shares_of_others
from trainyard.steps.training.fragments import Fragment, whole_tensor
from trainyard.steps.training.samples.plan import Progress
from trainyard.steps.training.validation import Metric

MIB = 1 << 20


@pytest.fixture
def world() -> Iterator[World]:
    with World(30, {}) as world:
        yield world


def checkpoints(folder: Path, world: World, **options: Any) -> Checkpoints:
    return Checkpoints(folder, world, {"seed": 1}, **options)


def committed(folder: Path) -> tuple[Path, Commit]:
    return folder, read_commit(folder)


def at(step: int) -> Progress:
    return Progress(step, 1, 10 * step, 0)


def steps_in(folder: Path) -> list[int]:
    """The steps of the existing folders, committed or not."""
    return sorted(int(child.name.removeprefix("step-")) for child in checkpoint_folders(folder))


# How state is divided


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 3 * MIB), min_size=1, max_size=12),
    world_size=st.integers(1, 9),
    dtype=st.sampled_from([torch.uint8, torch.float32, torch.float64]),
)
def test_replicated_state_is_written_once_in_even_shares(sizes: list[int], world_size: int, dtype: torch.dtype) -> None:
    tensors = {f"model/{index}": torch.empty(size, dtype=torch.uint8).to(dtype) for index, size in enumerate(sizes)}
    fragments = [whole_tensor(key, tensor) for key, tensor in tensors.items()]
    shares = [share_to_write(fragments, rank, world_size) for rank in range(world_size)]
    for key, tensor in tensors.items():
        pieces = sorted((piece.start, piece.stop) for share in shares for piece in share if piece.key == key)
        bounds = [0, *(stop for _, stop in pieces)]
        assert [start for start, _ in pieces] == bounds[:-1]
        assert bounds[-1] == tensor.numel()
        assert len(pieces) <= 1 or tensor.nbytes > MIB, "small tensors stay whole"
    written = [sum(piece.values.nbytes for piece in share) for share in shares]
    used = [size for size in written if size]
    assert len(used) <= max(1, sum(written) // MIB), "no file for less than a mebibyte"
    assert max(written) - min(used, default=0) <= 2 * MIB


def test_sharded_state_is_written_by_the_rank_that_has_it() -> None:
    tensors = some_tensors(0)
    for rank in range(3):
        divided = fragments_of(tensors, rank, 3, divided=True)
        assert share_to_write(divided, rank, 3) == [fragment for fragment in divided if fragment.values.numel()]


def test_what_some_ranks_hold_alike_is_written_once_by_them_together() -> None:
    """As the replicas of hybrid sharding: two halves of each tensor, of which three ranks each have a copy."""
    tensors = {**some_tensors(0), "model/large": torch.randn(2 * MIB)}
    written = []
    for rank in range(6):
        half = fragments_of(tensors, rank % 2, 2, divided=True)
        copies = [dataclasses.replace(fragment, copy=rank // 2, copies=3) for fragment in half]
        written.append(share_to_write(copies, rank, 6))
        known = {
            (2 * number + rank % 2, share.key, share.start, share.stop) for number, share in shares_of_others(copies, 6)
        }
        assert {(rank, share.key, share.start, share.stop) for share in written[-1]} == {
            share for share in known if share[0] == rank
        }, "who gets them knows who reads what"
    for key, tensor in tensors.items():
        pieces = sorted((piece.start, piece.stop) for share in written for piece in share if piece.key == key)
        assert [start for start, _ in pieces] == [0, *(stop for _, stop in pieces)][:-1]
        assert pieces[-1][1] == tensor.numel()
    assert all(sum(piece.values.numel() for piece in share) > MIB // 8 for share in written), "each writes a part"


# What is on disk


def test_a_state_file_is_safetensors_whose_names_locate_each_piece(tmp_path: Path) -> None:
    tensors = some_tensors(0, width=10)
    write_as_ranks(tmp_path / "step-00000003", tensors, 2, at(3), divided=True)
    second = load_file(tmp_path / "step-00000003" / "state-rank-00001.safetensors")
    assert torch.equal(second["model/0.bias[3:7]"], tensors["model/0.bias"][3:7])
    assert torch.equal(second["model/0.weight[150:300]"], tensors["model/0.weight"].view(-1)[150:])
    commit = json.loads((tmp_path / "step-00000003" / "commit.json").read_text())
    for name, saved in commit["files"].items():
        content = (tmp_path / "step-00000003" / name).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (saved["bytes"], saved["sha256"])


@pytest.mark.parametrize("divided", [True, False])
@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_any_range_can_be_read_whichever_rank_wrote_it(tmp_path: Path, world_size: int, divided: bool) -> None:
    tensors = some_tensors(0, width=700)  # more than a mebibyte: what is replicated is divided, too
    write_as_ranks(tmp_path / "c", tensors, world_size, at(1), divided=divided)
    commit = read_commit(tmp_path / "c")
    for key, tensor in tensors.items():
        flat = tensor.view(-1)
        for start, stop in ((0, flat.numel()), (flat.numel() // 3, flat.numel() // 2 + 1), (0, 0)):
            found = torch.zeros_like(flat[start:stop])
            read_share(tmp_path / "c", commit, [Fragment(key, tuple(tensor.shape), start, found)], {}, commit.files)
            assert torch.equal(found, flat[start:stop])


def test_only_the_files_that_are_needed_are_opened(tmp_path: Path) -> None:
    write_as_ranks(tmp_path / "c", some_tensors(0), 3, at(1), divided=True)
    (tmp_path / "c" / "state-rank-00002.safetensors").unlink()
    commit, share = read_commit(tmp_path / "c"), fragments_of(some_tensors(1), 1, 3, divided=True)[:2]
    read_share(tmp_path / "c", commit, share, {}, nearest_first(list(commit.files), 1, 3))
    assert torch.equal(share[0].values, fragments_of(some_tensors(0), 1, 3, divided=True)[0].values)


# Restoring into an engine


@pytest.mark.parametrize("divided", [True, False])
@pytest.mark.parametrize("world_size", [2, 5])
def test_a_checkpoint_of_another_world_size_is_loaded(
    tmp_path: Path, world: World, capsys: pytest.CaptureFixture[str], world_size: int, divided: bool
) -> None:
    write_as_ranks(tmp_path / "step-00000007", some_tensors(0), world_size, at(7), divided=divided)
    engine = NumbersEngine(some_tensors(1))
    found = checkpoints(tmp_path, world)
    assert found.resume("auto", engine, seed=0) == (tmp_path / "step-00000007", at(7))
    assert same(engine.tensors, some_tensors(0))
    assert engine.given_scalars == {"loss_scale": 0.5}
    assert f"saved by engine numbers at world size {world_size}; continuing with engine numbers at world size 1" in (
        capsys.readouterr().out
    )


def test_saved_state_is_loaded_with_the_random_state(tmp_path: Path, world: World) -> None:
    import random

    import numpy as np

    def draw() -> tuple[float, float, float]:
        return random.gauss(0, 1), float(np.random.randn()), torch.rand(1).item()

    draw()
    saved = NumbersEngine(some_tensors(0))
    checkpoints(tmp_path, world).save(saved, at(4), wait=True)
    drawn = draw()
    loaded = NumbersEngine(some_tensors(1))
    assert checkpoints(tmp_path, world).load(*committed(tmp_path / "step-00000004"), loaded, seed=0) == at(4)
    assert same(loaded.tensors, saved.tensors)
    assert draw() == drawn


def test_state_may_change_as_soon_as_save_returns(tmp_path: Path, world: World) -> None:
    engine = NumbersEngine(some_tensors(0, width=500))
    saving = checkpoints(tmp_path, world)
    saving.save(engine, at(1))
    for tensor in engine.tensors.values():
        tensor.fill_(0)
    saving.save(engine, at(2))
    saving.finish()
    checkpoints(tmp_path, world).load(*committed(tmp_path / "step-00000001"), engine, seed=0)
    assert same(engine.tensors, some_tensors(0, width=500))
    assert saving.stall_seconds > 0


def test_a_buffer_made_ahead_is_used_while_it_is_large_enough() -> None:
    """As on a GPU, where pinning its memory would hold up the first checkpoint."""
    small, large = ([whole_tensor("model/x", torch.randn(count))] for count in (10, 5000))
    copy = HostCopy(torch.device("cpu"))
    copy.prepare(small)
    places = []
    for pieces in (small, small, large):
        copy.begin(pieces, pieces)
        found = torch.frombuffer(copy.wait(), dtype=torch.float32)
        places.append(found.data_ptr())
        assert torch.equal(found, pieces[0].values)
    assert places[0] == places[1] != places[2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("model/0.bias"), "it has model/0.bias, which this model does not have"),
        (lambda tensors: tensors.update({"model/new": torch.ones(2)}), "it lacks model/new"),
        (
            lambda tensors: tensors.update({"model/0.bias": torch.ones(9)}),
            "model/0.bias has the shape (7), but (9) in this model",
        ),
        (
            lambda tensors: tensors.update({"model/0.bias": torch.ones(7).half()}),
            "model/0.bias has the type torch.float32, but torch.float16 in this training",
        ),
    ],
)
def test_state_of_another_model_is_rejected_naming_the_tensor(
    tmp_path: Path, world: World, change: Any, message: str
) -> None:
    checkpoints(tmp_path, world).save(NumbersEngine(some_tensors(0)), at(4), wait=True)
    tensors = some_tensors(1)
    change(tensors)
    with pytest.raises(StepError) as refused:
        checkpoints(tmp_path, world).load(*committed(tmp_path / "step-00000004"), NumbersEngine(tensors), seed=0)
    assert message in str(refused.value)


def test_ranks_with_equal_keys_do_not_exchange_them(tmp_path: Path, world: World) -> None:
    sent: list[object] = []

    class Overheard(Ranks):
        def each(self, action: Any) -> list[Any]:
            things = super().each(action)
            sent.extend(things)
            return things

    write_as_ranks(tmp_path / "c", some_tensors(0), 1, at(1), divided=False)
    engine, cpu = NumbersEngine(some_tensors(1)), torch.device("cpu")
    restore(tmp_path / "c", read_commit(tmp_path / "c"), engine, Overheard(world), cpu, seed=0)
    assert sum(len(str(thing)) for thing in sent) < 200, sent


def test_a_missing_range_is_named(tmp_path: Path) -> None:
    write_as_ranks(tmp_path / "c", some_tensors(0), 2, at(1), divided=True)
    commit, share = read_commit(tmp_path / "c"), [whole_tensor("model/0.bias", torch.zeros(7))]
    with pytest.raises(BrokenCheckpoint, match=r"lacks model/0.bias from element 3 on"):
        read_share(tmp_path / "c", commit, share, {}, ["state-rank-00000.safetensors"])


# The commit


def test_a_commit_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_as_ranks(tmp_path / "c", some_tensors(0), 2, Progress(7, 2, 448, 3), divided=True)
    commit = read_commit(tmp_path / "c")
    assert (commit.progress, commit.world_size, commit.engine) == (Progress(7, 2, 448, 3), 2, "numbers")
    assert (commit.identity, commit.scalars) == ({"seed": 1}, {"loss_scale": 0.5})
    assert list(commit.files) == ["state-rank-00000.safetensors", "state-rank-00001.safetensors"]


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (lambda text: text[:-40], "cannot be read"),
        (lambda text: "", "cannot be read"),
        (lambda text: text.replace('"step": 7', '"step": 3'), "its SHA-256 differs"),
        (lambda text: text.replace('"seed": 1', '"seed": 2'), "its SHA-256 differs"),
        (lambda text: "[1, 2]", "was not written by a training step"),
    ],
)
def test_an_altered_commit_is_rejected(tmp_path: Path, alter: Any, message: str) -> None:
    write_as_ranks(tmp_path / "c", some_tensors(0), 2, at(7), divided=True)
    file = tmp_path / "c" / "commit.json"
    file.write_text(alter(file.read_text()))
    with pytest.raises(BrokenCheckpoint) as broken:
        read_commit(tmp_path / "c")
    assert message in str(broken.value)


@pytest.mark.parametrize(("version", "age"), [(1, "an older"), (3, "a newer")])
def test_a_checkpoint_of_another_version_is_rejected(tmp_path: Path, world: World, version: int, age: str) -> None:
    (tmp_path / "step-00000007").mkdir()
    (tmp_path / "step-00000007" / "commit.json").write_text(f'{{"format": "trainyard.checkpoint/{version}"}}')
    with pytest.raises(StepError, match=f"was written by {age} version of Trainyard"):
        checkpoints(tmp_path, world).resume("auto", NumbersEngine(some_tensors(0)), seed=0)
    assert (tmp_path / "step-00000007").is_dir()


def test_a_checkpoint_that_cannot_be_read_now_does_not_count_as_broken(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To resume from the older one would cost the newer. The file links to itself, in place of a mount that fails."""
    monkeypatch.setattr("trainyard.steps.runtime.errors._STORAGE_ERRORS", ("ELOOP",))
    for step in (3, 7):
        write_as_ranks(tmp_path / f"step-{step:08d}", some_tensors(step), 2, at(step), divided=True)
    for name in ("commit.json", "state-rank-00001.safetensors"):
        file = tmp_path / "step-00000007" / name
        aside = file.rename(tmp_path / name)
        file.symlink_to(file)
        with pytest.raises(StepError, match=f"{name}: too many levels of symbolic links") as refused:
            checkpoints(tmp_path, world).resume("auto", NumbersEngine(some_tensors(0)), seed=0)
        assert isinstance(refused.value, StorageError), "so that a watcher starts again"
        aside.replace(file)
    found = checkpoints(tmp_path, world).resume("auto", NumbersEngine(some_tensors(0)), seed=0)
    assert found == (tmp_path / "step-00000007", at(7))


# Which ones are kept


def test_the_newest_few_are_kept_and_leftovers_removed(tmp_path: Path, world: World) -> None:
    engine = NumbersEngine(some_tensors(0))
    (tmp_path / "step-00000002").mkdir()  # interrupted while it was saved
    (tmp_path / "step-00000002" / "state-rank-00000.safetensors").write_bytes(b"half")
    write_as_ranks(tmp_path / "step-00000009", some_tensors(0), 1, at(9), divided=False)  # not gone on from
    saving = checkpoints(tmp_path, world, keep=2)
    for step in (3, 4, 5):
        saving.save(engine, at(step), wait=True)
    assert steps_in(tmp_path) == [4, 5]


def test_the_best_one_is_kept_as_long_as_it_is_the_best(tmp_path: Path, world: World) -> None:
    engine = NumbersEngine(some_tensors(0))
    saving = checkpoints(tmp_path, world, keep=1, best_by=Metric())
    kept = []
    for step, loss in enumerate((0.9, 0.5, float("nan"), 0.7, 0.4, 0.6), start=1):
        saving.save(engine, at(step), {"loss": loss}, wait=True)
        kept.append(steps_in(tmp_path))
    assert kept == [[1], [2], [2, 3], [2, 4], [5], [5, 6]]
    assert [read_commit(folder).is_best for folder in checkpoint_folders(tmp_path)] == [False, True]

    resumed = checkpoints(tmp_path, world, keep=1, best_by=Metric())
    resumed.load(*committed(tmp_path / "step-00000006"), engine, seed=0)
    assert not resumed.is_best({"loss": 0.5})
    assert resumed.is_best({"loss": 0.3})
    assert not checkpoints(tmp_path, world).is_best({"loss": 0.3}), "only where the best one is kept"


def test_the_checkpoint_resumed_from_is_marked_as_best_without_being_rewritten(tmp_path: Path, world: World) -> None:
    engine = NumbersEngine(some_tensors(0))
    checkpoints(tmp_path, world, best_by=Metric()).save(engine, at(3), wait=True)
    file = tmp_path / "step-00000003" / "state-rank-00000.safetensors"
    written = file.stat().st_mtime_ns, file.stat().st_ino
    resumed = checkpoints(tmp_path, world, best_by=Metric())
    resumed.load(*committed(tmp_path / "step-00000003"), engine, seed=0)
    resumed.save(engine, at(3), {"loss": 0.5}, wait=True)
    assert (file.stat().st_mtime_ns, file.stat().st_ino) == written
    assert read_commit(tmp_path / "step-00000003").is_best


def test_old_checkpoints_that_cannot_be_listed_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in (1, 2, 3):
        write_as_ranks(tmp_path / f"step-{step:08d}", some_tensors(0), 1, at(step), divided=False)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        keep_newest_and_best(tmp_path / "step-00000003", 1, keep_best=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    said = capsys.readouterr().out
    assert said == f"warning: cannot look for old checkpoints, so all are kept: {tmp_path}: too many open files\n"
    assert steps_in(tmp_path) == [1, 2, 3]


# What cannot be written


@pytest.fixture
def small_files_only() -> Iterator[None]:
    """No file may grow beyond 64 KiB: a full disk, as far as a checkpoint can tell."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_checkpoint_that_cannot_be_written_is_logged_and_the_training_continues(
    tmp_path: Path, world: World, capsys: pytest.CaptureFixture[str], small_files_only: None
) -> None:
    saving = checkpoints(tmp_path, world, best_by=Metric())
    small, large = NumbersEngine(some_tensors(0)), NumbersEngine(some_tensors(0, width=500))
    saving.save(small, at(1), wait=True)
    saving.save(large, at(2), {"loss": 0.5})
    assert saving.is_best({"loss": 0.6}), "the better one is not there"
    assert capsys.readouterr().out == (
        "warning: cannot write the checkpoint of step 2, and the training continues without it: "
        f"{tmp_path}/step-00000002/state-rank-00000.safetensors: file too large\n"
    )
    assert saving.failed_saves == 1
    assert steps_in(tmp_path) == [1], "what was written of it is gone, and the one before is there"
    saving.save(small, at(3))
    saving.finish()
    assert steps_in(tmp_path) == [1, 3]


def test_the_last_checkpoint_must_be_written(tmp_path: Path, world: World, small_files_only: None) -> None:
    with pytest.raises(StepError, match=r"state-rank-00000\.safetensors: file too large"):
        checkpoints(tmp_path, world).save(NumbersEngine(some_tensors(0, width=500)), at(2), wait=True)
    assert steps_in(tmp_path) == []


WAIT_FOR_RANK_1 = """
import sys
import time
from trainyard.steps.runtime.entrypoint import end_process
from trainyard.steps.training.checkpoints.collectives import Ranks
from trainyard.steps.runtime.world import World

print("imported", flush=True)
sys.stdin.readline()
world = World(3)
ranks = Ranks(world)
world.barrier()
if world.is_main:
    try:
        ranks.each(lambda: None)
    except RuntimeError as failure:
        print(failure)
else:
    time.sleep(60)
end_process(0)
"""


@pytest.mark.slow
def test_ranks_wait_for_an_absent_rank_until_the_timeout() -> None:
    port = free_port()
    ranks = RankProcesses(
        [
            subprocess.Popen(
                [sys.executable, "-c", WAIT_FOR_RANK_1],
                env={**clean_environment(), **rank_variables(rank, 2, port)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in (0, 1)
        ]
    )
    try:
        # They meet within three seconds, which imports may take on a busy machine.
        assert [rank.stdout.readline() for rank in ranks.processes if rank.stdout] == ["imported\n"] * 2
        for rank in ranks.processes:
            assert rank.stdin is not None
            rank.stdin.write("go on\n")
            rank.stdin.flush()
        assert "3000ms" in ranks.processes[0].communicate(timeout=40)[0]
    finally:
        ranks.kill()


# In a training


def test_a_training_computes_the_same_bits_whether_it_waits_for_checkpoints_or_not(
    digits: Path, tmp_path: Path
) -> None:
    from trainyard.steps import train_ddp

    results = []
    for name, flags in (
        ("none", ["--checkpoint-every-steps", 0]),
        ("waits", ["--checkpoint-every-steps", 2, "--asynchronous-checkpoints", "false"]),
        ("goes on", ["--checkpoint-every-steps", 2]),
    ):
        arguments = training_arguments(digits, tmp_path / name, "tiny_task:TinyTask", *flags)
        assert train_ddp.main([str(argument) for argument in arguments]) == 0
        results.append(read_commit(checkpoint_folders(tmp_path / name / "checkpoints")[0]))
    assert results[0] == results[1] == results[2]


def test_the_best_checkpoint_of_a_training_is_kept(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tiny_task

    from trainyard.steps import train_ddp

    class Worsens(tiny_task.TinyTask):
        """Its figures get worse after the second epoch."""

        calls = 0

        def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
            self.calls += 1
            return super().loss(model, batch)

        def measure(self, model: torch.nn.Module, batch: Any) -> dict[str, torch.Tensor]:
            measured = super().measure(model, batch)
            return {**measured, "loss_sum": measured["loss_sum"] + (self.calls > 2 * 2 * 21) * measured["samples"]}

    monkeypatch.setattr(tiny_task, "Replaced", Worsens)
    flags = ("--epochs", 4, "--keep-checkpoints", 1, "--keep-best-checkpoint", "true")
    arguments = training_arguments(digits, tmp_path, "tiny_task:Replaced", *flags)
    assert train_ddp.main([str(argument) for argument in arguments]) == 0
    assert steps_in(tmp_path / "checkpoints") == [42, 84]
    lines = [json.loads(line) for line in (tmp_path / "metrics" / "metrics.jsonl").read_text().splitlines()]
    validated = {line["step"]: line["validation_loss"] for line in lines if "validation_loss" in line}
    best = read_commit(tmp_path / "checkpoints" / "step-00000042")
    assert (best.is_best, best.best_figure) == (True, min(validated.values()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("full_until", "limit", "exit_code", "steps"),
    [(9, 5, 0, [20, 21]), (10_000, 6, 0, []), (10_000, 3, 1, [])],
    ids=["for a while", "to the end", "until the limit"],
)
def test_a_full_disk_of_one_rank_is_reported_on_all(
    digits: Path, tmp_path: Path, server: RankServer, full_until: int, limit: int, exit_code: int, steps: list[int]
) -> None:
    """The model is written all the same, unless too many saves in a row fail."""
    flags = ("--checkpoint-every-steps", 4, "--failed-saves-limit", limit)
    arguments = training_arguments(digits, tmp_path / "out", "tiny_task:FullDisk", *flags)
    server.start("train_ddp", arguments, 2, tmp_path / "log", {"DISK_FULL_UNTIL": str(full_until)})
    exit_codes = server.wait()
    said = (tmp_path / "log").read_text()
    folder = tmp_path / "out" / "checkpoints"
    refused = "state-rank-00001.safetensors: file too large (rank 1)"
    goes_on = "warning: cannot write the checkpoint of step 4, and the training continues without it"
    assert f"{goes_on}: {folder}/step-00000004/{refused}" in said
    assert exit_codes == [exit_code] * 2, said
    assert (tmp_path / "out" / "model" / "model.safetensors").exists() == (exit_code == 0)
    last = (
        f"warning: cannot write the last checkpoint, which does not affect the model: {folder}/step-00000021/{refused}"
    )
    assert (last in said) == (limit == 6)
    assert said.count(f"train_ddp: error: 3 checkpoints in a row could not be written to {folder}") == 2 * exit_code
    assert steps_in(folder) == steps
