"""Watches a job that is hit on purpose: which steps it has taken, what each attempt repeats, and the notice it gets."""

from __future__ import annotations

import json
import re
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from trainyard.rehearse.faults import Fault

# `step 60/240`, `Step: 60`, `global_step=60`, `{"step": 60}`.
_STEP = re.compile(r"\b(?:global_)?steps?\b[\"']?\s*[:=]?\s*(?P<step>\d+)\b(?:\s*/\s*(?P<of>\d+))?", re.IGNORECASE)
# `continuing from checkpoints/step-00000032: step 32`: what an earlier attempt did.
_RESUMED = re.compile(r"\b(?:resum|continu|restor|load)", re.IGNORECASE)
_METRICS = "*/metrics.jsonl"


class StepsSeen:
    """The steps of one attempt since it was made: the first and the last, and how many there will be.

    What earlier attempts reported in the same files does not count. `log` is that of rank 0, `tracked` the folder of
    the job's MLflow run, `outputs` that of its outputs.
    """

    def __init__(self, log: Path, tracked: Path, outputs: Path) -> None:
        self.first: int | None = None
        self.last: int | None = None
        self.resumed_at: int | None = None
        """The step that the attempt reports to continue from."""
        self.total: int | None = None
        self._interval = 1
        self._log, self._tracked, self._outputs = log, tracked, outputs
        self._log_position = log.stat().st_size if log.exists() else 0
        self._start_milliseconds = int(time.time() * 1000)
        # A resumed training cuts its metrics back to its checkpoint, so lines are compared rather than counted.
        self._old_lines = {file: frozenset(_lines(file)) for file in outputs.glob(_METRICS)}
        self._sizes: dict[Path, tuple[int, int]] = {}

    @property
    def done_before(self) -> int | None:
        """The steps that were done when the attempt began, as reported, or before the first that it reported."""
        if self.resumed_at is not None or self.first is None:
            return self.resumed_at
        return max(0, self.first - self._interval)

    @property
    def share(self) -> float | None:
        """The share 0…1 of its steps that the attempt has reached; None while unknown."""
        return min(1.0, self.last / self.total) if self.last is not None and self.total else None

    def look(self) -> None:
        """Read what has been reported since the last look."""
        for step in sorted({*self._in_log(), *self._in_metrics(), *self._in_mlflow()}):
            if self.first is None:
                self.first = step
            elif self.last == self.first < step:
                self._interval = step - self.first
            self.last = step if self.last is None else max(step, self.last)

    def _in_log(self) -> Iterator[int]:
        if not self._log.exists():
            return
        with self._log.open("rb") as stream:
            stream.seek(self._log_position)
            text = stream.read()
        complete = text[: max(text.rfind(b"\n"), text.rfind(b"\r")) + 1]
        self._log_position += len(complete)
        for line in re.split(r"[\r\n]", complete.decode("utf-8", errors="replace")):
            found = _STEP.search(line)
            if found is None:
                continue
            if found["of"] is not None:
                self.total = int(found["of"])
            if self.first is None and _RESUMED.search(line):
                self.resumed_at = int(found["step"])
            else:
                yield int(found["step"])

    def _in_metrics(self) -> Iterator[int]:
        for file in self._outputs.glob(_METRICS):
            for line in self._lines_if_changed(file):
                step = _step_of(line) if line not in self._old_lines.get(file, ()) else None
                if step is not None and step > (self.last or -1):
                    yield step

    def _in_mlflow(self) -> Iterator[int]:
        """The file store has a file for each metric, with lines of `milliseconds value step`."""
        for file in (self._tracked / "metrics").rglob("*"):
            for line in self._lines_if_changed(file):
                fields = line.split()
                if len(fields) == 3 and int(fields[0]) >= self._start_milliseconds and int(fields[2]) > 0:
                    yield int(fields[2])

    def _lines_if_changed(self, file: Path) -> list[str]:
        try:
            status = file.stat()
        except OSError:
            return []  # it is being replaced
        size = (status.st_mtime_ns, status.st_size)
        if self._sizes.get(file) == size:
            return []
        self._sizes[file] = size
        return _lines(file)


def _lines(file: Path) -> list[str]:
    """The complete lines of a file; none of a folder, and of one that is being replaced."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text[: text.rfind("\n") + 1].splitlines()


def _step_of(line: str) -> int | None:
    try:
        step = json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return None
    return step if isinstance(step, int) else None


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


class AttemptProgress(NamedTuple):
    """How far an attempt came, and what it cost to start again.

    `repeated_steps` are those that earlier attempts had taken already, as far as they were reported; `lost_s` are the
    seconds from the fault until the attempt was where the earlier one had been. Both are None if unknown.
    """

    last_step: int | None
    repeated_steps: int | None
    lost_s: float | None


class FaultWatch:
    """The faults of one job over its attempts: which is due, and what each attempt had to repeat.

    `notice_seconds` are those between the notice and the end of the machine.
    """

    def __init__(self, faults: Sequence[Fault], notice_seconds: float) -> None:
        self.pending = list(faults)
        self.notice_seconds = notice_seconds
        self._furthest: tuple[int, float] | None = None
        """The last step of all attempts, and the moment that its attempt was hit."""

    @contextmanager
    def of_trial(self, number: int) -> Iterator[FaultWatch | None]:
        """Yield the watch of a sweep's trial, None if it is not hit; what struck it is no longer pending here after."""
        own = [fault for fault in self.pending if fault.trial == number]
        watch = FaultWatch(own, self.notice_seconds) if own else None
        yield watch
        for fault in own:
            if watch is not None and fault not in watch.pending:
                self.pending.remove(fault)

    def begin(self, log: Path, tracked: Path, outputs: Path, stack: ExitStack) -> str:
        """Begin to watch an attempt; return the address that announces the end of its machine, until the stack ends."""
        self._seen = StepsSeen(log, tracked, outputs)
        self._service = stack.enter_context(metadata_service())
        self._started = time.monotonic()
        self._lost_seconds: float | None = None
        self._hit: float | None = None
        return self._service.events_url

    def due(self) -> Fault | None:
        """Return a fault to strike with now, each one once."""
        self._look()
        fault = next((fault for fault in self.pending if self._is_due(fault)), None)
        if fault is not None:
            self.pending.remove(fault)
            self._hit = time.monotonic()
        return fault

    def _is_due(self, fault: Fault) -> bool:
        """Whether to strike, by the steps of the attempt and its age."""
        seen = self._seen
        if fault.step is not None:
            return seen.last is not None and seen.last >= fault.step
        if fault.share is not None and seen.share is not None:
            return seen.share >= fault.share
        return fault.seconds is not None and time.monotonic() - self._started >= fault.seconds

    def announce(self) -> None:
        """Let the metadata service announce the end of the machine."""
        self._service.announce_preemption(self.notice_seconds)

    def end(self) -> AttemptProgress:
        """End the attempt; return how far it came."""
        self._look()
        seen, repeated = self._seen, None
        if self._furthest is not None and seen.done_before is not None and seen.last is not None:
            repeated = max(0, min(self._furthest[0], seen.last) - seen.done_before)
        if seen.last is not None and (self._furthest is None or seen.last >= self._furthest[0]):
            self._furthest = (seen.last, self._hit or time.monotonic())
        return AttemptProgress(seen.last, repeated, self._lost_seconds)

    def _look(self) -> None:
        self._seen.look()
        last = self._seen.last
        if self._lost_seconds is None and self._furthest is not None and last is not None and last >= self._furthest[0]:
            self._lost_seconds = round(time.monotonic() - self._furthest[1], 3)
