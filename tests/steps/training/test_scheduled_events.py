"""Azure's notice that a machine will be taken away, from a local server that answers as Azure's does."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from rank_processes import free_port, start_ranks, training_arguments

from trainyard.steps import train_ddp
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.checkpoints.checkpoint_to_resume import checkpoint_folders
from trainyard.steps.training.stopping import AZURE_URL, ScheduledEvents, announced_end, choose_url

MACHINE = "cluster_a1b2_7"


def document(event_type: str, machine: str = MACHINE) -> dict[str, Any]:
    """As in the example of Microsoft's page."""
    event = {
        "EventId": "C7061BAC-AFDC-4513-B24B-AA5F13A16123",
        "EventStatus": "Scheduled",
        "EventType": event_type,
        "ResourceType": "VirtualMachine",
        "Resources": ["cluster_a1b2_1", machine],
        "NotBefore": "Mon, 11 Apr 2022 22:26:58 GMT",
        "Description": "",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
    }
    return {"DocumentIncarnation": 2, "Events": [event]}


class MetadataService(ThreadingHTTPServer):
    """Tells its machine's name, and the events it is given."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.events: dict[str, Any] = {"DocumentIncarnation": 1, "Events": []}
        self.asked: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}/metadata/scheduledevents?api-version=2020-07-01"


class _Handler(BaseHTTPRequestHandler):
    server: MetadataService

    def do_GET(self) -> None:
        if self.headers["Metadata"] != "true":
            self.send_error(400)
            return
        self.server.asked.append(self.path)
        is_name = self.path.startswith("/metadata/instance/compute/name?")
        body = MACHINE.encode() if is_name else json.dumps(self.server.events).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def service() -> Iterator[MetadataService]:
    server = MetadataService()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("event_type", ["Preempt", "Terminate", "Reboot", "Redeploy"])
def test_events_that_end_a_machine(event_type: str) -> None:
    assert announced_end(document(event_type), MACHINE) == f"Azure's scheduled event {event_type} of {MACHINE}"


def test_events_that_do_not() -> None:
    assert announced_end(document("Freeze"), MACHINE) is None
    assert announced_end(document("Preempt", "cluster_a1b2_8"), MACHINE) is None
    assert announced_end({"Events": []}, MACHINE) is None
    with pytest.raises(ValueError, match="not a document of scheduled events"):
        announced_end({"error": "Bad request"}, MACHINE)


def test_which_address_is_asked() -> None:
    on_azure = {"MLFLOW_TRACKING_URI": "azureml://westeurope.api.azureml.ms/mlflow/v1.0/subscriptions/…"}
    assert choose_url(None, on_azure) == AZURE_URL
    assert choose_url(None, {"MLFLOW_TRACKING_URI": "file:///mlruns", "AZUREML_RUN_ID": "calm_pear"}) is None
    assert choose_url("off", on_azure) is None
    assert choose_url("http://127.0.0.1:5000/events", {}) == "http://127.0.0.1:5000/events"
    with pytest.raises(StepError, match="--scheduled-events-url 'no': expected http://…, https://… or off"):
        choose_url("no", {})


def test_a_notice_is_noticed_with_the_next_request(service: MetadataService) -> None:
    reasons: list[str] = []
    events = ScheduledEvents(service.url, reasons.append)
    while len(service.asked) < 3:
        time.sleep(0.02)
    assert reasons == []
    service.events = document("Preempt")
    asked_before = len(service.asked)
    while not reasons and len(service.asked) < asked_before + 10:
        time.sleep(0.02)
    events.close()
    assert len(service.asked) <= asked_before + 2
    assert reasons == [f"Azure's scheduled event Preempt of {MACHINE}"]
    assert service.asked[0].startswith("/metadata/instance/compute/name?api-version=")
    assert service.asked[1] == "/metadata/scheduledevents?api-version=2020-07-01"


def test_an_invalid_answer_is_logged_and_asked_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainyard.steps.training.stopping._ASK_AGAIN_SECONDS", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/metadata/scheduledevents"
        events = ScheduledEvents(url, lambda reason: None)
        for _ in range(2):
            connection, _address = listener.accept()
            with connection:
                connection.recv(10_000)
                connection.sendall(b"who are you?\r\n")
        events.close()
    assert "will keep trying: who are you?" in capsys.readouterr().out


def test_asking_ends_with_the_training(digits: Path, tmp_path: Path, service: MetadataService) -> None:
    flags = ("--scheduled-events-url", service.url, "--max-steps", 1)
    arguments = training_arguments(digits, tmp_path, "tiny_task:TinyTask", *flags)
    assert train_ddp.main([str(argument) for argument in arguments]) == 0
    end = time.monotonic() + 60
    while any(thread.name == "scheduled-events" for thread in threading.enumerate()):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_the_training_continues_when_nobody_answers(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"http://127.0.0.1:{free_port()}/metadata/scheduledevents"
    flags = ("--scheduled-events-url", url)
    arguments = training_arguments(digits, tmp_path, "tiny_task:Slow", *flags)
    assert train_ddp.main([str(argument) for argument in arguments]) == 0
    said = capsys.readouterr().out
    assert said.count(f"scheduled events: no answer from {url}; will keep trying: ") == 1
    assert "trained 21 steps" in said


@pytest.mark.slow
def test_an_eviction_stops_all_ranks(
    digits: Path, tmp_path: Path, service: MetadataService, forked_python: Path
) -> None:
    """Only the node's first rank asks; both commit, and end with 75."""
    flags = ("--epochs", 200, "--scheduled-events-url", service.url, "--checkpoint-every-steps", 0)
    arguments = training_arguments(digits, tmp_path, "tiny_task:Slow", *flags)
    ranks = start_ranks("train_ddp", arguments, 2, python=forked_python)
    metrics = tmp_path / "metrics" / "metrics.jsonl"
    end = time.monotonic() + 60
    while not (metrics.exists() and metrics.read_text()):
        assert time.monotonic() < end, "no step was taken"
        time.sleep(0.05)
    service.events = document("Preempt")
    assert ranks.wait() == [75, 75], ranks.outputs
    assert f"because of Azure's scheduled event Preempt of {MACHINE}" in ranks.outputs[0]
    (checkpoint,) = checkpoint_folders(tmp_path / "checkpoints")
    assert (checkpoint / "commit.json").exists()
    names_asked = [path for path in service.asked if "/instance/" in path]
    assert len(names_asked) == 1, "one rank asks for the node"
