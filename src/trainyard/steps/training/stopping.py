"""Requests to stop: signals, a file, a time limit, Azure's scheduled events. The step's agreement tells all ranks."""

from __future__ import annotations

import http.client
import signal
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from trainyard.settings.steps.train_tensorflow import TrainTensorFlow
from trainyard.settings.steps.training import Training
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.files import parse_json

_LOOK_EVERY_SECONDS = 1.0
"""A stop file may be on a network mount, where each look costs a round trip."""
AZURE_URL = "http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01"
_OWN_NAME_PATH = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
_ENDING_EVENTS = frozenset({"Preempt", "Terminate", "Reboot", "Redeploy"})
"""Not Freeze, which pauses a machine for seconds and keeps what is in memory."""
_ASK_EVERY_SECONDS = 1.0
_ASK_AGAIN_SECONDS = 10.0
"""After a failure."""
_ANSWER_TIMEOUT_SECONDS = 120.0


class StopRequest:
    """Whether this rank was asked to stop, and why. Construction installs the signal handler and starts the clock."""

    def __init__(self, stop_file: Path | None = None, time_limit_seconds: int | None = None) -> None:
        self.reason: str | None = None
        """The first reason to stop, if any."""
        self._stop_file = stop_file
        self._next_look = 0.0
        self._time_limit_seconds = time_limit_seconds
        self._deadline = time.monotonic() + (float("inf") if time_limit_seconds is None else time_limit_seconds)
        signal.signal(signal.SIGTERM, self._on_signal)

    @classmethod
    def of(cls, settings: Training | TrainTensorFlow) -> StopRequest:
        """Return the request that a step's settings describe."""
        return cls(Path(settings.stop_file) if settings.stop_file else None, settings.time_limit_seconds)

    def ask(self, reason: str) -> None:
        """Ask to stop, from any thread."""
        self.reason = self.reason or reason

    def is_raised(self) -> bool:
        """Return whether to stop. Looks at the clock, and for the stop file at most once a second."""
        now = time.monotonic()
        if self.reason is None and now >= self._deadline:
            self.ask(f"the time limit of {self._time_limit_seconds} seconds")
        if self.reason is None and self._stop_file is not None and now >= self._next_look:
            self._next_look = now + _LOOK_EVERY_SECONDS
            if self._stop_file.exists():
                self.ask(f"the file {self._stop_file} appeared")
        return self.reason is not None

    def _on_signal(self, signal_number: int, _: FrameType | None) -> None:
        self.ask(signal.Signals(signal_number).name)


def stop_in_words(reasons: Iterable[str | None], step: int, total_steps: int, *, has_stepped: bool) -> str:
    """Return what to log of a training that was asked to stop, for the reasons of its ranks."""
    because = f"because of {' and '.join(sorted({reason for reason in reasons if reason}))}"
    if not has_stepped:
        return f"stopped before the first step {because}; run the same command again to start"
    return (
        f"stopped after step {step} of {total_steps} {because}; its checkpoint is committed: run the same command "
        "again to continue from it"
    )


def choose_url(setting: str | None, environment: Mapping[str, str]) -> str | None:
    """Return the address to ask, or None not to ask. StepError for an invalid address.

    Not set, it is what the variable SCHEDULED_EVENTS_URL holds, which a rehearsed preemption sets, or Azure's. On Azure
    ML, and only there, a job's tracking server has an azureml:// address (azureml-mlflow's constants).
    """
    setting = setting or environment.get("SCHEDULED_EVENTS_URL")
    if setting is None:
        return AZURE_URL if environment.get("MLFLOW_TRACKING_URI", "").startswith("azureml:") else None
    if setting == "off":
        return None
    if urllib.parse.urlsplit(setting).scheme not in ("http", "https"):
        raise StepError(f"--scheduled-events-url {setting!r}: expected http://…, https://… or off")
    return setting


class ScheduledEvents:
    """Asks once a second, in a thread, whether this machine is about to be taken away or restarted.

    If so, calls `on_notice` once with the reason. Nothing here ends a training: a failure to ask is logged once.

    Source: "Azure Metadata Service: Scheduled Events for Linux VMs", learn.microsoft.com/azure/virtual-machines/linux/
    scheduled-events. An eviction of a Spot machine (`Preempt`) is announced at least 30 seconds ahead; the page advises
    to ask once a second, never through a proxy, and states that the first answer may take two minutes.
    """

    def __init__(self, url: str, on_notice: Callable[[str], None]) -> None:
        self._url, self._on_notice = url, on_notice
        self._own_name: str | None = None
        self._has_complained = False
        self._closed = threading.Event()
        # The metadata service is on this machine: a proxy cannot reach it.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        threading.Thread(target=self._run, name="scheduled-events", daemon=True).start()

    def close(self) -> None:
        """Stop asking."""
        self._closed.set()

    def _run(self) -> None:
        pause = 0.0
        while not self._closed.wait(pause):
            try:
                reason = self._ask()
                pause = _ASK_EVERY_SECONDS
            except (OSError, ValueError, http.client.HTTPException) as failure:
                reason = None
                pause = _ASK_AGAIN_SECONDS
                if not self._has_complained:
                    print(f"scheduled events: no answer from {self._url}; will keep trying: {failure}", flush=True)
                self._has_complained = True
            if reason is not None:
                self._on_notice(reason)
                return

    def _ask(self) -> str | None:
        if self._own_name is None:
            self._own_name = self._get(urllib.parse.urljoin(self._url, _OWN_NAME_PATH)).strip()
        return announced_end(parse_json(self._get(self._url), "the answer"), self._own_name)

    def _get(self, url: str) -> str:
        request = urllib.request.Request(url, headers={"Metadata": "true"})
        with self._opener.open(request, timeout=_ANSWER_TIMEOUT_SECONDS) as answer:
            text: str = answer.read().decode("utf-8")
        return text


def announced_end(document: Any, machine: str) -> str | None:
    """Return the event that ends this machine, if any; events are sent to every machine of a group.

    ValueError if the document has another form.
    """
    try:
        for event in document["Events"]:
            if event["EventType"] in _ENDING_EVENTS and machine in event["Resources"]:
                return f"Azure's scheduled event {event['EventType']} of {machine}"
    except (KeyError, TypeError) as failure:
        raise ValueError(f"not a document of scheduled events: {failure!r}") from None
    return None
