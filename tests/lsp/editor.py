"""An editor, as `trainyard lsp` sees one: it holds buffers, asks, and keeps what was published."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainyard.spec.yaml_parsing import line_starts

sys.path.insert(0, str(Path(__file__).parents[1] / "editor"))

from language_server import Client

TRAINYARD = Path(sys.executable).with_name("trainyard")


class Editor(Client):
    """An editor that has a folder open; files are named relative to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.published: dict[str, dict[str, Any]] = {}
        self.messages: list[str] = []
        # Numbers go on when a file is opened again, so that no older findings are taken for newer ones.
        self._versions: dict[str, int] = {}
        self._numbers_of_texts = itertools.count(1)
        super().__init__([str(TRAINYARD), "lsp"], folder, {})

    def open(self, name: str, text: str | None = None) -> None:
        """Open a file, with its text on disk or another one."""
        self._versions[name] = next(self._numbers_of_texts)
        text = (self.folder / name).read_text(encoding="utf-8") if text is None else text
        document = {"uri": self.uri(name), "languageId": "yaml", "version": self._versions[name], "text": text}
        self.notify("textDocument/didOpen", {"textDocument": document})

    def change(self, name: str, text: str) -> int:
        """Replace the text of an open file; return its new version."""
        self._versions[name] = next(self._numbers_of_texts)
        document = {"uri": self.uri(name), "version": self._versions[name]}
        self.notify("textDocument/didChange", {"textDocument": document, "contentChanges": [{"text": text}]})
        return self._versions[name]

    def type(self, name: str, text: str) -> list[str]:
        """Replace the text of an open file, and return the findings that are published for it next."""
        version = self.change(name, text)
        while self.published.get(name, {}).get("version") != version:
            self._receive()
        return self.findings(name)

    def close_file(self, name: str) -> None:
        """Close an open file."""
        self.notify("textDocument/didClose", {"textDocument": {"uri": self.uri(name)}})

    def close_all(self) -> None:
        """Close every open file."""
        for name in self._versions:
            self.close_file(name)
        self._versions.clear()

    def changed_on_disk(self, *names: str) -> None:
        """Tell the server that files have changed."""
        changes = [{"uri": self.uri(name), "type": 2} for name in names]
        self.notify("workspace/didChangeWatchedFiles", {"changes": changes})

    def settle(self) -> None:
        """Wait until everything was checked, and its findings were published."""
        self.request("workspace/executeCommand", {"command": "trainyard.check"})

    def findings(self, name: str) -> list[str]:
        """The findings shown for a file, as `LINE:COLUMN RULE`, from 1."""
        shown = self.published.get(name, {"diagnostics": []})["diagnostics"]
        places = [(each["range"]["start"], each["code"]) for each in shown]
        return [f"{start['line'] + 1}:{start['character'] + 1} {code}" for start, code in places]

    def ask(self, method: str, name: str, line: int, column: int, **more: Any) -> Any:
        """Ask about a place of a file, counted from 1."""
        position = {"line": line - 1, "character": column - 1}
        return self.request(method, {"textDocument": {"uri": self.uri(name)}, "position": position, **more})

    def hover(self, name: str, line: int, column: int) -> str:
        """What is shown above a place."""
        found = self.ask("textDocument/hover", name, line, column)
        return str(found["contents"]["value"]) if found else ""

    def completions(self, name: str, line: int, column: int) -> dict[str, dict[str, Any]]:
        """The proposals at a place, by what is shown for them."""
        return {item["label"]: item for item in self.ask("textDocument/completion", name, line, column)}

    def locations(self, method: str, name: str, line: int, column: int, **more: Any) -> list[str]:
        """The places that the server answers with, as `FILE:LINE`."""
        found = self.ask(method, name, line, column, **more)
        return [f"{self.name(each['uri'])}:{each['range']['start']['line'] + 1}" for each in found]

    def actions(self, name: str, line: int, **context: Any) -> list[dict[str, Any]]:
        """What the editor offers to do about a line."""
        span = {"start": {"line": line - 1, "character": 0}, "end": {"line": line, "character": 0}}
        parameters = {"textDocument": {"uri": self.uri(name)}, "range": span, "context": {"diagnostics": [], **context}}
        return list(self.request("textDocument/codeAction", parameters))

    def refusal(self, method: str, name: str, line: int, column: int, **more: Any) -> str:
        """The message of the error that the server answers with."""
        number = next(self._numbers)
        position = {"line": line - 1, "character": column - 1}
        document = {"textDocument": {"uri": self.uri(name)}, "position": position}
        self._send({"id": number, "method": method, "params": {**document, **more}})
        while (message := self._receive()).get("id") != number:
            pass
        return str(message["error"]["message"])

    def edited(self, change: Mapping[str, Any], texts: Mapping[str, str] = {}) -> dict[str, str]:
        """The texts of files after an edit that the server has answered with."""
        return {
            self.name(uri): apply(texts.get(self.name(uri)) or (self.folder / self.name(uri)).read_text(), edits)
            for uri, edits in change["changes"].items()
        }

    def uri(self, name: str) -> str:
        """A file's URI."""
        return (self.folder / name).as_uri()

    def name(self, uri: str) -> str:
        """A file's name relative to the folder."""
        path = Path(uri.removeprefix("file://"))
        return path.relative_to(self.folder).as_posix() if path.is_relative_to(self.folder) else str(path)

    def _receive(self) -> dict[str, Any]:
        message = super()._receive()
        if message.get("method") == "textDocument/publishDiagnostics":
            self.published[self.name(message["params"]["uri"])] = message["params"]
        elif message.get("method") in ("window/showMessage", "window/logMessage"):
            self.messages.append(message["params"]["message"])
        return message


def apply(text: str, edits: Sequence[Mapping[str, Any]]) -> str:
    """A text after edits of the protocol; of ASCII texts only."""
    starts = line_starts(text)
    for edit in sorted(edits, key=lambda each: _place(each["range"]["start"]), reverse=True):
        start, end = (
            starts[edit["range"][side]["line"]] + edit["range"][side]["character"] for side in ("start", "end")
        )
        text = text[:start] + edit["newText"] + text[end:]
    return text


def _place(position: Mapping[str, int]) -> tuple[int, int]:
    return position["line"], position["character"]
