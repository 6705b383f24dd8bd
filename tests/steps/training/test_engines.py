"""What every engine must do, and what it rejects."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from engine_scenarios import ENGINES
from forked_ranks import forked_ranks
from rank_processes import clean_environment, training_arguments
from safetensors.torch import load_file
from torch._C._distributed_c10d import HashStore
from torch.nn import functional
from torch.testing._internal.distributed import fake_pg

from trainyard.steps.runtime.world import World
from trainyard.steps.training.engines.blocks import find_blocks, find_separate_blocks
from trainyard.steps.training.engines.engine import Engine
from trainyard.steps.training.engines.shared_model import without_memory
from trainyard.steps.training.fragments import Fragment
from trainyard.steps.training.optimizer import (
    OptimizerSettings,
    gradient_seed,
    new_optimizer,
    optimizer_step,
    step_decided_on_device,
    step_decided_on_host,
)
from trainyard.steps.training.precision import LossScale

assert fake_pg  # its import makes the backend known

Found = dict[str, dict[str, bool]]


def train(step: str, data: Path, out: Path, task: str, *more: object) -> int:
    """Train in this process, alone."""
    arguments = [str(argument) for argument in training_arguments(data, out, task, *more)]
    exit_code: int = importlib.import_module(f"trainyard.steps.{step}").main(arguments)
    return exit_code


@pytest.fixture(scope="module")
def found(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    """What each of three ranks found about each engine."""
    out = tmp_path_factory.mktemp("scenarios")
    exit_codes, outputs = forked_ranks().run("engine_scenarios", [digits, out], 3)
    assert exit_codes == [0, 0, 0], "\n".join(outputs)
    return [json.loads((out / f"rank-{rank}.json").read_text()) for rank in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_skips_steps_and_restores_its_state(found: list[Found], engine: str) -> None:
    """A step that is not finite changes nothing on any rank; restored state gives the same bits again."""
    expected = {
        *("not finite: said", "not finite: unchanged", "not finite: goes on"),
        *("restored: same engine", "restored: new engine"),
        *("fragments: names and shapes", "fragments: each element once", "fragments: fp32", "fragments: flat"),
        *("fragments: counted", "whole model: alike", "whole model: tied"),
    }
    for rank, by_engine in enumerate(found):
        assert by_engine[engine] == dict.fromkeys(expected, True), f"rank {rank}"


@pytest.mark.slow
@pytest.mark.parametrize("step", ["train_fsdp", "train_deepspeed"])
def test_the_whole_step(digits: Path, tmp_path: Path, step: str) -> None:
    """From flags to training, evaluation, checkpoint, model and log."""
    config = tmp_path / "zero.json"
    config.write_text(json.dumps({"_rendered": {}, "train_batch_size": "auto", "zero_optimization": {"stage": 3}}))
    arguments = [
        *training_arguments(digits, tmp_path, "tiny_transformer:NextLevel", "--max-steps", 6, "--log-every-steps", 1),
        *(["--deepspeed-config", config] if step == "train_deepspeed" else ["--cpu-offload", "true"]),
    ]
    exit_codes, outputs = forked_ranks().run(step, arguments, 2)
    assert exit_codes == [0, 0], outputs
    assert outputs[1] == "", "only rank 0 speaks"
    lines = [json.loads(line) for line in (tmp_path / "metrics" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert lines[-1]["validation_loss"] < lines[0]["loss"]
    weights = load_file(tmp_path / "model" / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    assert weights["layers.0.widen.weight"].shape == (61, 30)


def test_blocks_are_the_elements_of_large_module_lists() -> None:
    layers = torch.nn.ModuleList(torch.nn.Linear(10, 10) for _ in range(3))
    stages = torch.nn.ModuleList(torch.nn.ModuleList([torch.nn.Linear(20, 20)]) for _ in range(2))
    small = torch.nn.ModuleList([torch.nn.Linear(2, 2)])
    model = torch.nn.ModuleDict({"encoder": layers, "stages": stages, "heads": small})
    assert find_blocks(model) == [*layers, stages[0][0], stages[1][0]]
    assert find_blocks(torch.nn.Linear(3, 3)) == []


def test_blocks_that_share_a_parameter_are_not_sharded_alone() -> None:
    first, second, third, fourth = (torch.nn.Linear(10, 10) for _ in range(4))
    second.weight = first.weight
    model = torch.nn.ModuleDict({"layers": torch.nn.ModuleList([first, second, third, third, fourth])})
    model["head"] = torch.nn.Linear(10, 10, bias=False)
    model["head"].weight = fourth.weight
    assert find_blocks(model) == [first, second, third, fourth]
    assert find_separate_blocks(model) == [third]


@pytest.mark.slow
def test_a_model_with_tied_layers_learns_the_same_when_sharded(digits: Path, tmp_path: Path) -> None:
    for step in ("train_ddp", "train_fsdp"):
        assert train(step, digits, tmp_path / step, "tiny_task:Tied", "--max-steps", 5) == 0
    whole, sharded = (
        load_file(tmp_path / step / "model" / "model.safetensors") for step in ("train_ddp", "train_fsdp")
    )
    assert whole.keys() == sharded.keys()
    for name, weight in whole.items():
        torch.testing.assert_close(sharded[name], weight)


def test_ddp_trains_a_model_with_an_unused_parameter(digits: Path, tmp_path: Path) -> None:
    for task in ("TinyTask", "PartlyUsed"):
        arguments = training_arguments(digits, tmp_path / task, f"tiny_task:{task}", "--max-steps", 5)
        exit_codes, logs = forked_ranks().run("train_ddp", arguments, 2)
        assert exit_codes == [0, 0], logs
    used, all_of_it = (
        load_file(tmp_path / task / "model" / "model.safetensors") for task in ("TinyTask", "PartlyUsed")
    )
    assert torch.equal(all_of_it.pop("4.unused"), torch.ones(3))
    assert all(torch.equal(all_of_it[name], used[name]) for name in used)


def test_ddp_explains_the_error_about_a_parameter_used_only_at_first(digits: Path, tmp_path: Path) -> None:
    arguments = training_arguments(digits, tmp_path, "tiny_task:UsedAtFirst", "--max-steps", 5)
    exit_codes, logs = forked_ranks().run("train_ddp", arguments, 2)
    assert exit_codes == [1, 1]
    assert all("error: some parameters did not contribute to the loss of the last step" in log for log in logs)


def test_one_process_exchanges_no_gradients(digits: Path, tmp_path: Path) -> None:
    """So it has no buckets for them, of four bytes a parameter, and none of DDP's conditions."""
    arguments = training_arguments(digits, tmp_path, "tiny_task:UsedAtFirst", "--max-steps", 5)
    exit_codes, (log,) = forked_ranks().run("train_ddp", arguments, 1)
    assert exit_codes == [0], log


@pytest.mark.parametrize(
    ("choice", "which"), [("auto", "the last micro-batch of a step"), ("every", "every micro-batch")]
)
def test_fsdp_says_when_ranks_sum_gradients(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], choice: str, which: str
) -> None:
    """With auto it depends on the GPU's memory, and so do the last bits of sums."""
    batch = ("--global-batch-size", 32, "--micro-batch-size", 16, "--max-steps", 1)
    assert train("train_fsdp", digits, tmp_path, "tiny_task:TinyTask", *batch, "--gradient-sync", choice) == 0
    assert f"ranks sum gradients after {which} (--gradient-sync {choice})" in capsys.readouterr().out


def test_a_model_that_computes_while_it_is_built_is_emptied_too() -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))
            self.again = self.weight
            self.factor = self.weight.sum().item()

    model = without_memory(Scaled)
    assert model.weight.is_meta
    assert model.weight is model.again


IMPORTS_THE_COMPILER = """
import torch
from trainyard.steps.training.engines.shared_model import without_memory

def new_model():
    print("building")
    import torch._dynamo
    return torch.nn.Linear(2, 2)

assert without_memory(new_model).weight.is_meta
"""


@pytest.mark.slow
def test_a_model_that_imports_the_compiler_takes_no_memory_while_it_is_built() -> None:
    """As Llama's does. In torch 2.8 that fails on the meta device, and the model was built a second time, in memory."""
    command = [sys.executable, "-c", IMPORTS_THE_COMPILER]
    assert subprocess.check_output(command, env=clean_environment(), text=True) == "building\n"


class TestOneStep:
    """AdamW on one parameter, as every engine takes it."""

    @pytest.mark.parametrize("fused", [True, False])
    @pytest.mark.parametrize("clip_norm", [0.0, 0.1])
    def test_equals_what_torch_does(self, fused: bool, clip_norm: float) -> None:
        def loss(model: torch.nn.Module) -> torch.Tensor:
            return functional.mse_loss(model(torch.arange(6.0).view(2, 3)), torch.ones(2, 4), reduction="sum")

        torch.manual_seed(0)
        ours, theirs = torch.nn.Linear(3, 4), torch.nn.Linear(3, 4)
        theirs.load_state_dict(ours.state_dict())
        optimizer = new_optimizer(ours.parameters(), OptimizerSettings(0.1, (0.8, 0.97), 1e-6, fused))
        scale = LossScale(torch.device("cpu"), enabled=True)
        reference = torch.optim.AdamW(
            [{"params": [theirs.weight], "weight_decay": 0.1}, {"params": [theirs.bias], "weight_decay": 0.0}],
            lr=0.01,
            betas=(0.8, 0.97),
            eps=1e-6,
        )
        for _ in range(3):
            loss_sum = loss(ours)
            loss_sum.backward(gradient_seed(loss_sum, 0.5, scale))
            norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in ours.parameters()])
            norm = optimizer_step(optimizer, scale, norm, clip_norm=clip_norm, learning_rate=0.01)

            (loss(theirs) * 0.5).backward()
            expected = torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip_norm or float("inf"))
            reference.step()
            reference.zero_grad()
            assert norm == pytest.approx(expected.item(), rel=1e-6)
        assert torch.allclose(ours.weight, theirs.weight, atol=1e-6)
        assert torch.allclose(ours.bias, theirs.bias, atol=1e-6)

    @pytest.mark.parametrize("fused", [True, False])
    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), 3e38])
    def test_a_norm_that_is_not_finite_changes_nothing(self, fused: bool, bad: float) -> None:
        """The last gradient is finite, but its norm is beyond fp32."""
        parameter = torch.nn.Parameter(torch.ones(4))
        optimizer = new_optimizer([parameter], OptimizerSettings(0.1, fused=fused))
        scale = LossScale(torch.device("cpu"), enabled=True)
        parameter.grad = torch.full((4,), bad)
        norm = torch.nn.utils.get_total_norm([parameter.grad])
        assert not torch.isfinite(optimizer_step(optimizer, scale, norm, clip_norm=1.0, learning_rate=0.1))
        assert torch.equal(parameter, torch.ones(4))
        assert all(not value.any() for value in optimizer.state[parameter].values())
        assert parameter.grad is None
        assert scale.value == 32768.0, "fp16 tries half the scale next"

    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
    def test_the_device_decides_as_the_host_does(self, bad: float) -> None:
        """What a GPU does, with tensors of the CPU."""
        parameters = [torch.nn.Parameter(torch.arange(3.0)) for _ in range(2)]
        on_host, on_device = (new_optimizer([parameter], OptimizerSettings(0.1)) for parameter in parameters)
        for norm in (1.0, bad, 2.0):
            for parameter in parameters:
                parameter.grad = torch.full((3,), norm)
            step_decided_on_host(on_host, torch.tensor(norm), torch.tensor(4.0))
            step_decided_on_device(on_device, torch.tensor(norm), torch.tensor(4.0))
            for optimizer in (on_host, on_device):
                optimizer.param_groups[0]["lr"] = 0.1
        host_state, device_state = (opt.state[p] for opt, p in zip((on_host, on_device), parameters, strict=True))
        assert torch.equal(*parameters)
        assert host_state["step"] == device_state["step"] == 2
        assert all(torch.equal(host_state[key], device_state[key]) for key in ("exp_avg", "exp_avg_sq"))
        assert not torch.equal(parameters[0], torch.arange(3.0))

    def test_a_loss_that_is_not_finite_makes_every_gradient_nan(self) -> None:
        weight = torch.nn.Parameter(torch.ones(2))
        loss = (weight * torch.tensor([1.0, float("inf")])).sum()
        loss.backward(gradient_seed(loss, 1.0, LossScale(torch.device("cpu"), enabled=False)))
        assert weight.grad is not None
        assert weight.grad.isnan().all()


def test_the_loss_scale_grows_again_and_survives_a_checkpoint() -> None:
    scale, good, bad = LossScale(torch.device("cpu"), enabled=True), torch.tensor(1.0), torch.tensor(float("inf"))
    scale.update(bad)
    for _ in range(1999):
        scale.update(good)
    assert scale.value == 32768.0
    other = LossScale(torch.device("cpu"), enabled=True)
    other.restore(scale.scalars())
    other.update(good)
    assert other.value == 65536.0
    assert LossScale(torch.device("cpu"), enabled=False).scalars() == {}


@pytest.mark.parametrize("step", ["train_ddp", "train_fsdp"])
def test_every_engine_names_a_parameter_that_is_not_contiguous(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], step: str
) -> None:
    arguments = training_arguments(digits, tmp_path, "tiny_task:Transposed", "--max-steps", 1)
    assert importlib.import_module(f"trainyard.steps.{step}").main([str(argument) for argument in arguments]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"trainyard.steps.{step}: error: the model's 1.weight is not contiguous in memory"), said


def test_fsdp_names_a_parameter_without_rows() -> None:
    from trainyard.steps.runtime.errors import StepError
    from trainyard.steps.training.engines.fsdp import refuse_single_numbers

    model = torch.nn.Linear(2, 2)
    model.register_parameter("temperature", torch.nn.Parameter(torch.tensor(1.0)))
    with pytest.raises(StepError, match="the parameter temperature is a scalar"):
        refuse_single_numbers(model)


class OnlyAligned(Engine):
    """An engine around a model that nobody trains."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model

    def step(self, learning_rate: float) -> torch.Tensor:
        raise AssertionError("nothing is trained")

    def fragments(self) -> list[Fragment]:
        raise AssertionError("nothing is trained")


def test_buffers_in_main_memory_are_exchanged_on_the_device() -> None:
    """Lightning moves a trained model from the GPU to main memory, and NCCL exchanges nothing from there."""
    engine = OnlyAligned(torch.nn.BatchNorm1d(3))
    with World(timeout_seconds=10, environment={}) as engine.world:
        dist.destroy_process_group()
        # In place of GPUs and NCCL: a device whose group exchanges nothing of any other.
        dist.init_process_group("meta:fake", store=HashStore(), rank=0, world_size=2)
        engine.world.device = torch.device("meta")
        # What was exchanged there comes back, which only a device without values refuses.
        with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
            engine.align_ranks()
