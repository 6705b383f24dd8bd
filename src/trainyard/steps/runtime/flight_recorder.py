"""The last collectives of this rank, as torch's flight recorder has them: what a hang is explained by.

It records where TORCH_FR_BUFFER_SIZE says how many, which training steps set on GPUs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

FILE_PREFIX = "collectives_rank_"
"""For `torchfrtrace --prefix`, which compares the files of all ranks."""


def write_collectives(folder: Path, rank: int) -> str | None:
    """Write the recorded collectives into a folder. Return in words where, and the oldest that is not finished.

    None if nothing was recorded. OSError if the folder cannot be written.
    """
    library: Any = torch._C._distributed_c10d
    # NCCL's are in a recorder of their own where torch is built for GPUs.
    dumps = [getattr(library, name, None) for name in ("_dump_nccl_trace", "_dump_fr_trace")]
    jsons = [getattr(library, name, None) for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json")]
    for dump, dump_json in zip(dumps, jsons, strict=True):
        entries = [] if dump is None or dump_json is None else json.loads(dump_json()).get("entries", [])
        if dump is not None and entries:
            folder.mkdir(parents=True, exist_ok=True)
            file = folder / f"{FILE_PREFIX}{rank}"
            file.write_bytes(dump())
            return f"its last {len(entries)} collectives are in {file}; {_oldest_unfinished(entries)}"
    return None


def _oldest_unfinished(entries: list[dict[str, Any]]) -> str:
    for entry in entries:
        if not entry["retired"]:
            sizes = " and ".join("x".join(map(str, size)) or "one number" for size in entry["input_sizes"])
            name, number = entry["profiling_name"], entry["collective_seq_id"]
            return f"not finished: {name} of {sizes}, number {number} of its group"
    return "all are finished"
