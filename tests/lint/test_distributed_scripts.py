"""What every tutorial of distributed training teaches is checked in the script, and right scripts are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard.lint.linter import lint

EIGHT = "{type: pytorch, process_count_per_instance: 8}"
RIGHT = """\
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("nccl")
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
data = TensorDataset(torch.arange(64.0).reshape(-1, 1))
sampler = DistributedSampler(data, shuffle=True)
loader = DataLoader(data, batch_size=8, sampler=sampler)
model = DDP(torch.nn.Linear(1, 1).cuda(), device_ids=[local_rank])
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for (batch,) in loader:
        loss = model(batch.cuda()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "outputs/model.pt")
"""
AVERAGES = """\
    criterion = torch.nn.MSELoss()
    total, count = 0.0, 0
    for step, (batch,) in enumerate(loader):
        loss = criterion(model(batch.cuda()), batch.cuda())
        total += loss.item()
        count += len(batch)
    print(total / len(loader))
"""
HELPED = RIGHT.replace("    sampler.set_epoch(epoch)\n", "    start_epoch(sampler, epoch)\n")
DATA_PARALLEL = """\
import torch

model = torch.nn.Linear(1, 1)
if torch.cuda.device_count() > 1:
    model = torch.nn.DataParallel(model)
model(torch.ones(2, 1)).sum().backward()
"""


def rules(
    folder: Path,
    script: str,
    distribution: str = EIGHT,
    modules: dict[str, str] | None = None,
    shape: str = "",
    before: str = "",
) -> list[str]:
    """The rules that lint reports for a job with this script as train.py."""
    (folder / "src").mkdir()
    for name, text in {"train.py": script, **(modules or {})}.items():
        (folder / "src" / name).write_text(text)
    text = f"type: command\ncode: ./src\ncommand: {before}python train.py\nenvironment: azureml:torch:3\n"
    text += f"resources: {{shm_size: 64g{shape}}}\ndistribution: {distribution}\n"
    file = folder / "job.yml"
    file.write_text(text)
    return [found.rule for found in lint([file]).diagnostics]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("    sampler.set_epoch(epoch)\n", "", "AML631"),
        ("batch_size=8, sampler", "batch_size=8, shuffle=True, sampler", "AML632"),
        ("device_ids=[local_rank]", "device_ids=[0]", "AML633"),
        ("    if dist.get_rank() == 0:\n        torch.save", "    torch.save", "AML635"),
        (
            '    if dist.get_rank() == 0:\n        torch.save(model.module.state_dict(), "outputs/model.pt")',
            '    torch.save(model.state_dict(), f"outputs/{epoch}.pt")',
            "AML635",
        ),
        ("        optimizer.step()", "        if epoch % 4 == 3:\n            optimizer.step()", "AML637"),
        ("torch.nn.Linear(1, 1).cuda()", "torch.nn.BatchNorm1d(1).cuda()", "AML638"),
        ("    if dist.get_rank() == 0:", AVERAGES + "    if dist.get_rank() == 0:", "AML639"),
    ],
    ids=[
        *("no_set_epoch", "shuffle_beside_sampler", "one_gpu", "saved_by_all", "saved_by_all_at_epochs"),
        *("exchanged_each_time", "batch_norm", "batch_means"),
    ],
)
def test_a_mistake_in_a_right_script_is_found(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in RIGHT
    assert rules(tmp_path, RIGHT.replace(old, new)) == [expected]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("set_device(local_rank)", "set_device(dist.get_rank())"),
        ("set_device(local_rank)", "set_device(torch.distributed.get_rank())"),
        ('int(os.environ["LOCAL_RANK"])', 'int(os.environ["RANK"])'),
        ('int(os.environ["LOCAL_RANK"])', 'int(os.environ.get("RANK", 0))'),
    ],
)
def test_the_rank_among_all_processes_is_no_gpu_of_the_second_machine(tmp_path: Path, old: str, new: str) -> None:
    (tmp_path / "one").mkdir()
    script = RIGHT.replace(old, new)
    assert rules(tmp_path, script, shape=", instance_count: 2") == ["AML633"]
    assert rules(tmp_path / "one", script, shape=", instance_count: 1") == []


WITHOUT_DEVICE = RIGHT.replace("torch.cuda.set_device(local_rank)\n", "").replace(", device_ids=[local_rank]", "")


@pytest.mark.parametrize("move", [".cuda()", '.to("cuda")', '.to("cuda:0")'])
def test_models_on_the_default_gpu_of_every_process_are_found(tmp_path: Path, move: str) -> None:
    assert rules(tmp_path, WITHOUT_DEVICE.replace(".cuda()", move)) == ["AML633"]


@pytest.mark.parametrize("move", [".cuda(local_rank)", ".to(local_rank)", '.to(f"cuda:{local_rank}")'])
def test_models_on_a_gpu_of_their_process_are_left_alone(tmp_path: Path, move: str) -> None:
    assert rules(tmp_path, WITHOUT_DEVICE.replace(".cuda()", move)) == []


@pytest.mark.parametrize(
    "chosen",
    ["device = local_rank", "torch.set_default_device(local_rank)", 'device = torch.device("cuda", local_rank)'],
)
def test_a_device_that_may_be_of_the_rank_is_left_alone(tmp_path: Path, chosen: str) -> None:
    script = WITHOUT_DEVICE.replace(
        "data = T", f"device = None\n{chosen}\nloss = torch.nn.L1Loss().cuda()\ndata = T", 1
    )
    assert rules(tmp_path, script.replace("Linear(1, 1).cuda()", "Linear(1, 1).to(device)")) == []


def test_a_parameter_may_be_the_rank_within_the_machine(tmp_path: Path) -> None:
    spawned = "rank = dist.get_rank()\n\n\ndef worker(rank):\n    torch.cuda.set_device(rank)\n\n\nworker(local_rank)\n"
    script = RIGHT.replace("torch.cuda.set_device(local_rank)\n", spawned)
    assert rules(tmp_path, script, shape=", instance_count: 2") == []


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ('os.path.join(args.out, "model.pt")', ["AML635"]),
        ('os.path.join("outputs", "model.pt")', ["AML635"]),
        ('os.path.join(args.out, f"{dist.get_rank()}.pt")', []),
        ("os.path.join(args.out, name)", []),
    ],
)
def test_a_joined_path_is_the_same_for_each_process(tmp_path: Path, path: str, expected: list[str]) -> None:
    parser = 'import argparse\n\nparser = argparse.ArgumentParser()\nparser.add_argument("--out", default="outputs")\n'
    saved = f"    torch.save(model.module.state_dict(), {path})"
    script = RIGHT.replace("    if dist.get_rank() == 0:\n        torch.save", "    torch.save")
    script = script.replace('    torch.save(model.module.state_dict(), "outputs/model.pt")', saved)
    assert rules(tmp_path, f"{parser}args = parser.parse_args()\nname = args.out\n{script}") == expected


def test_data_parallel_in_a_job_of_several_processes_is_found(tmp_path: Path) -> None:
    assert rules(tmp_path, DATA_PARALLEL) == ["AML634"]


WITHOUT_SAMPLER = (
    RIGHT.replace("DataLoader, DistributedSampler, ", "DataLoader, ")
    .replace("sampler = DistributedSampler(data, shuffle=True)\n", "")
    .replace("sampler=sampler", "shuffle=True")
    .replace("    sampler.set_epoch(epoch)\n", "")
)
ON_GPU_0 = (
    RIGHT.replace("torch.cuda.set_device(local_rank)\n", 'device = torch.device("cuda:0")\n')
    .replace("model = DDP(torch.nn.Linear(1, 1).cuda(), device_ids=[local_rank])", "model = DDP(LINEAR)")
    .replace("LINEAR", "torch.nn.Linear(1, 1).to(device)")
)


def test_data_that_nobody_divides_are_found(tmp_path: Path) -> None:
    assert rules(tmp_path, WITHOUT_SAMPLER) == ["AML636"]


def test_one_device_for_every_process_is_found(tmp_path: Path) -> None:
    assert rules(tmp_path, ON_GPU_0) == ["AML633"]


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:23456", "tcp://10.1.1.20:23456", "tcp://localhost:1"])
def test_a_fixed_address_on_several_machines_is_found(tmp_path: Path, address: str) -> None:
    joins = f'init_process_group("nccl", init_method="{address}", rank=RANK, world_size=WORLD)'
    script = RIGHT.replace('init_process_group("nccl")', joins)
    script = script.replace(
        "dist.init", 'RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])\ndist.init', 1
    )
    assert rules(tmp_path, script, shape=", instance_count: 2") == ["AML621"]


OFFERS_BOTH = """\
sampler = DistributedSampler(data) if torch.distributed.is_initialized() else None
loader = DataLoader(data, shuffle=sampler is None, sampler=sampler)
"""
GIVEN_SAMPLER = """\
def make_loader(data, sampler=None):
    return DataLoader(data, shuffle=True, sampler=sampler)
"""
VALIDATES = """\
val_sampler = DistributedSampler(data)
for epoch in range(3):
    print(epoch)
"""
IMPORTS = RIGHT.partition("dist.init")[0] + "data = [1, 2]\n"


@pytest.mark.parametrize(
    "script",
    [
        RIGHT,
        RIGHT.replace("    sampler.set_epoch(epoch)\n", "").replace("shuffle=True", "shuffle=False"),
        RIGHT.replace("    sampler.set_epoch(epoch)\n", "").replace("for epoch in range(3)", "for _ in range(1)"),
        RIGHT.replace("[local_rank]", "[0]").replace(
            "dist.init", 'os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["LOCAL_RANK"]\ndist.init', 1
        ),
        RIGHT.replace("    sampler.set_epoch(epoch)\n", "").replace("import os", "import accelerate\nimport os"),
        IMPORTS + OFFERS_BOTH,
        IMPORTS + GIVEN_SAMPLER,
        IMPORTS + VALIDATES,
        DATA_PARALLEL.partition("model(torch.ones")[0],
        DATA_PARALLEL + "import os\n\nprint(os.environ['RANK'])\n",
        RIGHT.replace(
            "model = DDP(",
            "if dist.get_world_size() == 1:\n    model = DDP(torch.nn.Linear(1, 1), device_ids=[0])\nmodel = DDP(",
        ),
        DATA_PARALLEL + "if torch.distributed.is_available():\n    torch.distributed.init_process_group()\n",
        RIGHT.replace("    if dist.get_rank() == 0:", "    if dist.get_rank() != 0:\n        continue\n    if True:"),
        RIGHT.replace("    if dist.get_rank() == 0:\n        torch.save", "    torch.save").replace(
            '"outputs/model.pt"', 'f"outputs/{local_rank}.pt"'
        ),
        WITHOUT_SAMPLER.replace("DataLoader(data,", "DataLoader(data[local_rank::8],"),
        WITHOUT_SAMPLER.replace("DataLoader(data,", "DataLoader(data.shard(8, local_rank),"),
        WITHOUT_SAMPLER.replace("loader", "val_loader")
        .replace("data = T", "val_data = data = T")
        .replace("DataLoader(data,", "DataLoader(val_data,"),
        RIGHT + AVERAGES.replace("\n    ", "\n").lstrip().replace("loss.item()", "loss.item() * len(batch)"),
        RIGHT + AVERAGES.replace("\n    ", "\n").lstrip().replace("MSELoss()", 'MSELoss(reduction="sum")'),
        RIGHT + AVERAGES.replace("\n    ", "\n").lstrip().replace("len(loader)", "count"),
        (RIGHT + AVERAGES.replace("\n    ", "\n").lstrip()).replace("batch_size=8,", "batch_size=8, drop_last=True,"),
        ON_GPU_0.replace('torch.device("cuda:0")', 'torch.device(f"cuda:{local_rank}")'),
        RIGHT.replace(
            "        optimizer.step()",
            "        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)\n"
            "        if epoch % 4 == 3:\n            scheduler.step()",
        ),
    ],
    ids=[
        *("right", "in_order", "one_epoch", "visible_devices", "framework", "offers_both", "given_sampler"),
        *("validates", "no_training", "knows_its_rank", "one_for_a_single_process", "data_parallel_or_joined"),
        *("others_go_on", "a_file_for_each", "a_slice_for_each", "shards", "validation"),
        *("weighted", "sums", "by_samples", "whole_batches", "device_of_rank", "scheduler"),
    ],
)
def test_right_scripts_are_left_alone(tmp_path: Path, script: str) -> None:
    assert rules(tmp_path, script) == []


TAKES_ITS_PART = """\
class Part(torch.utils.data.Dataset):
    def __init__(self, rank, world):
        self.kept = [each for i, each in enumerate(range(64)) if i % world == rank]
"""
SAVES = "if dist.get_rank() == 0:\n        torch.save("
FINISHES = """\
def finish(model):
    write(model)


def write(model):
    torch.save(model.module.state_dict(), "outputs/model.pt")


"""


@pytest.mark.parametrize(
    "script",
    [
        ON_GPU_0 + 'print(torch.load("a.pt", map_location=torch.device("cuda", local_rank)))\n',
        ON_GPU_0 + "with torch.cuda.device(local_rank):\n    print(device)\n",
        WITHOUT_SAMPLER.replace(
            "DataLoader(data,", "DataLoader(torch.utils.data.Subset(data, range(local_rank, len(data), 8)),"
        ),
        WITHOUT_SAMPLER.replace("DataLoader(data,", 'DataLoader(torch.load(f"part-{local_rank}.pt"),'),
        WITHOUT_SAMPLER.replace("data = Tensor", f"{TAKES_ITS_PART}data = Tensor"),
        WITHOUT_SAMPLER + "print(dist.get_world_size())\n",
        FINISHES + RIGHT.replace('torch.save(model.module.state_dict(), "outputs/model.pt")', "finish(model)"),
        RIGHT.replace(SAVES, "dist.get_rank() == 0 and torch.save("),
        RIGHT.replace("    if dist.get_rank() == 0:", "    while dist.get_rank() == 0:"),
        RIGHT.replace(SAVES, "torch.save(").replace('"outputs/model.pt"', 'f"outputs/{os.getpid()}.pt"'),
        RIGHT.replace(
            "optimizer.zero_grad()",
            "other_optimizer = optimizer\n        if epoch % 2 == 0:\n            other_optimizer.step()",
        ),
    ],
    ids=[
        *("other_device_by_rank", "within_device_of_rank", "range_of_rank", "file_of_rank", "remainder"),
        *("number_of_processes", "saved_two_calls_below", "and", "while", "by_process", "two_optimizers"),
    ],
)
def test_right_scripts_of_other_kinds_are_left_alone(tmp_path: Path, script: str) -> None:
    assert script not in (RIGHT, WITHOUT_SAMPLER, ON_GPU_0)
    assert rules(tmp_path, script) == []


@pytest.mark.parametrize("script", [ON_GPU_0, RIGHT.replace("[local_rank]", "[0]")], ids=["device", "device_ids"])
def test_the_command_may_choose_the_gpus(tmp_path: Path, script: str) -> None:
    assert rules(tmp_path, script, before="export CUDA_VISIBLE_DEVICES=$LOCAL_RANK && ") == []


def test_a_module_of_the_script_may_divide_the_data(tmp_path: Path) -> None:
    modules = {"parts.py": "import torch.distributed as dist\n\nSTEP = dist.get_world_size()\n"}
    script = f"from parts import STEP\n{WITHOUT_SAMPLER}"
    assert rules(tmp_path, script, modules=modules) == []


@pytest.mark.parametrize(
    "more",
    ['print(f"rank {dist.get_rank()}")', 'device = f"cuda:{local_rank}"', 'print("%d" % dist.get_rank())'],
)
def test_a_rank_that_is_printed_divides_no_data(tmp_path: Path, more: str) -> None:
    assert rules(tmp_path, f"{WITHOUT_SAMPLER}{more}\n") == ["AML636"]


def test_a_loop_that_every_process_goes_through_is_no_condition(tmp_path: Path) -> None:
    script = RIGHT.replace("    if dist.get_rank() == 0:", "    while epoch < 3:")
    assert rules(tmp_path, script) == ["AML635"]


def test_a_module_of_the_script_may_tell_the_epoch(tmp_path: Path) -> None:
    helper = "def start_epoch(sampler, epoch):\n    sampler.set_epoch(epoch)\n"
    script = f"from helpers import start_epoch\n{HELPED}"
    assert rules(tmp_path, script, modules={"helpers.py": helper}) == []


def test_one_process_may_have_one_gpu(tmp_path: Path) -> None:
    script = RIGHT.replace("[local_rank]", "[0]")
    assert rules(tmp_path, script, "{type: pytorch}", shape=", instance_count: 2") == []


MPI = "{type: mpi, process_count_per_instance: 8}"
OF_MPI = RIGHT.replace("dist.init", 'os.environ["LOCAL_RANK"] = os.environ["OMPI_COMM_WORLD_LOCAL_RANK"]\ndist.init')


def test_mpi_sets_no_variables_of_pytorch(tmp_path: Path) -> None:
    assert rules(tmp_path, RIGHT, MPI) == ["AML621"]


@pytest.mark.parametrize("name", ["LOCALRANK", "LOCAL_RANKS", "LOCAL_RNAK"])
def test_a_misspelt_variable_of_pytorch_is_found(tmp_path: Path, name: str) -> None:
    assert rules(tmp_path, RIGHT.replace('"LOCAL_RANK"', f'"{name}"')) == ["AML621"]


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"])
def test_a_variable_of_another_launcher_is_found(tmp_path: Path, name: str) -> None:
    assert rules(tmp_path, RIGHT.replace('"LOCAL_RANK"', f'"{name}"')) == ["AML621"]


@pytest.mark.parametrize(
    ("script", "before"),
    [
        (OF_MPI, ""),
        (RIGHT.replace("dist.init", "from ranks import set_ranks\n\nset_ranks()\ndist.init"), ""),
        (RIGHT, "LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK "),
        (RIGHT.replace("dist.init_process_group", "import deepspeed\n\ndeepspeed.init_distributed"), ""),
        (RIGHT.replace('os.environ["LOCAL_RANK"]', 'os.environ["LOCAL_RANK"] if "RANK" in os.environ else 0'), ""),
        (RIGHT.replace('"LOCAL_RANK"]', '"LOCAL_RANK"] if dist.is_torchelastic_launched() else 0'), ""),
    ],
    ids=["set_in_script", "set_in_module", "set_in_command", "by_deepspeed", "asked_for", "on_condition"],
)
def test_variables_of_pytorch_that_something_sets_under_mpi(tmp_path: Path, script: str, before: str) -> None:
    assert script != RIGHT or before
    module = (
        'import os\n\n\ndef set_ranks():\n    os.environ["LOCAL_RANK"] = os.environ["OMPI_COMM_WORLD_LOCAL_RANK"]\n'
    )
    assert rules(tmp_path, script, MPI, {"ranks.py": module}, before=before) == []


LAST = "    if dist.get_rank() == 0:\n        torch.save"
INIT = 'dist.init_process_group("nccl")\n'
SAMPLED = "DistributedSampler(data, shuffle=True"
SAVED = 'torch.save(model.module.state_dict(), "outputs/model.pt")'


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (INIT, 'dist.init_process_group("nccl", rank=int(os.environ["LOCAL_RANK"]), world_size=16)\n', "AML621"),
        (INIT, 'dist.init_process_group("nccl", rank=2, world_size=16)\n', "AML621"),
        (INIT, 'dist.init_process_group("nccl", world_size=torch.cuda.device_count())\n', "AML621"),
        (LAST, "    if dist.get_rank() == 0:\n        dist.barrier()\n        torch.save", "AML621"),
        (LAST, "    if local_rank == 0:\n        dist.all_reduce(loss)\n" + LAST, "AML621"),
        (SAMPLED, SAMPLED + ", num_replicas=torch.cuda.device_count(), rank=local_rank", "AML636"),
        ("set_device(local_rank)", "set_device(0)", "AML633"),
        ('local_rank = int(os.environ["LOCAL_RANK"])', "rank = dist.get_rank()\nlocal_rank = rank", "AML633"),
    ],
    ids=[
        *("local_rank_for_rank", "one_rank", "gpus_for_world_size", "barrier_of_rank_0", "reduced_by_some"),
        *("divided_by_gpus", "gpu_0", "rank_by_another_name"),
    ],
)
def test_a_call_that_suits_other_jobs_is_found(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in RIGHT
    found = rules(tmp_path, RIGHT.replace(old, new), shape=", instance_count: 2")
    assert set(found) - {"AML635", "AML604"} == {expected}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (INIT, 'dist.init_process_group("nccl", rank=int(os.environ["RANK"]), init_method="env://")\n'),
        (LAST, "    if dist.get_rank() == 0:\n        dist.barrier()\n    else:\n        dist.barrier()\n" + LAST),
        (
            LAST,
            "    if local_rank != 0:\n        dist.barrier()\n    if local_rank == 0:\n        dist.barrier()\n" + LAST,
        ),
        (LAST, "    if dist.get_rank() == 0:\n        dist.barrier(group=dist.new_group([0]))\n" + LAST),
        (LAST, "    dist.barrier()\n" + LAST),
        ("set_device(local_rank)", "set_device(dist.get_rank() % torch.cuda.device_count())"),
        (
            "torch.cuda.set_device(local_rank)",
            "if dist.get_world_size() == 1:\n    torch.cuda.set_device(0)\ntorch.cuda.set_device(local_rank)",
        ),
        (
            "torch.cuda.set_device(local_rank)",
            'os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["LOCAL_RANK"]\ntorch.cuda.set_device(0)',
        ),
    ],
    ids=[
        *("rank_of_all", "barrier_in_both", "barrier_around", "barrier_of_group", "barrier_of_all"),
        *("rank_by_gpus", "gpu_0_alone", "gpu_made_visible"),
    ],
)
def test_a_call_that_suits_the_job_is_left_alone(tmp_path: Path, old: str, new: str) -> None:
    assert old in RIGHT
    assert rules(tmp_path, RIGHT.replace(old, new), shape=", instance_count: 2") == []


FSDP = RIGHT.replace(
    "torch.nn.parallel import DistributedDataParallel as DDP",
    "torch.distributed.fsdp import (\n    FullyShardedDataParallel as FSDP,\n)",
)
FSDP = FSDP.replace("DDP(torch.nn.Linear(1, 1).cuda(), device_ids=[local_rank])", "FSDP(torch.nn.Linear(1, 1).cuda())")
BY_RANK = "    if dist.get_rank() == 0:\n        "
CHOSEN = "torch.cuda.set_device(local_rank)"
ONE_MODULE = "import torch.distributed as dist\n\n\ndef sync():\n    dist.barrier()\n"
SETS_VISIBLE = 'import os\n\nos.environ["CUDA_VISIBLE_DEVICES"] = os.environ["LOCAL_RANK"]\n'
WITHOUT_SAVING = RIGHT.partition(LAST)[0]
RANKS = "nodes = 2\nnode = int(os.environ['NODE_RANK'])\nrank = dist.get_rank()\n"
IN_ENVIRONMENT = 'int(os.environ["RANK"])'


def joined(arguments: str) -> str:
    """The right script with these arguments of init_process_group."""
    return RIGHT.replace(INIT, f"dist.init_process_group({arguments})\n")


def at_the_end(lines: str) -> str:
    """The right script, and lines after its training."""
    return f"{WITHOUT_SAVING}{lines}"


def in_place_of(old: str, new: str) -> str:
    """The right script with something else in one place."""
    assert old in RIGHT
    return RIGHT.replace(old, new)


SUITABLE = {
    "gpus_of_all_machines": joined('"nccl", world_size=torch.cuda.device_count() * nodes'),
    "rank_by_node": joined('"nccl", rank=int(os.environ["LOCAL_RANK"]) + 8 * int(os.environ["NODE_RANK"])'),
    "rank_by_node_first": joined('"nccl", rank=8 * node + local'),
    "from_the_environment": joined('"nccl", init_method="env://", rank=int(os.environ["RANK"])'),
    "a_process_alone": joined('"gloo", rank=0, world_size=1'),
    "a_store": joined('"gloo", store=dist.FileStore("store"), rank=0, world_size=size'),
    "options": joined("**options"),
    "a_group_of_one_machine": joined(
        '"nccl", "tcp://localhost:1", rank=local_rank, world_size=torch.cuda.device_count()'
    ),
    "an_address_of_its_own": "import os\n\nos.environ.setdefault('MASTER_ADDR', address())\n"
    + joined('"nccl", rank=int(os.environ["LOCAL_RANK"]), world_size=8'),
    "a_helper_alone": "import torch.distributed as dist\n\n\ndef single():\n"
    '    dist.init_process_group("gloo", rank=0, world_size=1)\n\n\n' + RIGHT,
    "a_helper_that_nothing_calls": "import torch\n\n\ndef debug():\n    torch.cuda.set_device(0)\n\n\n" + RIGHT,
    "remainder": in_place_of(CHOSEN, f"torch.cuda.set_device({IN_ENVIRONMENT} % torch.cuda.device_count())"),
    "remainder_by_name": in_place_of(
        CHOSEN, f"gpu = {IN_ENVIRONMENT} % torch.cuda.device_count()\ntorch.cuda.set_device(gpu)"
    ),
    "remainder_of_get_rank": in_place_of(CHOSEN, "torch.cuda.set_device(int(dist.get_rank()) % 8)"),
    "set_twice": in_place_of(CHOSEN, f"torch.cuda.set_device(0)\n{CHOSEN}"),
    "tuple": in_place_of(CHOSEN, "gpu = 0\nrank, gpu = setup()\ntorch.cuda.set_device(gpu)"),
    "added": in_place_of(CHOSEN, "gpu = 0\ngpu += local_rank\ntorch.cuda.set_device(gpu)"),
    "loop": in_place_of(CHOSEN, "gpu = 0\nfor gpu in [local_rank]:\n    torch.cuda.set_device(gpu)"),
    "walrus": in_place_of(CHOSEN, "gpu = 0\nprint(gpu := local_rank)\ntorch.cuda.set_device(gpu)"),
    "with": in_place_of(CHOSEN, "gpu = 0\nwith chosen() as gpu:\n    torch.cuda.set_device(gpu)"),
    "global": in_place_of(
        CHOSEN,
        "gpu = 0\n\n\ndef choose():\n    global gpu\n    gpu, _ = local_rank, 0\n\n\n"
        "choose()\ntorch.cuda.set_device(gpu)",
    ),
    "parameter": in_place_of(
        CHOSEN,
        "def other():\n    gpu = 0\n    return gpu\n\n\ndef choose(gpu):\n    torch.cuda.set_device(gpu)\n\n\n"
        "other()\nchoose(local_rank)",
    ),
    "imported": "from config import gpu\n" + in_place_of(CHOSEN, "gpu = 0\ntorch.cuda.set_device(gpu)"),
    "spawned": in_place_of(
        CHOSEN,
        "def work(rank, size):\n    torch.cuda.set_device(rank)\n\n\ntorch.multiprocessing.spawn(work, (8,), nprocs=8)",
    ),
    "samples_of_all_machines": in_place_of(SAMPLED, f"{SAMPLED}, num_replicas=torch.cuda.device_count() * 2"),
    "samples_of_one_machine": RANKS
    + in_place_of("data = T", "node_rank = 0\ndata = T").replace(
        SAMPLED, f"{SAMPLED}, num_replicas=torch.cuda.device_count(), rank=local_rank"
    ),
    "rank_0_returns": "def gathered(t, out):\n    rank = dist.get_rank()\n    if rank == 0:\n"
    "        dist.gather(t, out)\n        return out\n    dist.gather(t)\n    return None\n\n\n" + RIGHT,
    "rank_0_exits": at_the_end(
        BY_RANK[4:].replace("        ", "    ") + "dist.broadcast(loss, 0)\n    raise SystemExit\nwork()\n"
    ),
    "others_in_a_function": "import torch.distributed as dist\n\n\ndef work(w):\n    dist.broadcast(w, 0)\n\n\n"
    + in_place_of(LAST, f"{BY_RANK}dist.broadcast(loss, 0)\n    else:\n        work(loss)\n{LAST}"),
    "others_in_a_module": "from helpers import sync\n"
    + in_place_of(LAST, f"{BY_RANK}dist.barrier()\n    else:\n        sync()\n{LAST}"),
    "others_before": "from helpers import sync\n"
    + in_place_of(LAST, f"    if dist.get_rank() != 0:\n        sync()\n{BY_RANK}dist.barrier()\n{LAST}"),
    "leaders": in_place_of(LAST, f"{BY_RANK}dist.barrier(leaders)\n{LAST}"),
    "leaders_by_place": in_place_of(LAST, f"{BY_RANK}dist.all_reduce(loss, dist.ReduceOp.SUM, leaders)\n{LAST}"),
    "leaders_by_name": in_place_of(LAST, f"{BY_RANK}dist.broadcast(loss, 0, group=leaders)\n{LAST}"),
    "leaders_of_objects": in_place_of(LAST, f"{BY_RANK}dist.all_gather_object(found, 1, leaders)\n{LAST}"),
    "sent": in_place_of(
        LAST, f"{BY_RANK}dist.recv(loss, 1)\n    elif dist.get_rank() == 1:\n        dist.send(loss, 0)\n{LAST}"
    ),
    "gathered": in_place_of(
        LAST, f"{BY_RANK}dist.gather(loss, parts, 0)\n    else:\n        dist.gather(loss, None, 0)\n{LAST}"
    ),
    "once_for_all": in_place_of(LAST, "    dist.barrier()\n" + LAST),
    "first_process_first": "from contextlib import contextmanager\n\n\n@contextmanager\ndef first(local_rank):\n"
    "    if local_rank not in (-1, 0):\n        dist.barrier()\n    yield\n"
    "    if local_rank == 0:\n        dist.barrier()\n\n\n" + RIGHT,
    "fsdp_weights_of_all": FSDP.replace(LAST, "    state = model.state_dict()\n" + LAST).replace(
        "model.module.state_dict()", "state"
    ),
    "fsdp_full_state_dict": FSDP.replace(
        LAST, "    with FSDP.state_dict_type(model, kind, config):\n        state = model.state_dict()\n" + LAST
    ).replace("model.module.state_dict()", "state"),
    "fsdp_or_ddp": FSDP.replace("model = FSDP", "model = Net()\nif sharded:\n    model = FSDP"),
    "visible_by_a_module": "import visible\n" + in_place_of(CHOSEN, "torch.cuda.set_device(0)"),
    "notebook": in_place_of(CHOSEN, "if 'ipykernel' in sys.modules:\n    torch.cuda.set_device(0)\n" + CHOSEN),
    "elastic": RIGHT.replace(INIT, 'if "RANK" in os.environ:\n    dist.init_process_group("nccl", rank=0)\n' + INIT),
    "accelerate": "from accelerate import Accelerator\n\naccelerator = Accelerator()\n"
    "if accelerator.is_main_process:\n    print(1)\naccelerator.wait_for_everyone()\n",
}


@pytest.mark.parametrize("script", SUITABLE.values(), ids=SUITABLE)
def test_a_call_that_may_suit_the_job_is_left_alone(tmp_path: Path, script: str) -> None:
    found = rules(
        tmp_path, script, modules={"helpers.py": ONE_MODULE, "visible.py": SETS_VISIBLE}, shape=", instance_count: 2"
    )
    assert {"AML514", "AML621", "AML633", "AML634", "AML636"}.isdisjoint(found)


HOROVOD = "import horovod.torch as hvd\n\nhvd.init()\nprint(hvd.rank())\n"
MIRRORED = "import tensorflow as tf\n\nstrategy = tf.distribute.MirroredStrategy()\n"
WORKERS = MIRRORED.replace("Mirrored", "MultiWorkerMirrored")
OWN_WORKERS = WORKERS.replace("strategy", 'import os\n\nos.environ["TF_CONFIG"] = "{}"\nstrategy')
TRAINER = "import lightning as L\n\ntrainer = L.Trainer(devices=8)\n"


@pytest.mark.parametrize(
    ("script", "distribution", "expected"),
    [
        (HOROVOD, EIGHT, ["AML634"]),
        (HOROVOD, "{type: mpi, process_count_per_instance: 8}", []),
        (MIRRORED, "{type: tensorflow, worker_count: 2}", ["AML634"]),
        (WORKERS, "{type: tensorflow, worker_count: 2}", []),
        (WORKERS, "{type: mpi}", ["AML634"]),
        (OWN_WORKERS, "{type: mpi}", []),
        (WORKERS.replace("strategy", 'import os\n\nos.environ.update(TF_CONFIG="{}")\nstrategy', 1), "{type: mpi}", []),
        ("import cluster\n" + WORKERS, "{type: mpi}", []),
        (WORKERS, "{type: mpi}\nenvironment_variables: {TF_CONFIG: '{}'}", []),
        (WORKERS.replace("()", "(cluster_resolver=resolver)"), "{type: mpi}", []),
        (TRAINER, EIGHT, ["AML634"]),
        (TRAINER.replace("=8", "=8, num_nodes=2"), EIGHT, []),
        (TRAINER + 'L.Trainer(accelerator="cpu", logger=False)\n', EIGHT, []),
        (TRAINER.replace("=8", "=8, num_nodes=2") + "L.Trainer(devices=[0], num_nodes=1)\n", EIGHT, []),
        (TRAINER.replace("8", "[0], num_nodes=1"), EIGHT, []),
        (TRAINER.replace("devices=8", "**options"), EIGHT, []),
        (TRAINER.replace("=8", "=8, num_nodes=args.nodes"), EIGHT, []),
        (TRAINER.replace("=8", "=args.devices"), EIGHT, []),
        (
            HOROVOD.replace("hvd.init", 'import os\n\nos.environ["HOROVOD_RANK"] = os.environ["RANK"]\nhvd.init'),
            EIGHT,
            [],
        ),
        (HOROVOD + "# started with gloo\n", EIGHT, []),
        (MIRRORED + "print(rank)\n", EIGHT, []),
    ],
    ids=[
        *("horovod_pytorch", "horovod_mpi", "mirrored_on_two", "workers", "workers_mpi", "workers_by_hand"),
        *("workers_updated", "workers_of_a_module", "workers_of_the_job", "workers_resolved"),
        *("trainer_of_one", "trainer_of_two", "second_trainer", "trainer_of_one_gpu", "trainer_alone", "options"),
        *("nodes_by_flag", "devices_by_flag", "horovod_rank", "horovod_gloo", "mirrored_by_rank"),
    ],
)
def test_a_library_gets_the_distribution_that_it_reads(
    tmp_path: Path, script: str, distribution: str, expected: list[str]
) -> None:
    modules = {"cluster.py": 'import os\n\nos.environ["TF_CONFIG"] = "{}"\n'}
    found = rules(tmp_path, script, distribution, modules, shape=", instance_count: 2")
    assert [rule for rule in found if rule != "AML518"] == expected
