"""What train_deepspeed would refuse of a DeepSpeed configuration is found by lint, on the configuration's line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainyard.lint.linter import lint
from trainyard.spec.diagnostic import Diagnostic

FROM_TRANSFORMERS = {
    "fp16": {"enabled": "auto", "loss_scale": 0, "initial_scale_power": 16},
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
    },
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {
            "warmup_min_lr": "auto",
            "warmup_max_lr": "auto",
            "warmup_num_steps": "auto",
            "total_num_steps": "auto",
        },
    },
    "zero_optimization": {"stage": 2, "overlap_comm": True, "contiguous_gradients": True},
    "zero_allow_untested_optimizer": True,
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "steps_per_print": 2000,
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "wall_clock_breakdown": False,
}
"""In the manner of the documentation of transformers."""
JOB = """\
type: command
code: .
command: >-
  python -m trainyard.steps.train_deepspeed --data '${{inputs.data}}' --deepspeed-config ds.json
  --model '${{outputs.model}}' --checkpoints '${{outputs.checkpoints}}' --metrics '${{outputs.metrics}}' FLAGS
environment: azureml:torch:3
compute: azureml:gpus
distribution: {type: pytorch, process_count_per_instance: 4}
resources: {instance_count: 2, shm_size: 64g}
inputs:
  data: {type: uri_folder, path: azureml:text:1}
outputs:
  model: {type: uri_folder}
  checkpoints: {type: uri_folder}
  metrics: {type: uri_folder}
"""


def findings(folder: Path, config: dict[str, Any], flags: str = "--global-batch-size 256") -> list[Diagnostic]:
    (folder / "ds.json").write_text(json.dumps(config, indent=2))
    (folder / "job.yaml").write_text(JOB.replace("FLAGS", flags))
    found = lint([folder / "job.yaml"]).diagnostics
    return [each for each in found if each.rule.startswith(("AML013", "AML3", "AML7"))]


def test_a_configuration_for_transformers_needs_no_change(tmp_path: Path) -> None:
    assert findings(tmp_path, FROM_TRANSFORMERS) == []


@pytest.mark.parametrize(
    ("config", "flags"),
    [
        ({"gradient_clipping": "1.0"}, ""),
        ({"optimizer": {"type": "AdamW", "params": {"lr": "1e-4", "betas": ["0.9", "0.99"]}}}, ""),
        ({"gradient_clipping": 2**53 + 1}, ""),
        ({"optimizer": {"type": "AdamW", "params": {"lr": "1e-4"}}}, "--learning-rate 1e-4"),
        ({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 100.0}}}, "--warmup-steps 100"),
        ({"optimizer": {"type": "AdamW", "params": None}, "scheduler": {"type": "WarmupLR", "params": None}}, ""),
    ],
    ids=["clipping", "optimizer", "large", "agrees", "whole", "null"],
)
def test_a_number_is_compared_as_the_step_reads_it(tmp_path: Path, config: dict[str, Any], flags: str) -> None:
    assert findings(tmp_path, config, f"--global-batch-size 256 {flags}") == []


def test_a_configuration_with_values_of_its_own_gives_the_settings(tmp_path: Path) -> None:
    config = {
        "train_micro_batch_size_per_gpu": 3,
        "gradient_accumulation_steps": 5,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-4, "weight_decay": 0.01}},
        "fp16": {"enabled": True},
    }
    assert findings(tmp_path, config, "--precision fp16 --learning-rate 1e-4") == []


@pytest.mark.parametrize(
    ("config", "flags", "rule", "message", "line"),
    [
        ({"optimizer": {"type": "Lion"}}, "", "AML709", 'optimizer.type is "Lion"', 3),
        ({"tensorboard": {"enabled": True}}, "", "AML709", "unknown key tensorboard", 2),
        ({"checkpoint": {}}, "", "AML709", "checkpoint is not supported", 2),
        (
            {"zero_optimization": {"stage": 3}},
            "--compile true",
            "AML709",
            "--compile true does not work with zero_optimization.stage 3",
            3,
        ),
        ({"bf16": {"enabled": False}}, "--precision bf16", "AML709", "bf16.enabled is false, but the step has true", 3),
        (
            {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme"}}},
            "",
            "AML709",
            'zero_optimization.offload_optimizer.device is "nvme"',
            5,
        ),
        (
            {"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}},
            "--learning-rate 3e-4",
            "AML710",
            "optimizer.params.lr gives learning_rate 0.0001, but the job has 3e-4",
            5,
        ),
        (
            {"fp16": {"enabled": True}},
            "--precision bf16",
            "AML710",
            'fp16.enabled gives precision "fp16", but the job has bf16',
            3,
        ),
    ],
)
def test_what_the_step_refuses_is_found(
    tmp_path: Path, config: dict[str, Any], flags: str, rule: str, message: str, line: int
) -> None:
    (found,) = findings(tmp_path, config, f"--global-batch-size 256 {flags}")
    assert (found.rule, found.span.file.name, found.span.line) == (rule, "ds.json", line)
    assert found.message.startswith(message)
    if rule == "AML710":
        (related,) = found.related
        assert related.span.file.name == "job.yaml"


def test_another_program_may_have_any_configuration(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import deepspeed\n")
    (tmp_path / "ds.json").write_text('{"optimizer": {"type": "Lion"}, "tensorboard": {"enabled": true}}')
    job = JOB.replace("-m trainyard.steps.train_deepspeed", "train.py").replace("FLAGS", "")
    (tmp_path / "job.yaml").write_text(job)
    assert [each for each in lint([tmp_path / "job.yaml"]).diagnostics if each.rule.startswith("AML7")] == []


def test_what_a_section_leaves_out_is_known_too(tmp_path: Path) -> None:
    assert findings(tmp_path, {"optimizer": {"type": "AdamW"}, "scheduler": {"type": "WarmupCosineLR"}}) == []
