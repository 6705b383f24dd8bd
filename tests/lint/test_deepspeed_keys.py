"""The keys that lint knows of DeepSpeed are those of the installed DeepSpeed."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import hjson
import pytest

from trainyard.lint.linter import lint
from trainyard.lint.rules.deepspeed import NESTED_KEYS, TOP_LEVEL_KEYS

SPECIFICATION = importlib.util.find_spec("deepspeed")
assert SPECIFICATION is not None
assert SPECIFICATION.origin is not None
RUNTIME = Path(SPECIFICATION.origin).parent / "runtime"


def fields_of(file: str, name: str) -> set[str]:
    """The fields of a pydantic model, by what its JSON calls them; read from the source, as importing takes seconds."""
    tree = ast.parse((RUNTIME / file).read_text(encoding="utf-8"))
    model = next(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name)
    found = set()
    for statement in model.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            found.add(statement.target.id)
            call = statement.value
            for keyword in call.keywords if isinstance(call, ast.Call) else ():
                if keyword.arg == "alias" and isinstance(keyword.value, ast.Constant):
                    found.add(str(keyword.value.value))
    return found


def test_nested_keys_are_those_of_deepspeeds_models() -> None:
    models = {
        "zero_optimization": ("zero/config.py", "DeepSpeedZeroConfig"),
        "zero_optimization.offload_param": ("zero/offload_config.py", "DeepSpeedZeroOffloadParamConfig"),
        "zero_optimization.offload_optimizer": ("zero/offload_config.py", "DeepSpeedZeroOffloadOptimizerConfig"),
        "bf16": ("precision_config.py", "DeepSpeedBF16Config"),
        "fp16": ("precision_config.py", "DeepSpeedFP16Config"),
    }
    assert models.keys() == NESTED_KEYS.keys()
    for path, (file, name) in models.items():
        missing = fields_of(file, name) - set(NESTED_KEYS[path])
        assert missing == set(), (path, missing)


def test_keys_that_deepspeed_reads_at_the_top_level_are_known() -> None:
    tree = ast.parse((RUNTIME / "constants.py").read_text(encoding="utf-8"))
    names = {
        statement.targets[0].id: statement.value.value
        for statement in tree.body
        if isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Name)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    }
    config = (RUNTIME / "config.py").read_text(encoding="utf-8")
    read = {
        argument.id
        for node in ast.walk(ast.parse(config))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("get_scalar_param", "get_dict_param")
        and isinstance(node.args[0], ast.Name)
        and node.args[0].id == "param_dict"
        for argument in node.args[1:2]
        if isinstance(argument, ast.Name)
    }
    assert len(read) > 15
    assert {names[name] for name in read if name in names} - set(TOP_LEVEL_KEYS) == set()


@pytest.mark.parametrize("kind", ["WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle", "LRRangeTest"])
def test_schedules_have_the_number_of_steps_that_deepspeed_requires(tmp_path: Path, kind: str) -> None:
    tree = ast.parse((RUNTIME / "lr_schedules.py").read_text(encoding="utf-8"))
    schedule = next(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == kind)
    create = next(node for node in schedule.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    required = [each.arg for each in create.args.args[: len(create.args.args) - len(create.args.defaults)]]
    expected = ["AML708"] if "total_num_steps" in required else []
    text = f'{{"train_batch_size": 64, "scheduler": {{"type": "{kind}", "params": {{"last_batch_iteration": -1}}}}}}'
    assert found(tmp_path, WITH_DEEPSPEED, text) == expected
    (tmp_path / "src" / "ds.json").write_text(text.replace("-1}", '-1, "total_num_steps": 9}'), encoding="utf-8")
    assert [each.rule for each in lint([tmp_path]).diagnostics if "requires" in each.message] == []


JOB = """\
type: command
code: ./src
command: python train.py --deepspeed_config ds.json
environment: azureml:torch:3
compute: azureml:gpus
distribution: {type: pytorch, process_count_per_instance: 4}
resources: {shm_size: 64g}
"""
WITH_DEEPSPEED = "import deepspeed\n\ndeepspeed.initialize()\n"
WITH_THE_TRAINER = "from transformers import Trainer\n\nTrainer().train()\n"


def found(folder: Path, script: str, configuration: str) -> list[str]:
    (folder / "src").mkdir()
    (folder / "src" / "train.py").write_text(script, encoding="utf-8")
    (folder / "src" / "ds.json").write_text(configuration, encoding="utf-8")
    (folder / "job.yml").write_text(JOB, encoding="utf-8")
    return [each.rule for each in lint([folder]).diagnostics if each.severity == "error"]


@pytest.mark.parametrize(
    "configuration",
    [
        '{"train_batch_size": 64,} // one comma too many',
        '# for four GPUs\n{\n  /* "all" */ "train_batch_size": 64,\n}',
        '{"train_batch_size": 64, "flops_profiler": {"output_file": "// is no comment, } nor is #"}}',
        "{\n  train_batch_size: 64\n  zero_optimization: {\n    stage: 2\n  }\n}",
        "train_batch_size: 64",
    ],
)
def test_what_deepspeed_reads_with_hjson_is_no_error(tmp_path: Path, configuration: str) -> None:
    assert hjson.loads(configuration)["train_batch_size"] == 64
    assert found(tmp_path, WITH_DEEPSPEED, configuration) == []


@pytest.mark.parametrize(
    "configuration", ['{"train_batch_size": 64,', '{"train_batch_size": 64 // open\n', '{"fp16": ']
)
def test_a_file_that_ends_too_early_is_an_error_for_hjson_too(tmp_path: Path, configuration: str) -> None:
    with pytest.raises(hjson.HjsonDecodeError):
        hjson.loads(configuration)
    assert found(tmp_path, WITH_DEEPSPEED, configuration) == ["AML702"]


def test_a_library_reads_json(tmp_path: Path) -> None:
    assert found(tmp_path, WITH_THE_TRAINER, '{"train_batch_size": 64,}') == ["AML702"]


def test_what_is_beside_a_comment_is_checked(tmp_path: Path) -> None:
    assert found(tmp_path, WITH_DEEPSPEED, '{"train_batch_size": 64, // all\n"fp16": {"enabled": "on",}}') == ["AML708"]
