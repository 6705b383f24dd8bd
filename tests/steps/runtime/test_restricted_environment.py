"""A job's environment has torch, numpy, transformers, safetensors, mlflow-skinny, and what those need: no more."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from rank_processes import SOURCE, TESTS, training_arguments

ALLOWED = ("torch", "numpy", "transformers", "safetensors", "mlflow-skinny")


def closure(names: tuple[str, ...]) -> dict[str, Distribution]:
    """The distributions and all they require without extras."""
    found: dict[str, Distribution] = {}
    waiting = list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue  # a requirement of another platform or Python
        requirements = [text for text in found[name].requires or [] if "extra ==" not in text]
        waiting += [re.split(r"[\s;<>=!~\[(]", text, maxsplit=1)[0] for text in requirements]
    return found


@pytest.fixture(scope="module")
def restricted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with links to the allowed distributions, to be the only site-packages."""
    folder = tmp_path_factory.mktemp("site-packages")
    for found in closure(ALLOWED).values():
        for top in {file.parts[0] for file in found.files or [] if file.parts[0] != ".."}:
            target = Path(str(found.locate_file(top)))
            if target.exists() and not (folder / top).exists():
                (folder / top).symlink_to(target)
    return folder


def python(restricted: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this Python with no packages but the restricted ones: -S leaves its own site-packages out."""
    return subprocess.run(
        [sys.executable, "-S", *arguments],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{SOURCE}:{restricted}:{TESTS}"},
        capture_output=True,
        text=True,
        timeout=400,
    )


def test_packages_of_other_steps_and_of_the_author_side_are_absent(restricted: Path) -> None:
    """What is there is imported by the training below."""
    present = ("torch", "transformers", "mlflow")
    others = ("jsonschema_rs", "matplotlib", "sklearn", "PIL", "pyarrow", "zstandard", "azure")
    find = "import sys; from importlib.util import find_spec; print(*filter(find_spec, sys.argv[1:]))"
    assert tuple(python(restricted, "-c", find, *present, *others).stdout.split()) == present


@pytest.mark.parametrize("step", ["prepare_images", "prepare_text", "train_ddp", "evaluate"])
def test_help(restricted: Path, step: str) -> None:
    result = python(restricted, "-m", f"trainyard.steps.{step}", "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert f"usage: python -m trainyard.steps.{step}" in result.stdout


def test_text_formats_without_extra_packages(restricted: Path, tmp_path: Path) -> None:
    result = python(restricted, "-m", "trainyard.steps.prepare_text", "--prepared", str(tmp_path))
    assert (result.returncode, result.stderr) == (0, "")
    assert (tmp_path / "manifest.json").exists()


@pytest.mark.slow
def test_a_training(restricted: Path, digits: Path, tmp_path: Path) -> None:
    flags = training_arguments(digits, tmp_path, "image_classification", "--max-steps", 2)
    result = python(restricted, "-m", "trainyard.steps.train_ddp", *[str(flag) for flag in flags])
    assert (result.returncode, result.stderr) == (0, "")
    assert (tmp_path / "model" / "model.safetensors").exists()


def test_flags_are_parsed_before_anything_heavy_is_imported() -> None:
    probe = (
        "import sys, runpy\n"
        "sys.argv = ['train_ddp', '--help']\n"
        "try:\n    runpy.run_module('trainyard.steps.train_ddp', run_name='__main__')\n"
        "except SystemExit:\n    pass\n"
        "print([name for name in ('torch', 'numpy', 'transformers', 'mlflow') if name in sys.modules])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", probe], env={"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True, timeout=400
    )
    assert result.stdout.splitlines()[-1] == "[]"
