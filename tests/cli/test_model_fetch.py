"""`trainyard model fetch`, with the Hub's own library, from a server on loopback that answers as the Hub does."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

Run = Callable[..., Any]

COMMIT, EARLIER = "c" * 40, "e" * 40
REVISIONS = {"main": COMMIT, "v1": EARLIER, COMMIT: COMMIT, EARLIER: EARLIER}
FETCHED = {
    "config.json": b'{"model_type": "llama"}',
    "generation_config.json": b"{}",
    "model.safetensors": b"weights",
    "tokenizer.json": b"{}",
    "tokenizer.model": b"pieces",
    "tokenizer_config.json": b"{}",
    "special_tokens_map.json": b"{}",
    "vocab.json": b"{}",
    "merges.txt": b"",
}
LEFT = {
    "README.md": b"about it",
    "modeling_it.py": b"raise SystemExit('code of a stranger')",
    "pytorch_model.bin": b"a pickle",
    "consolidated.safetensors": b"weights, once more",
    "onnx/model.safetensors": b"weights, once more",
    "original/config.json": b"{}",
}
REPOSITORIES = {
    "owner/Small-Model": {**FETCHED, **LEFT},
    "owner/pickled": {"config.json": b"{}", "pytorch_model.bin": b"a pickle"},
    "owner/weights-alone": {"model.safetensors": b"weights"},
    "owner/sharded": {
        "config.json": b"{}",
        "model-00001-of-00002.safetensors": b"one",
        "model-00002-of-00002.safetensors": b"two",
        "model.safetensors.index.json": b"{}",
    },
    "owner/gated": {"config.json": b"{}", "model.safetensors": b"weights"},
}


class Hub(BaseHTTPRequestHandler):
    """The parts of the Hub's API that its library asks for one model: what there is at a revision, and its files."""

    server: HubServer

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path).removeprefix("/")
        self.server.asked.append(f"{self.command} {path}")
        if path.startswith("api/models/"):
            self._describe(path.removeprefix("api/models/"))
        else:
            name, _, rest = path.partition("/resolve/")
            self._send_file(name, *rest.split("/", 1))

    do_HEAD = do_GET

    def _describe(self, path: str) -> None:
        name, _, revision = path.partition("/revision/")
        files = REPOSITORIES.get(name)
        if files is None:
            self._answer(401, b'{"error": "Repository not found"}', {"X-Error-Code": "RepoNotFound"})
        elif (revision or "main") not in REVISIONS:
            self._answer(404, b'{"error": "Invalid rev id"}', {"X-Error-Code": "RevisionNotFound"})
        else:
            siblings = [{"rfilename": file} for file in files]
            found = {
                "_id": "1",
                "id": name,
                "modelId": name,
                "sha": REVISIONS[revision or "main"],
                "siblings": siblings,
            }
            self._answer(200, json.dumps({**found, "private": False, "tags": [], "downloads": 1, "likes": 0}).encode())

    def _send_file(self, name: str, revision: str, file: str) -> None:
        content = REPOSITORIES[name][file]
        if name == "owner/gated":
            self._answer(401, b"Access is restricted", {"X-Error-Code": "GatedRepo"})
            return
        tag = hashlib.sha256(content).hexdigest()
        self._answer(200, content, {"ETag": f'"{tag}"', "X-Repo-Commit": REVISIONS[revision]})

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's output clean."""


class HubServer(ThreadingHTTPServer):
    """A Hub on this machine, with what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Hub)
        self.asked: list[str] = []


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What the Hub is asked, with an empty working directory outside of any project."""
    monkeypatch.chdir(tmp_path)
    with HubServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("HF_HOME", str(tmp_path / "cache of the Hub"))
        monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
        monkeypatch.delenv("HF_TOKEN", raising=False)
        # The training steps, which other tests import into this process, are offline; the library reads it only once.
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        yield server.asked
        server.shutdown()
        thread.join()


def files_in(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_weights_configuration_and_tokenizer_of_one_commit_are_fetched(
    trainyard: Run, asked: list[str], tmp_path: Path
) -> None:
    outcome = trainyard("model", "fetch", "owner/Small-Model")
    assert outcome.exit_code == 0, outcome.stderr
    assert files_in(tmp_path / "models/small-model") == FETCHED
    assert all(f"/{COMMIT}/" in path for path in asked if "/resolve/" in path), "not what `main` is a moment later"
    lines = [line.split(None, 1) for line in outcome.stdout.splitlines()]
    assert ["model", f"owner/Small-Model, commit {COMMIT}"] in lines
    assert ["folder", "models/small-model: 9 files"] in lines
    assert "in a profile      base_model: models/small-model" in outcome.stdout
    created = "az ml model create --name small-model --version 1 --type custom_model --path models/small-model"
    assert f"{created}  # for the cluster; then base_model: azureml:small-model:1" in outcome.stdout


def test_a_revision_is_resolved_to_its_commit_and_a_folder_can_be_named(
    trainyard: Run, asked: list[str], tmp_path: Path
) -> None:
    outcome = trainyard("model", "fetch", "owner/sharded", "--revision", "v1", "--into", "here/it")
    assert outcome.exit_code == 0, outcome.stderr
    assert files_in(tmp_path / "here/it") == REPOSITORIES["owner/sharded"]
    assert EARLIER in outcome.stdout
    assert {path.split("/resolve/")[1].split("/")[0] for path in asked if "/resolve/" in path} == {EARLIER}


def test_the_weights_of_two_models_are_not_mixed(trainyard: Run, asked: list[str], tmp_path: Path) -> None:
    assert trainyard("model", "fetch", "owner/sharded", "--into", "one").exit_code == 0
    before = files_in(tmp_path / "one")
    outcome = trainyard("model", "fetch", "owner/Small-Model", "--into", "one")
    assert outcome.exit_code == 1
    assert "one has weights of another model (model-0000" in outcome.stderr
    assert files_in(tmp_path / "one") == before
    assert trainyard("model", "fetch", "owner/sharded", "--into", "one").exit_code == 0, "the same once more"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["owner/nothing"], "unknown model owner/nothing; check the name, or give a token if it is private: HF_TOKEN="),
        (["owner/Small-Model", "--revision", "v9"], "owner/Small-Model has no revision v9"),
        (["owner/gated"], "owner/gated is only for those who have accepted its terms; accept its terms on its page"),
        (["owner/pickled"], "owner/pickled has no model.safetensors: choose another model"),
        (["owner/weights-alone"], "owner/weights-alone has no config.json: choose another model"),
        (["one/two/three"], "one/two/three is not a name of the Hub; expected OWNER/MODEL"),
    ],
)
def test_what_the_hub_refuses_is_one_line(
    trainyard: Run, asked: list[str], tmp_path: Path, arguments: list[str], message: str
) -> None:
    outcome = trainyard("model", "fetch", *arguments)
    assert (outcome.exit_code, outcome.stdout) == (1, "")
    assert [line for line in outcome.stderr.splitlines() if line.startswith("error: ")] == [outcome.stderr.rstrip("\n")]
    assert outcome.stderr.startswith(f"error: {message}")
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize("variable", [("HF_ENDPOINT", "http://127.0.0.1:9"), ("HF_HUB_OFFLINE", "1")])
def test_without_a_way_to_the_hub_the_error_names_what_to_look_at(
    trainyard_process: Run, asked: list[str], tmp_path: Path, variable: tuple[str, str]
) -> None:
    outcome = trainyard_process("model", "fetch", "owner/Small-Model", **dict([variable]))
    assert outcome.returncode == 1
    assert outcome.stderr.startswith("error: no answer from the Hub: ")
    assert outcome.stderr.rstrip().endswith("a proxy (HTTPS_PROXY), HF_ENDPOINT and HF_HUB_OFFLINE")
    assert not (tmp_path / "models").exists()


@pytest.fixture
def trainyard_process(tmp_path: Path) -> Run:
    """The command in a process of its own: the library reads whether it is offline once, when it is imported."""

    def run(*words: str, **variables: str) -> Any:
        command = [sys.executable, "-m", "trainyard", *words]
        environment = {**os.environ, **variables}
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
        )

    return run
