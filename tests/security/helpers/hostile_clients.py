"""Clients that speak almost HTTP to the live page, and almost LSP to the language server."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from hostile_files import CPU_SECONDS, MEMORY_BYTES, spoilt

PARALLEL = 16
CHECKED_EVERY = 10
REQUESTS = {
    "page": "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
    "events": "GET /events HTTP/1.0\r\nHost: 127.0.0.1\r\nLast-Event-ID: 3\r\n\r\n",
    "log": "GET /log/train HTTP/1.1\r\nHost: 127.0.0.1\r\nRange: bytes=0-100\r\nConnection: close\r\n\r\n",
    "post": "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 3\r\n\r\nabc",
}


def ask(address: str, content: bytes) -> None:
    """Send a request, end, and read a part of the answer, if there is one."""
    place = urlsplit(address)
    assert place.hostname is not None
    with socket.create_connection((place.hostname, place.port or 80), timeout=60) as connection:
        try:
            connection.sendall(content)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(100)
        except (ConnectionError, TimeoutError):
            pass  # the server cut the connection off, as it may


def ask_often(address: str, numbers: range, seed: str) -> None:
    """Send every spoilt request of these numbers, several at once."""
    names = sorted(REQUESTS)

    def client(first: int) -> None:
        for number in numbers[first::PARALLEL]:
            ask(address, spoilt(REQUESTS[names[number % len(names)]], number, seed))

    clients = [threading.Thread(target=client, args=(first,)) for first in range(PARALLEL)]
    for each in clients:
        each.start()
    for each in clients:
        each.join()


def messages_to_a_server(folder: Path) -> Mapping[str, str]:
    """Return valid messages about a file in a folder, by name."""
    text = "type: command\ncommand: echo ${{inputs.a}}\ninputs: {a: 1}\n"
    document = {"uri": (folder / "job.yaml").as_uri(), "languageId": "yaml", "version": 1, "text": text}
    here = {"textDocument": {"uri": document["uri"]}, "position": {"line": 1, "character": 20}}
    span = {"start": {"line": 0, "character": 0}, "end": {"line": 2, "character": 0}}
    change = {"textDocument": {"uri": document["uri"], "version": 2}, "contentChanges": [{"text": text}]}
    actions = {**here, "range": span, "context": {"diagnostics": []}}
    bodies = {
        "open": {"method": "textDocument/didOpen", "params": {"textDocument": document}},
        "change": {"method": "textDocument/didChange", "params": change},
        "hover": {"id": 1, "method": "textDocument/hover", "params": here},
        "complete": {"id": 2, "method": "textDocument/completion", "params": here},
        "define": {"id": 3, "method": "textDocument/definition", "params": here},
        "rename": {"id": 4, "method": "textDocument/rename", "params": {**here, "newName": "b"}},
        "actions": {"id": 5, "method": "textDocument/codeAction", "params": actions},
        "close": {"method": "textDocument/didClose", "params": {"textDocument": {"uri": document["uri"]}}},
    }
    return {name: json.dumps({"jsonrpc": "2.0", **body}) for name, body in bodies.items()}


class RawEditor:
    """A language server that is sent bytes, and what it cost so far."""

    def __init__(self, folder: Path) -> None:
        trainyard = Path(sys.executable).with_name("trainyard")
        self._log = (folder / "stderr.txt").open("wb+")
        self._process = subprocess.Popen(
            [trainyard, "lsp"], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log
        )
        self._answers: list[bytes] = []
        self._arrived = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()
        self._request(
            {"id": "start", "method": "initialize", "params": {"rootUri": folder.as_uri(), "capabilities": {}}}
        )
        self.send(json.dumps({"jsonrpc": "2.0", "method": "initialized", "params": {}}).encode())

    def send(self, body: bytes) -> None:
        """Send a message with a right length."""
        self._stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._stdin.flush()

    def answers_within_limits(self, number: int) -> str:
        """Ask something valid; return what is wrong with the answer, the time it took, or the memory."""
        before = self._cpu_seconds()
        if not self._request({"id": f"alive {number}", "method": "trainyard/nothing", "params": {}}):
            return "no answer"
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        memory_bytes = int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) * 1024
        seconds = self._cpu_seconds() - before
        return "" if seconds <= CPU_SECONDS and memory_bytes <= MEMORY_BYTES else f"{seconds} s, {memory_bytes} bytes"

    def end(self) -> str:
        """End the server; return what it wrote to stderr."""
        self._stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.seek(0)
        with self._log:
            return self._log.read().decode(errors="replace")

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    def _cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _request(self, message: Mapping[str, object]) -> bool:
        self.send(json.dumps({"jsonrpc": "2.0", **message}).encode())
        wanted = json.dumps(message["id"]).encode()
        with self._arrived:
            return self._arrived.wait_for(lambda: any(wanted in answer for answer in self._answers), timeout=120)

    def _read(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        while header := stream.readline():
            length_bytes = int(header.partition(b":")[2])
            while stream.readline().strip():
                pass
            body = stream.read(length_bytes)
            with self._arrived:
                self._answers[:] = [*self._answers[-50:], body]
                self._arrived.notify_all()


def trouble_of_language_server(folder: Path, numbers: range, seed: str) -> list[str]:
    """Send every spoilt message of these numbers; return what went wrong, tracebacks included."""
    texts = messages_to_a_server(folder)
    names = sorted(texts)
    (folder / "job.yaml").write_text("type: command\n")
    editor, found = RawEditor(folder), []
    for number in numbers:
        editor.send(spoilt(texts[names[number % len(names)]], number, seed))
        if number % CHECKED_EVERY == 0 and (trouble := editor.answers_within_limits(number)):
            found.append(f"{seed} {number}: {trouble}")
            break
    written = editor.end()
    return [*found, *(line for line in written.splitlines() if "Traceback" in line)]
