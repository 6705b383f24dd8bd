"""Which files of a snapshot a job can import, as far as reading can tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from trainyard.rehearse.job_imports import imported_files
from trainyard.rehearse.snapshots import snapshot_of
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
PYTHON = {place for place in CODE if place.endswith(".py")}
PACKAGE = {"steps/__init__.py"}
MODELS = {"steps/models/__init__.py", "steps/models/small.py"}
OF_TRAIN = PACKAGE | MODELS | {"steps/train.py", "steps/loop.py", "steps/reading.py"}
OF_PREPARE = PACKAGE | {"steps/prepare.py", "steps/reading.py"}
UNKNOWN = None

Count = Callable[..., set[str] | None]


@pytest.fixture
def count(tmp_path: Path) -> Count:
    """Makes a snapshot of CODE with these changes, and returns the places that a command can import."""

    def places(command: str, *values: object, variables: Mapping[str, str] = {}, **changes: str) -> set[str] | None:
        files = CODE | {name.replace("__", "/") + ".py": text for name, text in changes.items()}
        for place, text in files.items():
            (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / place).write_text(text)
        return imported_files(command, values, variables, {place: tmp_path / place for place in sorted(files)})

    return places


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python -m steps.train --lr ${{inputs.lr}} $[[--seed ${{inputs.seed}}]]", OF_TRAIN),
        ("python3 -u -m steps.prepare --out '${{outputs.out}}'\n", OF_PREPARE),
        ("python -m steps.prepare \\\n  --out x", OF_PREPARE),
        ("python -m steps.prepare steps/evaluate.py", OF_PREPARE),
        ("python -m steps.prepare && python -m steps.train", UNKNOWN),
        ("python -m steps.prepare > log.txt", UNKNOWN),
        ("python -m steps.prepare\npython -m steps.train", UNKNOWN),
        ("python -m steps.$STEP", UNKNOWN),
        ("bash run.sh", UNKNOWN),
        ("torchrun -m steps.train", UNKNOWN),
        ("python -c 'import steps.train'", UNKNOWN),
        ("python -m torch.distributed.run steps/train.py", UNKNOWN),
        ("python ../elsewhere.py", UNKNOWN),
    ],
)
def test_what_a_command_imports_is_known_of_a_single_python_command(
    count: Count, command: str, expected: set[str] | None
) -> None:
    assert count(command) == expected


def test_a_script_imports_from_its_own_folder(count: Count) -> None:
    changes = {"tools__run": f"import helper\n{MAIN}", "tools__helper": "", "tools__other": f"import hidden\n{MAIN}"}

    counted = count("python tools/run.py", **changes, tools__hidden="")

    assert counted == {"tools/run.py", "tools/helper.py"}


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
def test_code_that_may_load_other_code_may_import_anything(count: Count, source: str) -> None:
    assert count("python -m steps.prepare", steps__reading=source) == UNKNOWN
    assert count("python -m steps.prepare", steps__reading="", steps__measures=source) == OF_PREPARE


def test_what_looks_like_loading_code_and_is_not(count: Count) -> None:
    harmless = "from importlib.metadata import version\nimport re\nre.compile('x')\nmodel.eval()\ncompile: bool = True"

    assert count("python -m steps.prepare", steps__reading=harmless) == OF_PREPARE


@pytest.mark.parametrize(
    ("patterns", "added"),
    [
        ("steps.models.*", MODELS),
        ("steps.measures, steps.models", {"steps/measures.py", "steps/models/__init__.py"}),
        ("not steps", {"unclaimed.py"}),
        ("not tools", PYTHON),
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
    assert count("python -m steps.prepare", variables={"PYTHONPATH": "lib"}) == UNKNOWN


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
        ("prepare_text", "data/text/text_formats.py", True),
    ],
)
def test_the_steps_own_code(component: str, module: str, counts: bool) -> None:
    loaded = load_component(ROOT / "components" / f"{component}.yaml")

    files = {place: file for file, place in snapshot_of(loaded).files}
    imported = imported_files(loaded.command.data, ["image_classification"], {}, files)

    assert imported is not None
    assert (f"trainyard/steps/{module}" in imported) is counts


def test_a_module_that_is_gone_was_imported() -> None:
    assert imported_files("python -m loop", [], {}, {"loop.py": None, "other.py": None}) == {"loop.py"}
