"""Spoilt files of every kind: diagnostics, never another exception, and each within its file's lines."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainyard.lint.linter import lint
from trainyard.lint.reporters import as_json, as_text
from trainyard.spec.diagnostic import SpecError
from trainyard.spec.graph import topological_order
from trainyard.spec.loading import load_component, load_pipeline

CLEAN = Path(__file__).parent.parent / "spec" / "data" / "project"
FILES = [
    "pipelines/digits.yaml",
    "components/train.yaml",
    "components/prepare.yaml",
    "environments/evaluate.yaml",
    "compute/gpu-cluster.yaml",
]
TEXTS = {name: (CLEAN / name).read_text(encoding="utf-8") for name in FILES}
TOKENS = [
    *("null", "[]", "{}", "[1, {a: b}]", "3.5", "true", "''", "&a", "*a", "!!x ", "- ", "? ", ": ", "---\n", "<<: *a"),
    *("${{", "}}", "$[[", "]]", "${{parent.jobs.a.b}}", "${{inputs}}", "azureml:", "file:", "file:..", "."),
    *("\t", "\0", "\x85", "é", "\u2028", "\ud7ff", "#", "|\n", ">-\n", "\r", '"'),
    *("999" * 40, "2020-01-01", ".nan", ".inf", "0o9"),
]


@st.composite
def spoilt_files(draw: st.DrawFn) -> tuple[str, bytes]:
    name = draw(st.sampled_from(FILES))
    lines = TEXTS[name].split("\n")
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines) - 1))
        line = lines[at]
        what = draw(st.sampled_from(["drop", "double", "indent", "value", "key", "insert", "swap"]))
        if what == "drop":
            lines[at] = ""
        elif what == "double":
            lines.insert(at, line)
        elif what == "indent":
            lines[at] = " " * draw(st.integers(0, 9)) + line.lstrip()
        elif what == "value":
            lines[at] = line.split(":")[0] + ": " + draw(st.sampled_from(TOKENS))
        elif what == "key":
            lines[at] = draw(st.sampled_from(TOKENS)) + ":" + line.partition(":")[2]
        elif what == "insert":
            column = draw(st.integers(0, len(line)))
            lines[at] = line[:column] + draw(st.sampled_from(TOKENS)) + line[column:]
        else:
            other = draw(st.integers(0, len(lines) - 1))
            lines[at], lines[other] = lines[other], line
    return name, "\n".join(lines).encode("utf-8")


def _check(name: str, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "project"
        shutil.copytree(CLEAN, project)
        (project / name).write_bytes(content)
        found = lint([project]).diagnostics
        as_text(found, colour=True, relative_to=project)
        as_json(found, relative_to=project)
        for diagnostic in found:
            assert diagnostic.span.line >= 1
            assert diagnostic.span.column >= 1
            assert "\n" not in diagnostic.message
            assert len(diagnostic.message) < 400
        with contextlib.suppress(SpecError):
            topological_order(load_pipeline(project / FILES[0]))
        with contextlib.suppress(SpecError):
            load_component(project / FILES[1])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spoilt_files())
def test_spoilt_files_end_in_diagnostics(case: tuple[str, bytes]) -> None:
    _check(*case)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(FILES), st.binary(max_size=200))
def test_bytes_of_any_kind_end_in_diagnostics(name: str, content: bytes) -> None:
    _check(name, content)
