"""Which files of a snapshot count for a job: what its entry module can import, and everything where that is unknown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from trainyard.rehearse.job_code import Snapshot, code_of_job, snapshot_of
from trainyard.spec.loading import load_component

ROOT = Path(__file__).parents[2]
MAIN = "if __name__ == '__main__':\n    main()\n"
CODE = {
    "labels.txt": "cat dog",
    "steps/__init__.py": "",
    "steps/prepare.py": f"from steps.reading import read\n{MAIN}",
    "steps/train.py": f"def main():\n    from . import loop, reading\n{MAIN}",
    "steps/evaluate.py": f"import steps.measures as measures\n{MAIN}",
    "steps/reading.py": "import json",
    "steps/loop.py": "from .models.small import *",
    "steps/models/__init__.py": "",
    "steps/models/small.py": "",
    "steps/measures.py": "",
    "unclaimed.py": "",
}
EVERYTHING = set(CODE)
ALWAYS = {"labels.txt", "steps/__init__.py", "unclaimed.py"}
MODELS = {"steps/models/__init__.py", "steps/models/small.py"}
OF_TRAIN = ALWAYS | MODELS | {"steps/train.py", "steps/loop.py", "steps/reading.py"}
OF_PREPARE = ALWAYS | {"steps/prepare.py", "steps/reading.py"}

Count = Callable[..., set[str]]


@pytest.fixture
def count(tmp_path: Path) -> Count:
    """Makes a snapshot of CODE with these changes, and returns the places that count for a command."""

    def places(command: str, *values: object, variables: Mapping[str, str] = {}, **changes: str) -> set[str]:
        files = CODE | {name.replace("__", "/") + ".py": text for name, text in changes.items()}
        for place, text in files.items():
            (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / place).write_text(text)
        snapshot = Snapshot(tuple((tmp_path / place, place) for place in sorted(files)))
        return {place for _, place in code_of_job(command, values, variables, snapshot).files}

    return places


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python -m steps.train --lr ${{inputs.lr}} $[[--seed ${{inputs.seed}}]]", OF_TRAIN),
        ("python3 -u -m steps.prepare --out '${{outputs.out}}'\n", OF_PREPARE),
        ("python -m steps.prepare \\\n  --out x", OF_PREPARE),
        ("python -m steps.prepare steps/evaluate.py", OF_PREPARE),
        ("python -m steps.prepare && python -m steps.train", EVERYTHING),
        ("python -m steps.prepare > log.txt", EVERYTHING),
        ("python -m steps.prepare\npython -m steps.train", EVERYTHING),
        ("python -m steps.$STEP", EVERYTHING),
        ("bash run.sh", EVERYTHING),
        ("torchrun -m steps.train", EVERYTHING),
        ("python -c 'import steps.train'", EVERYTHING),
        ("python -m torch.distributed.run steps/train.py", EVERYTHING),
        ("python ../elsewhere.py", EVERYTHING),
    ],
)
def test_a_single_python_command_narrows_the_snapshot(count: Count, command: str, expected: set[str]) -> None:
    assert count(command) == expected


def test_a_script_imports_from_its_own_folder(count: Count) -> None:
    changes = {"tools__run": f"import helper\n{MAIN}", "tools__helper": "", "tools__other": f"import hidden\n{MAIN}"}

    counted = count("python tools/run.py", **changes, tools__hidden="")

    assert {place for place in counted if place.startswith("tools")} == {"tools/run.py", "tools/helper.py"}


@pytest.mark.parametrize(
    "source",
    [
        "import importlib",
        "from importlib import import_module",
        "import subprocess",
        "import runpy",
        "__import__('x')",
        "exec('import x')",
        "import os\nos.system('x')",
        "import os\nos.execv('x', [])",
        "from os import popen",
        "import sys\nsys.path.append('x')",
        "import pkgutil",
        "def broken(:",
    ],
)
def test_code_that_may_load_other_code_counts_everything(count: Count, source: str) -> None:
    assert count("python -m steps.prepare", steps__reading=source) == EVERYTHING
    assert count("python -m steps.prepare", steps__reading="", steps__measures=source) == OF_PREPARE


def test_what_looks_like_loading_code_and_is_not(count: Count) -> None:
    harmless = "from importlib.metadata import version\nimport re\nre.compile('x')\nmodel.eval()\ncompile: bool = True"

    assert count("python -m steps.prepare", steps__reading=harmless) == OF_PREPARE


@pytest.mark.parametrize(
    ("patterns", "added"),
    [
        ("steps.models.*", MODELS),
        ("steps.measures, steps.models", {"steps/measures.py", "steps/models/__init__.py"}),
        ("not steps", set()),
        ("not tools", EVERYTHING),
    ],
)
def test_a_comment_says_what_may_be_imported(count: Count, patterns: str, added: set[str]) -> None:
    source = f"import importlib  # may import: {patterns}"

    assert count("python -m steps.prepare", steps__reading=source) == OF_PREPARE | added


def test_modules_that_are_named_count(count: Count) -> None:
    measures = {"steps/measures.py"}

    assert count("python -m steps.prepare", "steps.measures:Accuracy") == OF_PREPARE | measures
    assert count("python -m steps.prepare", variables={"HOOK": "steps/measures.py"}) == OF_PREPARE | measures
    assert count("python -m steps.prepare", steps__reading="TARGET = 'steps.measures'") == OF_PREPARE | measures
    assert count("python -m steps.prepare", steps__reading="'''Not steps.measures.'''") == OF_PREPARE
    assert count("python -m steps.prepare", variables={"PYTHONPATH": "lib"}) == EVERYTHING


@pytest.mark.parametrize(
    ("component", "module", "counts"),
    [
        ("prepare_images", "evaluate.py", False),
        ("train_ddp", "evaluate.py", False),
        ("train_ddp", "prepare_images.py", False),
        ("prepare_images", "training/loop.py", False),
        ("evaluate", "train_ddp.py", False),
        ("train_ddp", "training/loop.py", True),
        ("train_ddp", "training/tasks/language_modeling.py", True),
        ("evaluate", "data/dataset/reader.py", True),
        ("prepare_text", "data/text/parquet.py", True),
    ],
)
def test_the_steps_own_code(component: str, module: str, counts: bool) -> None:
    loaded = load_component(ROOT / "components" / f"{component}.yaml")

    counted = code_of_job(loaded.command.data, ["image_classification"], {}, snapshot_of(loaded))

    assert (f"trainyard/steps/{module}" in {place for _, place in counted.files}) is counts


def test_a_change_in_one_step_runs_that_step_alone(workspace: Any) -> None:
    for script in workspace.code.iterdir():
        script.unlink()
    for step in ("one", "two"):
        (workspace.code / f"{step}.py").write_text(f"print({step!r})\n{MAIN.replace('main()', 'pass')}")
    jobs = {step: {"component": workspace.component(step, f"python {step}.py")} for step in ("one", "two")}
    workspace.run(workspace.pipeline(jobs))

    (workspace.code / "two.py").write_text(f"print('changed')\n{MAIN.replace('main()', 'pass')}")
    record = workspace.run(workspace.pipeline(jobs))

    assert {name: bool(job.reused_from) for name, job in record.jobs.items()} == {"one": True, "two": False}
    assert record.jobs["two"].reuse.endswith(": code")
