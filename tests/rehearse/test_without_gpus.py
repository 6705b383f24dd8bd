"""Scripts for GPUs, in the manner of tutorials, on a machine without: `trainyard run --without-gpus`."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from trainyard.settings.run_record import RECORD_FILE, RunRecord

SCRIPTS = Path(__file__).parent / "data" / "gpu_scripts"
pytestmark = pytest.mark.slow

TWO_BY_TWO: dict[str, Any] = {
    "distribution": {"type": "pytorch", "process_count_per_instance": 2},
    "resources": {"instance_count": 2},
}
ONE_ON_EACH = TWO_BY_TWO | {"distribution": {"type": "pytorch", "process_count_per_instance": 1}}
TWO_ON_ONE = TWO_BY_TWO | {"resources": {"instance_count": 1}}


def job_of(workspace: Any, script: str, size: dict[str, Any]) -> Path:
    shutil.copy(SCRIPTS / script, workspace.code)
    file: Path = workspace.one_job(f"{sys.executable} {script}", **size)
    return file


def logs_of(record: RunRecord) -> list[str]:
    logs = record.jobs["work"].log_files(record.folder).values()
    return [log.read_text() for log in logs if log.parent.name == "user_logs"]


@pytest.mark.parametrize(
    ("script", "size", "ranks"),
    [
        ("ddp.py", TWO_BY_TWO, 4),
        ("mixed_precision.py", TWO_ON_ONE, 2),
        ("fully_shard.py", TWO_BY_TWO, 4),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.usefixtures("jobs_are_forked")
def test_a_script_for_gpus_takes_its_steps(workspace: Any, script: str, size: dict[str, Any], ranks: int) -> None:
    takes_its_steps(workspace, script, size, ranks)


def test_a_script_takes_them_with_what_stands_in_as_pytorch_is_imported(workspace: Any) -> None:
    takes_its_steps(workspace, "fsdp.py", TWO_ON_ONE, 2)


def takes_its_steps(workspace: Any, script: str, size: dict[str, Any], ranks: int) -> None:
    record = workspace.run(job_of(workspace, script, size), without_gpus=True)
    assert record.status == "completed", record.reason
    logs = logs_of(record)
    assert len(logs) == ranks
    for log in logs:
        assert log.count("step ") == 5
        assert log.count("trainyard: without GPUs: the CPU stands in for 2 CUDA devices") == 1


def test_the_run_says_that_it_had_no_gpus(workspace: Any) -> None:
    record = workspace.run(workspace.one_job("python -c 'print(1)'"), without_gpus=True)
    assert json.loads((record.folder / RECORD_FILE).read_text())["without_gpus"] is True
    assert "the CPU stands in for GPUs" in workspace.shown
    assert "without GPUs" in (record.folder / "jobs/work/system_logs/job.log").read_text()


def test_its_results_are_not_those_of_a_run_with_gpus(workspace: Any) -> None:
    file = workspace.one_job("python -c 'print(1)'")
    assert workspace.run(file).jobs["work"].state == "completed"
    assert workspace.run(file, without_gpus=True).jobs["work"].state == "completed"
    assert workspace.run(file, without_gpus=True).jobs["work"].state == "reused"


@pytest.mark.skipif(torch.cuda.is_available(), reason="the script runs on GPUs")
@pytest.mark.usefixtures("jobs_are_forked")
def test_nothing_is_changed_without_the_flag(workspace: Any, tmp_path: Path) -> None:
    record = workspace.run(job_of(workspace, "ddp.py", TWO_ON_ONE), devices=tmp_path)
    reason = record.jobs["work"].reason
    assert "--without-gpus" in reason
    assert "docs/coming-from/own_script.md" in reason


def test_an_own_python_path_and_sitecustomize_are_kept(workspace: Any) -> None:
    (workspace.code / "own").mkdir()
    (workspace.code / "own" / "sitecustomize.py").write_text("print('own sitecustomize')\n")
    jobs = {
        "work": {
            "component": workspace.component("worker", "python -c 'print(1)'"),
            "environment_variables": {"PYTHONPATH": "own"},
        }
    }
    record = workspace.run(workspace.pipeline(jobs), without_gpus=True)
    assert logs_of(record) == ["own sitecustomize\n1\n"]


def test_what_has_no_stand_in_is_named_with_its_line(workspace: Any) -> None:
    text = "import atexit, torch\natexit.register(print, 'noise')\ngraph = torch.cuda.CUDAGraph()\n"
    (workspace.code / "cuda-graph.py").write_text(text)
    record = workspace.run(workspace.one_job("python cuda-graph.py"), without_gpus=True)
    assert "line 3, `graph = torch.cuda.CUDAGraph()`" in record.jobs["work"].reason
    assert "no stand-in" in record.jobs["work"].reason


@pytest.mark.usefixtures("jobs_are_forked")
@pytest.mark.parametrize("place", ["model.to(rank)", "model.cuda(rank)", "torch.ones(1, device=f'cuda:{rank}')"])
def test_a_device_that_no_machine_has_is_an_error_as_with_gpus(workspace: Any, place: str) -> None:
    made = "import os\nimport torch\n\nrank = int(os.environ['RANK'])\nmodel = torch.nn.Linear(2, 1)\n"
    (workspace.code / "by_rank.py").write_text(f"{made}{place}\n")
    record = workspace.run(workspace.one_job(f"{sys.executable} by_rank.py", **ONE_ON_EACH), without_gpus=True)
    assert f"line 6, `{place}`: with GPUs this fails as well" in record.jobs["work"].reason
    assert "invalid device ordinal" in record.jobs["work"].reason


@pytest.mark.usefixtures("jobs_are_forked")
def test_the_three_lines_of_the_page_run_here(workspace: Any) -> None:
    page = (Path(__file__).parents[2] / "docs" / "coming-from" / "own_script.md").read_text()
    lines = page.split("```python\n")[1].split("```")[0]
    made = "import os\nimport torch\n\nmodel = torch.nn.Linear(2, 1)\n"
    used = "print(model(torch.ones(1, 2, device=device)).shape)\n"
    (workspace.code / "three.py").write_text(made + lines + used)
    record = workspace.run(workspace.one_job(f"{sys.executable} three.py", **TWO_ON_ONE))
    assert record.status == "completed", record.reason
