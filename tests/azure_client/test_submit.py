"""`trainyard submit` against Azure on loopback: what is sent, what each refusal says; and nothing is sent twice."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lean_project import ROOT, lean_project
from loopback_azure import GROUP, WORKSPACE, Answer, Fault, LoopbackAzure, error_body

from settings_project import write_project
from trainyard.azure.workspace import Workspace, find_workspace
from trainyard.errors import UsageError

PIPELINE = "pipelines/ddp.yaml"
AT_ONCE = {"retry-after-ms": "1"}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The `context` parameter is deprecated")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lean_project(tmp_path_factory.mktemp("project") / "lean")


@pytest.fixture(autouse=True)
def in_the_project(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)


def submitted_jobs(azure: LoopbackAzure) -> list[str]:
    return [name for name in azure.resources if name.startswith("jobs/")]


def line_of(file: str, text: str) -> int:
    """The number of the first line of a file that contains a text."""
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def test_a_pipeline_is_submitted_and_its_link_printed(azure: LoopbackAzure, trainyard: Callable[..., Any]) -> None:
    outcome = trainyard("submit", PIPELINE)
    assert outcome.exit_code == 0, outcome.stderr
    (name,) = (name.removeprefix("jobs/") for name in submitted_jobs(azure))
    assert name.startswith("ddp-")
    assert f"{name}: submitted to workspace '{WORKSPACE}'" in outcome.stdout
    assert f"https://ml.azure.com/runs/{name}?wsid=" in outcome.stdout
    assert "16 micro × 1 accumulation × 4 processes" in outcome.stderr, "the plan comes first"
    assert len(azure.sent("PUT", "/jobs/")) == 1


def test_the_logs_are_followed_to_the_end(azure: LoopbackAzure, trainyard: Callable[..., Any]) -> None:
    outcome = trainyard("submit", PIPELINE, "--stream", "--name", "mine")
    assert outcome.exit_code == 0, outcome.stderr
    assert "train_ddp has started" in outcome.stdout
    azure.job_status = "Failed"
    outcome = trainyard("submit", PIPELINE, "--stream", "--name", "yours")
    assert outcome.exit_code == 1
    assert "error: job 'yours' failed: AssertionError: accuracy 0.5 is below 0.9" in outcome.stderr


def test_a_dry_run_prints_what_a_submission_sends(azure: LoopbackAzure, trainyard: Callable[..., Any]) -> None:
    printed = json.loads(trainyard("submit", PIPELINE, "--dry-run").stdout)
    assert azure.sent("PUT", "") == []
    trainyard("submit", PIPELINE)
    sent = azure.sent("PUT", "/jobs/")[-1].json["properties"]
    components = {request.path: request.json for request in azure.sent("PUT", "/components/")}
    job = printed["job"]["properties"]
    assert job["inputs"] == sent["inputs"]
    for name, node in sent["jobs"].items():
        component = components[node.pop("componentId")]["properties"]["componentSpec"]
        assert job["jobs"][name].pop("componentId") == f"components.{name}"
        # The service's id of a cluster is its name in the workspace.
        assert job["jobs"][name].pop("computeId", "") == node.pop("computeId", "").rpartition("/")[2]
        # A settings file has an address only after it is uploaded.
        settings, uploaded = (body["inputs"].pop("settings", None) for body in (job["jobs"][name], node))
        if uploaded is not None:
            assert settings["job_input_type"] == uploaded["job_input_type"] == "uri_file"
            assert settings["uri"].endswith("settings/ddp.yaml")
            assert uploaded["uri"].startswith("azureml://")
        assert job["jobs"][name] == node
        described = printed["components"][name]["properties"]["componentSpec"]
        # What is built from a Dockerfile has an id only after its context is uploaded.
        is_built = isinstance(described["environment"], dict)
        for key in ("command", "inputs", "outputs", "resources", *(() if is_built else ("environment",))):
            assert described[key] == component[key], (name, key)


def test_inputs_are_set_for_one_submission_and_settings_become_overrides(
    trainyard: Callable[..., Any], tmp_path: Path
) -> None:
    file = write_project(tmp_path)
    settings = ("inputs.micro_batch_size=8", "inputs.weight_decay=0.1", "jobs.train.inputs.seed=5")
    words = [word for setting in settings for word in ("--set", setting)]
    outcome = trainyard("submit", str(file), "--dry-run", *words)
    assert outcome.exit_code == 0, outcome.stderr
    job = json.loads(outcome.stdout)["job"]["properties"]
    assert job["inputs"]["micro_batch_size"]["value"] == "8"
    given = job["jobs"]["train"]["inputs"]
    assert given["overrides"]["value"] == "{weight_decay: 0.1, seed: 5}"
    assert (given["settings"]["job_input_type"], Path(given["settings"]["uri"]).name) == ("uri_file", "ddp.yaml")
    assert "8 micro × 2 accumulation × 4 processes" in outcome.stderr, "the plan is of what is sent"
    refused = trainyard("submit", str(file), "--dry-run", "--set", "inputs.weight_decai=0.1")
    assert refused.exit_code == 2
    assert "'weight_decay'" in refused.stderr


def test_nothing_is_sent_of_a_file_with_errors(
    azure: LoopbackAzure, trainyard: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text("type: pipeline\njobs:\n  train:\n    component: ./missing.yaml\n", encoding="utf-8")
    for arguments in ((), ("--dry-run",)):
        outcome = trainyard("submit", str(file), *arguments)
        assert outcome.exit_code == 1
        assert "wrong.yaml:4:16: error[" in outcome.stderr
    assert azure.requests == []


# What is answered to which request, and what the user reads. ARM's codes and messages are those of its documentation.
REFUSALS = {
    "not signed in any more": (
        Fault("GET", f"/{WORKSPACE}$", Answer(401, error_body("ExpiredAuthenticationToken", "The token has expired."))),
        "Azure answered 401 ExpiredAuthenticationToken: The token has expired; sign in again with `az login`",
    ),
    "no role": (
        Fault("GET", f"/{WORKSPACE}$", Answer(403, error_body("AuthorizationFailed", "The client may not read."))),
        "Azure answered 403 AuthorizationFailed: The client may not read; ask for the role 'AzureML Data Scientist'",
    ),
    "unknown workspace": (
        Fault("GET", f"/{WORKSPACE}$", Answer(404, error_body("ResourceNotFound", "It was not found."))),
        f"unknown workspace '{WORKSPACE}' of resource group '{GROUP}' in subscription",
    ),
    "unknown resource group": (
        Fault("GET", f"/{WORKSPACE}$", Answer(404, error_body("ResourceGroupNotFound", "Group 'group' was missed."))),
        "404 ResourceGroupNotFound: Group 'group' was missed; `az group list` shows the resource groups",
    ),
    "another operation": (
        Fault("PUT", "/jobs/", Answer(409, error_body("Conflict", "Another operation is in progress."))),
        "Azure answered 409 Conflict: Another operation is in progress; wait until the other operation has ended",
    ),
    "too many requests": (
        Fault("PUT", "/jobs/", Answer(429, error_body("TooManyRequests", "Slow down."), AT_ONCE)),
        "Azure answered 429 TooManyRequests: Slow down; Azure limits requests; wait a few minutes",
    ),
    "a fault of the service": (
        Fault("PUT", "/jobs/", Answer(500, error_body("InternalError", "Oops."), {**AT_ONCE, "x-ms-request-id": "r1"})),
        "Azure answered 500 InternalError: Oops (request r1); this is a fault of the service",
    ),
    "no quota": (
        Fault("PUT", "/jobs/", Answer(400, error_body("QuotaExceeded", "64 cores exceed the approved quota of 24."))),
        "64 cores exceed the approved quota of 24; `az ml compute list-usage` shows your quota",
    ),
    "a storage account that refuses the upload": (
        Fault(
            "PUT",
            "/trainyard/steps/evaluate.py$",
            Answer(403, headers={"x-ms-error-code": "AuthorizationFailure"}),
        ),
        "the upload to storage.blob.core.windows.net was refused: 403 AuthorizationFailure; ask for the role 'Storage",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("fault", "message"), REFUSALS.values(), ids=REFUSALS)
def test_a_refusal_is_one_message_with_what_to_do(
    azure: LoopbackAzure, trainyard: Callable[..., Any], fault: Fault, message: str
) -> None:
    azure.faults = [Fault(fault.method, fault.path, fault.answer)]
    outcome = trainyard("submit", PIPELINE)
    assert outcome.exit_code == 1
    assert message in " ".join(outcome.stderr.split())
    assert outcome.stderr.count("error: ") == 1
    assert submitted_jobs(azure) == []


def test_a_refusal_that_names_a_part_of_the_file_is_shown_there(
    azure: LoopbackAzure, trainyard: Callable[..., Any]
) -> None:
    target = "properties.jobs.train_ddp.inputs.precision"
    details = [{"code": "InvalidInput", "message": "precision is unknown.", "target": target}]
    answer = error_body("UserError", "The job is invalid.", details=details)
    azure.faults = [Fault("PUT", "/jobs/", Answer(400, answer))]
    outcome = trainyard("submit", PIPELINE)
    assert outcome.exit_code == 1
    line = line_of(PIPELINE, "precision: ${{parent.inputs.precision}}")
    assert f"{PIPELINE}:{line}:18: error[InvalidInput] precision is unknown." in outcome.stderr


def test_a_refused_component_is_shown_in_its_own_file(azure: LoopbackAzure, trainyard: Callable[..., Any]) -> None:
    answer = error_body("UserError", "Input 'image_size' has a default outside of its range.")
    azure.faults = [Fault("PUT", "/components/", Answer(400, answer), times=1)]
    outcome = trainyard("submit", PIPELINE)
    assert outcome.exit_code == 1
    file = "components/prepare_images.yaml"
    assert f"{file}:{line_of(file, '  image_size:')}:3: error[UserError] Input 'image_size'" in outcome.stderr


def test_an_unknown_cluster_is_found_before_anything_is_uploaded(
    azure: LoopbackAzure, trainyard: Callable[..., Any]
) -> None:
    azure.clusters = {"gpu-t44": {}}
    outcome = trainyard("submit", PIPELINE)
    assert outcome.exit_code == 1
    line = line_of(PIPELINE, "default_compute:")
    assert f"{PIPELINE}:{line}:20: error[workspace] workspace '{WORKSPACE}' of resource group" in outcome.stderr
    assert "has no cluster 'gpu-t4'" in outcome.stderr
    assert "Did you mean 'gpu-t44'?" in outcome.stderr
    assert azure.blobs == {}


def test_a_cluster_with_too_few_machines_is_found_before_anything_is_uploaded(
    azure: LoopbackAzure, trainyard: Callable[..., Any]
) -> None:
    azure.clusters = {"gpu-t4": {"scaleSettings": {"maxNodeCount": 0}}}
    outcome = trainyard("submit", PIPELINE)
    assert "a job takes 1 node and would wait forever: 'gpu-t4' has at most 0" in outcome.stderr
    assert azure.blobs == {}


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ({"vmSize": "STANDARD_NC6S_V3"}, "'gpu-t4' has STANDARD_NC6S_V3, the plan is of Standard_NC64as_T4_v3"),
        ({"provisioningState": "Failed"}, "the cluster 'gpu-t4' could not be created"),
    ],
    ids=["another size", "failed"],
)
def test_a_cluster_that_cannot_run_what_was_planned_is_refused_unless_forced(
    azure: LoopbackAzure, trainyard: Callable[..., Any], cluster: dict[str, Any], message: str
) -> None:
    azure.clusters = {"gpu-t4": cluster, "cpu-prepare": {"vmSize": "STANDARD_D8S_V5"}}
    refused = trainyard("submit", PIPELINE)
    assert refused.exit_code == 1
    assert f"error[workspace] {message}" in refused.stderr
    assert azure.blobs == {}
    forced = trainyard("submit", PIPELINE, "--force")
    assert forced.exit_code == 0, forced.stderr
    assert f"warning[workspace] {message}" in forced.stderr
    assert len(submitted_jobs(azure)) == 1


USES_ASSETS = """\
type: pipeline
settings: {default_compute: azureml:gpu-t4}
inputs:
  corpus: {type: uri_folder, path: azureml:corpus:2}
jobs:
  prepare:
    component: azureml:prepare:3
  train:
    command: echo ${{inputs.data}} ${{inputs.weights}}
    environment: azureml:torch@latest
    inputs:
      data: ${{parent.inputs.corpus}}
      weights: {type: custom_model, path: azureml:bert:7}
  score:
    command: echo
    environment: azureml://registries/azureml/environments/acpt/versions/5
"""
ASSETS = {
    "data/corpus/versions/2": (4, 36, "data 'corpus:2'"),
    "components/prepare/versions/3": (7, 16, "component 'prepare:3'"),
    "environments/torch": (10, 18, "environment 'torch'"),
    "models/bert/versions/7": (13, 16, "model 'bert:7'"),
}


@pytest.mark.parametrize(("missing", "found"), ASSETS.items(), ids=ASSETS)
def test_an_asset_that_the_workspace_does_not_have_is_refused_at_its_line(
    azure: LoopbackAzure,
    trainyard: Callable[..., Any],
    tmp_path: Path,
    missing: str,
    found: tuple[int, int, str],
) -> None:
    file = tmp_path / "uses.yaml"
    file.write_text(USES_ASSETS, encoding="utf-8")
    azure.assets = {*ASSETS, "environments/torch/versions/1"} - {missing}
    line, column, what = found
    for arguments in ((), ("--dry-run",)):
        refused = trainyard("submit", str(file), *arguments)
        assert refused.exit_code == 1
        place = f"uses.yaml:{line}:{column}: error[workspace]"
        assert f"{place} workspace 'workspace' of resource group 'group' has no {what}" in refused.stderr
        assert refused.stderr.count("error[workspace]") == 1
        assert refused.stdout == ""
    assert submitted_jobs(azure) == []
    assert azure.blobs == {}
    forced = trainyard("submit", str(file), "--dry-run", "--force")
    assert forced.exit_code == 0, forced.stderr
    assert f"warning[workspace] workspace 'workspace' of resource group 'group' has no {what}" in forced.stderr


def test_an_asset_that_a_registry_does_not_have_is_refused_and_a_registry_that_does_not_answer_is_noted(
    azure: LoopbackAzure, trainyard: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "uses.yaml"
    file.write_text(USES_ASSETS, encoding="utf-8")
    azure.registry_assets = set()
    refused = trainyard("submit", str(file))
    assert refused.exit_code == 1
    place = "uses.yaml:16:18: error[workspace]"
    assert f"{place} the registry 'azureml' has no environment 'acpt:5'" in refused.stderr
    unknown = Answer(404, error_body("RegistryNotFound", "It was not found."))
    azure.faults = [Fault("GET", "/registries/azureml/discovery", unknown)]
    assert "there is no registry 'azureml'" in trainyard("submit", str(file), "--dry-run").stderr
    azure.faults = [Fault("GET", "/registries/azureml/discovery", Answer(403, error_body("Forbidden", "No.")))]
    unanswered = trainyard("submit", str(file), "--dry-run")
    assert unanswered.exit_code == 0, unanswered.stderr
    assert "the registry 'azureml' was not asked for this environment: Azure answered 403" in unanswered.stderr


@pytest.mark.parametrize("quota", ["Standard NCASv3_T4 Family Cluster Dedicated vCPUs", "standardNCASv3_T4Family"])
def test_a_cluster_that_has_no_quota_to_grow_is_refused(
    azure: LoopbackAzure, trainyard: Callable[..., Any], quota: str
) -> None:
    clusters = {"gpu-t4": {"vmSize": "STANDARD_NC64AS_T4_V3"}, "cpu-prepare": {"vmSize": "STANDARD_D8S_V5"}}
    azure.clusters = clusters
    azure.quotas = {quota: (64, 100), "Standard DSv5 Family Cluster Dedicated vCPUs": (0, 8)}
    refused = trainyard("submit", PIPELINE)
    assert refused.exit_code == 1
    message = (
        "'gpu-t4' would have to start 1 node with 64 vCPUs; the quota of the family standardNCASv3_T4Family in eastus "
        "has 36 of 100 left"
    )
    place = f"{PIPELINE}:{line_of(PIPELINE, 'default_compute:')}:20"
    assert f"{place}: error[workspace] {message}" in refused.stderr
    assert refused.stderr.count("error[workspace]") == 1, "8 of 8 vCPUs are enough for the other cluster"
    azure.clusters = {**clusters, "gpu-t4": {**clusters["gpu-t4"], "nodes": 1}}
    started = trainyard("submit", PIPELINE, "--dry-run")
    assert started.exit_code == 0, started.stderr
    azure.clusters = clusters
    azure.quotas = {quota: (64, -1), "Total Cluster Dedicated Regional vCPUs": (300, 350)}
    assert "the quota of all dedicated machines in eastus has 50 of 350 left" in trainyard("submit", PIPELINE).stderr


def test_a_login_that_may_not_read_quota_is_told_so_and_may_submit(
    azure: LoopbackAzure, trainyard: Callable[..., Any]
) -> None:
    azure.clusters = {"gpu-t4": {"vmSize": "STANDARD_NC64AS_T4_V3"}, "cpu-prepare": {"vmSize": "STANDARD_D8S_V5"}}
    azure.faults = [Fault("GET", "/usages$", Answer(403, error_body("AuthorizationFailed", "No.")))]
    outcome = trainyard("submit", PIPELINE)
    assert outcome.exit_code == 0, outcome.stderr
    assert "the quota for 'cpu-prepare' was not checked: Azure answered 403" in outcome.stderr


def test_a_dry_run_refuses_a_workspace_that_is_not_there(azure: LoopbackAzure, trainyard: Callable[..., Any]) -> None:
    azure.faults = [Fault("GET", f"/{WORKSPACE}$", Answer(404, error_body("ResourceNotFound", "Not found.")))]
    outcome = trainyard("submit", PIPELINE, "--dry-run")
    assert outcome.exit_code == 1
    assert f"unknown workspace '{WORKSPACE}'" in outcome.stderr


def test_a_dry_run_without_a_login_says_what_was_not_asked(
    azure: LoopbackAzure, trainyard: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("AZURE_CLIENT_SECRET")
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")
    not_asked = "note: the workspace was not asked for clusters, quota and assets: "
    signed_out = trainyard("submit", PIPELINE, "--dry-run")
    assert signed_out.exit_code == 0, signed_out.stderr
    assert f"{not_asked}not signed in to Azure" in signed_out.stderr
    assert json.loads(signed_out.stdout)["job"]
    monkeypatch.delenv("AZURE_DEFAULTS_WORKSPACE")
    monkeypatch.setenv("AZURE_CONFIG_DIR", str(tmp_path))
    assert f"{not_asked}no workspace is set" in trainyard("submit", PIPELINE, "--dry-run").stderr


def test_a_training_that_does_not_fit_is_refused_unless_forced(
    azure: LoopbackAzure, trainyard: Callable[..., Any]
) -> None:
    """The plan is of the submission's own values: a micro-batch that is large enough fits no GPU."""
    too_much = ("--set", "inputs.micro_batch_size=262144", "--set", "inputs.global_batch_size=1048576")
    refused = trainyard("submit", PIPELINE, *too_much)
    assert refused.exit_code == 1
    assert "error[plan] train_ddp needs about" in refused.stderr
    assert azure.sent("PUT", "/jobs/") == []
    assert azure.blobs == {}
    assert "error[plan] train_ddp needs about" in trainyard("submit", PIPELINE, *too_much, "--dry-run").stderr
    forced = trainyard("submit", PIPELINE, *too_much, "--dry-run", "--force")
    assert forced.exit_code == 0, forced.stderr
    assert "warning[plan] train_ddp needs about" in forced.stderr


def test_a_command_job_is_submitted_like_a_pipeline(
    azure: LoopbackAzure, trainyard: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "hello.py").write_text("print('hello')\n", encoding="utf-8")
    file = tmp_path / "hello.yml"
    file.write_text(
        "type: command\ncommand: python hello.py\ncode: .\nenvironment: azureml:python:1\ncompute: azureml:small\n",
        encoding="utf-8",
    )
    azure.clusters = {}
    outcome = trainyard("submit", str(file))
    assert "hello.yml:5:10: error[workspace]" in outcome.stderr
    azure.clusters = {"small": {}}
    outcome = trainyard("submit", str(file))
    assert outcome.exit_code == 0, outcome.stderr
    assert azure.sent("PUT", "/jobs/")[-1].json["properties"]["command"] == "python hello.py"


KEPT = """\
type: pipeline
settings: {default_compute: azureml:gpu-t4}
jobs:
  prepare:
    type: command
    component: azureml:prepare:3
  train:
    type: command
    command: echo ${{inputs.data}}
    environment: azureml:python:1
    inputs: {data: {type: uri_folder, path: "${{parent.jobs.prepare.outputs.prepared}}"}}
  score:
    type: command
    component: azureml://registries/shared/components/score/versions/1
    inputs: {data: "${{parent.jobs.prepare.outputs.prepared}}"}
"""


def test_components_kept_in_azure_ml_are_sent_by_reference(
    azure: LoopbackAzure, trainyard: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "kept.yaml"
    file.write_text(KEPT, encoding="utf-8")
    printed = json.loads(trainyard("submit", str(file), "--dry-run").stdout)
    jobs = printed["job"]["properties"]["jobs"]
    assert jobs["prepare"]["componentId"] == "azureml:prepare:3"
    assert jobs["score"]["componentId"] == "azureml://registries/shared/components/score/versions/1"
    assert list(printed["components"]) == ["train"]
    assert azure.sent("PUT", "") == []

    outcome = trainyard("submit", str(file))
    assert outcome.exit_code == 0, outcome.stderr
    assert "kept in Azure ML: not known here" in outcome.stderr
    sent = azure.sent("PUT", "/jobs/")[-1].json["properties"]["jobs"]
    assert sent["prepare"]["componentId"].endswith(f"/workspaces/{WORKSPACE}/components/prepare/versions/3")
    assert sent["score"]["componentId"] == "azureml://registries/shared/components/score/versions/1"


def test_a_command_that_reads_a_component_kept_in_azure_ml_needs_a_typed_input(
    azure: LoopbackAzure, trainyard: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "kept.yaml"
    prepared = '"${{parent.jobs.prepare.outputs.prepared}}"'
    file.write_text(KEPT.replace(f"{{type: uri_folder, path: {prepared}}}", prepared), encoding="utf-8")
    for arguments in ((), ("--dry-run",)):
        outcome = trainyard("submit", str(file), *arguments)
        assert outcome.exit_code == 1
        assert "error: the client refuses" in outcome.stderr
        assert "; give the input a type: {type: uri_folder, path: …}" in outcome.stderr


def test_the_cluster_of_a_component_kept_in_azure_ml_is_looked_for(
    azure: LoopbackAzure, trainyard: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "kept.yaml"
    file.write_text(KEPT.replace("prepare:3", "prepare:3\n    compute: azureml:small"), encoding="utf-8")
    azure.clusters = {"gpu-t4": {}}
    outcome = trainyard("submit", str(file))
    assert outcome.exit_code == 1
    assert "kept.yaml:7:14: error[workspace]" in outcome.stderr
    assert azure.sent("PUT", "/jobs/") == []


def test_where_the_service_asks_to_wait_the_request_is_sent_again(
    azure: LoopbackAzure, trainyard: Callable[..., Any]
) -> None:
    busy = Answer(429, error_body("TooManyRequests", "Slow down."), AT_ONCE)
    azure.faults = [Fault("PUT", "/jobs/", busy, times=2), Fault("GET", "/computes/", busy, times=1)]
    outcome = trainyard("submit", PIPELINE)
    assert outcome.exit_code == 0, outcome.stderr
    assert len(azure.sent("PUT", "/jobs/")) == 3
    assert len(submitted_jobs(azure)) == 1


def test_a_slow_answer_is_waited_for(azure: LoopbackAzure, trainyard: Callable[..., Any]) -> None:
    azure.faults = [Fault("GET", "/computes/", Answer(503, delay_seconds=1, headers=AT_ONCE), times=1)]
    assert trainyard("submit", PIPELINE).exit_code == 0


def test_a_job_whose_confirmation_is_lost_is_not_submitted_twice(
    azure: LoopbackAzure, trainyard: Callable[..., Any]
) -> None:
    """The service takes the job, and no answer arrives: neither to the request nor to its repetitions."""
    azure.faults = [Fault("PUT", "/jobs/", Answer(500, headers=AT_ONCE), after=True)]
    outcome = trainyard("submit", PIPELINE)
    assert outcome.exit_code == 0, outcome.stderr
    (name,) = submitted_jobs(azure)
    assert f"{name.removeprefix('jobs/')}: submitted" in outcome.stdout
    assert {request.path.rpartition("/")[2] for request in azure.sent("PUT", "/jobs/")} == {name.removeprefix("jobs/")}


def test_when_azure_cannot_be_asked_either_the_user_is_told_how(
    azure: LoopbackAzure, trainyard: Callable[..., Any]
) -> None:
    azure.faults = [Fault(method, "/jobs/mine", Answer(cut=True), after=True) for method in ("PUT", "GET")]
    # The name is looked for once before anything is uploaded.
    azure.faults.insert(0, Fault("GET", "/jobs/mine", Answer(404, error_body("NotFound", "No such job.")), times=1))
    outcome = trainyard("submit", PIPELINE, "--name", "mine")
    assert outcome.exit_code == 1
    assert "the connection broke before Azure confirmed job 'mine'" in outcome.stderr
    assert "az ml job show --name mine" in outcome.stderr


@pytest.fixture
def waits_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The storage client waits 15 seconds and more before it repeats a request; here it does not."""
    monkeypatch.setattr("azure.storage.blob._shared.policies.ExponentialRetry.get_backoff_time", lambda *_: 0.01)


@pytest.mark.usefixtures("waits_are_short")
def test_an_upload_that_is_cut_off_goes_on(azure: LoopbackAzure, trainyard: Callable[..., Any]) -> None:
    azure.faults = [Fault("PUT", "/trainyard/steps/evaluate.py$", Answer(cut=True), times=1)]
    outcome = trainyard("submit", PIPELINE)
    assert outcome.exit_code == 0, outcome.stderr
    assert [body for name, body in azure.blobs.items() if name.endswith("/trainyard/steps/evaluate.py")] == [
        (ROOT / "src/trainyard/steps/evaluate.py").read_bytes()
    ]


@pytest.mark.usefixtures("waits_are_short")
def test_an_upload_that_stays_cut_off_ends_in_one_message(azure: LoopbackAzure, trainyard: Callable[..., Any]) -> None:
    azure.faults = [Fault("PUT", "/trainyard/steps/evaluate.py$", Answer(cut=True))]
    outcome = trainyard("submit", PIPELINE)
    assert outcome.exit_code == 1
    assert outcome.stderr.count("error: ") == 1
    assert "no answer from Azure" in outcome.stderr
    assert len(azure.sent("PUT", "/trainyard/steps/evaluate.py")) == 4, "once, and three repetitions of the client"
    assert submitted_jobs(azure) == []


def test_a_name_that_is_taken_is_refused_before_anything_is_uploaded(
    azure: LoopbackAzure, trainyard: Callable[..., Any]
) -> None:
    assert trainyard("submit", PIPELINE, "--name", "mine").exit_code == 0
    azure.blobs.clear()
    outcome = trainyard("submit", PIPELINE, "--name", "mine")
    assert outcome.exit_code == 1
    assert "already has a job 'mine': https://ml.azure.com/runs/mine" in outcome.stderr
    assert azure.blobs == {}
    assert len(azure.sent("PUT", "/jobs/")) == 1


def test_no_network(azure: LoopbackAzure, trainyard: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    outcome = trainyard("submit", PIPELINE)
    assert outcome.exit_code == 1
    assert outcome.stderr.count("error: ") == 1
    assert "no answer from Azure" in outcome.stderr
    assert "HTTPS_PROXY" in outcome.stderr


def test_no_credential(azure: LoopbackAzure, trainyard: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_CLIENT_SECRET")
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")
    outcome = trainyard("submit", PIPELINE)
    assert outcome.exit_code == 1
    assert (
        "error: not signed in to Azure: no credential was found; run `az login`, or set AZURE_TENANT_ID"
        in outcome.stderr
    )


def test_without_the_client_one_line_says_how_to_install_it(
    trainyard: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "azure.ai.ml", None)
    monkeypatch.delenv("AZURE_SUBSCRIPTION_ID", raising=False)
    advice = "azure.ai.ml is not installed: pip install 'trainyard-azureml[azure]'"
    for arguments in ((), ("--dry-run",)):
        outcome = trainyard("submit", PIPELINE, *arguments)
        assert outcome.exit_code == 1
        assert outcome.stderr.splitlines() == [f"error: {advice}"], "neither the plan nor another advice comes before"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (None, "ok      workspace: workspace 'workspace' of resource group 'group' answers"),
        (Answer(404, error_body("ResourceNotFound", "Not found.")), "note    workspace: unknown workspace 'workspace'"),
        (Answer(403, error_body("AuthorizationFailed", "No.")), "fix: ask for the role 'AzureML Data Scientist'"),
    ],
    ids=["answers", "unknown", "forbidden"],
)
def test_the_doctor_asks_for_the_workspace(
    azure: LoopbackAzure, trainyard: Callable[..., Any], answer: Answer | None, expected: str
) -> None:
    azure.faults = [Fault("GET", f"/{WORKSPACE}$", answer)] if answer is not None else []
    assert expected in trainyard("doctor").stdout


class TestWorkspace:
    @pytest.fixture(autouse=True)
    def az_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        for name in ("AZURE_SUBSCRIPTION_ID", "AZURE_DEFAULTS_GROUP", "AZURE_DEFAULTS_WORKSPACE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AZURE_CONFIG_DIR", str(tmp_path))
        return tmp_path

    def test_flags_come_before_variables_and_variables_before_az(
        self, az_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (az_folder / "config").write_text("[defaults]\ngroup = from-az\nworkspace = from-az\n", encoding="utf-8")
        subscriptions = [{"id": "other", "isDefault": False}, {"id": "chosen", "isDefault": True}]
        (az_folder / "azureProfile.json").write_text(json.dumps({"subscriptions": subscriptions}), encoding="utf-8-sig")
        assert find_workspace() == Workspace("chosen", "from-az", "from-az")
        monkeypatch.setenv("AZURE_DEFAULTS_GROUP", "from-variable")
        assert find_workspace(workspace="from-flag") == Workspace("chosen", "from-variable", "from-flag")

    def test_defaults_of_a_project_come_before_those_of_the_user(
        self, az_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """`az configure --scope local` in a project, read from a folder below it."""
        (az_folder / "config").write_text("[defaults]\ngroup = of-user\nworkspace = of-user\n", encoding="utf-8")
        below = az_folder / "project" / "pipelines"
        local = az_folder / "project" / az_folder.name
        for folder in (below, local):
            folder.mkdir(parents=True)
        (local / "config").write_text("[defaults]\nworkspace = of-project\n", encoding="utf-8")
        monkeypatch.chdir(below)
        assert find_workspace("chosen") == Workspace("chosen", "of-user", "of-project")

    def test_every_part_that_is_missing_is_named(self) -> None:
        with pytest.raises(UsageError) as error:
            find_workspace(subscription="mine")
        assert str(error.value).splitlines() == [
            "no resource group is set; give --resource-group, set AZURE_DEFAULTS_GROUP, "
            "or run: az configure --defaults group=NAME",
            "no workspace is set; give --workspace, set AZURE_DEFAULTS_WORKSPACE, "
            "or run: az configure --defaults workspace=NAME",
        ]

    @pytest.mark.parametrize(("name", "text"), [("config", "group = x"), ("azureProfile.json", "{")])
    def test_a_file_of_az_that_is_damaged_is_named(self, az_folder: Path, name: str, text: str) -> None:
        (az_folder / name).write_text(text, encoding="utf-8")
        with pytest.raises(UsageError, match=f"{name} cannot be read"):
            find_workspace()
