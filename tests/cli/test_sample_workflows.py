"""The commands of the workflows in docs/workflows, run on a merged pull request, with Azure DevOps on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainyard.render.installed_from import InstalledFrom
from trainyard.render.scaffolding import existing_repository, new_project

WORKFLOWS = Path(__file__).parents[2] / "docs" / "workflows"
PIPELINE = """\
type: pipeline
settings: {default_compute: azureml:gpus}
jobs:
  train:
    component: ./train.yaml
"""
COMPONENT = """\
$schema: https://azuremlschemas.azureedge.net/latest/commandComponent.schema.json
type: command
name: train
command: echo
environment: azureml:torch:3
distribution: {type: pytorch, process_count_per_instance: 8}
resources: {instance_count: 2, shm_size: 64g}
"""
CLUSTER = "type: amlcompute\nname: gpus\nsize: Standard_ND96asr_v4\nmax_instances: 8\n"


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "init.defaultBranch=main")
    subprocess.run(["git", "-C", folder, *identity, *arguments], capture_output=True, check=True)


@pytest.fixture
def merged(tmp_path: Path) -> Path:
    """A checkout as both platforms make it: the merge of a pull request for four nodes, and its two parents."""
    folder = tmp_path / "repository"
    (folder / "compute").mkdir(parents=True)
    for name, text in (("pipeline.yaml", PIPELINE), ("train.yaml", COMPONENT), ("compute/gpus.yaml", CLUSTER)):
        (folder / name).write_text(text)
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "main")
    git(folder, "checkout", "--quiet", "-b", "more-nodes")
    (folder / "train.yaml").write_text(COMPONENT.replace("instance_count: 2", "instance_count: 4"))
    git(folder, "commit", "--quiet", "-am", "four nodes")
    git(folder, "checkout", "--quiet", "main")
    git(folder, "merge", "--quiet", "--no-ff", "more-nodes")
    return folder


class DevOps(ThreadingHTTPServer):
    """The threads of a pull request, as the service keeps them."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Threads)
        self.threads: list[dict[str, Any]] = []


class _Threads(BaseHTTPRequestHandler):
    server: DevOps

    def answer(self, body: Any) -> None:
        assert self.headers["Authorization"] == "Bearer secret"
        assert self.path.endswith("?api-version=7.1")
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def given(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def do_GET(self) -> None:
        assert self.path.startswith("/team/_apis/git/repositories/r1/pullRequests/7/threads?")
        self.answer({"value": self.server.threads})

    def do_POST(self) -> None:
        thread = self.given()
        thread["id"] = len(self.server.threads) + 1
        thread["comments"][0]["id"] = 1
        self.server.threads.append(thread)
        self.answer(thread)

    def do_PATCH(self) -> None:
        assert self.path.startswith("/team/_apis/git/repositories/r1/pullRequests/7/threads/1/comments/1?")
        self.server.threads[0]["comments"][0] |= self.given()
        self.answer({})

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@pytest.fixture
def devops() -> Iterator[DevOps]:
    with DevOps() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def run(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-e", "-c", script], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PATH": path, **variables}, timeout=120,
    )  # fmt: skip


def step_of(workflow: dict[str, Any], job: str, begins: str) -> str:
    (script,) = [each["run"] for each in workflow["jobs"][job]["steps"] if each.get("run", "").startswith(begins)]
    return str(script)


@pytest.mark.parametrize("source", ["docs", "init", "init --existing"])
def test_the_github_job_writes_what_a_pull_request_changes(merged: Path, tmp_path: Path, source: str) -> None:
    texts = {
        "docs": lambda: (WORKFLOWS / "plan.yml").read_text(),
        "init": lambda: new_project("ours", "ddp", InstalledFrom())[".github/workflows/ci.yml"],
        "init --existing": lambda: existing_repository("ours", InstalledFrom())[".github/workflows/azureml-lint.yml"],
    }
    workflow = yaml.safe_load(texts[source]())
    job = "plan" if source == "docs" else "check"
    done = run(step_of(workflow, job, "trainyard plan"), merged, GITHUB_STEP_SUMMARY=str(tmp_path / "summary"))
    assert done.returncode == 0, done.stderr
    comment = (merged / "plan.md").read_text()
    assert (tmp_path / "summary").read_text() == comment
    assert comment.startswith("### What changes in `pipeline.yaml`, against HEAD^1 (")
    assert "| train | on demand, an hour | $54.39 | $108.79 | × 2 |" in comment
    assert workflow["jobs"][job].get("permissions", workflow["permissions"]) == {"contents": "read"}
    assert workflow["jobs"]["comment"]["permissions"] == {"pull-requests": "write"}
    assert "--body-file plan.md" in step_of(workflow, "comment", "gh pr comment")


def test_a_project_without_a_pipeline_yet_has_nothing_to_compare() -> None:
    workflow = new_project("ours", "blank", InstalledFrom())[".github/workflows/ci.yml"]
    assert "plan" not in workflow
    assert set(yaml.safe_load(workflow)["jobs"]) == {"check", "schemas"}


def test_azure_devops_shows_findings_on_their_lines_and_one_comment(merged: Path, devops: DevOps) -> None:
    steps = yaml.safe_load((WORKFLOWS / "azure-pipelines.yml").read_text())["steps"]
    lint, plan, comment = [step["script"] for step in steps if "pip install" not in step.get("script", "pip install")]
    (merged / "wrong.yaml").write_text(COMPONENT.replace("environment:", "enviroment:"))
    # Azure DevOps runs scripts without -e.
    linted = run(f"set +e\n{lint}", merged)
    assert linted.returncode == 1
    assert "##vso[task.logissue type=error;sourcepath=wrong.yaml;linenumber=5;columnnumber=1;code=AML" in linted.stdout

    assert "##vso[task.uploadsummary]" in run(plan, merged).stdout
    variables = {
        "SYSTEM_COLLECTIONURI": f"http://127.0.0.1:{devops.server_address[1]}/",
        "SYSTEM_TEAMPROJECTID": "team",
        "BUILD_REPOSITORY_ID": "r1",
        "SYSTEM_PULLREQUEST_PULLREQUESTID": "7",
        "TOKEN": "secret",
        "NO_PROXY": "127.0.0.1",
    }
    for nodes in ("4", "3"):
        (merged / "train.yaml").write_text(COMPONENT.replace("instance_count: 2", f"instance_count: {nodes}"))
        assert run(plan, merged).returncode == 0
        done = run(comment, merged, **variables)
        assert done.returncode == 0, done.stderr
    (thread,) = devops.threads
    assert "| train | nodes | 2 | 3 | +50 % |" in thread["comments"][0]["content"]
