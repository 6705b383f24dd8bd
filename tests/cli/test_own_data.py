"""Data as people have it, from files to an evaluated model, in an own pipeline that has its section in a profile."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
Run = Callable[..., Any]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.usefixtures("jobs_are_forked")]

PROFILE = """\
extends: local
processes_per_node: 1
pipelines:
  pictures:
    format: folder
    source: data/splits
    micro_batch_size: 8
"""
CLASSES = ("cat", "dog", "fish")


def draw(file: Path, of_class: int, width: int = 24, height: int = 24) -> None:
    """Noise in which one channel is bright: the class is easily learned."""
    noise = np.random.default_rng(len(file.as_posix())).integers(0, 80, (height, width, 3)).astype("uint8")
    noise[..., of_class] += 120
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noise).save(file)


def write_data(folder: Path) -> None:
    """The same images as a folder per class, with splits, and in tables."""
    for of_class, name in enumerate(CLASSES):
        for index in range(20):
            kind = ("png", "jpg", "PNG", "JPEG")[index % 4]
            draw(folder / "mixed" / name / f"image {index}.{kind}", of_class, 16 + index, 36 - index)
            draw(folder / "tables" / "files" / f"{name}_{index}.png", of_class)
        for split, count in (("train", 20), ("val", 5), ("test", 7)):
            for index in range(count):
                draw(folder / "splits" / split / name / f"{index}.jpg", of_class)
    (folder / "mixed" / ".DS_Store").write_bytes(b"of the Finder")
    (folder / "mixed" / "cat" / "Thumbs.db").write_bytes(b"of the Explorer")
    rows = [(f"files/{name}_{index}.png", name, index) for name in CLASSES for index in range(20)]
    (folder / "csv").mkdir()
    (folder / "parquet").mkdir()
    for table in ("csv", "parquet"):
        shutil.copytree(folder / "tables" / "files", folder / table / "files")
    with (folder / "csv" / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), *((path, name) for path, name, _ in rows)])
    import pandas

    parts = ["train"] * 14 + ["val"] * 2 + ["test"] * 4
    pandas.DataFrame(
        [(path, name, parts[index]) for path, name, index in rows], columns=["image", "animal", "split"]
    ).to_parquet(folder / "parquet" / "labels.parquet")


@pytest.fixture(scope="module")
def own_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This project with the pipeline that docs/own_data.md adds, a profile of its own, and data."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("profiles", "settings", "templates", "src"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (template,) = re.findall(r"```jinja\n(.*?)```", (ROOT / "docs" / "own_data.md").read_text(), re.DOTALL)
    (folder / "templates" / "pipelines" / "pictures.yaml.j2").write_text(template)
    (folder / "profiles" / "mine.yaml").write_text(PROFILE)
    (folder / "settings" / "pictures.yaml").write_text("task: image_classification\nepochs: 3\n")
    write_data(folder / "data")
    return folder


COLUMNS = ("path_column=image", "label_column=animal")
LAYOUTS = {
    "splits": ((), {"train": 60, "validation": 15, "test": 21}, 24),
    "mixed": (("inputs.format=folder",), {"train": 42, "validation": 6, "test": 12}, 21),
    "csv": (("inputs.format=table",), {"train": 42, "validation": 6, "test": 12}, 24),
    "parquet": (
        ("inputs.format=table", *(f"jobs.prepare_images.inputs.{column}" for column in COLUMNS)),
        {"train": 42, "validation": 6, "test": 12},
        24,
    ),
}


def prepared_from(trainyard: Run, project: Path, layout: str, *more: str) -> tuple[Path, Any]:
    """Run the pipeline on one layout; the folder of its jobs, and how it ended."""
    given, splits, size = LAYOUTS[layout]
    # What the profile says needs no --set.
    source = [] if layout == "splits" else [f"jobs.prepare_images.inputs.source=data/{layout}"]
    settings = [word for setting in (*given, *source) for word in ("--set", setting)]
    options = ("--profile", "mine", "--name", layout, "--quiet", *settings, *more)
    outcome = trainyard("run", "pipelines/pictures.yaml", *options)
    assert outcome.exit_code == 0, outcome.stderr
    jobs = project / ".trainyard" / "runs" / layout / "jobs"
    manifest = json.loads((jobs / "prepare_images/outputs/prepared/manifest.json").read_text())
    assert {name: split["samples"] for name, split in manifest["splits"].items()} == splits
    assert manifest["classes"] == list(CLASSES)
    assert manifest["arrays"]["images"]["shape"] == [3, size, size]
    return jobs, outcome


@pytest.mark.parametrize("layout", ["splits", "csv", "parquet"])
def test_images_of_any_layout_are_prepared(
    trainyard: Run, own_project: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    monkeypatch.chdir(own_project)
    prepared_from(trainyard, own_project, layout, "--only", "prepare_images")


def test_images_of_several_sizes_are_trained_on(
    trainyard: Run, own_project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(own_project)
    jobs, outcome = prepared_from(trainyard, own_project, "mixed")
    assert "test accuracy" in outcome.stdout
    evaluation = json.loads((jobs / "evaluate/outputs/evaluation/evaluation.json").read_text())
    assert evaluation["samples"] == 12
    assert evaluation["accuracy"] >= 0.9


def test_a_format_without_its_source_names_what_is_missing(
    trainyard: Run, own_project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(own_project)
    table = ("--profile", "local", "--set", "inputs.format=table")

    outcome = trainyard("run", "pipelines/pictures.yaml", *table, "--quiet")

    assert outcome.exit_code == 1
    assert "--set: error[AML325] format 'table' needs a source" in outcome.stderr
    assert "Give the job 'prepare_images' an input `source`, or the profile's pipeline a `source`." in outcome.stderr
