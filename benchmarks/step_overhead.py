"""What a step of the training loop costs beyond the bare work, compared with accelerate and Lightning.

    python benchmarks/step_overhead.py [--rounds 300]        needs the extra `bench`
    python benchmarks/step_overhead.py --count               counts work instead: the same on a busy machine

Two processes on this machine's CPU, one thread each. All contenders live in the same two processes and take turns in
short windows of steps on the same batches, in another order each round, so that a machine that slows down slows all
equally. The figures are
medians over rounds of the difference from, and the ratio to, the window of a hand-written DDP loop in the same round;
in brackets, the 95 % confidence interval of that median. Trainyard runs its whole loop: metrics.jsonl, loss,
guards, stop agreement, stop file, hang watch; `train_lightning` does the same with Lightning's Trainer in place of the
loop. The others run what their documentation shows, without logging:
accelerate's `Accelerator`, Lightning's `Trainer` and Lightning's `Fabric`, whose loop is the user's own. All choose
deterministic algorithms, the default of Trainyard's steps. CPU seconds are of the whole process, including its
communication threads: they are meaningful even on a busy machine. Results go to
benchmarks/results/step_overhead.json. Exit 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import math
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from results import save_results
from trainyard.steps.runtime.entrypoint import end_process
from trainyard.steps.runtime.world import World
from trainyard.steps.training.randomness import ask_for_determinism
from trainyard.steps.training.samples.batches import Tensors
from trainyard.steps.training.stopping import StopRequest
from whole_loop import InMemoryTask, Loop, whole_loop

WORLD_SIZE = 2
LIMIT_SECONDS = 900
COUNTED_STEPS = 64
LEARNING_RATE, WEIGHT_DECAY, CLIP_NORM = 1e-4, 0.1, 1.0
BARE, OURS, ACCELERATE, TRAINER, FABRIC = "bare DDP", "trainyard", "accelerate", "Lightning Trainer", "Lightning Fabric"
TRAIN_LIGHTNING = "train_lightning"


@dataclass(frozen=True)
class Case:
    """A model with a certain step time, and the steps of its window."""

    name: str
    width: int
    layers: int
    samples_per_rank: int
    steps_per_window: int
    rounds: int
    bar_ratio: float | None = None
    bar_surplus_seconds: float | None = None
    bar_less_than_peers: bool = False
    bar_ratio_to_trainer: float | None = None
    """Of train_lightning to Lightning's plain Trainer."""


CASES = (
    Case("steps of 2 ms", 128, 2, 32, 25, 300, bar_surplus_seconds=0.2e-3, bar_less_than_peers=True),
    Case("steps of 150 ms and more", 512, 6, 384, 2, 40, bar_ratio=1.01, bar_ratio_to_trainer=1.02),
)


class Network(torch.nn.Module):
    """Residual blocks of two linear layers: matrix products and little else."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(
                torch.nn.LayerNorm(width),
                torch.nn.Linear(width, 2 * width),
                torch.nn.GELU(),
                torch.nn.Linear(2 * width, width),
            )
            for _ in range(layers)
        )
        self.head = torch.nn.Linear(width, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            inputs = inputs + block(inputs)
        logits: torch.Tensor = self.head(inputs)
        return logits


class NetworkTask(InMemoryTask):
    """The same work as a task."""

    def loss(self, model: torch.nn.Module, batch: Tensors) -> torch.Tensor:
        return functional.cross_entropy(model(batch["inputs"]), batch["labels"], reduction="sum")


class Turns:
    """Lets one contender at a time take a window of steps, and records its time."""

    def __init__(self, case: Case, names: list[str], *, counts: bool = False) -> None:
        self.case = case
        self.counts: dict[str, dict[str, float]] | None = {} if counts else None
        """Of the last window, where work is counted instead of timed."""
        self.seconds: dict[str, list[float]] = {name: [] for name in names}
        self.cpu_seconds: dict[str, list[float]] = {name: [] for name in names}
        self._may_go = {name: threading.Semaphore(0) for name in names}
        self._has_gone = threading.Semaphore(0)
        self._is_over = False
        generator = torch.Generator().manual_seed(dist.get_rank())
        self.batches = [
            {
                "inputs": torch.randn(case.samples_per_rank, case.width, generator=generator),
                "labels": torch.randint(10, (case.samples_per_rank,), generator=generator),
            }
            for _ in range(8)
        ]

    def batches_of(self, name: str) -> Iterator[Tensors]:
        """Yield a contender's batches; it waits here for its turns."""
        number = 0
        self._has_gone.release()
        while True:
            self._may_go[name].acquire()
            if self._is_over:
                return
            if self.counts is not None:
                self.counts[name] = yield from _counted(self.batches, self.case.steps_per_window)
                self._has_gone.release()
                continue
            started, cpu_started = time.perf_counter(), time.process_time()
            for _ in range(self.case.steps_per_window):
                yield self.batches[number % len(self.batches)]
                number += 1
            self.seconds[name].append((time.perf_counter() - started) / self.case.steps_per_window)
            self.cpu_seconds[name].append((time.process_time() - cpu_started) / self.case.steps_per_window)
            self._has_gone.release()

    def play(self, contenders: dict[str, Loop], rounds: int, warm_up_rounds: int = 3) -> None:
        """Run rounds in which each has one window, in random order; the first rounds warm up and do not count."""
        names = list(contenders)
        order = random.Random(0)  # the same on every rank
        threads = {
            name: threading.Thread(target=_run_to_end, args=(contender, self.batches_of(name)), daemon=True)
            for name, contender in contenders.items()
        }
        for thread in threads.values():
            thread.start()
            self._has_gone.acquire()
        for _ in range(rounds + warm_up_rounds):
            for name in order.sample(names, len(names)):
                dist.barrier()
                self._may_go[name].release()
                self._has_gone.acquire()
        self._is_over = True
        for name, thread in threads.items():
            self._may_go[name].release()
            thread.join()
        for windows in (*self.seconds.values(), *self.cpu_seconds.values()):
            del windows[:warm_up_rounds]


def _counted(batches: list[Tensors], steps: int) -> Generator[Tensors, None, dict[str, float]]:
    """Yield batches. Return what each step took in calls of Python and C functions and operations of torch."""
    calls = Counter[str]()
    sys.setprofile(lambda frame, event, argument: calls.update((event,)))
    yield from itertools.islice(itertools.cycle(batches), steps)
    sys.setprofile(None)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        yield from itertools.islice(itertools.cycle(batches), steps)
    operations = {event.key: event.count for event in profiled.key_averages()}
    return {
        "Python calls": calls["call"] / steps,
        "C calls": calls["c_call"] / steps,
        "operations": sum(count for name, count in operations.items() if name.startswith("aten::")) / steps,
        "collectives": sum(count for name, count in operations.items() if name.startswith("c10d::")) / steps,
    }


def _run_to_end(contender: Loop, batches: Iterator[Tensors]) -> None:
    """End the process when a contender fails, or the others would wait forever."""
    try:
        contender(batches)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)


def new_network(case: Case) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A network and its optimizer, the same for every contender."""
    torch.manual_seed(0)
    network = Network(case.width, case.layers)
    decaying = [parameter for parameter in network.parameters() if parameter.dim() >= 2]
    others = [parameter for parameter in network.parameters() if parameter.dim() < 2]
    groups = [{"params": decaying, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    return network, torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.999), fused=True)


def bare(case: Case) -> Loop:
    """A hand-written loop, with nothing around it."""
    network, optimizer = new_network(case)
    model = DistributedDataParallel(network, gradient_as_bucket_view=True)

    def loop(batches: Iterator[Tensors]) -> None:
        for batch in batches:
            loss = functional.cross_entropy(model(batch["inputs"]), batch["labels"])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
            optimizer.step()
            optimizer.zero_grad()

    return loop


def with_accelerate(case: Case) -> Loop:
    """The loop of accelerate's quick tour."""
    from accelerate import Accelerator
    from accelerate.utils import DistributedDataParallelKwargs

    accelerator = Accelerator(cpu=True, kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True)])
    assert accelerator.num_processes == WORLD_SIZE
    model, optimizer = accelerator.prepare(*new_network(case))

    def loop(batches: Iterator[Tensors]) -> None:
        for batch in batches:
            loss = functional.cross_entropy(model(batch["inputs"]), batch["labels"])
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), CLIP_NORM)
            optimizer.step()
            optimizer.zero_grad()

    return loop


class Endless:
    """Batches as Lightning's Trainer takes them: with a length, or it would ask for each one step ahead."""

    def __init__(self, batches: Iterator[Tensors]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Tensors]:
        return self._batches

    def __len__(self) -> int:
        return 10**9


def with_trainer(case: Case) -> Loop:
    """A LightningModule under a Trainer that does nothing it was not asked for."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network, self._optimizer = new_network(case)

        def training_step(self, batch: Tensors, _: int) -> torch.Tensor:
            return functional.cross_entropy(self.network(batch["inputs"]), batch["labels"])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return self._optimizer

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=WORLD_SIZE,
        strategy=lightning.pytorch.strategies.DDPStrategy(process_group_backend="gloo", gradient_as_bucket_view=True),
        gradient_clip_val=CLIP_NORM,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    assert trainer.world_size == WORLD_SIZE

    def loop(batches: Iterator[Tensors]) -> None:
        trainer.fit(Module(), Endless(batches))

    return loop


def with_fabric(case: Case) -> Loop:
    """The loop of Fabric's guide: hand-written, with its wrappers."""
    import lightning

    strategy = lightning.fabric.strategies.DDPStrategy(process_group_backend="gloo", gradient_as_bucket_view=True)
    fabric = lightning.Fabric(accelerator="cpu", devices=WORLD_SIZE, strategy=strategy)
    fabric.launch()
    assert fabric.world_size == WORLD_SIZE
    model, optimizer = fabric.setup(*new_network(case))

    def loop(batches: Iterator[Tensors]) -> None:
        for batch in batches:
            loss = functional.cross_entropy(model(batch["inputs"]), batch["labels"])
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=CLIP_NORM)
            optimizer.step()
            optimizer.zero_grad()

    return loop


def with_train_lightning(case: Case, world: World, folder: Path, stop_request: StopRequest) -> Loop:
    """The step train_lightning, with its defaults: to be compared with Lightning's plain Trainer."""
    from trainyard.steps.training.lightning.lightning_engine import LightningEngine
    from trainyard.steps.training.lightning.lightning_training import train_with_lightning

    how = {"engine_class": LightningEngine, "train_to_the_end": train_with_lightning}
    return ours(case, world, folder, stop_request, **how)


def ours(case: Case, world: World, folder: Path, stop_request: StopRequest, **how: Any) -> Loop:
    """The loop of the training steps, with its defaults."""
    return whole_loop(
        NetworkTask(lambda: Network(case.width, case.layers)),
        world,
        folder,
        stop_request,
        **how,
        global_batch_size=case.samples_per_rank * WORLD_SIZE,
        micro_batch_size=case.samples_per_rank,
        learning_rate=LEARNING_RATE,
        weight_decay=WEIGHT_DECAY,
        gradient_clip_norm=CLIP_NORM,
    )


def measure(case: Case, world: World, folder: Path, rounds: int | None, stop_request: StopRequest) -> dict[str, Any]:
    """The figures of all contenders' windows of one case."""
    contenders = {
        BARE: bare(case),
        OURS: ours(case, world, folder / OURS, stop_request),
        TRAIN_LIGHTNING: with_train_lightning(case, world, folder / TRAIN_LIGHTNING, stop_request),
        ACCELERATE: with_accelerate(case),
        TRAINER: with_trainer(case),
        FABRIC: with_fabric(case),
    }
    turns = Turns(case, list(contenders))
    turns.play(contenders, rounds or case.rounds)
    bare_seconds = turns.seconds[BARE]
    figures = {}
    for name, seconds in turns.seconds.items():
        surplus = [own - of_bare for own, of_bare in zip(seconds, bare_seconds, strict=True)]
        of_trainer = turns.seconds[TRAINER]
        figures[name] = {
            "ratio_to_trainer": statistics.median(own / of for own, of in zip(seconds, of_trainer, strict=True)),
            "median_step_seconds": statistics.median(seconds),
            "median_step_cpu_seconds": statistics.median(turns.cpu_seconds[name]),
            "ratio_to_bare": statistics.median(own / of for own, of in zip(seconds, bare_seconds, strict=True)),
            "surplus_seconds": statistics.median(surplus),
            "surplus_seconds_95_percent": median_confidence(surplus),
        }
    return {
        "case": case.name,
        "parameters": sum(p.numel() for p in Network(case.width, case.layers).parameters()),
        "samples_per_rank": case.samples_per_rank,
        "steps_per_window": case.steps_per_window,
        "rounds": len(bare_seconds),
        "contenders": figures,
    }


def count(case: Case, world: World, folder: Path, stop_request: StopRequest) -> dict[str, dict[str, float]]:
    """What a step takes on this rank in every loop but Lightning's own, counted over many steps."""
    case = replace(case, steps_per_window=COUNTED_STEPS)
    contenders = {
        BARE: bare(case),
        OURS: ours(case, world, folder / OURS, stop_request),
        ACCELERATE: with_accelerate(case),
        FABRIC: with_fabric(case),
    }
    turns = Turns(case, list(contenders), counts=True)
    turns.play(contenders, rounds=1, warm_up_rounds=1)
    assert turns.counts is not None
    return {name: turns.counts[name] for name in contenders}


def median_confidence(values: list[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the median, for any distribution: by order statistics.

    Source: Conover, Practical Nonparametric Statistics, 3rd edition, 3.2 (the normal approximation of the ranks).
    """
    ordered, count = sorted(values), len(values)
    spread = 1.96 * math.sqrt(count) / 2
    return ordered[max(0, math.floor(count / 2 - spread))], ordered[min(count - 1, math.ceil(count / 2 + spread))]


def missed_bars(case: Case, contenders: dict[str, dict[str, Any]]) -> list[str]:
    """Return the bars that are missed."""
    own, missed = contenders[OURS], []
    if case.bar_ratio is not None and own["ratio_to_bare"] > case.bar_ratio:
        missed.append(f"ratio to bare over {case.bar_ratio}")
    if case.bar_surplus_seconds is not None and own["surplus_seconds"] > case.bar_surplus_seconds:
        missed.append(f"surplus over {case.bar_surplus_seconds * 1000} ms")
    ratio = contenders[TRAIN_LIGHTNING]["ratio_to_trainer"]
    if case.bar_ratio_to_trainer is not None and ratio > case.bar_ratio_to_trainer:
        missed.append(f"{TRAIN_LIGHTNING}: {ratio:.3f} of Lightning's Trainer, over {case.bar_ratio_to_trainer}")
    if case.bar_less_than_peers:
        peers = (ACCELERATE, TRAINER, FABRIC)
        missed += [f"surplus over {n}'s" for n in peers if own["surplus_seconds"] >= contenders[n]["surplus_seconds"]]
    return missed


def rank_main(case: Case, out: Path, rounds: int | None, *, counts: bool) -> int:
    """Run one of the two processes that measure a case."""
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    ask_for_determinism()
    stop_request = StopRequest(out / "stop", LIMIT_SECONDS)
    with World(120) as world:
        figures = count(case, world, out, stop_request) if counts else measure(case, world, out, rounds, stop_request)
        if world.is_main:
            (out / "figures.json").write_text(json.dumps(figures))
    return 0


def run_ranks(command: list[str], variables: Mapping[str, object]) -> None:
    """Run a command as the two processes of one world, with more variables. SystemExit if one fails."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    world = {"WORLD_SIZE": WORLD_SIZE, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
    processes = []
    for rank in range(WORLD_SIZE):
        own = {**world, "RANK": rank, "LOCAL_RANK": rank, **variables}
        environment = {**os.environ, **{name: str(value) for name, value in own.items()}}
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL))
    try:
        codes = [process.wait(timeout=LIMIT_SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(codes):
        raise SystemExit(f"the ranks ended with {codes}")


def run_case(case: Case, rounds: int | None, folder: Path, *, counts: bool = False) -> dict[str, Any]:
    """Start the two processes of a case, and return what they measured."""
    command = [sys.executable, __file__, "--rank-folder", str(folder), "--case", str(CASES.index(case))]
    command += [] if rounds is None else ["--rounds", str(rounds)]
    command += ["--count"] * counts
    run_ranks(command, {"NODE_RANK": 0})
    figures: dict[str, Any] = json.loads((folder / "figures.json").read_text())
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, help="windows per contender and case")
    parser.add_argument("--case", type=int, help="only this one, counted from 0")
    parser.add_argument("--count", action="store_true", help="count calls and operations of a small step instead")
    parser.add_argument("--rank-folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    chosen = CASES if arguments.case is None else [CASES[arguments.case]]
    if arguments.rank_folder is not None:
        return rank_main(chosen[0], arguments.rank_folder, arguments.rounds, counts=arguments.count)
    if arguments.count:
        with tempfile.TemporaryDirectory() as folder:
            for name, of in run_case(CASES[0], None, Path(folder), counts=True).items():
                print(f"{name:<18} " + ", ".join(f"{number:8.2f} {what}" for what, number in of.items()) + " a step")
        return 0
    missed, figures = [], []
    for case in chosen:
        with tempfile.TemporaryDirectory() as folder:
            found = run_case(case, arguments.rounds, Path(folder))
        figures.append(found)
        print(f"{found['case']}: {found['parameters']:,} parameters, {found['rounds']} rounds")
        for name, of in found["contenders"].items():
            low, high = (1000 * seconds for seconds in of["surplus_seconds_95_percent"])
            print(
                f"  {name:<18} {1000 * of['median_step_seconds']:8.3f} ms a step, {of['ratio_to_bare']:.4f} x bare, "
                f"{1000 * of['surplus_seconds']:+.3f} ms ({low:+.3f} to {high:+.3f}); "
                f"{1000 * of['median_step_cpu_seconds']:.3f} ms of CPU"
            )
        missed += [f"{case.name}: {what}" for what in missed_bars(case, found["contenders"])]
    if arguments.case is None:
        settings = {"processes": WORLD_SIZE, "deterministic": True}
        save_results("step_overhead", {**settings, "cases": figures, "missed": missed})
    print("\n".join(missed) or "all bars hold")
    return int(bool(missed))


if __name__ == "__main__":
    end_process(main())
