"""Clusters that no file describes: `plan` and `submit` ask the workspace for their size, where there is a login."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lean_project import lean_project
from loopback_azure import Answer, Fault, LoopbackAzure, error_body

FILE = "pipelines/elsewhere.yaml"
T4 = {"vmSize": "STANDARD_NC64AS_T4_V3"}
NOT_KNOWN = "unknown machine of the cluster 'elsewhere': no figures for GPUs and prices; give its size as --sku, or in"
NOT_ASKED = "note: the workspace was not asked for the sizes of clusters: "
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The `context` parameter is deprecated")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = lean_project(tmp_path_factory.mktemp("project") / "lean")
    text = (folder / "pipelines" / "ddp.yaml").read_text(encoding="utf-8")
    (folder / FILE).write_text(text.replace("azureml:gpu-t4", "azureml:elsewhere"), encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def in_the_project(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)


def training(outcome: Any) -> dict[str, Any]:
    """The training in a plan that was printed as JSON."""
    assert outcome.exit_code == 0, outcome.stderr
    return dict(json.loads(outcome.stdout)["jobs"]["train_ddp"])


def test_the_workspace_is_asked_once_for_the_sizes_of_its_clusters(
    azure: LoopbackAzure, trainyard: Callable[..., Any]
) -> None:
    azure.clusters = {"elsewhere": T4}
    outcome = trainyard("plan", FILE, "--format", "json")
    assert training(outcome)["sku"] == "Standard_NC64as_T4_v3"
    assert training(outcome)["time"]["step_seconds"] > 0
    said = "note: 'elsewhere' has STANDARD_NC64AS_T4_V3 in workspace 'workspace' of resource group 'group'\n"
    assert outcome.stderr == said
    assert len(azure.sent("GET", "/computes")) == 1, "also where several jobs run on it"


@pytest.mark.parametrize(
    ("clusters", "said"),
    [
        ({"elsewere": T4}, "has no cluster 'elsewhere'. Did you mean 'elsewere'?\n"),
        ({"elsewhere": {"vmSize": "STANDARD_XX7"}}, "note: 'elsewhere' has STANDARD_XX7 in workspace 'workspace' of"),
        ({"elsewhere": {}}, "note: 'elsewhere' has no VM size in workspace 'workspace' of"),
    ],
    ids=["another name", "a size that the catalogue lacks", "no size"],
)
def test_what_the_workspace_does_not_know_either_is_said(
    azure: LoopbackAzure, trainyard: Callable[..., Any], clusters: dict[str, Any], said: str
) -> None:
    azure.clusters = clusters
    outcome = trainyard("plan", FILE)
    assert outcome.exit_code == 0, outcome.stderr
    assert said in outcome.stderr
    assert outcome.stderr.count("note: ") == 1
    assert NOT_KNOWN in " ".join(outcome.stdout.split())


ANSWERS = {
    "the connection is cut": (Answer(cut=True), "no answer from Azure: "),
    "a page of a proxy": (Answer(body=b"<html>Sign in</html>", headers={"Content-Type": "text/html"}), ""),
    "no role": (Answer(403, error_body("AuthorizationFailed", "No.")), "Azure answered 403 AuthorizationFailed: No;"),
    "no workspace": (Answer(404, error_body("ResourceNotFound", "It was not found.")), "Azure answered 404 "),
    "too many requests": (Answer(429, error_body("TooManyRequests", "Slow down.")), "Azure answered 429 "),
    "a fault of the service": (Answer(500, error_body("InternalError", "Oops.")), "Azure answered 500 "),
}


@pytest.mark.parametrize(("answer", "reason"), ANSWERS.values(), ids=ANSWERS)
def test_a_workspace_that_does_not_answer_costs_one_request_and_one_note(
    azure: LoopbackAzure, trainyard: Callable[..., Any], answer: Answer, reason: str
) -> None:
    azure.faults = [Fault("GET", "/computes$", answer)]
    outcome = trainyard("plan", FILE)
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.stderr.startswith(f"{NOT_ASKED}{reason}")
    assert outcome.stderr.count("\n") == 1
    assert len(azure.sent("GET", "/computes")) == 1
    assert NOT_KNOWN in " ".join(outcome.stdout.split())


def test_a_login_that_is_not_valid_any_more_costs_a_note(azure: LoopbackAzure, trainyard: Callable[..., Any]) -> None:
    azure.faults = [Fault("POST", "/token$", Answer(401, {"error": "invalid_client", "error_description": "Expired."}))]
    outcome = trainyard("plan", FILE)
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.stderr.startswith(NOT_ASKED)
    assert outcome.stderr.count("\n") == 1


_PLAN = """
import sys
from trainyard.cli import main
try:
    main(sys.argv[1:])
finally:
    print("imported:", "azure.ai.ml" in sys.modules, "azure.identity" in sys.modules, file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("missing", "arguments"),
    [
        (("AZURE_CLIENT_ID",), [FILE]),
        (("AZURE_DEFAULTS_WORKSPACE",), [FILE]),
        ((), [FILE, "--sku", "Standard_NC64as_T4_v3"]),
        ((), ["pipelines/ddp.yaml"]),
    ],
    ids=["no login", "no workspace", "a given size", "a cluster that a file describes"],
)
def test_the_client_is_imported_only_where_it_is_needed_and_can_answer(
    azure: LoopbackAzure,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    missing: tuple[str, ...],
    arguments: list[str],
) -> None:
    monkeypatch.setenv("AZURE_CONFIG_DIR", str(tmp_path))
    for name in missing:
        monkeypatch.delenv(name)
    command = [sys.executable, "-c", _PLAN, "plan", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (0, "imported: False False\n")
    assert (NOT_KNOWN in " ".join(ended.stdout.split())) == bool(missing)
    assert azure.requests == []


def test_without_the_client_nothing_is_asked(
    azure: LoopbackAzure, trainyard: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "azure.ai.ml", None)
    outcome = trainyard("plan", FILE)
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    assert NOT_KNOWN in " ".join(outcome.stdout.split())


def test_submit_refuses_what_does_not_fit_on_machines_that_only_the_workspace_knows(
    azure: LoopbackAzure, trainyard: Callable[..., Any]
) -> None:
    azure.clusters = {"elsewhere": T4, "cpu-prepare": {}}
    too_much = ("--set", "inputs.micro_batch_size=262144", "--set", "inputs.global_batch_size=1048576")
    refused = trainyard("submit", FILE, *too_much)
    assert refused.exit_code == 1
    assert "error[plan] train_ddp needs about" in refused.stderr
    assert azure.blobs == {}
