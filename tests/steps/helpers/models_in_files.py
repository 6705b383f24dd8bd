"""Models whose weights are in folders, brought to the ranks of one world; writes what each rank found.

python models_in_files.py DATA OUT NAME=FOLDER …
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainyard.settings.steps.tasks import LanguageModelingSettings
from trainyard.settings.steps.training import TrainFSDP
from trainyard.steps.data.dataset.manifest import read_manifest
from trainyard.steps.runtime.entrypoint import end_process
from trainyard.steps.runtime.world import World
from trainyard.steps.training.adapters import new_model
from trainyard.steps.training.engines.shared_model import RowsOfRank, SharedModel, shared_model
from trainyard.steps.training.tasks.language_modeling import LanguageModeling


def equals(built: SharedModel, expected: torch.nn.Module, shard: RowsOfRank | None) -> bool:
    """Whether what this rank must have of a model has the bits that the model has when it is built whole."""
    named, expected_named = (list(model.named_parameters(remove_duplicate=False)) for model in (built.module, expected))
    if [name for name, _ in named] != [name for name, _ in expected_named]:
        return False
    for (_, found), (_, whole) in zip(named, expected_named, strict=True):
        held = slice(*(shard or RowsOfRank()).elements(whole.shape))
        same_kind = found.requires_grad == whole.requires_grad and found.dtype == whole.dtype
        if not (same_kind and torch.equal(found.view(-1)[held], whole.view(-1)[held])):
            return False
    buffers, expected_buffers = (dict(model.named_buffers()) for model in (built.module, expected))
    same_ties = len(dict(built.module.named_parameters())) == len(dict(expected.named_parameters()))
    same_names = same_ties and buffers.keys() == expected_buffers.keys()
    return same_names and all(torch.equal(buffers[name], expected_buffers[name]) for name in buffers)


def middles_equal(built: SharedModel, first: dict[str, torch.nn.Parameter], expected: torch.nn.Module) -> bool:
    """Whether ranges of the flattened parameters are right too."""
    for name, whole in expected.named_parameters():
        start, stop = whole.numel() // 3, whole.numel() - whole.numel() // 5
        if not torch.equal(built.elements(first[name], start, stop), whole.detach().view(-1)[start:stop]):
            return False
    return True


def found_of(folder: Path, data: Path, tuning: str, world: World) -> dict[str, Any]:
    task = LanguageModeling(read_manifest(data), LanguageModelingSettings(model_type=str(folder)))
    settings = TrainFSDP(data=data, model=data, checkpoints=data, metrics=data, tuning=tuning)

    def build() -> torch.nn.Module:
        torch.manual_seed(3)
        return new_model(task, settings)

    found: dict[str, Any] = {}
    expected = build()
    shards = {"rows": RowsOfRank(world.rank, world.size), "replicas": RowsOfRank(0, 1, dist.group.WORLD)}
    for name, shard in {**shards, "in turn": None}.items():
        built = shared_model(build, world, lambda: None, shard)
        first = dict(built.module.named_parameters())
        for block in [*built.module.modules()][::7]:  # part by part, as engines do
            built.materialize(block)
        built.materialize(built.module)
        found[name] = equals(built, expected, shard) if built.weights else "built by rank 0"
        found[f"{name}: bytes"] = getattr(built, "bytes_read", None)
    found["elements"] = middles_equal(built, first, expected)
    return found


def main(data: str, out: str, *folders: str) -> int:
    with World(60) as world:
        find = partial(found_of, data=Path(data), world=world)
        named = (argument.split("=") for argument in folders)
        found = {name: find(Path(folder), tuning="lora" if "lora" in name else "full") for name, folder in named}
        (Path(out) / f"rank-{world.rank}.json").write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    end_process(main(*sys.argv[1:]))
