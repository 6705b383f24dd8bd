"""DeepSpeed's configuration file: what the step fills in, and what it rejects, before ranks meet."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_ranks import forked_ranks
from rank_processes import clean_environment, training_arguments

from trainyard.settings.batch_arithmetic import divide_batch
from trainyard.settings.deepspeed_configuration import configured_settings
from trainyard.settings.steps.training import TrainDeepSpeed
from trainyard.steps import train_deepspeed
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.engines.deepspeed_config import read_deepspeed_config
from trainyard.steps.training.engines.deepspeed_engine import _forward_of_cast_inputs, refuse_frozen

BATCH = divide_batch(64, 8, 4)


class Block(torch.nn.Module):
    """Adds to a list that it is given, as some models collect their hidden states."""

    def forward(
        self, hidden: torch.Tensor, positions: tuple[torch.Tensor, ...], *, kept: list[torch.Tensor]
    ) -> list[torch.dtype]:
        kept.append(hidden)
        return [each.dtype for each in (hidden, *positions, *kept)]


def test_blocks_get_tensors_and_tuples_in_the_parameters_type_and_lists_as_they_are() -> None:
    block, kept = Block(), [torch.zeros(1)]
    _forward_of_cast_inputs(block, torch.bfloat16)
    found = block(torch.zeros(1), (torch.zeros(1), torch.arange(2)), kept=kept)
    assert found == [torch.bfloat16, torch.bfloat16, torch.int64, torch.float32, torch.bfloat16]
    assert len(kept) == 2


def settings(config: Path, **given: Any) -> TrainDeepSpeed:
    return TrainDeepSpeed(
        *(Path("unused"),) * 4, deepspeed_config=config, global_batch_size=64, micro_batch_size=8, **given
    )


def resolved(tmp_path: Path, config: object, **given: Any) -> dict[str, Any]:
    file = tmp_path / "zero.json"
    file.write_text(json.dumps(config))
    return read_deepspeed_config(settings(file, **given), BATCH)


def test_auto_and_missing_values_come_from_the_step(tmp_path: Path) -> None:
    config = {
        "_rendered": {"remark": "rendered from a template"},
        "train_batch_size": "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": "auto"},
        "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto", "overlap_comm": True},
    }
    assert resolved(tmp_path, config, precision="bf16", gradient_clip_norm=0.5) == {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.5,
        "bf16": {"enabled": True},
        "fp16": {"enabled": False},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
        "zero_optimization": {"stage": 2, "overlap_comm": True},
    }


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        (
            {"train_batch_size": 32},
            'train_batch_size is 32, but the step has 64 (--global-batch-size 64); write "auto" there, or change the '
            "step's setting",
        ),
        (
            {"gradient_accumulation_steps": 1},
            "gradient_accumulation_steps is 1, but the step has 2 (global batch 64 = micro-batch 8 x 2 accumulation "
            'steps x 4 ranks); write "auto" there, or change the step\'s setting',
        ),
        (
            {"bf16": {"enabled": True}},
            'bf16.enabled is true, but the step has false (--precision fp32); write "auto" there, or change the '
            "step's setting",
        ),
        (
            {"gradient_clipping": 0.1},
            'gradient_clipping is 0.1, but the step has 1.0 (--gradient-clip-norm 1); write "auto" there, or change '
            "the step's setting",
        ),
        (
            {"optimizer": {"type": "Lion"}},
            'optimizer.type is "Lion"; only "AdamW" or "Adam" is supported: the step has one AdamW, for every engine',
        ),
        (
            {"optimizer": {"type": "AdamW", "params": {"learning_rate": 1}}},
            "unknown key optimizer.params.learning_rate; expected one of adam_w_mode, amsgrad, betas, bias_correction, "
            "eps, foreach, fused, lr, maximize, set_grad_none, torch_adam, weight_decay",
        ),
        (
            {"scheduler": {"type": "WarmupLR", "params": {"warmup_type": "log"}}},
            'scheduler.params.warmup_type is "log"; only "linear" is supported: the step\'s learning rate rises '
            "along a line from zero",
        ),
        ({"zero_optimisation": {}}, "unknown key zero_optimisation; did you mean zero_optimization?"),
        (
            {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}},
            'zero_optimization.offload_param.device is "nvme"; only "none" or "cpu" is supported: the step keeps no '
            "parameters on a local disk",
        ),
        ([], "expected a JSON object, the form of a DeepSpeed configuration"),
        ({"bf16": []}, "bf16 is []; expected a JSON object"),
    ],
)
def test_invalid_settings_are_rejected(tmp_path: Path, config: object, complaint: str) -> None:
    with pytest.raises(StepError) as raised:
        resolved(tmp_path, config)
    assert str(raised.value) in (f"{tmp_path}/zero.json: {complaint}", f"{tmp_path}/zero.json {complaint}")


def test_a_number_may_be_a_text(tmp_path: Path) -> None:
    assert resolved(tmp_path, {"gradient_clipping": "1.0"})["gradient_clipping"] == 1.0


@pytest.mark.parametrize(
    ("section", "complaint"),
    [
        ({"stage": 3}, "--compile true does not work with zero_optimization.stage 3, "),
        ({"stage": 4}, "zero_optimization.stage is 4; only 0 or 1 or 2 or 3 is supported: "),
        ({"stage": "2"}, 'zero_optimization.stage is "2"; only 0 or 1 or 2 or 3 is supported: '),
        ({"stage": True}, "zero_optimization.stage is true; only 0 or 1 or 2 or 3 is supported: "),
        ([], "zero_optimization is []; expected a JSON object"),
        ({"stag": 2}, "unknown key zero_optimization.stag; did you mean stage?"),
    ],
)
def test_what_deepspeed_does_not_support_is_reported_in_one_line(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], section: object, complaint: str
) -> None:
    """Through the step: before ranks meet, and before anything is written."""
    file = tmp_path / "zero.json"
    file.write_text(json.dumps({"zero_optimization": section}))
    arguments = [*training_arguments(digits, tmp_path), "--deepspeed-config", file, "--compile", "true"]
    assert train_deepspeed.main([str(argument) for argument in arguments]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"trainyard.steps.train_deepspeed: error: {file}: {complaint}")
    assert not (tmp_path / "model").exists()


AS_PEOPLE_HAVE_IT = {
    "fp16": {"enabled": False},
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-5, "betas": [0.8, 0.99], "eps": "auto"}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 1, "total_num_steps": 3}},
    "gradient_clipping": 0.5,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "zero_optimization": {"stage": 1},
}


def test_a_configuration_gives_the_settings_that_the_step_is_not_given(digits: Path, tmp_path: Path) -> None:
    """Through the step, whose log names each setting with the key that it comes from.

    In a process of its own: DeepSpeed keeps the groups of the first training that a process has.
    """
    file = tmp_path / "zero.json"
    file.write_text(json.dumps(AS_PEOPLE_HAVE_IT))
    arguments = [*training_arguments(digits, tmp_path), "--deepspeed-config", file, "--weight-decay", "0.1"]
    exit_codes, (log,) = forked_ranks().run("train_deepspeed", arguments, 1)
    assert exit_codes == [0], log
    found = {words[0]: words[1:] for words in map(str.split, log.splitlines()) if len(words) > 2}
    place = f"{tmp_path.name}/zero.json:"
    assert found["learning_rate"] == ["3e-05", place, "optimizer.params.lr"]
    assert found["adam_beta1"] == ["0.8", place, "optimizer.params.betas"]
    assert found["learning_rate_schedule"] == ["linear", place, "scheduler.type"]
    assert found["warmup_steps"] == ["1", place, "scheduler.params.warmup_num_steps"]
    assert found["max_steps"] == ["3", place, "scheduler.params.total_num_steps"]
    assert found["precision"] == ["bf16", place, "bf16.enabled"]
    assert found["global_batch_size"] == ["8", place, "gradient_accumulation_steps"]
    assert found["weight_decay"] == ["0.1", "--weight-decay"]
    assert "trained 3 steps" in log


def test_stage_3_trains_without_a_launcher(digits: Path, tmp_path: Path) -> None:
    """DeepSpeed reads LOCAL_RANK in its first forward pass, long after it was given the model."""
    file = tmp_path / "zero.json"
    file.write_text('{"zero_optimization": {"stage": 3}}')
    arguments = [*training_arguments(digits, tmp_path), "--deepspeed-config", file, "--max-steps", 2]
    command = [sys.executable, "-m", "trainyard.steps.train_deepspeed", *map(str, arguments)]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "trained 2 steps" in done.stdout


def test_what_an_optimizer_leaves_out_is_deepspeeds_default_and_auto_is_the_steps() -> None:
    params = {"lr": "auto", "betas": "auto"}
    found = configured_settings({"optimizer": {"type": "Adam", "params": params}}, world_size=4)
    assert {name: each.value for name, each in found.items()} == {"weight_decay": 0.0, "adam_epsilon": 1e-8}
    nothing = {
        name: {"type": kind, "params": None} for name, kind in (("optimizer", "Adam"), ("scheduler", "WarmupLR"))
    }
    assert configured_settings(nothing, world_size=4)["warmup_steps"].value == 1000
    cosine = {"scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": "auto"}}}
    assert {name: each.value for name, each in configured_settings(cosine, world_size=4).items()} == {
        "learning_rate_schedule": "cosine",
        "warmup_steps": 1000,
        "minimum_learning_rate_fraction": 0.0001,
    }


@pytest.mark.parametrize(
    ("config", "flags", "complaint"),
    [
        (
            {"optimizer": {"type": "AdamW", "params": {"lr": 3e-5}}},
            ("--learning-rate", "0.01"),
            "optimizer.params.lr gives learning_rate 3e-05, but the step has 0.01 (--learning-rate); ",
        ),
        (
            {"scheduler": {"type": "WarmupLR"}},
            ("--learning-rate-schedule", "cosine"),
            'scheduler.type gives learning_rate_schedule "constant", but the step has "cosine" (--learning-rate-sch',
        ),
        (
            {"optimizer": {"type": "AdamW", "params": {"weight_decay": -1}}},
            (),
            "optimizer.params.weight_decay: -1 is below the minimum of 0",
        ),
    ],
)
def test_what_contradicts_the_steps_settings_is_refused_with_both(
    digits: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    config: dict[str, Any],
    flags: tuple[str, ...],
    complaint: str,
) -> None:
    file = tmp_path / "zero.json"
    file.write_text(json.dumps(config))
    arguments = [*training_arguments(digits, tmp_path), "--deepspeed-config", file, *flags]
    assert train_deepspeed.main([str(argument) for argument in arguments]) == 1
    assert f"error: {file}: {complaint}" in capsys.readouterr().err


def test_a_frozen_parameter_is_named() -> None:
    model = torch.nn.Linear(2, 2)
    model.bias.requires_grad = False
    with pytest.raises(StepError, match="the parameter bias is frozen"):
        refuse_frozen(model)
