"""What people see in an editor: the real yaml-language-server with the settings and schemas of this repository."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainyard.spec.diagnostic import Span
from trainyard.spec.documents import Node, read_document

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from language_server import NODE, NODE_ENVIRONMENT, SERVER, LanguageServer  # noqa: E402

KIND_BY_FOLDER = {
    "pipelines": "pipeline",
    "components": "component",
    "environments": "environment",
    "compute": "compute",
    "profiles": "profile",
}


@pytest.fixture(scope="session", autouse=True)
def installed() -> None:
    """The language server, of the lock file's version."""
    if not SERVER.is_file():
        command = [str(NODE.with_name("npm")), "ci", "--no-fund", "--no-audit", "--prefix", str(HERE)]
        subprocess.run(command, check=True, capture_output=True, timeout=100, env=NODE_ENVIRONMENT)


def editor_settings() -> dict[str, Any]:
    """The settings of VS Code in this repository, nested as the server asks for them."""
    text = (ROOT / ".vscode" / "settings.json").read_text(encoding="utf-8")
    flat = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        *sections, last = name.split(".")
        table = nested
        for section in sections:
            table = table.setdefault(section, {})
        table[last] = value
    return nested


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with our schemas, as opened in an editor."""
    folder = tmp_path_factory.mktemp("workspace")
    for name in ("schemas", *KIND_BY_FOLDER):
        shutil.copytree(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def server(workspace: Path) -> Iterator[LanguageServer]:
    server = LanguageServer(workspace, editor_settings())
    yield server
    server.close()


def rendered_files() -> list[str]:
    return [str(path.relative_to(ROOT)) for folder in KIND_BY_FOLDER for path in sorted((ROOT / folder).glob("*.yaml"))]


def test_the_settings_name_every_kind_of_file() -> None:
    schemas = editor_settings()["yaml"]["schemas"]
    assert schemas == {f"./schemas/{kind}.schema.json": [f"{folder}/*.yaml"] for folder, kind in KIND_BY_FOLDER.items()}
    for schema in schemas:
        assert (ROOT / schema).is_file()


@pytest.mark.parametrize("name", rendered_files())
def test_files_of_the_repository_are_clean(server: LanguageServer, workspace: Path, name: str) -> None:
    file = workspace / name
    assert server.open(file, file.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("name", rendered_files())
def test_every_key_of_the_repository_is_explained(server: LanguageServer, workspace: Path, name: str) -> None:
    file = workspace / name
    server.open(file, file.read_text(encoding="utf-8"))
    silent = [
        str(span)
        for span in key_spans(read_document(file).root)
        if len(server.hover(file, span.line, span.column + 1)) < 10
    ]
    assert silent == []


def key_spans(node: Node) -> Iterator[Span]:
    """Where each key beneath a value is."""
    for key, value in node.entries.values():
        yield key.span
        yield from key_spans(value)


def test_our_schema_wins_over_the_one_that_a_rendered_file_names(server: LanguageServer, workspace: Path) -> None:
    file = workspace / "components" / "train_ddp.yaml"
    text = file.read_text(encoding="utf-8")
    assert "$schema: https://azuremlschemas" in text
    mistaken = text.replace("is_deterministic:", "is_determinstic:")
    (problem,) = server.open(file.with_name("mistaken.yaml"), mistaken)
    assert problem["message"] == "Property is_determinstic is not allowed."
    assert problem["source"] == "yaml-schema: Azure ML component"
    assert problem["range"]["start"]["line"] == mistaken[: mistaken.index("is_determinstic")].count("\n")


HAND_WRITTEN = """\
type: pipeline
settings:
  default_compute: azureml:gpu
jobs:
  train:
    component: ../components/train_ddp.yaml
    distribution:
      type: pytorch
      \N{SPACE}
    resources:
      shm_size: 16g
"""


@pytest.fixture(scope="module")
def pipeline(server: LanguageServer, workspace: Path) -> Path:
    """A pipeline that somebody is writing, open in the editor."""
    file = workspace / "pipelines" / "mine.yaml"
    assert server.open(file, HAND_WRITTEN) == []
    return file


def test_keys_are_offered_with_what_they_mean(server: LanguageServer, pipeline: Path) -> None:
    offered = server.completions(pipeline, 9, 7)
    assert "process_count_per_instance" in offered
    assert offered["process_count_per_instance"]


def test_values_are_offered(server: LanguageServer, pipeline: Path) -> None:
    assert "pytorch" in {label.lower() for label in server.completions(pipeline, 8, 13)}


@pytest.mark.parametrize(("line", "column"), [(2, 3), (3, 5), (4, 3), (6, 7), (7, 7), (8, 8), (11, 9)])
def test_every_key_is_explained_above_it(server: LanguageServer, pipeline: Path, line: int, column: int) -> None:
    assert len(server.hover(pipeline, line, column)) > 20


@pytest.mark.parametrize(
    ("folder", "text", "line", "words"),
    [
        ("components", "type: command\nname: c\ncommand: run\nenvironment: azureml:e:1\ncoed: ../src\n", 4, "coed"),
        (
            "components",
            "type: command\nname: c\ncommand: run\nenvironment: azureml:e:1\ninputs:\n  a: {type: int}\n",
            5,
            "",
        ),
        ("pipelines", "type: pipeline\njobs:\n  a:\n    component: azureml:c:1\n    resorces: {}\n", 4, "resorces"),
        ("environments", "name: e\nimag: x\n", 1, "imag"),
        ("compute", "name: c\ntype: amlcompute\nsize: Standard_NC24ads_A100_v4\nmax_instnces: 3\n", 3, "max_instnces"),
        ("profiles", "extends: t4\nnods: 2\n", 1, "nods"),
    ],
)
def test_a_mistake_is_underlined(
    server: LanguageServer, workspace: Path, folder: str, text: str, line: int, words: str
) -> None:
    # A new name, since the server may still report on the text that the file had before.
    file = workspace / folder / f"mistake-{hashlib.md5(text.encode()).hexdigest()}.yaml"
    problems = server.open(file, text)
    at_line = [problem for problem in problems if problem["range"]["start"]["line"] == line]
    assert at_line, problems
    assert any(words in problem["message"] for problem in at_line)
