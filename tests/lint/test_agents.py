"""The examples of AGENTS.md are right: lint has nothing to say, and the official client takes them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trainyard.lint.config import LintSettings
from trainyard.lint.linter import lint

PAGE = Path(__file__).parents[2] / "AGENTS.md"
EXAMPLE = re.compile(r"^```yaml\n# (\S+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
TRAIN = """
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--data")
parser.add_argument("--learning-rate", type=float)
parser.add_argument("--model")
parser.add_argument("--seed", type=int)
parser.parse_args()
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of the page's examples, and the script and data that they name."""
    folder = tmp_path_factory.mktemp("project")
    examples = EXAMPLE.findall(PAGE.read_text(encoding="utf-8"))
    assert len(examples) == 7
    for name, text in examples:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "src").mkdir()
    (folder / "src" / "train.py").write_text(TRAIN, encoding="utf-8")
    (folder / "my-data").mkdir()
    (folder / "my-data" / "rows.csv").write_text("1,2\n", encoding="utf-8")
    return folder


def test_lint_finds_nothing(project: Path) -> None:
    found = lint([project], LintSettings()).diagnostics
    assert [f"{each.span.file.name}:{each.span.line} {each.rule} {each.message}" for each in found] == []


@pytest.mark.parametrize(
    ("load", "name"),
    [
        ("load_component", "components/train.yaml"),
        ("load_job", "pipelines/train.yaml"),
        ("load_job", "job.yaml"),
        ("load_environment", "environments/training/environment.yaml"),
        ("load_compute", "compute/gpu_cluster.yaml"),
        ("load_data", "data/my_data.yaml"),
    ],
)
def test_the_client_takes_them(project: Path, load: str, name: str) -> None:
    import azure.ai.ml

    loaded = getattr(azure.ai.ml, load)(project / name)
    if hasattr(loaded, "_validate"):
        assert loaded._validate(raise_error=False).passed
