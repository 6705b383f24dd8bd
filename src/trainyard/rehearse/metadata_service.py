"""Azure's instance metadata service, as far as a job asks it whether its machine will be taken away, on loopback."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_MACHINE = "local_0"
_EVENTS_PATH = "/metadata/scheduledevents"
_NAME_PATH = "/metadata/instance/compute/name"


class MetadataService(ThreadingHTTPServer):
    """Answers with the machine's name, and with the events that were announced: none until `announce_preemption`.

    Source of the format: "Azure Metadata Service: Scheduled Events for Linux VMs", learn.microsoft.com/azure/
    virtual-machines/linux/scheduled-events.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.events: list[dict[str, object]] = []

    @property
    def events_url(self) -> str:
        """The address that a job asks, in place of Azure's."""
        return f"http://127.0.0.1:{self.server_address[1]}{_EVENTS_PATH}?api-version=2020-07-01"

    def announce_preemption(self, notice_seconds: float) -> None:
        """Answer from now on that this machine will be taken away after so many seconds."""
        end = datetime.now(timezone.utc) + timedelta(seconds=notice_seconds)
        self.events = [
            {
                "EventId": str(uuid.uuid4()).upper(),
                "EventStatus": "Scheduled",
                "EventType": "Preempt",
                "ResourceType": "VirtualMachine",
                "Resources": [_MACHINE],
                "NotBefore": end.strftime("%a, %d %b %Y %H:%M:%S GMT"),
                "Description": "",
                "EventSource": "Platform",
                "DurationInSeconds": -1,
            }
        ]


class _Handler(BaseHTTPRequestHandler):
    server: MetadataService

    def do_GET(self) -> None:
        """Answer as Azure does, which refuses a request without the header `Metadata: true`."""
        path = self.path.partition("?")[0]
        if self.headers["Metadata"] != "true" or path not in (_EVENTS_PATH, _NAME_PATH):
            self.send_error(400)
            return
        events = {"DocumentIncarnation": 1 + len(self.server.events), "Events": self.server.events}
        body = _MACHINE if path == _NAME_PATH else json.dumps(events)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        """Print nothing: the terminal belongs to the run."""


@contextmanager
def metadata_service() -> Iterator[MetadataService]:
    """Serve on a free port of loopback while the block lasts."""
    with MetadataService() as service:
        thread = threading.Thread(target=service.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield service
        finally:
            service.shutdown()
            thread.join()
