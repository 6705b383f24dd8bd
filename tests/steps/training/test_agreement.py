"""What ranks agree on at each step: exact, one step late, and without waiting."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from rank_processes import training_arguments
from tiny_task import TinyTask

from trainyard.settings.batch_arithmetic import divide_batch
from trainyard.steps import train_ddp, train_fsdp
from trainyard.steps.runtime.host_group import HostGroup
from trainyard.steps.runtime.world import World
from trainyard.steps.training.agreement import Agreement, StepMarks, TakenStep
from trainyard.steps.training.samples.plan import AgreedStep, TrainingPlan

PLAN = TrainingPlan(1000, divide_batch(10, 10, 1), epochs=1)


@pytest.fixture
def world() -> Iterator[World]:
    with World(20, {}) as alone:
        yield alone


def taken(number: int, *, own_seconds: float = 0.1, loss: float = 30.0) -> TakenStep:
    """A step of 10 samples that took twice its own seconds."""
    return TakenStep(
        step=PLAN.step(number),
        learning_rate=0.1,
        losses=[torch.tensor(loss)],
        loss_terms=10.0,
        gradient_norm=torch.tensor(2.0),
        marks=StepMarks(begun=0.0, forward_ended=own_seconds, ended=2 * own_seconds),
    )


def numbers(steps: list[AgreedStep]) -> list[int]:
    return [agreed.step.number for agreed in steps]


def test_a_step_is_agreed_on_one_step_later(world: World) -> None:
    agreement = Agreement(world)
    assert agreement.next_step(taken(1), stop=False) == []
    (first,) = agreement.next_step(taken(2), stop=True)
    assert (first.step.number, first.loss, first.gradient_norm, first.stop) == (1, 3.0, 2.0, False)
    assert first.seconds == pytest.approx(0.2)
    (second,) = agreement.next_step(taken(3), stop=False)
    assert second.stop, "what was asked at step 2 is known after step 3"


def test_a_steps_loss_is_that_of_all_its_micro_batches(world: World) -> None:
    agreement = Agreement(world)
    one, three = taken(1), taken(2)._replace(losses=[torch.tensor(loss) for loss in (10.0, 20.0, 40.0)])
    agreed = agreement.next_step(one, stop=False) + agreement.next_step(three, stop=False)
    agreed += agreement.all_steps(stop=False)
    assert [step.loss for step in agreed] == [3.0, 7.0]


def test_all_steps_includes_the_newest(world: World) -> None:
    agreement = Agreement(world)
    agreement.next_step(taken(1), stop=False)
    agreement.next_step(taken(2), stop=False)
    (newest,) = agreement.all_steps(stop=False)
    assert newest.step.number == 2
    assert agreement.next_step(taken(3), stop=False) == []


def test_short_steps_share_a_reduction(world: World) -> None:
    """Five steps of 4 ms are agreed on at once, in order and each with its own figures."""
    agreement = Agreement(world)
    heard = [agreement.next_step(taken(n, own_seconds=0.004, loss=n), stop=False) for n in range(1, 21)]
    steps = [agreed for some in heard for agreed in some] + agreement.all_steps(stop=False)
    assert numbers(steps) == list(range(1, 21))
    assert [agreed.loss for agreed in steps] == [n / 10 for n in range(1, 21)]
    assert max(len(some) for some in heard) == 5


def test_long_steps_are_agreed_on_at_once(world: World) -> None:
    agreement = Agreement(world)
    for number in range(1, 4):
        agreement.next_step(taken(number, own_seconds=5.0), stop=False)
    agreement.all_steps(stop=False)
    assert agreement.steps_are_long


def test_a_loss_that_is_not_finite_stays_so_in_the_agreement(world: World) -> None:
    agreement = Agreement(world)
    step = taken(1, loss=float("nan"))
    agreement.next_step(step._replace(gradient_norm=torch.tensor(float("inf"))), stop=False)
    (agreed,) = agreement.all_steps(stop=False)
    assert not agreed.is_finite
    assert agreed.loss != agreed.loss


@pytest.mark.parametrize(("step", "terms_vary"), [(train_ddp, False), (train_fsdp, False), (train_ddp, True)])
def test_quiet_steps_read_no_number_from_a_device_on_a_cpu(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: ModuleType, terms_vary: bool
) -> None:
    """Every way of reading a tensor's number, and of asking other ranks on the host, is watched over 20 quiet steps."""
    seen: list[str] = []

    class Watched(TinyTask):
        calls = 0
        loss_terms_vary = terms_vary

        def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
            Watched.calls += 1
            return super().loss(model, batch)

    def watched(name: str, original: Any) -> Any:
        def call(tensor: Any, *arguments: Any) -> Any:
            caller = Path(sys._getframe(1).f_code.co_filename).name
            # Readers of samples write to the host's memory, in threads of their own and ahead of the steps.
            reads_ahead = threading.current_thread().name.startswith(("batches", "rows"))
            if 10 <= Watched.calls < 30 and not reads_ahead:
                seen.append(f"{caller}: {name}")
            return original(tensor, *arguments)

        return call

    import tiny_task

    monkeypatch.setattr(tiny_task, "Replaced", Watched)
    # How many steps are agreed on at once follows from their seconds, which differ from machine to machine.
    monkeypatch.setattr("trainyard.steps.training.agreement._seconds_between", lambda first, second: 0.002)
    for name in ("item", "tolist", "__float__", "__bool__", "__int__", "numpy", "cpu"):
        monkeypatch.setattr(torch.Tensor, name, watched(name, getattr(torch.Tensor, name)))
    monkeypatch.setattr(World, "gpu_use", lambda world: (90.0, 5e9))  # what ranks know of a GPU is agreed on too
    for asked in (World, HostGroup):
        for name in ("sum", "gather", "broadcast"):
            monkeypatch.setattr(asked, name, watched(f"{asked.__name__}.{name}", getattr(asked, name)))
    flags = ("--epochs", 4, "--micro-batch-size", 64, "--log-every-steps", 5, "--evaluate-every-epochs", 0)
    arguments = training_arguments(digits, tmp_path, "tiny_task:Replaced", *flags)
    assert step.main([str(argument) for argument in arguments]) == 0
    assert Watched.calls > 30
    # On a CPU the optimizer looks at the norm, which is on the host; on a GPU its kernel does (step_decided_on_device).
    assert set(seen) <= {"agreement.py: tolist", "optimizer.py: item"}  # very short steps share a late read
    assert seen.count("agreement.py: tolist") < 20, "steps of 2 ms share their reads"
    (*_, line) = (tmp_path / "metrics" / "metrics.jsonl").read_text().splitlines()
    found = json.loads(line)
    assert (found["node_0_gpu_utilization_percent"], found["node_0_gpu_memory_bytes"]) == (90, 5e9)
