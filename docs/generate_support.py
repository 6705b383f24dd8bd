"""Write docs/support.md, what each training step supports, from what it refuses:
`python docs/generate_support.py [--check]`.

Each cell asks the step's own check with those settings. A step without such a setting does not support it.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from trainyard.settings.batch_arithmetic import divide_batch
from trainyard.settings.steps.train_tensorflow import TrainTensorFlow
from trainyard.settings.steps.training import (
    TrainDDP,
    TrainDeepSpeed,
    TrainFSDP,
    TrainHorovod,
    TrainLightning,
    TrainSingle,
)
from trainyard.settings.task_fields import step_fields
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.engines.deepspeed_engine import DeepSpeedEngine
from trainyard.steps.training.engines.engine import Engine
from trainyard.steps.training.engines.fsdp import FSDPEngine
from trainyard.steps.training.engines.horovod_engine import HorovodEngine
from trainyard.steps.training.engines.replicas import DDPEngine, SingleEngine
from trainyard.steps.training.lightning.lightning_engine import LightningEngine

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "support.md"
CONFIGS = ROOT / "components" / "deepspeed"
MEASURED = {"train_ddp": ROOT / "benchmarks" / "results" / "gpu.json"}
"""Where the speed of a step on a GPU would be; the benchmark writes its device there once it has had one."""


class Step(NamedTuple):
    """A training step: its settings, and what checks them; TensorFlow's has no engine, so only its fields count."""

    config: type
    engine: type[Engine] | None


STEPS = {
    "train_single": Step(TrainSingle, SingleEngine),
    "train_ddp": Step(TrainDDP, DDPEngine),
    "train_fsdp": Step(TrainFSDP, FSDPEngine),
    "train_deepspeed": Step(TrainDeepSpeed, DeepSpeedEngine),
    "train_horovod": Step(TrainHorovod, HorovodEngine),
    "train_lightning": Step(TrainLightning, LightningEngine),
    "train_tensorflow": Step(TrainTensorFlow, None),
}


FEW_RANKS = 2
"""How many try what does not depend on it; a step of one process is asked with one."""


class Feature(NamedTuple):
    """What a training may need: the settings that ask for it, on so many ranks."""

    settings: Mapping[str, Any]
    ranks: int = FEW_RANKS
    micro_batch_size: int = 32


FEATURES = {
    "several processes": Feature({}, ranks=16, micro_batch_size=4),
    "LoRA": Feature({"tuning": "lora"}),
    "QLoRA": Feature({"tuning": "qlora"}),
    "Adafactor, 8-bit AdamW": Feature({"optimizer": "adafactor"}),
    "EMA": Feature({"ema_decay": 0.999}),
    "compile": Feature({"compile": True}),
    "activation checkpointing": Feature({"activation_checkpointing": True}),
    "parameters in main memory": Feature({"cpu_offload": True}),
    "activations in main memory": Feature({"activation_offload": True}),
    "float8": Feature({"float8": True}),
    "accumulation": Feature({}, micro_batch_size=16),
    "packed conversations": Feature({"task": "language_modeling"}),
    "tasks of your own": Feature({"task": "my_package.task:MyTask"}),
    "exact resume": Feature({"resume": "auto"}),
}


def refusal(step: Step, feature: Feature) -> str | None:
    """Return what a step says to a feature's settings: nothing where it takes them; None without such a setting."""
    given: dict[str, Any] = dict(feature.settings)
    if step.config is TrainDeepSpeed and given.pop("cpu_offload", False):
        given["deepspeed_config"] = CONFIGS / "zero3_offload.json"
    if not given.keys() <= {field.name for field in step_fields(step.config)}:
        return None
    if step.engine is None:
        return ""
    ranks = 1 if step.engine is SingleEngine and feature.ranks == FEW_RANKS else feature.ranks
    try:
        step.engine.check(
            step.config(**(_required(step.config) | given)),
            divide_batch(64, feature.micro_batch_size, ranks),
        )
    except StepError as refused:
        return str(refused)
    return ""


def _required(config: type) -> dict[str, Any]:
    """Return paths for the settings that have no default."""
    needed = [each.name for each in dataclasses.fields(config) if each.default is dataclasses.MISSING]
    return {name: CONFIGS / "zero2.json" if name == "deepspeed_config" else ROOT for name in needed}


def measured(step: str) -> str:
    """Return the device that a step's speed was measured on; `not yet` without one."""
    if step not in MEASURED:
        return "not yet"
    device = json.loads(MEASURED[step].read_text(encoding="utf-8"))["device"]
    return "not yet" if device == "not measured" else str(device)


def page() -> str:
    """Return the text of the page."""
    reasons: dict[str, int] = {}
    rows = []
    for name, feature in FEATURES.items():
        cells = [_cell(refusal(step, feature), reasons) for step in STEPS.values()]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    rows.append(f"| speed measured on a GPU | {' | '.join(map(measured, STEPS))} |")
    notes = [f"{number}. {why}" for why, number in reasons.items()]
    return "\n".join([
        "# What each engine supports\n",
        "Generated by `python docs/generate_support.py`, which asks each step's own check.\n"
        "A number is what it refuses with, before it trains; `–`: it has no such setting.\n"
        "QLoRA and float8 also need a GPU that can do them.\n"
        "[Which engine](guides/which_engine.md) fits which machine is another question.\n",
        f"| | {' | '.join(f'`{name}`' for name in STEPS)} |",
        f"|---|{'---|' * len(STEPS)}",
        *rows,
        "",
        *notes,
    ]) + "\n"  # fmt: skip


def _cell(refused: str | None, reasons: dict[str, int]) -> str:
    """Return a cell, and give a reason that is new the next number."""
    if refused is None:
        return "–"
    return f"no [{reasons.setdefault(refused, len(reasons) + 1)}]" if refused else "yes"


def main() -> int:
    """Write the page, or say whether it would change."""
    text = page()
    if "--check" not in sys.argv:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.is_file() or text != PAGE.read_text(encoding="utf-8"):
        print("docs/support.md has drifted; run python docs/generate_support.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
