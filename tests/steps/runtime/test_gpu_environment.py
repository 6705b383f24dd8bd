"""What is set for NCCL and torch on GPUs, what is left to whoever has set it, and what is written when ranks hang."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch.torch_version import TorchVersion

from trainyard.settings.steps.training import TrainDDP
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.flags import GivenSettings
from trainyard.steps.runtime.rank_variables import RankVariables
from trainyard.steps.runtime.world import own_gpu, set_gpu_defaults
from trainyard.steps.training.engines.replicas import DDPEngine
from trainyard.steps.training.run_training import ranks_met


def test_defaults_for_a_training_that_promises_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.version.hip", None)
    environment: dict[str, str] = {}
    set_gpu_defaults(environment, deterministic=True)
    assert environment == {
        "TORCH_FR_BUFFER_SIZE": "2000",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "NCCL_ALGO": "^NVLS,NVLSTree",
    }


def test_what_is_set_already_stays() -> None:
    given = {
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "0",
        "PYTORCH_ALLOC_CONF": "max_split_size_mb:512",
        "NCCL_ALGO": "Ring",
    }
    environment = dict(given)
    set_gpu_defaults(environment, deterministic=True)
    assert environment == given


def test_what_only_nvidia_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.version.hip", "7.0")
    environment: dict[str, str] = {}
    set_gpu_defaults(environment, deterministic=False)
    assert set(environment) == {"TORCH_FR_BUFFER_SIZE"}


@pytest.mark.parametrize(
    ("version", "name"), [("2.9.1", "TORCH_NCCL_TRACE_BUFFER_SIZE"), ("2.10.0", "TORCH_FR_BUFFER_SIZE")]
)
def test_the_recorder_is_asked_for_by_the_name_that_this_torch_reads(
    version: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.__version__", TorchVersion(version))
    environment: dict[str, str] = {}
    set_gpu_defaults(environment, deterministic=False)
    assert environment[name] == "2000"


def test_allocator_settings_are_made_before_a_check_may_start_cuda(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the check of float8 does, which asks the GPU what it can do."""
    monkeypatch.setattr("torch.version.hip", None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("os.environ", dict(os.environ))

    def check(*_: object) -> Any:
        raise StepError(os.environ["PYTORCH_CUDA_ALLOC_CONF"])

    settings = TrainDDP(*(tmp_path / name for name in ("data", "model", "checkpoints", "metrics")))
    with (
        pytest.raises(StepError, match="expandable_segments:True"),
        ranks_met(GivenSettings(settings, {}, {}), "train_ddp", DDPEngine, check),
    ):
        raise AssertionError("no ranks meet")


def test_a_process_that_sees_only_its_own_gpu_takes_that() -> None:
    def own(local_rank: int, visible: int, **environment: str) -> int:
        return own_gpu(RankVariables(local_rank, local_rank, 8), visible, environment)

    assert [own(3, 8), own(3, 8, CUDA_VISIBLE_DEVICES="0,1,2,3,4,5,6,7"), own(0, 1)] == [3, 3, 0]
    assert own(3, 1, CUDA_VISIBLE_DEVICES="3") == own(3, 1, ROCR_VISIBLE_DEVICES="3") == 0, "srun --gpus-per-task=1"
    for visible, environment in ((1, {}), (2, {"CUDA_VISIBLE_DEVICES": "0,1"})):
        with pytest.raises(StepError, match=f"LOCAL_RANK=3 needs GPU 3, but this node has only {visible}"):
            own(3, visible, **environment)


ONE_RANK_OF_TWO_WAITS = """
import os, sys, time
os.environ["TORCH_FR_BUFFER_SIZE"] = "100"
import torch, torch.distributed as dist
from pathlib import Path
from trainyard.steps.training.observing.hang_watch import write_collectives
rank, folder = int(sys.argv[1]), Path(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
dist.all_reduce(torch.ones(3))
if rank == 0:
    dist.all_reduce(torch.ones(5, 2), async_op=True)
while "number 1" in (said := write_collectives(folder / "collectives", rank)):
    time.sleep(0.05)  # gloo's own thread notes that the first sum is finished
print(said, flush=True)
sys.stdin.read()
os._exit(0)
"""


@pytest.mark.slow
def test_the_collective_that_a_rank_waits_in_is_written(tmp_path: Path) -> None:
    """Over gloo, which torch's recorder watches as it does NCCL. The other rank has no second sum."""
    command = [sys.executable, "-c", ONE_RANK_OF_TWO_WAITS]
    ranks = [
        subprocess.Popen([*command, str(rank), str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        said = [rank.stdout.readline() for rank in ranks if rank.stdout]
    finally:
        for rank in ranks:
            rank.communicate(timeout=60)
    file = tmp_path / "collectives" / "collectives_rank_0"
    assert (
        f"its last 2 collectives are in {file}; not finished: gloo:all_reduce of 5x2, number 2 of its group" in said[0]
    )
    assert "its last 1 collectives" in said[1]
    assert pickle.loads(file.read_bytes())["entries"][-1]["input_sizes"] == [[5, 2]]
