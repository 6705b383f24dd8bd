"""Rendered files as objects of Azure ML's Python SDK: docs/python_sdk.py as it is, against Azure on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from loopback_azure import GROUP, SUBSCRIPTION, WORKSPACE, LoopbackAzure

from trainyard.azure import as_component, as_job
from trainyard.spec.diagnostic import SpecError

ROOT = Path(__file__).resolve().parents[2]


def test_the_example_submits_a_changed_pipeline_and_one_of_its_own(azure: LoopbackAzure) -> None:
    command = [sys.executable, "docs/python_sdk.py", SUBSCRIPTION, GROUP, WORKSPACE]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **azure.variables}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("https://ml.azure.com/runs/") == 2
    rendered, own = (request.json["properties"] for request in azure.sent("PUT", "/jobs/"))
    assert rendered["inputs"]["overrides"]["value"] == "{epochs: 3}"
    assert {"prepare_images", "train_ddp", "evaluate"} <= set(rendered["jobs"])
    assert set(own["jobs"]) == {"prepared", "trained"}
    assert own["jobs"]["trained"]["distribution"] == {"distribution_type": "PyTorch", "process_count_per_instance": 4}
    assert own["inputs"]["epochs"]["value"] == "4"


@pytest.mark.parametrize("load", [as_job, as_component])
def test_mistakes_are_found_where_they_stand(load: object, tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text("type: [", encoding="utf-8")
    with pytest.raises(SpecError, match=r"wrong\.yaml"):
        load(file)  # type: ignore[operator]
