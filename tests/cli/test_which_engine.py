"""The table of docs/guides/which_engine.md says what the estimate says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "which_engine.md"
Run = Callable[..., Any]

LINE = re.compile(
    r"^\| (llama\S*?)(?:, (LoRA|QLoRA))? \| (\d+) \| (\d) × (\w+) \| `(\w+)`, (\w+)(.*?) \| (.*) \|$", re.MULTILINE
)
LINES = [match.groups() for match in LINE.finditer(PAGE.read_text(encoding="utf-8"))]


def verdict(trainyard: Run, engine: str, arguments: list[str]) -> str:
    """Return whether the estimate says that a training fits, does not, or may not."""
    outcome = trainyard("estimate", "--engine", engine, *arguments, "--format", "json")
    assert outcome.exit_code == 0, outcome.stderr
    return str(json.loads(outcome.stdout)["jobs"]["train"]["memory"]["verdict"])


def test_every_line_of_the_table_is_tested() -> None:
    assert len(LINES) == PAGE.read_text(encoding="utf-8").count("Standard_") - 1  # one is in a command below the table
    assert len(LINES) >= 9


@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line[0]}-{line[1]}-{line[4]}")
def test_what_the_table_says_fits(trainyard: Run, line: tuple[str, ...]) -> None:
    model, tuning, sequence_length, nodes, sku, engine, precision, more, why = line
    arguments = ["--model", model, "--tuning", (tuning or "full").lower(), "--sequence-length", sequence_length]
    arguments += ["--nodes", nodes, "--sku", sku, "--precision", precision]
    if "checkpointing full" in more:
        arguments += ["--activation-checkpointing", "full"]
    if shard_size := re.search(r"shard size (\d+)", more):
        assert verdict(trainyard, engine, [*arguments, "--shard-size", shard_size[1]]) == "fits"
    assert verdict(trainyard, engine, arguments) == "fits"
    if "not `ddp`" in why:
        assert verdict(trainyard, "ddp", arguments) == "does not fit"
