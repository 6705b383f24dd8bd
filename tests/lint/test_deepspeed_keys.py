"""The keys that lint knows of DeepSpeed are those of the installed DeepSpeed."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

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
