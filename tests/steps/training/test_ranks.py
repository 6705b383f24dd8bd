"""Several real processes over gloo: the same bits, exact figures, one stop for all, and errors that name the cause."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from forked_ranks import RankServer, forked_ranks, send_signal
from rank_processes import (
    Ranks,
    clean_environment,
    free_port,
    rank_variables,
    training_arguments,
)
from safetensors.torch import load_file

from trainyard.steps import evaluate
from trainyard.steps.training.checkpoints.checkpoint_to_resume import checkpoint_folders

pytestmark = pytest.mark.slow


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "model" / "model.safetensors")


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def train(data: Path, out: Path, world_size: int, *more: object, delayed_rank: int | None = None) -> list[str]:
    """Train to the end with so many ranks."""
    arguments = training_arguments(data, out, *more)
    exit_codes, outputs = forked_ranks().run("train_ddp", arguments, world_size, delayed_rank=delayed_rank)
    assert exit_codes == [0] * world_size, outputs
    return outputs


def losses(out: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (out / "metrics" / "metrics.jsonl").read_text().splitlines()]


def wait_for_checkpoint(out: Path) -> None:
    """Return once a training has committed a checkpoint."""
    end = time.monotonic() + 60
    while not any((folder / "commit.json").exists() for folder in checkpoint_folders(out / "checkpoints")):
        assert time.monotonic() < end, "no checkpoint was committed"
        time.sleep(0.02)


def test_bits_do_not_depend_on_which_rank_starts_first(digits: Path, tmp_path: Path) -> None:
    flags = ("image_classification", "--max-steps", 12, *TINY_CONVNEXT)
    for delayed in (0, 1):
        outputs = train(digits, tmp_path / f"{delayed}", 2, *flags, delayed_rank=delayed)
        assert outputs[1] == "", "only rank 0 speaks"
    assert same(weights(tmp_path / "0"), weights(tmp_path / "1"))
    figures = []
    for delayed in (0, 1):
        arguments = ["--data", digits, "--model", tmp_path / f"{delayed}" / "model", "--evaluation", tmp_path / "e"]
        assert forked_ranks().run("evaluate", arguments, 2)[0] == [0, 0]
        figures.append((tmp_path / "e" / "evaluation.json").read_text())
    assert figures[0] == figures[1]


TINY_CONVNEXT = ("--model-overrides", '{"hidden_sizes": [8, 16], "depths": [1, 1]}')


def test_one_two_and_three_ranks_learn_the_same(digits: Path, tmp_path: Path) -> None:
    """An epoch's last batch has 1293 mod 48 = 45 samples: uneven for two ranks."""
    shapes = {1: 48, 2: 12, 3: 4}
    for world_size, micro in shapes.items():
        arguments = ("--global-batch-size", 48, "--micro-batch-size", micro, "--log-every-steps", 1)
        train(digits, tmp_path / f"{world_size}", world_size, "tiny_task:WithoutDropout", *arguments)
    alone = losses(tmp_path / "1")
    assert len(alone) == 27
    assert losses(tmp_path / "2") == pytest.approx(alone, rel=1e-4)
    assert losses(tmp_path / "3") == pytest.approx(alone, rel=1e-4)


def test_a_last_batch_smaller_than_the_world(digits: Path, tmp_path: Path) -> None:
    """1293 mod 68 = 1: one rank has the last sample, the other a stand-in that does not count."""
    for world_size in (1, 2):
        arguments = ("--global-batch-size", 68, "--micro-batch-size", 34, "--log-every-steps", 1)
        train(digits, tmp_path / f"{world_size}", world_size, "tiny_task:WithoutDropout", *arguments)
    assert losses(tmp_path / "2") == pytest.approx(losses(tmp_path / "1"), rel=1e-4)


def test_sigterm_to_one_rank_stops_all_and_resuming_gives_the_same_bits(
    digits: Path, tmp_path: Path, server: RankServer
) -> None:
    task = ("tiny_task:Slow", "--epochs", 2, "--checkpoint-every-steps", 5)
    train(digits, tmp_path / "whole", 2, *task)

    log = tmp_path / "log"
    pids = server.start("train_ddp", training_arguments(digits, tmp_path / "cut", *task), 2, log)
    wait_for_checkpoint(tmp_path / "cut")
    send_signal(pids[1], signal.SIGTERM)
    assert server.wait() == [75, 75]
    assert "because of SIGTERM; its checkpoint is committed" in log.read_text()

    assert "continuing from" in train(digits, tmp_path / "cut", 2, *task)[0]
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))


def test_a_killed_rank_ends_the_others_and_resuming_gives_the_same_bits(
    digits: Path, tmp_path: Path, server: RankServer
) -> None:
    """Three ranks: unlike with two, the order in which their gradients are added matters."""
    batches = ("--global-batch-size", 63, "--micro-batch-size", 21, "--checkpoint-every-steps", 5)
    flags = ("tiny_task:Slow", *batches)
    train(digits, tmp_path / "whole", 3, *flags)

    log = tmp_path / "log"
    pids = server.start("train_ddp", training_arguments(digits, tmp_path / "cut", *flags), 3, log)
    wait_for_checkpoint(tmp_path / "cut")
    send_signal(pids[1], signal.SIGKILL)
    assert server.wait() == [1, -signal.SIGKILL, 1]
    said = log.read_text()
    for rank in (0, 2):
        assert f"error: rank {rank} lost its connection to another rank" in said
    assert "Traceback" not in said

    assert "continuing from" in train(digits, tmp_path / "cut", 3, *flags)[0]
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))


def test_another_world_size_continues_with_the_same_samples(digits: Path, tmp_path: Path) -> None:
    task = ("tiny_task:WithoutDropout", "--log-every-steps", 1, "--micro-batch-size", 16)
    train(digits, tmp_path / "whole", 2, *task)
    train(digits, tmp_path / "moved", 2, *task, "--checkpoint-every-steps", 8, "--keep-checkpoints", 3)
    for step in (16, 21):
        (tmp_path / "moved" / "checkpoints" / f"step-{step:08d}" / "commit.json").unlink()
    assert "step 8, 512 samples consumed" in train(digits, tmp_path / "moved", 1, *task)[0]
    assert losses(tmp_path / "moved") == pytest.approx(losses(tmp_path / "whole"), rel=1e-4)


def test_a_loss_that_is_not_finite_on_one_rank_skips_the_step_on_all(digits: Path, tmp_path: Path) -> None:
    arguments = training_arguments(digits, tmp_path, "tiny_task:NotFinite", "--log-every-steps", 1)
    exit_codes, outputs = forked_ranks().run("train_ddp", arguments, 2, environment={"NOT_FINITE_STEPS": "2-3"})
    assert exit_codes == [0, 0], outputs
    lines = [json.loads(line) for line in (tmp_path / "metrics" / "metrics.jsonl").read_text().splitlines()]
    assert [line["skipped_steps"] for line in lines[:5]] == [0, 1, 2, 2, 2]


@pytest.mark.parametrize(("world_size", "shard"), [(2, "true"), (3, "false")])
def test_evaluation_counts_every_sample_once(
    digits: Path, trained: Path, tmp_path: Path, world_size: int, shard: str
) -> None:
    """359 test samples are uneven for two and for three ranks, and for batches of 50."""
    arguments = ["--data", digits, "--model", trained, "--evaluation", tmp_path, "--micro-batch-size", 50]
    arguments += ["--shard-model", shard]
    exit_codes, outputs = forked_ranks().run("evaluate", arguments, world_size)
    assert exit_codes == [0] * world_size, outputs
    matrix = torch.tensor(json.loads((tmp_path / "confusion_matrix.json").read_text())["matrix"])
    assert matrix.sum() == 359
    found = json.loads((tmp_path / "evaluation.json").read_text())
    assert found["accuracy"] == matrix.diagonal().sum().item() / 359

    alone = ["--data", digits, "--model", trained, "--evaluation", tmp_path / "alone"]
    assert evaluate.main([str(argument) for argument in alone]) == 0
    expected = json.loads((tmp_path / "alone" / "evaluation.json").read_text())
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-6)
    assert found["classes"] == expected["classes"]
    assert (tmp_path / "mistakes.json").read_text() == (tmp_path / "alone" / "mistakes.json").read_text()


@pytest.fixture(scope="module")
def trained(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of transformers, trained for a few steps by two ranks."""
    out = tmp_path_factory.mktemp("trained")
    train(digits, out, 2, "image_classification", "--max-steps", 10, *TINY_CONVNEXT)
    return out / "model"


def test_ranks_in_lockstep_evaluate_exactly(digits: Path, tmp_path: Path) -> None:
    """145 samples in batches of 24: the first of two ranks has four batches, the other three and a stand-in."""
    flags = ("tiny_transformer:NextLevel", "--max-steps", 2, "--global-batch-size", 48, "--micro-batch-size", 24)
    figures = []
    for world_size in (1, 2):
        out = tmp_path / f"{world_size}"
        exit_codes, outputs = forked_ranks().run("train_fsdp", training_arguments(digits, out, *flags), world_size)
        assert exit_codes == [0] * world_size, outputs
        figures.append(json.loads((out / "metrics" / "metrics.jsonl").read_text().splitlines()[-1])["validation_loss"])
    assert figures[1] == pytest.approx(figures[0], rel=1e-4)


def test_a_port_in_use_is_named(digits: Path, tmp_path: Path, forked_python: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        result = one_rank(forked_python, digits, tmp_path, rank=0, world_size=2, port=port)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == (
        f"trainyard.steps.train_ddp: error: rank 0 cannot listen on 127.0.0.1:{port} (MASTER_ADDR:MASTER_PORT): "
        "another process uses the port"
    )
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("rank", [0, 1])
def test_a_master_or_ranks_that_never_come_are_named(
    digits: Path, tmp_path: Path, forked_python: Path, rank: int
) -> None:
    port = free_port()
    result = one_rank(forked_python, digits, tmp_path, rank=rank, world_size=2, port=port, timeout_seconds=3)
    assert result.returncode == 1
    line = result.stderr.splitlines()[-1]
    assert f"127.0.0.1:{port} (MASTER_ADDR:MASTER_PORT) within 3 seconds (--process-group-timeout-seconds)" in line
    who = r"rank 1 of 2 did not connect to" if rank == 0 else r"rank 1 of 2 on \S+ \(127.0.0.1\) cannot reach rank 0 at"
    assert re.match(f"trainyard.steps.train_ddp: error: {who} ", line)
    assert "Traceback" not in result.stderr


def test_who_listens_on_the_port_for_a_moment_is_not_rank_0(digits: Path, tmp_path: Path, forked_python: Path) -> None:
    somebody_else = socket.create_server(("127.0.0.1", 0))
    port = somebody_else.getsockname()[1]

    def leave_at_the_first_visit() -> None:
        visitor, _ = somebody_else.accept()
        somebody_else.close()
        visitor.close()

    leaving = threading.Thread(target=leave_at_the_first_visit, daemon=True)
    leaving.start()
    result = one_rank(forked_python, digits, tmp_path, rank=1, world_size=2, port=port, timeout_seconds=3)
    leaving.join(timeout=60)
    assert result.returncode == 1
    line = result.stderr.splitlines()[-1]
    assert re.match(rf".*error: rank 1 of 2 on \S+ \(127.0.0.1\) cannot reach rank 0 at 127.0.0.1:{port} ", line)


def test_ranks_that_were_started_differently_say_how(digits: Path, tmp_path: Path, forked_python: Path) -> None:
    flags = training_arguments(digits, tmp_path, "tiny_task:TinyTask")
    ranks = Ranks()
    port = free_port()
    for rank in range(2):
        command = [forked_python, "-m", "trainyard.steps.train_ddp", *map(str, flags), "--seed", str(rank)]
        environment = {**clean_environment(), **rank_variables(rank, 2, port)}
        ranks.processes.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    assert ranks.wait() == [1, 1]
    for output in ranks.outputs:
        assert output.splitlines()[-1] == (
            "trainyard.steps.train_ddp: error: ranks were started differently: seed is 0 on rank 0, 1 on rank 1; "
            "start all with the same command"
        )


def one_rank(
    python: Path, data: Path, out: Path, *, rank: int, world_size: int, port: int, timeout_seconds: int = 20
) -> subprocess.CompletedProcess[str]:
    """Start a single rank of a world."""
    flags = training_arguments(data, out, "tiny_task:TinyTask", "--process-group-timeout-seconds", timeout_seconds)
    return subprocess.run(
        [python, "-m", "trainyard.steps.train_ddp", *[str(flag) for flag in flags]],
        env={**clean_environment(), **rank_variables(rank, world_size, port)},
        capture_output=True,
        text=True,
        timeout=400,
    )


@pytest.mark.parametrize(("kib", "exit_code"), [(8, 0), (7, 1)])
def test_a_full_disk_costs_the_last_checkpoint_before_the_model(
    digits: Path, tmp_path: Path, kib: int, exit_code: int
) -> None:
    """The settings take 4.8 KiB, the model's weights 7.4, and a rank's state in a checkpoint more than 8."""
    flags = " ".join(str(flag) for flag in training_arguments(digits, tmp_path))
    result = subprocess.run(
        ["bash", "-c", f"ulimit -f {kib}; exec {sys.executable} -m trainyard.steps.train_ddp {flags}"],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert result.returncode == exit_code
    (warning,) = [line for line in result.stdout.splitlines() if line.startswith("warning: ")]
    assert "cannot write the last checkpoint, which does not affect the model" in warning
    assert f"{tmp_path}/checkpoints/step-00000021/" in warning
    assert "file too large" in warning
    assert not (tmp_path / "checkpoints" / "step-00000021" / "commit.json").exists()
    if exit_code == 0:
        assert result.stderr == ""
        assert (tmp_path / "model" / "model.safetensors").is_file()
    else:
        (line,) = result.stderr.splitlines()
        assert line.startswith(f"trainyard.steps.train_ddp: error: cannot write {tmp_path}/model/model.safetensors: ")
        assert not (tmp_path / "model" / "model.safetensors").exists()
