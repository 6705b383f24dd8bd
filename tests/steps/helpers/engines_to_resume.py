"""The engines whose trainings are stopped and resumed, as flags of their steps."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ResumableEngine:
    """A step, and the ZeRO stage or the shard size where it has one."""

    step: str
    zero_stage: int | None = None
    shard_size: int | None = None
    ranks: int = 2
    """With how many it is fine-tuned."""

    def __str__(self) -> str:
        numbers = (number for number in (self.zero_stage, self.shard_size) if number is not None)
        return "_".join([self.step.removeprefix("train_"), *map(str, numbers)])

    def flags(self, folder: Path) -> list[object]:
        """What this engine's step needs beside the flags of all; files of it go into the folder."""
        if self.shard_size is not None:
            return ["--shard-size", self.shard_size]
        if self.zero_stage is None:
            return []
        config = folder / f"{self}.json"
        # DeepSpeed's default buckets have 2 GB and are allocated at each step.
        buckets = {"reduce_bucket_size": 100_000, "allgather_bucket_size": 100_000}
        config.write_text(json.dumps({"zero_optimization": {"stage": self.zero_stage, **buckets}}))
        return ["--deepspeed-config", config]


DDP = ResumableEngine("train_ddp")
FSDP = ResumableEngine("train_fsdp")
HYBRID = ResumableEngine("train_fsdp", shard_size=2, ranks=4)
"""Replicas of two ranks each."""
HOROVOD = ResumableEngine("train_horovod")
LIGHTNING = ResumableEngine("train_lightning")
ZERO_2 = ResumableEngine("train_deepspeed", 2)
ZERO_3 = ResumableEngine("train_deepspeed", 3)
