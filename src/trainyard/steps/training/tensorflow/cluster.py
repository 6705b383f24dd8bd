"""TensorFlow's cluster, as TF_CONFIG describes it, and connections between worker 0 and every other task of it.

Azure ML sets TF_CONFIG for a job with `distribution: type: tensorflow`: workers, and parameter servers if there are
some. Other launchers name the first worker `chief`.

TensorFlow's servers wait forever, for tasks that never come and after the training's end, and its collectives for a
task that is gone. Here every task connects to worker 0 first; a task that is missing, lost or started twice is named,
and all end together.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from trainyard.settings.files import describe_os_error
from trainyard.steps.runtime.errors import SetupError, StepError, first_line
from trainyard.steps.runtime.long_work import peak_resident_bytes
from trainyard.steps.training.used_settings import differing_values

Value = TypeVar("Value")

TF_CONFIG = "TF_CONFIG"
_FORM = '{"cluster": {"worker": ["HOST:PORT"], "ps": […]}, "task": {"type": "worker", "index": 0}}'
_HIGHEST_PORT = 65535
_OTHER_LAUNCHERS = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE")
_GREETING = "trainyard.tensorflow/1"
_LOOK_EVERY_SECONDS = 0.2
_TRY_AGAIN_SECONDS = 0.2
_ANSWER_SECONDS = 10.0
_ENDED = "has ended before the training did; its log says why"


@dataclass(frozen=True)
class ClusterPlace:
    """The addresses of all tasks, `host:port`, and which of them this process is. Worker 0 is the chief."""

    workers: tuple[str, ...] = ("127.0.0.1:0",)
    parameter_servers: tuple[str, ...] = ()
    index: int = 0
    is_parameter_server: bool = False

    @property
    def tasks(self) -> tuple[str, ...]:
        """All addresses: workers first, as Azure ML counts them."""
        return self.workers + self.parameter_servers

    @property
    def number(self) -> int:
        """This process's place among all tasks."""
        return len(self.workers) + self.index if self.is_parameter_server else self.index

    def name_of(self, number: int) -> str:
        """Return what a task is called in messages."""
        workers = len(self.workers)
        name = f"worker {number}" if number < workers else f"parameter server {number - workers}"
        return f"{name} ({self.tasks[number]})"


def read_cluster(environment: Mapping[str, str]) -> ClusterPlace:
    """Return the cluster that TF_CONFIG describes; without it, this process is alone.

    SetupError if it is not what TensorFlow reads, or if another launcher has started several processes.
    """
    for name in _OTHER_LAUNCHERS:
        if environment.get(name, "1") not in ("", "1"):
            raise SetupError(
                f"{name}={environment[name]} is set by another launcher, and TensorFlow reads only {TF_CONFIG}; start "
                "the processes with one launcher only, by `distribution: type: tensorflow`"
            )
    text = environment.get(TF_CONFIG)
    if not text:
        return ClusterPlace()
    try:
        document = json.loads(text)
        kind, index = document["task"]["type"], document["task"]["index"]
        tasks_of_type = {name: tuple(document["cluster"].get(name, ())) for name in ("chief", "worker", "ps")}
        chief, workers, servers = tasks_of_type.values()
        ports = [int(address.rpartition(":")[2]) for address in chief + workers + servers]
        is_complete = bool(chief + workers) and index in range(len(tasks_of_type[kind]))
        is_complete = is_complete and all(port in range(_HIGHEST_PORT + 1) for port in ports)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        is_complete = False
    if not is_complete:
        raise SetupError(f"{TF_CONFIG} does not name the tasks and which of them this is: {text}; expected {_FORM}")
    place = index + len(chief) if kind == "worker" else index
    return ClusterPlace(chief + workers, servers, place, is_parameter_server=kind == "ps")


class _Line:
    """A connection that carries JSON values, one in each line."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._received = b""

    def send(self, value: object) -> None:
        self.connection.sendall(json.dumps(value).encode() + b"\n")

    def receive(self) -> Any:
        while b"\n" not in self._received:
            piece = self.connection.recv(1 << 16)
            if not piece:
                raise ConnectionError("the connection was closed")
            self._received += piece
        line, _, self._received = self._received.partition(b"\n")
        return json.loads(line)

    def has_received(self, wait_seconds: float = 0.0) -> bool:
        """Return whether there is something to receive, or the other side is gone, within so many seconds."""
        return b"\n" in self._received or bool(select.select([self.connection], [], [], wait_seconds)[0])

    def is_lost(self) -> bool:
        """Return whether the other side is gone. What it has sent stays there to be received."""
        try:
            return not self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True


class Tasks:
    """All tasks of the cluster: collectives over worker 0's connections, which are few and small."""

    def __init__(self, place: ClusterPlace, lines: dict[int, _Line]) -> None:
        self.place, self.rank, self.size = place, place.number, len(place.tasks)
        self.is_main = self.rank == 0
        self._lines = lines
        self._leaving = threading.Event()

    def leave_training_to_main(self) -> None:
        """From now on, worker 0 is as if it were alone; on all other tasks `wait_for_main` runs."""
        self.size = 1

    def wait_for_main(self, stop_reason: Callable[[], str | None]) -> int:
        """Wait until worker 0 leaves, and return its exit code. A reason to stop is sent to worker 0, once."""
        line, has_asked = self._lines[0], False
        while not line.has_received(_LOOK_EVERY_SECONDS):
            reason = stop_reason()
            if reason and not has_asked:
                with self._connected():
                    line.send(f"{reason} on {self.place.name_of(self.rank)}")
                has_asked = True
        self._leaving.set()
        try:
            exit_code: int = line.receive()
        except OSError as failure:
            raise self.explain_loss(failure) from None
        self.close()
        return exit_code

    def reason_from_servers(self) -> str | None:
        """Return why a task that waits for worker 0 asks to stop, if one has asked since the last call."""
        if self.size == 1:
            with self._connected():
                for line in self._lines.values():
                    if line.has_received() and not line.is_lost():
                        return str(line.receive())
        return None

    def log(self, message: str) -> None:
        """Print a line on worker 0 only."""
        if self.is_main:
            print(message, flush=True)

    def peak_memory_bytes(self) -> int:
        """Return the most main memory that this process has taken."""
        return peak_resident_bytes()

    def gather(self, value: Value) -> list[Value]:
        """Return the values of all tasks, by number, on every task. They must be JSON."""
        with self._connected():
            if not self.is_main:
                self._lines[0].send(value)
                values: list[Value] = self._lines[0].receive()
                return values
            lines = [self._lines[number] for number in range(1, self.size)]
            values = [value, *(line.receive() for line in lines)]
            for line in lines:
                line.send(values)
            return values

    def broadcast(self, value: Value) -> Value:
        """Return worker 0's value on every task."""
        values: list[Any] = self.gather(value if self.is_main else None)
        first: Value = values[0]
        return first

    def main(self, action: Callable[[], Value]) -> Value:
        """Return what the action returns on worker 0. A StepError that it raises is raised on every task."""
        found: list[Any] = [None, None]
        try:
            found[0] = action() if self.is_main else None
        except (StepError, OSError) as failure:
            found[1] = describe_os_error(failure) if isinstance(failure, OSError) else str(failure)
        value, problem = self.broadcast(found)
        if problem is not None:
            raise StepError(problem)
        result: Value = value
        return result

    def require_same(self, what: dict[str, Any]) -> None:
        """StepError, on every task, names the settings that differ between tasks, with their values."""
        found = self.gather({name: str(value) for name, value in what.items()})
        if differing := differing_values(found, lambda tasks: " and ".join(map(self.place.name_of, tasks))):
            raise StepError(f"tasks were started differently: {differing}; start all with the same command")

    def end_when_one_is_lost(self) -> None:
        """From now on, end this process when a task that it is connected to is gone before the training's end."""
        threading.Thread(target=self._watch, name="tasks", daemon=True).start()

    def explain_loss(self, failure: Exception) -> StepError:
        """Return what to say where TensorFlow reports that it cannot reach another task."""
        time.sleep(_LOOK_EVERY_SECONDS)  # the end of a process shows in its connections a moment later
        lost = [self.place.name_of(number) for number, line in self._lines.items() if line.is_lost()]
        if lost:
            return StepError(f"{lost[0]} {_ENDED}")
        return StepError(f"another task was lost, or waited for too long: {first_line(failure)}")

    def leave(self, value: Value) -> Value:
        """Return worker 0's value once every task has called this; who ends from then on is not lost."""
        self._leaving.set()
        last = self.broadcast(value)
        if self.size == 1:
            with self._connected():
                for line in self._lines.values():
                    line.send(last)
        self.close()
        return last

    def close(self) -> None:
        """Close the connections."""
        self._leaving.set()
        for line in self._lines.values():
            with suppress(OSError):
                line.connection.close()

    def _watch(self) -> None:
        while not self._leaving.wait(_LOOK_EVERY_SECONDS):
            for number, line in self._lines.items():
                if line.is_lost() and not self._leaving.is_set():
                    end_at_once(f"{self.place.name_of(number)} {_ENDED}")

    @contextmanager
    def _connected(self) -> Iterator[None]:
        try:
            yield
        except OSError as failure:
            own = self.place.name_of(self.rank)
            raise StepError(f"{own} lost its connection to another task: {failure}") from None


def end_at_once(problem: str) -> NoReturn:
    """End this process: whatever waits for a lost task within TensorFlow would wait for minutes, or forever."""
    sys.stdout.flush()
    print(f"error: {problem}", file=sys.stderr, flush=True)
    os._exit(1)


def meet(place: ClusterPlace, timeout_seconds: float) -> Tasks:
    """Return the connections once every task is there.

    SetupError or StepError names a task that is missing or started twice.
    """
    if len(place.tasks) == 1:
        return Tasks(place, {})
    if place.number == 0:
        return Tasks(place, _accept_all(place, timeout_seconds))
    return Tasks(place, {0: _connect(place, timeout_seconds)})


def _accept_all(place: ClusterPlace, timeout_seconds: float) -> dict[int, _Line]:
    deadline = time.monotonic() + timeout_seconds
    port = int(place.tasks[0].rpartition(":")[2])
    lines: dict[int, _Line] = {}
    # TensorFlow's own server listens at the same port afterwards: SO_REUSEADDR lets it, beside open connections.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("", port))
        except OSError as failure:
            raise SetupError(
                f"{place.name_of(0)} cannot listen on port {port} of TF_CONFIG: {failure.strerror}; is another "
                "training with the same TF_CONFIG running?"
            ) from None
        listening.listen(len(place.tasks))
        while len(lines) < len(place.tasks) - 1:
            listening.settimeout(max(0.0, deadline - time.monotonic()) or 1e-3)
            try:
                connection, _ = listening.accept()
            except TimeoutError:
                missing = [place.name_of(n) for n in range(1, len(place.tasks)) if n not in lines]
                raise StepError(
                    f"{', '.join(missing)} did not connect within {timeout_seconds:.0f} seconds "
                    "(--process-group-timeout-seconds)"
                ) from None
            _greet(place, _Line(connection), lines)
    for line in lines.values():
        line.send("welcome")
        line.connection.settimeout(None)
    return dict(sorted(lines.items()))


def _greet(place: ClusterPlace, line: _Line, lines: dict[int, _Line]) -> None:
    """Take a task's connection among the others. Whoever else connects is turned away."""
    line.connection.settimeout(_ANSWER_SECONDS)
    number = 0
    with suppress(OSError, ValueError, TypeError):
        *greeting, number = line.receive()
        if greeting != [_GREETING, _digest(place)]:
            number = 0
    if not 0 < number < len(place.tasks):
        line.connection.close()
        return
    if number in lines:
        raise SetupError(
            f"two processes say in TF_CONFIG that they are {place.name_of(number)}; start each task once, with one "
            "launcher only"
        )
    lines[number] = line


def _connect(place: ClusterPlace, timeout_seconds: float) -> _Line:
    deadline = time.monotonic() + timeout_seconds
    host, _, port = place.tasks[0].rpartition(":")
    while time.monotonic() < deadline:
        with suppress(OSError, ValueError):
            line = _Line(socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS))
            line.send([_GREETING, _digest(place), place.number])
            line.connection.settimeout(max(1e-3, deadline - time.monotonic()))
            if line.receive() == "welcome":
                line.connection.settimeout(None)
                return line
        time.sleep(_TRY_AGAIN_SECONDS)
    raise StepError(
        f"{place.name_of(place.number)} did not reach {place.name_of(0)} within {timeout_seconds:.0f} seconds "
        "(--process-group-timeout-seconds)"
    )


def _digest(place: ClusterPlace) -> str:
    return hashlib.sha256(json.dumps([place.workers, place.parameter_servers]).encode()).hexdigest()
