"""What lint says of TrainingArguments and MLflow's functions is what these libraries do."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from trainyard.lint.linter import lint

JOB = """\
type: command
code: ./src
command: python train.py{flags}
environment: azureml:torch:3
compute: azureml:cpus
"""
# The arguments of the training, and a part of what lint says of them, or nothing.
ARGUMENTS = [
    ('eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True', ""),
    ('eval_strategy="steps", eval_steps=50, save_steps=100, load_best_model_at_end=True', ""),
    ('eval_strategy="steps", logging_steps=100, save_steps=200, load_best_model_at_end=True', ""),
    ('eval_strategy="steps", eval_steps=0, save_steps=500, load_best_model_at_end=True', ""),
    ('save_strategy="best", eval_strategy="epoch", load_best_model_at_end=True', ""),
    ('**{"eval_strategy": "steps"}, load_best_model_at_end=True', ""),
    ("eval_strategy=str('steps'), load_best_model_at_end=True", ""),
    ('save_strategy="no", load_best_model_at_end=False', ""),
    ("load_best_model_at_end=True", "they are 'steps' and 'no'"),
    ('eval_strategy="epoch", load_best_model_at_end=True', "they are 'steps' and 'epoch'"),
    ('eval_strategy="steps", eval_steps=200, save_steps=300, load_best_model_at_end=True', "300 is not one of 200"),
    ('save_strategy="epochs"', "save_strategy is 'epochs'"),
    ("fp16=True, bf16=True, use_cpu=True", "fp16 and bf16"),
    ("per_device_batch_size=8", "no argument 'per_device_batch_size'"),
]


def messages(folder: Path, script: str, flags: str = "") -> list[str]:
    (folder / "src").mkdir(exist_ok=True)
    (folder / "src" / "train.py").write_text(script, encoding="utf-8")
    (folder / "job.yml").write_text(JOB.format(flags=flags), encoding="utf-8")
    return [each.message for each in lint([folder]).diagnostics if each.rule == "AML519"]


@pytest.mark.parametrize(("arguments", "expected"), ARGUMENTS)
def test_training_arguments(tmp_path: Path, arguments: str, expected: str) -> None:
    from transformers import TrainingArguments

    found = messages(tmp_path, f'from transformers import TrainingArguments\n\nTrainingArguments("out", {arguments})\n')
    assert len(found) == bool(expected)
    assert all(expected in message for message in found)
    made = f"TrainingArguments({str(tmp_path)!r}, {arguments})"
    if expected:
        with pytest.raises((ValueError, TypeError)):
            eval(made, {"TrainingArguments": TrainingArguments})
    else:
        eval(made, {"TrainingArguments": TrainingArguments})


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (
            " --output_dir out --fp16 --bf16",
            ["train.py: fp16 and bf16 are both true, and a training has one precision"],
        ),
        (" --output_dir out --fp16 False --bf16", []),
        (" --output_dir out --load_best_model_at_end --eval_strategy steps --eval_steps 50 --save_steps 100", []),
        (" --output_dir out --load_best_model_at_end $MORE", []),
    ],
)
def test_flags_of_the_trainer(tmp_path: Path, flags: str, expected: list[str]) -> None:
    script = "from transformers import HfArgumentParser, TrainingArguments\n\nHfArgumentParser(TrainingArguments)\n"
    assert messages(tmp_path, script, flags) == expected


WITH_MLFLOW = "import mlflow\n\n"
IN_A_RUN = "with mlflow.start_run({}):\n    mlflow.log_metric('loss', 1.0, step=1)\n"


@pytest.mark.parametrize(
    ("script", "is_refused"),
    [
        ('mlflow.log_param("rate", 0.1)\nmlflow.start_run()\n', True),
        ('mlflow.start_run()\nmlflow.log_metric("loss", 1.0)\nmlflow.start_run()\n', True),
        ('mlflow.log_metrics("loss", 1.0)\n', True),
        ('mlflow.log_metric("loss")\n', True),
        (IN_A_RUN.format("") * 2, False),
        ('mlflow.log_param("rate", 0.1)\n' + IN_A_RUN.format("nested=True"), False),
        ('mlflow.log_param("rate", 0.1)\nmlflow.end_run()\nmlflow.start_run()\n', False),
        ('mlflow.set_experiment("first")\nmlflow.start_run()\nmlflow.log_dict({"a": 1}, "a.json")\n', False),
    ],
)
def test_functions_of_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, is_refused: bool) -> None:
    import mlflow

    assert len(messages(tmp_path, WITH_MLFLOW + script)) == is_refused
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "runs").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    refusal = "is already active|has no attribute|missing 1 required"
    try:
        with pytest.raises(Exception, match=refusal) if is_refused else nullcontext():
            exec(WITH_MLFLOW + script)
    finally:
        while mlflow.active_run() is not None:
            mlflow.end_run()
