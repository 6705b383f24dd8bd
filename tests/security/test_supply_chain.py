"""What others can change between two runs of a workflow, and what a workflow can do to the repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainyard.render.installed_from import InstalledFrom
from trainyard.render.scaffolding import existing_repository, new_project

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = [ROOT / "docs" / "workflows" / f"{name}.yml" for name in ("lint", "plan")]
WORKFLOWS = {
    **{str(file.relative_to(ROOT)): file.read_text() for file in (ROOT / ".github" / "workflows").glob("*.yml")},
    **{str(file.relative_to(ROOT)): file.read_text() for file in SAMPLES},
    "init": new_project("ours", "ddp", InstalledFrom())[".github/workflows/ci.yml"],
    "init --existing": existing_repository("ours", InstalledFrom())[".github/workflows/azureml-lint.yml"],
}
PINNED = re.compile(r"uses: [\w./-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+$")


def steps_of(text: str) -> list[dict[str, Any]]:
    return [step for job in yaml.safe_load(text)["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("text", WORKFLOWS.values(), ids=WORKFLOWS)
def test_actions_are_pinned_to_commits(text: str) -> None:
    used = [line.strip().removeprefix("- ") for line in text.splitlines() if "uses:" in line]
    assert used
    assert [line for line in used if not PINNED.fullmatch(line)] == []


@pytest.mark.parametrize("text", WORKFLOWS.values(), ids=WORKFLOWS)
def test_a_checkout_leaves_no_token(text: str) -> None:
    checkouts = [step for step in steps_of(text) if str(step.get("uses")).startswith("actions/checkout@")]
    assert checkouts
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


@pytest.mark.parametrize("text", WORKFLOWS.values(), ids=WORKFLOWS)
def test_a_job_that_may_write_runs_nothing_of_a_pull_request(text: str) -> None:
    workflow = yaml.safe_load(text)
    assert workflow["permissions"]["contents"] == "read"
    for job in workflow["jobs"].values():
        may_write = {"contents", "pull-requests"} & {
            name for name, access in job.get("permissions", {}).items() if access == "write"
        }
        if may_write:
            assert not any(str(step.get("uses")).startswith("actions/checkout@") for step in job["steps"])
            assert not any("trainyard" in str(step.get("run")) for step in job["steps"])


@pytest.mark.parametrize("text", WORKFLOWS.values(), ids=WORKFLOWS)
def test_no_script_contains_what_a_pull_request_can_choose(text: str) -> None:
    """`${{ github.head_ref }}` within a script is a command; in a variable of the environment it is a text."""
    chosen = re.compile(r"\$\{\{\s*github\.(event|head_ref)")
    assert [step for step in steps_of(text) if chosen.search(str(step.get("run")))] == []


def test_every_version_that_make_setup_installs_is_exact() -> None:
    lines = [line.split("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    assert [line for line in lines if line and not re.match(r"[\w.-]+(\[[\w,]+\])?==[\w.+!]+( ; .*)?$", line)] == []
