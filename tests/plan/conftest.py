"""Pipelines written as files and loaded as everybody's are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainyard.spec.loading import load_job
from trainyard.spec.model import Pipeline

ENVIRONMENT = "azureml://registries/azureml/environments/acpt-pytorch-2.8-cuda12.6/versions/9"

Json = dict[str, Any]


def component(name: str, inputs: Mapping[str, Any] | None = None, outputs: tuple[str, ...] = (), **fields: Any) -> Json:
    """A command component; an input is a folder (None), or an integer with that default."""
    return {
        "type": "command",
        "name": name,
        "version": "1",
        "inputs": {
            port: {"type": "uri_folder"} if default is None else {"type": "integer", "default": default}
            for port, default in (inputs or {}).items()
        },
        "outputs": {port: {"type": "uri_folder"} for port in outputs},
        "command": "echo",
        "environment": ENVIRONMENT,
        **fields,
    }


def digits_components() -> Json:
    """prepare → train (2 nodes × 8 processes) → evaluate."""
    return {
        "prepare_images": component("prepare_images", outputs=("prepared",)),
        "train_ddp": component(
            "train_ddp",
            {"data": None, "micro_batch_size": 32, "global_batch_size": 1024},
            ("model", "metrics"),
            distribution={"type": "pytorch", "process_count_per_instance": 8},
            resources={"instance_count": 2},
        ),
        "evaluate": component("evaluate", {"data": None, "model": None}, ("evaluation",)),
    }


def digits_jobs() -> Json:
    prepared, model = "${{parent.jobs.prepare.outputs.prepared}}", "${{parent.jobs.train.outputs.model}}"
    return {
        "prepare": {"type": "command", "component": "./prepare_images.yaml"},
        "train": {"type": "command", "component": "./train_ddp.yaml", "inputs": {"data": prepared}},
        "evaluate": {
            "type": "command",
            "component": "./evaluate.yaml",
            "inputs": {"data": prepared, "model": model},
        },
    }


@pytest.fixture
def pipeline_of(tmp_path: Path) -> Callable[..., Pipeline]:
    """Writes components and a pipeline of these jobs, and loads it."""

    def load(components: Json | None = None, jobs: Json | None = None, **fields: Any) -> Pipeline:
        for name, content in (components or digits_components()).items():
            (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
        document = {
            "type": "pipeline",
            "display_name": "digits",
            "settings": {"default_compute": "azureml:gpus"},
            "jobs": jobs or digits_jobs(),
            **fields,
        }
        file = tmp_path / "pipeline.yaml"
        file.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
        return load_job(file, on_azure=True, strict=True)

    return load


@pytest.fixture
def digits() -> tuple[Json, Json]:
    """Components and jobs of the digits pipeline, to be changed by a test."""
    return digits_components(), digits_jobs()


@pytest.fixture
def make_component() -> Callable[..., Json]:
    return component
