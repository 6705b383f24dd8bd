"""Whatever connects to a run's live page, the page ends with its command, and nobody sees a traceback."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import threading
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from trainyard.rehearse.run_store import read_record
from trainyard.report.live import LivePage, served

CONNECTIONS = 1000
RECORD = {"format": "trainyard.run/1", "name": "run", "pipeline": "p", "started": "2026-11-20T10:00:00Z", "jobs": {}}


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """The folder of a run that has ended."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({**RECORD, "status": "completed"}))
    (folder / "log.txt").write_text("a line\n")
    return folder


def page_of(folder: Path) -> LivePage:
    return LivePage(folder, lambda: read_record(folder))


def connect(address: str) -> socket.socket:
    place = urlsplit(address)
    assert place.hostname is not None
    return socket.create_connection((place.hostname, place.port or 80), timeout=20)


def get(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=60) as answer:
        content: bytes = answer.read()
    return content


def ends(work: threading.Thread) -> bool:
    """Whether a thread ends at all; a minute is what a busy machine may take."""
    work.start()
    work.join(60)
    return not work.is_alive()


def test_a_thousand_connections_do_not_keep_the_command_from_ending(run_folder: Path) -> None:
    """They say nothing, begin a request and stop, or ask and never read."""
    begun = (b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\nX: ", b"GET /events HTTP/1.1\r\nHost: a\r\n\r\n")
    opened: list[socket.socket] = []

    def serve_and_end() -> None:
        with served(page_of(run_folder)) as address:
            for number in range(CONNECTIONS):
                with contextlib.suppress(OSError):  # one too many is closed at once
                    connection = connect(address)
                    opened.append(connection)
                    connection.sendall(begun[number % len(begun)])
                if len(opened) > 400:  # fewer files than a process may have open
                    opened.pop(0).close()

    assert ends(threading.Thread(target=serve_and_end, daemon=True))
    for connection in opened:
        connection.close()


def test_the_page_is_served_again_when_others_have_gone(run_folder: Path) -> None:
    with served(page_of(run_folder)) as address:
        held = [connect(address) for _ in range(100)]
        for connection in held:
            connection.close()
        for _ in range(300):
            with contextlib.suppress(OSError):
                assert b"run" in get(address)
                return
            threading.Event().wait(0.1)
    raise AssertionError("the page is not served any more")


def test_who_does_not_read_the_events_is_cut_off_at_the_end(run_folder: Path) -> None:
    taken = threading.Event()
    held: list[socket.socket] = []

    def serve_and_end() -> None:
        with served(page_of(run_folder)) as address:
            place = urlsplit(address)
            connection = connect(address)
            held.append(connection)
            connection.sendall(f"GET {place.path}events HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode())
            connection.recv(16)
            taken.set()

    assert ends(threading.Thread(target=serve_and_end, daemon=True))
    assert taken.is_set()
    held[0].close()


NO_REQUESTS = {
    "nothing": b"",
    "noise": random.Random(1).randbytes(4096),
    "no method": b"\r\n\r\n",
    "another protocol": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a long line": b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 1000 + b"\r\n",
    "a long header": b"GET / HTTP/1.1\r\nA: " + b"b" * 100_000 + b"\r\n\r\n",
    "another version": b"GET / HTTP/9.9\r\n\r\n",
    "no host": b"GET / HTTP/1.0\r\n\r\n",
    "another host": b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    "a negative length": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
    "chunks": b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
    "one after another": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 50,
    "an unknown method": b"BREW /pot HTTP/1.1\r\nHost: a\r\n\r\n",
}


@pytest.mark.parametrize("request_bytes", NO_REQUESTS.values(), ids=NO_REQUESTS)
def test_what_is_no_request_costs_no_traceback(
    run_folder: Path, request_bytes: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with served(page_of(run_folder)) as address:
        with connect(address) as connection, contextlib.suppress(OSError):
            connection.sendall(request_bytes)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass
        assert b"run" in get(address)
    assert capfd.readouterr().err == ""


ELSEWHERE = (
    *("%00", "%2e%2e/%2e%2e/etc/passwd", "..%2f..%2fetc/passwd", "/etc/passwd", "%ff%fe"),
    *("a" * 5000, "link", "pipe", "device"),
)


@pytest.mark.parametrize("path", ELSEWHERE, ids=lambda path: path[:20])
def test_only_files_of_the_run_are_sent(run_folder: Path, path: str, capfd: pytest.CaptureFixture[str]) -> None:
    (run_folder.parent / "secret").write_text("the secret")
    (run_folder / "link").symlink_to(run_folder.parent / "secret")
    (run_folder / "device").symlink_to("/dev/zero")
    os.mkfifo(run_folder / "pipe")
    with served(page_of(run_folder)) as address:
        with pytest.raises(urllib.error.HTTPError) as refused:
            get(address + path)
        assert refused.value.code in (404, 414)
        assert get(address + "log.txt") == b"a line\n"
    assert capfd.readouterr().err == ""


def test_a_run_that_was_removed_is_one_line(run_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with served(page_of(run_folder)) as address:
        (run_folder / "run.json").unlink()
        with pytest.raises(urllib.error.HTTPError) as refused:
            get(address)
        assert refused.value.code == 404
    assert capfd.readouterr().err == ""
