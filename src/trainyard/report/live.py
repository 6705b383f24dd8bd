"""A run's page while it runs, for browsers on this machine: the report, kept up to date by server-sent events.

The server listens on loopback only and answers only what names it by that address, so no other site reaches it through
a browser (DNS rebinding). Its address holds a random token, so no other user of the machine can read it. It takes no
writing requests at all.
"""

from __future__ import annotations

import json
import math
import mimetypes
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

from trainyard.errors import UsageError
from trainyard.printing import plain_text
from trainyard.report.comparison import MOST_RUNS, compare, comparison_page
from trainyard.report.page_templates import page_templates
from trainyard.report.run_index import IndexedRun
from trainyard.report.run_report import run_page
from trainyard.settings.files import is_file_within, read_regular
from trainyard.settings.run_record import MACHINE_USE_FILE, RECORD_FILE, RunRecord
from trainyard.spec.secrets import redacted

LOOPBACK = "127.0.0.1"
_SECONDS_BETWEEN_LOOKS, _SECONDS_BETWEEN_LOOKS_AT_RUNS = 0.5, 2.0
_SECONDS_BETWEEN_COMMENTS = 15.0
_LEAST_SECONDS_BETWEEN_PAGES, _REST_PER_RENDER = 1.0, 5.0
"""So that writing the page of a large run takes at most a sixth of a processor."""
_MOST_CONNECTIONS = 64
_REQUEST_SECONDS = 30.0
_LAST_SECONDS = 2.0
_LARGEST_FILE_BYTES = 1 << 30
_FIRST_LOG_BYTES, _LOG_BYTES_PER_LOOK = 1 << 13, 1 << 16
_SHOWN_IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_PLAIN_TEXT = "text/plain; charset=utf-8"
_PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
_FILE_POLICY = "default-src 'none'; frame-ancestors 'none'; sandbox"


class LivePage:
    """The page of one run. `read` returns the run's record as it is now; with an index, a link leads back to it."""

    def __init__(self, run_folder: Path, read: Callable[[], RunRecord], *, has_index: bool = False) -> None:
        self.run_folder = run_folder.resolve()
        self.read = read
        self.has_index = has_index
        self.token = secrets.token_urlsafe(16)
        self.closing = threading.Event()
        self._lock = threading.Lock()
        self._rendered: tuple[str, bytes] | None = None
        self._render_seconds = 0.0

    def state(self, record: RunRecord) -> str:
        """Return what changes when anything on the page but the logs changes: times and sizes of what it is made of."""
        files = [self.run_folder / RECORD_FILE]
        for name, job in record.jobs.items():
            files += [folder / "metrics.jsonl" for folder in job.output_folders(self.run_folder).values()]
            files.append(self.run_folder / "jobs" / name / "system_logs" / MACHINE_USE_FILE)
            tracked = job.tracked_folder(self.run_folder)
            if tracked is not None and (tracked / "metrics").is_dir():
                files += sorted((tracked / "metrics").iterdir())
        return sha256(repr([record.status, *map(_stamp, files)]).encode()).hexdigest()

    def within(self, path: str, query: str) -> tuple[LivePage, str]:
        """Return the page that a path beneath this one leads to, and the rest of the path."""
        return self, path

    def page(self) -> bytes:
        """Return the page as it is now, written again only if something has changed."""
        with self._lock:
            record = self.read()
            state = self.state(record)
            if self._rendered is None or self._rendered[0] != state:
                started = time.monotonic()
                page = run_page(record, self.run_folder, is_live=True, has_index=self.has_index)
                self._rendered = state, page.encode()
                self._render_seconds = time.monotonic() - started
            return self._rendered[1]

    def events(self) -> Iterator[tuple[str, str]]:
        """Yield events as name and data: `page` when it has changed, `log` for lines added, `ended`; "" for nothing.

        `ended` brings the last page with it: when it is read, the server may be gone. The first, `clock`, is this
        machine's time in milliseconds, for browsers whose clock differs.
        """
        yield "clock", str(time.time_ns() // 1_000_000)
        shown, next_page = None, -math.inf
        positions: dict[str, int] = {}
        while True:
            is_last = self.closing.is_set()
            record = self.read()
            # What is yielded first was read last, so that nothing written at the end is missed.
            is_over = record.status != "running"
            state = self.state(record)
            if state != shown and not (is_over or is_last) and time.monotonic() >= next_page:
                yield "page", state
                shown = state
                rest_seconds = max(_LEAST_SECONDS_BETWEEN_PAGES, _REST_PER_RENDER * self._render_seconds)
                next_page = time.monotonic() + rest_seconds
            for job in record.jobs.values():
                for log, file in job.log_files(self.run_folder).items():
                    while text := self._added(log, file, positions):
                        yield "log", json.dumps({"log": log, "text": text})
            if is_over or is_last:
                text = f"The run has ended: {record.status}." if is_over else "The server was stopped."
                yield "ended", json.dumps({"text": text, "page": self.page().decode()})
                return
            yield "", ""
            self.closing.wait(_SECONDS_BETWEEN_LOOKS)

    def _added(self, log: str, file: Path, positions: dict[str, int]) -> str:
        """Return what a log has beyond its position: at first its last lines; up to the last complete line."""
        try:
            with file.open("rb") as stream:
                if log not in positions:
                    positions[log] = max(0, stream.seek(0, 2) - _FIRST_LOG_BYTES)
                    stream.seek(positions[log])
                    positions[log] += len(stream.readline()) if positions[log] else 0
                stream.seek(positions[log])
                added = stream.read(_LOG_BYTES_PER_LOOK)
        except OSError:
            return ""
        complete = added if len(added) == _LOG_BYTES_PER_LOOK else added[: added.rfind(b"\n") + 1]
        positions[log] += len(complete)
        return redacted(plain_text(complete.decode("utf-8", errors="replace")))


class RunsPage(LivePage):
    """The index of all runs in a folder, with the page of each beneath the name of its folder, and comparisons."""

    def __init__(
        self, runs_folder: Path, list_runs: Callable[[], list[RunRecord]], read: Callable[[Path], RunRecord]
    ) -> None:
        super().__init__(runs_folder, lambda: RunRecord("", ""))
        self._list, self._read = list_runs, read
        self._runs: list[IndexedRun] = []
        self._pages: dict[str, LivePage] = {}

    def within(self, path: str, query: str) -> tuple[LivePage, str]:
        """Return the page of the run that a path begins with, or a comparison of runs, and the rest of the path."""
        if path == "compare":
            names = parse_qs(query).get("run", ())
            return _ComparisonPage([run for run in self._list() if run.folder.name in names]), ""
        name, separator, rest = path.partition("/")
        folder = self.run_folder / name
        if not separator or not name.strip(".") or not is_file_within(folder / RECORD_FILE, folder):
            return self, path
        page = self._pages.setdefault(name, LivePage(folder, lambda: self._read(folder), has_index=True))
        page.closing = self.closing
        return page, rest

    def page(self) -> bytes:
        """Return the index as it is now; what is known of a run that has ended is not read again."""
        known = {run.address: run for run in self._runs}
        runs = [IndexedRun(record) for record in self._list()]
        for place, run in enumerate(runs):
            before = known.get(run.address)
            if before is not None and before.record == run.record and run.record.status != "running":
                runs[place] = before
        self._runs = runs
        metrics = sorted({name for run in runs for name in run.metrics})
        template = page_templates(self.run_folder).get_template("runs.html.j2")
        return redacted(template.render(runs=runs, metrics=metrics, is_live=True, is_index=True)).encode()

    def events(self) -> Iterator[tuple[str, str]]:
        """Yield `page` whenever a run has changed, or what a running one logs."""
        shown: list[object] | None = None
        while not self.closing.wait(_SECONDS_BETWEEN_LOOKS_AT_RUNS if shown is not None else 0):
            running = [run.record for run in self._runs if run.record.status == "running"]
            state: list[object] = [
                *(_stamp(file) for file in sorted(self.run_folder.glob(f"*/{RECORD_FILE}"))),
                *(LivePage(record.folder, self.read).state(record) for record in running),
            ]
            yield ("page", "") if state != shown else ("", "")
            shown = state
        yield "ended", json.dumps({"text": "The server was stopped.", "page": self.page().decode()})


class _ComparisonPage(LivePage):
    """Runs beside each other, beneath the index."""

    def __init__(self, runs: list[RunRecord]) -> None:
        super().__init__(Path(), lambda: RunRecord("", ""))
        self._runs = runs

    def page(self) -> bytes:
        if not 2 <= len(self._runs) <= MOST_RUNS:
            raise UsageError(f"expected 2 to {MOST_RUNS} runs to compare")
        compared = compare(self._runs)
        pages = {letter: f"{run.folder.name}/" for letter, run in compared.runs.items()}
        return redacted(comparison_page(compared, Path(), pages)).encode()


@contextmanager
def served(live: LivePage, port: int = 0) -> Iterator[str]:
    """Serve a page on loopback while the block lasts; yield its address. Port 0 is any that is free.

    Raise `UsageError` for a port that is taken. At the end, browsers are told, and every connection is closed.
    """

    class Handler(_Handler):
        page = live

    try:
        server = _Server((LOOPBACK, port), Handler)
    except OverflowError:
        raise UsageError(f"--port {port}: expected 0 to 65535") from None
    except OSError as error:
        raise UsageError(f"--port {port}: {(error.strerror or str(error)).lower()}; choose another port") from error
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="live page", daemon=True)
    thread.start()
    try:
        yield f"http://{LOOPBACK}:{server.server_port}/{live.token}/"
    finally:
        live.closing.set()
        server.shutdown()
        thread.join()
        with suppress(UsageError):  # the run's folder was removed
            live.page()  # before the deadline of those who read it begins
        server.end_connections()
        server.server_close()


class _Server(ThreadingHTTPServer):
    """Ends with its command, whatever clients do: each request has a deadline, and connections are limited."""

    daemon_threads = False  # so that the end waits for the last events
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self._open: set[socket.socket] = set()
        self._changing = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; a connection too many is closed."""
        with self._changing:
            has_room = len(self._open) < _MOST_CONNECTIONS
            if has_room:
                self._open.add(request)
        if has_room:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        with self._changing:
            self._open.discard(request)
        super().shutdown_request(request)

    def end_connections(self) -> None:
        """Let the last events go out, then cut off who does not read them."""
        deadline = time.monotonic() + _LAST_SECONDS
        while self._open and time.monotonic() < deadline:
            time.sleep(0.01)
        with self._changing:
            left = list(self._open)
        for connection in left:
            cut_off(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves, or sends anything but a request, is not worth a traceback."""


def cut_off(connection: socket.socket) -> None:
    """End a connection that a thread is reading or writing."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD; every other method is refused."""

    page: LivePage
    timeout = 10  # of a browser that does not read, in seconds
    server_version = "trainyard"
    sys_version = ""

    def setup(self) -> None:
        """Begin a request, which must have been sent, and its answer read, before the deadline."""
        super().setup()
        self._deadline = threading.Timer(_REQUEST_SECONDS, cut_off, [self.connection])
        self._deadline.daemon = True
        self._deadline.start()

    def finish(self) -> None:
        self._deadline.cancel()
        with suppress(OSError):
            super().finish()

    def _refuse_method(self) -> None:
        self._send(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET and HEAD\n", Allow="GET, HEAD")

    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = _refuse_method

    def do_GET(self) -> None:
        """Answer with the page, its events, or a file of the run."""
        host = self.headers.get("Host", "")
        assert isinstance(self.server, ThreadingHTTPServer)
        port = self.server.server_port
        if host not in (f"{LOOPBACK}:{port}", f"localhost:{port}"):
            self._send(HTTPStatus.FORBIDDEN, b"unknown Host\n")
            return
        address, _, query = self.path.partition("?")
        token, separator, path = unquote(address).removeprefix("/").partition("/")
        if not secrets.compare_digest(token.encode(), self.page.token.encode()):
            self._send(HTTPStatus.FORBIDDEN, b"the address lacks its token\n")
            return
        page, path = self.page.within(path, query)
        if not separator:
            self._send(HTTPStatus.FOUND, b"", Location=f"/{token}/")
        elif path == "":
            self._send_page(page)
        elif path == "events" and self.command == "GET":
            self._send_events(page)
        else:
            self._send_file(page.run_folder, path)

    do_HEAD = do_GET

    def _send_page(self, page: LivePage) -> None:
        try:
            content = page.page()
        except UsageError as error:
            self._send(HTTPStatus.NOT_FOUND, f"{error}\n".encode())
        else:
            self._send(HTTPStatus.OK, content, "text/html; charset=utf-8", _PAGE_POLICY)

    def _send_events(self, page: LivePage) -> None:
        self._deadline.cancel()  # they last as long as the run; each write has `timeout`
        self._begin(HTTPStatus.OK, "text/event-stream", _FILE_POLICY)
        commented = time.monotonic()
        with suppress(OSError, UsageError):  # the browser has left, or the run's folder was removed
            for name, data in page.events():
                if name:
                    self.wfile.write(f"event: {name}\ndata: {data}\n\n".encode())
                elif time.monotonic() - commented > _SECONDS_BETWEEN_COMMENTS:
                    commented = time.monotonic()
                    self.wfile.write(b": still here\n\n")

    def _send_file(self, root: Path, path: str) -> None:
        """Send a file of the run, as text unless it is a picture; or the names of a folder's files."""
        try:
            file = (root / path).resolve()
            is_there = file.is_relative_to(root) and (file.is_dir() or file.is_file())
        except (OSError, ValueError):
            is_there = False
        if not is_there:
            self._send(HTTPStatus.NOT_FOUND, b"not a file of this run\n")
        elif file.is_dir():
            names = sorted(f"{entry.name}/" if entry.is_dir() else entry.name for entry in file.iterdir())
            self._send(HTTPStatus.OK, "".join(f"{name}\n" for name in names).encode())
        else:
            kind = mimetypes.guess_type(file.name)[0]
            content = read_regular(file, _LARGEST_FILE_BYTES)
            self._send(HTTPStatus.OK, content, kind if kind in _SHOWN_IMAGES else _PLAIN_TEXT)

    def _begin(self, status: HTTPStatus, kind: str, policy: str, **more: str) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Security-Policy": policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cache-Control": "no-store",
            **more,
        }.items():
            self.send_header(name, value)
        self.end_headers()

    def _send(
        self, status: HTTPStatus, body: bytes, kind: str = _PLAIN_TEXT, policy: str = _FILE_POLICY, **more: str
    ) -> None:
        self._begin(status, kind, policy, **{"Content-Length": str(len(body))}, **more)
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not worth a line on the terminal."""


def _stamp(file: Path) -> tuple[str, int, int]:
    try:
        status = file.stat()
    except OSError:
        return file.name, 0, 0
    return file.name, status.st_mtime_ns, status.st_size
