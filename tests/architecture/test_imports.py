"""The folders are the architecture, and imports follow it."""

from __future__ import annotations

import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "numpy", "transformers", "mlflow", "sklearn", "azure", "matplotlib"}
NOT_FOR_HELP = HEAVY | {"jinja2", "jsonschema_rs", "rich", "yaml"}


def modules_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


def test_what_trainings_with_tensorflow_share_with_others_needs_no_torch() -> None:
    """TensorFlow's images have none, and the tests of these trainings run only where TensorFlow is installed."""
    own, shared = "trainyard.steps.training.tensorflow", set()
    for file in (ROOT / "src" / own.replace(".", "/")).glob("*.py"):
        shared |= set(re.findall(r"^from (trainyard\.[\w.]+) import", file.read_text(encoding="utf-8"), re.MULTILINE))
    modules = sorted(name for name in shared if not name.startswith(own))
    assert "trainyard.steps.training.observing.measures" in modules
    assert "torch" not in modules_after(f"import {', '.join(modules)}")


def test_imports_follow_the_contracts() -> None:
    lint_imports = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint_imports, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports within functions and for type checking count as well."""
    graph = grimp.build_graph("trainyard")
    TopologicalSorter({module: graph.find_modules_directly_imported_by(module) for module in graph.modules}).prepare()


def test_a_name_means_one_class() -> None:
    source = ROOT / "src/trainyard"
    places: dict[str, list[str]] = {}
    for file in sorted(source.rglob("*.py")):
        for name in re.findall(r"^class ([A-Z]\w*)", file.read_text(encoding="utf-8"), re.MULTILINE):
            places.setdefault(name, []).append(str(file.relative_to(source)))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


@pytest.mark.parametrize(
    "module",
    [
        "trainyard.cli",
        "trainyard.settings.steps",
        "trainyard.settings.step_fields",
        "trainyard.steps.runtime.flags",
    ],
)
def test_starting_imports_nothing_heavy(module: str) -> None:
    assert not modules_after(f"import {module}") & NOT_FOR_HELP


@pytest.mark.parametrize(
    "module",
    ["trainyard.render.rendering", "trainyard.lint.linter", "trainyard.rehearse.runner", "trainyard.plan.planner"],
)
def test_the_authors_side_never_imports_what_jobs_need(module: str) -> None:
    assert not modules_after(f"import {module}") & HEAVY
