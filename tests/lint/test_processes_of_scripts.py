"""Scripts and commands as tutorials of distributed training have them: what lint advises must not break them."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard.lint.linter import lint
from trainyard.spec.diagnostic import Diagnostic

A100S = "Standard_ND96asr_v4"
LIGHTNING = "import pytorch_lightning as pl\n\ntrainer = pl.Trainer(devices=8, num_nodes=2, strategy='ddp')\n"
SPAWN = "import torch.multiprocessing as mp\n\n\ndef work(rank):\n    print(rank)\n\n\nmp.spawn(work, nprocs=8)\n"
DATA_PARALLEL = "import torch.nn as nn\n\nmodel = nn.DataParallel(nn.Linear(2, 2))\n"
STARTED_BY_US = "import subprocess\n\nsubprocess.run('torchrun --nproc_per_node 4 work.py', shell=True)\n"


def findings(
    folder: Path, script: str, distribution: str = "", command: str = "python train.py", nodes: int = 2
) -> list[Diagnostic]:
    """What lint finds in a job with this script as train.py on machines with eight GPUs."""
    (folder / "src").mkdir()
    (folder / "src" / "train.py").write_text(script)
    text = f"type: command\ncode: ./src\ncommand: {command}\nenvironment: azureml:torch:3\n"
    text += f"resources: {{instance_type: {A100S}, instance_count: {nodes}, shm_size: 64g}}\n"
    if distribution:
        text += f"distribution: {distribution}\n"
    file = folder / "job.yml"
    file.write_text(text)
    return list(lint([file]).diagnostics)


@pytest.mark.parametrize(
    ("script", "distribution", "expected"),
    [
        (LIGHTNING, "{type: mpi, process_count_per_instance: 1}", []),
        (SPAWN, "{type: pytorch, process_count_per_instance: 1}", []),
        (DATA_PARALLEL, "{type: mpi}", []),
        (STARTED_BY_US, "{type: mpi}", []),
        # LOCAL_RANK is set there: Lightning starts nothing, and waits for processes that nobody starts.
        (LIGHTNING, "{type: pytorch, process_count_per_instance: 1}", ["AML602"]),
        (LIGHTNING.replace("=8", "=1"), "{type: mpi}", ["AML602"]),
        ("print('training')\n", "{type: mpi}", ["AML602"]),
    ],
    ids=["lightning_mpi", "spawn", "data_parallel", "subprocess", "lightning_pytorch", "one_device", "plain"],
)
def test_a_script_that_starts_its_own_processes_needs_one_for_each_machine(
    tmp_path: Path, script: str, distribution: str, expected: list[str]
) -> None:
    assert [found.rule for found in findings(tmp_path, script, distribution)] == expected


@pytest.mark.parametrize("nodes", [1, 2])
def test_one_process_is_no_advice_for_a_launcher_on_several_machines(tmp_path: Path, nodes: int) -> None:
    distribution = "{type: pytorch, process_count_per_instance: 8}"
    (found,) = findings(tmp_path, "print()\n", distribution, "deepspeed train.py", nodes)
    assert found.rule == "AML613"
    assert ("process_count_per_instance: 1" in found.hint) is (nodes == 1)


@pytest.mark.parametrize(
    ("command", "nodes", "expected"),
    [
        ("deepspeed train.py", 2, ["AML622"]),
        ("python -m deepspeed.launcher.runner train.py", 2, ["AML622"]),
        ("deepspeed --hostfile hosts train.py", 2, []),
        ("deepspeed train.py", 1, []),
    ],
)
@pytest.mark.parametrize("distribution", ["", "{type: pytorch, process_count_per_instance: 1}"])
def test_deepspeed_knows_other_machines_from_a_hostfile(
    tmp_path: Path, command: str, nodes: int, expected: list[str], distribution: str
) -> None:
    found = findings(tmp_path, "print()\n", distribution, command, nodes)
    assert [each.rule for each in found] == expected
    assert all("itself" in each.message for each in found)


def test_the_number_of_a_machine_is_not_the_number_of_machines(tmp_path: Path) -> None:
    command = "torchrun --nproc_per_node 4 --nnodes=$NODE_RANK --node_rank $NODE_RANK train.py"
    (found,) = findings(tmp_path, "print()\n", "{type: pytorch, process_count_per_instance: 1}", command)
    assert found.rule == "AML622"
    assert "$AZUREML_NODE_COUNT" in found.hint


def test_pasted_dashes_of_a_launcher_are_found(tmp_path: Path) -> None:
    command = "python -m torch.distributed.launch — nproc_per_node=4 train.py"
    (found,) = findings(tmp_path, "print()\n", "", command, nodes=1)
    assert (found.rule, found.replacement) == ("AML501", "--nproc_per_node=4")


DECLARES = "import argparse\n\nparser = argparse.ArgumentParser()\nparser.add_argument({names}, type=int)\n"


@pytest.mark.parametrize(
    ("command", "names", "rest", "expected"),
    [
        ("python -m torch.distributed.launch --nproc_per_node 4 train.py", "'--local_rank'", "", ["AML623"]),
        ("python -m torch.distributed.launch train.py", "'--epochs'", "", ["AML623"]),
        ("python -m torch.distributed.launch --use_env train.py", "'--epochs'", "", []),
        ("torchrun --nproc_per_node 4 train.py", "'--local_rank'", "", []),
        ("python -m torch.distributed.launch train.py", "'--local_rank', '--local-rank'", "", []),
        ("python -m torch.distributed.launch train.py", "'--local_rank'", "known_", []),
    ],
    ids=["underscore", "neither", "by_environment", "torchrun", "both", "others_are_left_alone"],
)
def test_the_launcher_of_torch_2_passes_local_rank_with_a_hyphen(
    tmp_path: Path, command: str, names: str, rest: str, expected: list[str]
) -> None:
    script = DECLARES.format(names=names) + f"args = parser.parse_{rest}args()\n"
    found = findings(tmp_path, script, "", command, nodes=1)
    assert [each.rule for each in found] == expected
    assert all("--local-rank" in each.hint and "torchrun" in each.hint for each in found)


@pytest.mark.parametrize(
    ("line", "distribution", "expected"),
    [
        ('os.environ["NODE_RANK"] = os.environ["OMPI_COMM_WORLD_NODE_RANK"]', "{type: mpi}", ["AML624"]),
        ('os.environ["NODE_RANK"] = os.environ["OMPI_COMM_WORLD_RANK"]', "{type: mpi}", []),
        ('local_rank = int(os.environ["OMPI_COMM_WORLD_NODE_RANK"])', "{type: mpi}", []),
    ],
    ids=["number_of_the_machine", "rank", "rank_within_the_machine"],
)
def test_the_node_rank_of_mpi_is_no_number_of_a_machine(
    tmp_path: Path, line: str, distribution: str, expected: list[str]
) -> None:
    found = findings(tmp_path, LIGHTNING + f"import os\n\n{line}\n", distribution)
    assert [each.rule for each in found] == expected


def test_a_command_may_take_it_for_the_number_of_its_machine(tmp_path: Path) -> None:
    command = "torchrun --nnodes 2 --node_rank $OMPI_COMM_WORLD_NODE_RANK --nproc_per_node 4 train.py"
    assert [found.rule for found in findings(tmp_path, "print()\n", "{type: mpi}", command)] == ["AML624"]
