"""DeepSpeed's configurations: rendered, held to our schema, and the schema held to what DeepSpeed itself reads."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from trainyard.render.profile_schema import rendered_names
from trainyard.render.profiles import load_profile, profile_names
from trainyard.render.project import Project
from trainyard.render.rendering import render
from trainyard.resources import schema_file
from trainyard.settings.batch_arithmetic import divide_batch
from trainyard.settings.steps.training import TrainDeepSpeed
from trainyard.steps.training.engines.deepspeed_config import read_deepspeed_config

NAMES = ["zero0", "zero1", "zero2", "zero2_offload", "zero3", "zero3_offload"]


def schema() -> dict[str, Any]:
    """The schema as it lies in `schemas/`."""
    content: dict[str, Any] = json.loads(schema_file("deepspeed_config").read_text(encoding="utf-8"))
    return content


def problems(config: object) -> list[str]:
    validator = jsonschema.Draft202012Validator(schema())
    return [".".join(map(str, error.absolute_path)) for error in validator.iter_errors(config)]


@pytest.fixture(scope="module")
def configs(repository: Project) -> dict[str, Any]:
    """Every rendered configuration by its name."""
    folder = repository.root / "components" / "deepspeed"
    files = render(repository, "nd96").files
    return {path.stem: json.loads(file.text) for path, file in files.items() if path.parent == folder}


def test_there_is_one_per_stage_and_one_with_offload_where_it_helps(
    repository: Project, configs: dict[str, Any]
) -> None:
    assert sorted(configs) == NAMES == rendered_names(repository, "components/deepspeed", ".json.j2")
    for name, config in configs.items():
        assert config["zero_optimization"]["stage"] == int(name[4])
        offloads = [key for key in config["zero_optimization"] if key.startswith("offload_")]
        assert bool(offloads) == name.endswith("_offload")
        assert ("offload_param" in offloads) == (name == "zero3_offload")


def test_each_is_as_the_schema_says_and_leaves_the_steps_settings_to_the_step(configs: dict[str, Any]) -> None:
    for name, config in configs.items():
        assert problems(config) == [], name
        automatic = {key for key, value in config.items() if value in ("auto", {"enabled": "auto"})}
        assert automatic == {
            "train_batch_size",
            "train_micro_batch_size_per_gpu",
            "gradient_accumulation_steps",
            "gradient_clipping",
            "bf16",
            "fp16",
        }


def test_profiles_name_configurations_that_exist(repository: Project) -> None:
    chosen = {
        name: load_profile(repository, name).pipelines["deepspeed"]["config"] for name in profile_names(repository)
    }
    assert set(chosen.values()) <= set(NAMES)
    assert chosen["nd96"] == "zero3"
    assert chosen["nd40"] == "zero2", "one link for 8 GPUs: nothing is sent twice"


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"train_batch_size": 0}, "train_batch_size"),
        ({"train_batch_size": "automatic"}, "train_batch_size"),
        ({"zero_optimization": {"reduce_bucket_size": 0}}, "zero_optimization.reduce_bucket_size"),
        ({"zero_optimisation": {"stage": 2}}, ""),
        ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage"),
        ({"zero_optimization": {"stage": 2, "overlap_com": True}}, "zero_optimization"),
        ({"zero_optimization": {"offload_optimizer": {"device": "gpu"}}}, "zero_optimization.offload_optimizer.device"),
        ({"bf16": {"enabled": "yes"}}, "bf16.enabled"),
        ({"fp16": {"enable": True}}, "fp16"),
        ({"nebula": {"enabled": True}}, ""),
    ],
    ids=str,
)
def test_the_schema_rejects_what_deepspeed_would_reject_or_ignore(change: dict[str, Any], where: str) -> None:
    assert problems({"train_batch_size": 8, **change}) == [where]


def test_auto_and_numbers_with_an_exponent_are_taken() -> None:
    zero = {"stage": 3, "reduce_bucket_size": 5e8, "stage3_prefetch_bucket_size": "auto", "overlap_comm": "auto"}
    assert problems({"train_batch_size": "auto", "zero_optimization": zero}) == []


@pytest.fixture(scope="module")
def deepspeed_config() -> Iterator[Any]:
    """DeepSpeed's own reader of configurations, on a machine without GPUs."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setitem(os.environ, "DS_ACCELERATOR", "cpu")
        import deepspeed.runtime.config as config

        yield config


class LookedUp(dict[str, Any]):
    """A configuration that notes which of its keys are asked for."""

    def __init__(self, content: dict[str, Any]) -> None:
        super().__init__(content)
        self.keys_asked_for: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.keys_asked_for.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.keys_asked_for.add(str(key))
        return super().__contains__(key)

    def keys(self) -> Any:
        """Code that asks `key in config.keys()` asks for the key as well."""
        return self


def test_the_schema_knows_every_key_that_deepspeed_reads(deepspeed_config: Any) -> None:
    asked = LookedUp({"train_batch_size": 4, "train_micro_batch_size_per_gpu": 4})
    reader = object.__new__(deepspeed_config.DeepSpeedConfig)
    reader._initialize_params(asked)
    reader._param_dict, reader.global_rank = asked, 0
    reader._do_warning_check()
    assert set(schema()["properties"]) - {"_rendered"} == asked.keys_asked_for


def test_the_schemas_sections_have_the_keys_of_deepspeeds_models(deepspeed_config: Any) -> None:
    from deepspeed.comm.config import CommsLoggerConfig
    from deepspeed.monitor.config import CSVConfig, TensorBoardConfig
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from deepspeed.runtime.zero.offload_config import (
        DeepSpeedZeroOffloadOptimizerConfig,
        DeepSpeedZeroOffloadParamConfig,
    )

    sections = schema()["properties"]
    zero = sections["zero_optimization"]
    models = [
        (zero, DeepSpeedZeroConfig),
        (zero["properties"]["offload_optimizer"], DeepSpeedZeroOffloadOptimizerConfig),
        (zero["properties"]["offload_param"], DeepSpeedZeroOffloadParamConfig),
        (sections["bf16"], DeepSpeedBF16Config),
        (sections["fp16"], DeepSpeedFP16Config),
        (sections["comms_logger"], CommsLoggerConfig),
        (sections["tensorboard"], TensorBoardConfig),
        (sections["csv_monitor"], CSVConfig),
    ]
    for section, model in models:
        fields = {field.alias or name: field for name, field in model.model_fields.items()}
        assert section["additionalProperties"] is False
        assert set(section["properties"]) == set(fields), model.__name__
        for name, field in fields.items():
            expected = {bool: "boolean", int: "integer", float: "number"}.get(field.annotation)
            assert expected is None or expected in section["properties"][name]["type"], name


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_step_and_deepspeed_take_each_configuration(
    deepspeed_config: Any, configs: dict[str, Any], tmp_path: Path, precision: str
) -> None:
    for name, config in configs.items():
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(config), encoding="utf-8")
        folders = dict.fromkeys(("data", "model", "checkpoints", "metrics"), tmp_path)
        settings = TrainDeepSpeed(**folders, deepspeed_config=file, precision=precision)
        batch = divide_batch(settings.global_batch_size, settings.micro_batch_size, world_size=1)
        filled = read_deepspeed_config(settings, batch)
        assert "_rendered" not in filled
        taken = deepspeed_config.DeepSpeedConfig(filled)
        assert taken.zero_config.stage == config["zero_optimization"]["stage"]
        assert (taken.bfloat16_config.enabled, taken.float16_config.enabled) == (precision == "bf16", False)


def test_every_key_is_described_for_editors() -> None:
    def undescribed(part: dict[str, Any], path: str) -> list[str]:
        return [
            name
            for key, value in part.get("properties", {}).items()
            for name in ([f"{path}{key}"] if not {"description", "$ref"} & set(value) else [])
            + undescribed(value, f"{path}{key}.")
        ]

    assert undescribed(schema(), "") == []
