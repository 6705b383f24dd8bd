"""A new model, brought to the ranks of one world; writes what each rank found and how much it drew.

python new_models.py DATA OUT MODEL_TYPE OVERRIDES
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from models_in_files import equals, middles_equal
from torch.utils._python_dispatch import TorchDispatchMode

from trainyard.settings.steps.tasks import LanguageModelingSettings
from trainyard.steps.data.dataset.manifest import read_manifest
from trainyard.steps.runtime.entrypoint import end_process
from trainyard.steps.runtime.world import World
from trainyard.steps.training.engines.shared_model import RowsOfRank, shared_model
from trainyard.steps.training.tasks.language_modeling import LanguageModeling


class CountedDraws(TorchDispatchMode):
    """Counts the random numbers that are drawn in main memory."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        if (
            function.overloadpacket in (torch.ops.aten.normal_, torch.ops.aten.uniform_)
            and args[0].device.type != "meta"
        ):
            self.elements += args[0].numel()
        return function(*args, **(kwargs or {}))


def main(data: str, out: str, model_type: str, overrides: str) -> int:
    settings = LanguageModelingSettings(model_type=model_type, model_overrides=overrides)
    with World(60) as world:
        task = LanguageModeling(read_manifest(Path(data)), settings)

        def build() -> torch.nn.Module:
            torch.manual_seed(3)
            return task.new_model()

        expected = build()
        found: dict[str, Any] = {"elements": sum(each.numel() for each in expected.parameters())}
        shards = {"rows": RowsOfRank(world.rank, world.size), "replicas": RowsOfRank(0, 1, dist.group.WORLD)}
        for name, shard in {**shards, "in turn": None}.items():
            with CountedDraws() as drawn:
                built = shared_model(build, world, lambda: None, shard)
                first = dict(built.module.named_parameters())
                built.materialize(built.module)
            found[name], found[f"{name}: drawn"] = equals(built, expected, shard), drawn.elements
        found["middles"] = middles_equal(built, first, expected)
        (Path(out) / f"rank-{world.rank}.json").write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    end_process(main(*sys.argv[1:]))
