"""Steps of your own in a new project: on which cluster they run, and how they get into its pipelines."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
Run = Callable[..., Any]


@pytest.fixture
def started(trainyard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new project with a step and a pipeline of its own."""
    monkeypatch.chdir(tmp_path)
    assert trainyard("init", "demo").exit_code == 0
    monkeypatch.chdir(tmp_path / "demo")
    assert trainyard("new", "component", "clean").exit_code == 0
    assert trainyard("new", "pipeline", "clean").exit_code == 0
    return tmp_path / "demo"


def jobs_of(trainyard: Run, project: Path, pipeline: str, profile: str = "t4") -> dict[str, Any]:
    outcome = trainyard("render", profile)
    assert outcome.exit_code == 0, outcome.stderr
    jobs: dict[str, Any] = yaml.safe_load((project / f"pipelines/{pipeline}.yaml").read_text())["jobs"]
    return jobs


def test_a_new_step_runs_on_the_cluster_without_gpus(trainyard: Run, started: Path) -> None:
    job = jobs_of(trainyard, started, "clean")["clean"]
    assert job["compute"] == "azureml:cpu-prepare"
    assert "environment_variables" not in job, "NCCL's are of GPUs"
    component = yaml.safe_load((started / "components/clean.yaml").read_text())
    assert component["resources"] == {"instance_count": 1}
    assert "compute" not in jobs_of(trainyard, started, "clean", "local")["clean"]


def test_a_pipeline_of_a_step_with_gpus_runs_on_the_profiles_cluster(trainyard: Run, started: Path) -> None:
    assert trainyard("new", "pipeline", "score", "--component", "evaluate").exit_code == 0
    job = jobs_of(trainyard, started, "score")["evaluate"]
    assert "compute" not in job
    assert job["environment_variables"]


def test_further_jobs_go_below_the_last_line_of_a_template(trainyard: Run, started: Path) -> None:
    for pipeline in ("clean", "score"):
        if pipeline == "score":
            assert trainyard("new", "pipeline", "score", "--component", "evaluate").exit_code == 0
        with (started / f"templates/pipelines/{pipeline}.yaml.j2").open("a") as template:
            template.write("\n  again:\n    type: command\n    component: ../components/clean.yaml\n")
        assert list(jobs_of(trainyard, started, pipeline))[-1] == "again"


def test_the_page_adds_a_step_to_the_generated_pipeline(trainyard: Run, started: Path) -> None:
    page = (ROOT / "docs/your_project.md").read_text()
    (blocks,) = re.findall(r"^```jinja\n(\{% block.*?)^```", page, re.DOTALL | re.MULTILINE)
    template = started / "templates/pipelines/train.yaml.j2"
    text = template.read_text()
    template.write_text(text.replace("{% block jobs %}\n{% endblock %}\n", blocks))
    assert template.read_text() != text, "the generated template has a block to write in"
    jobs = jobs_of(trainyard, started, "train")
    assert list(jobs) == ["prepare_images", "train_ddp", "evaluate", "clean"]
    assert jobs["clean"]["inputs"]["source"] == "${{parent.jobs.prepare_images.outputs.prepared}}"
    assert jobs["clean"]["compute"] == "azureml:cpu-prepare"
    outcome = trainyard("lint")
    assert outcome.exit_code == 0, outcome.stderr
    assert "no findings" in outcome.stderr


@pytest.mark.parametrize(
    ("lines", "place", "message"),
    [
        ("\n  clean:\n    type: command\n", "  clean:", "this is outside of every block, and would be dropped"),
        ("{{ profile.name }}\n", "{{ profile.name }}", "this is outside of every block, and would be dropped"),
        ("{% if profile.sku %}\n  a: 1\n{% endif %}\n", "  a: 1", "this is outside of every block"),
        ("{% block job %}\n  a: 1\n{% endblock %}\n", "{% block job %}", "has no block 'job', so it would be dropped"),
    ],
)
def test_a_job_outside_the_blocks_is_an_error(
    trainyard: Run, started: Path, lines: str, place: str, message: str
) -> None:
    template = started / "templates/pipelines/train.yaml.j2"
    template.write_text(template.read_text() + lines)
    number = template.read_text().splitlines().index(place) + 1
    outcome = trainyard("render")
    assert outcome.exit_code == 1
    assert f"templates/pipelines/train.yaml.j2:{number}:" in outcome.stderr
    assert "error[TY207]" in outcome.stderr
    assert message in outcome.stderr
    assert "Blocks to put it in: inputs, jobs, outputs." in outcome.stderr


def test_definitions_outside_the_blocks_are_fine(trainyard: Run, started: Path) -> None:
    template = started / "templates/pipelines/train.yaml.j2"
    template.write_text(template.read_text() + "{% set more = 1 %}\n{% macro m() %}x{% endmacro %}\n{# a note #}\n\n")
    assert trainyard("render").exit_code == 0
