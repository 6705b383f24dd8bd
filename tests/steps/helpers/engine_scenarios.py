"""What every engine must do, tried in the processes of one world; writes the findings.

Three ranks, because the order in which two numbers are added makes no difference.

python engine_scenarios.py DIGITS OUT
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from engine_trainings import EngineTraining
from horovod_installed import HAS_HOROVOD
from tiny_transformer import TinyTransformer

from trainyard.steps.runtime.entrypoint import end_process
from trainyard.steps.runtime.world import World
from trainyard.steps.training.weights_to_files import Saving

ENGINES: dict[str, dict[str, Any]] = {
    "ddp": {"engine": "ddp"},
    "ddp summing in bf16": {"engine": "ddp", "reduce_precision": "bf16"},
    "fsdp": {"engine": "fsdp"},
    "fsdp bf16": {"engine": "fsdp", "precision": "bf16"},
    "fsdp offloaded": {"engine": "fsdp", "cpu_offload": True},
    "zero0 bf16": {"engine": "deepspeed", "zero": {"stage": 0}, "precision": "bf16"},
    "zero1": {"engine": "deepspeed", "zero": {"stage": 1}},
    "zero2 bf16": {"engine": "deepspeed", "zero": {"stage": 2}, "precision": "bf16"},
    "zero2 offloaded": {"engine": "deepspeed", "zero": {"stage": 2, "offload_optimizer": {"device": "cpu"}}},
    "zero3": {"engine": "deepspeed", "zero": {"stage": 3}},
    "zero3 bf16": {"engine": "deepspeed", "zero": {"stage": 3}, "precision": "bf16"},
    **({"horovod": {"engine": "horovod"}} if HAS_HOROVOD else {}),
}

Bits = list[torch.Tensor]


def bits(run: EngineTraining) -> Bits:
    """A copy of all state that this rank holds."""
    return [fragment.values.clone() for fragment in run.engine.fragments()]


def same(left: Bits, right: Bits) -> bool:
    return len(left) == len(right) and all(torch.equal(one, other) for one, other in zip(left, right, strict=True))


def put_back(run: EngineTraining, saved: Bits) -> None:
    """As a checkpoint does it."""
    for fragment, values in zip(run.engine.fragments(), saved, strict=True):
        fragment.values.copy_(values)
    run.engine.fragments_restored()


def what_is_not_finite_is_skipped(run: EngineTraining) -> dict[str, Any]:
    """A loss that is infinite on the last rank only, between two good steps."""
    run.step(1)
    before = bits(run)
    is_last = run.world.rank == run.world.size - 1
    _, bad_norm = run.step(2, loss_factor=math.inf if is_last else 1.0)
    after = bits(run)
    _, good_norm = run.step(3)
    return {
        "said": not math.isfinite(bad_norm),
        "unchanged": same(before, after),
        "goes on": math.isfinite(good_norm) and not same(after, bits(run)),
    }


def restoring_gives_the_same_bits(run: EngineTraining, new_run: Callable[..., EngineTraining]) -> dict[str, Any]:
    """Continue from restored state, in the same engine and in a new one with other weights."""
    run.step(4)
    saved = bits(run)
    losses = [run.step(number)[0] for number in (5, 6, 7)]
    reached = bits(run)
    put_back(run, saved)
    again = [run.step(number)[0] for number in (5, 6, 7)]
    result: dict[str, Any] = {"same engine": again == losses and same(bits(run), reached)}

    other = new_run(seed=1)
    put_back(other, saved)
    again = [other.step(number)[0] for number in (5, 6, 7)]
    return {**result, "new engine": again == losses and same(bits(other), reached)}


def fragments_cover_the_model(run: EngineTraining) -> dict[str, Any]:
    """Over all ranks each element of each tensor is there once, under the plain model's names."""
    fragments = run.engine.fragments()
    described = [(f.key, f.shape, f.start, f.stop, str(f.values.dtype), f.is_replicated) for f in fragments]
    by_rank = run.world.gather(described)
    covered: dict[str, int] = {}
    for rank, ranges in enumerate(by_rank):
        for key, _, start, stop, _, is_replicated in ranges:
            covered[key] = covered.get(key, 0) + (0 if is_replicated and rank > 0 else stop - start)
    plain = TinyTransformer()
    parameters = {name: tuple(parameter.shape) for name, parameter in plain.named_parameters()}
    expected = {f"model/{name}": shape for name, shape in (parameters | {"positions": (16, 30)}).items()}
    for name, shape in parameters.items():
        expected |= {
            f"optimizer/{name}/step": (),
            f"optimizer/{name}/exp_avg": shape,
            f"optimizer/{name}/exp_avg_sq": shape,
        }
    shapes = {key: shape for ranges in by_rank for key, shape, *_ in ranges}
    return {
        "names and shapes": shapes == expected,
        "each element once": covered == {key: math.prod(shape) for key, shape in expected.items()},
        "fp32": {dtype for ranges in by_rank for *_, dtype, _ in ranges} == {"torch.float32"},
        "flat": all(fragment.values.dim() == 1 and fragment.values.is_contiguous() for fragment in fragments),
        "counted": run.engine.parameter_count == sum(math.prod(shape) for shape in parameters.values()),
    }


def the_whole_model_is_put_together(run: EngineTraining) -> dict[str, Any]:
    """Rank 0's whole model computes what the engine's does."""
    run.engine.align_ranks()
    levels = torch.arange(32).view(2, 16) % 17
    with torch.no_grad():
        expected = run.engine.evaluation_model()(levels).float()
        saved: list[torch.nn.Module] = []
        Saving(run.engine, lambda: None).whole(TinyTransformer, saved.append, torch.float32)
        if not run.world.is_main:
            return {"alike": True, "tied": True}
        (whole,) = saved
        found = whole(levels)
    tolerance = 1e-5 if run.settings.precision == "fp32" else 0.02
    return {
        "alike": bool((found - expected).abs().max() < tolerance * expected.abs().max()),
        "tied": whole.head.weight is whole.levels.weight,
    }


def try_engine(world: World, data: Path, out: Path, how: dict[str, Any]) -> dict[str, Any]:
    """All scenarios with one engine."""

    def new_run(**settings: Any) -> EngineTraining:
        return EngineTraining(world, data, out, global_batch_size=33, micro_batch_size=11, **how, **settings)

    run = new_run()
    return {
        **{f"not finite: {what}": good for what, good in what_is_not_finite_is_skipped(run).items()},
        **{f"restored: {what}": good for what, good in restoring_gives_the_same_bits(run, new_run).items()},
        **{f"fragments: {what}": good for what, good in fragments_cover_the_model(run).items()},
        **{f"whole model: {what}": good for what, good in the_whole_model_is_put_together(run).items()},
    }


def main(data: str, out: str) -> int:
    """Every engine; each rank writes OUT/rank-<n>.json."""
    with World(60) as world:
        found = {name: try_engine(world, Path(data), Path(out), how) for name, how in ENGINES.items()}
        (Path(out) / f"rank-{world.rank}.json").write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    end_process(main(*sys.argv[1:]))
