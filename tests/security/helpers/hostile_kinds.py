"""The kinds of files that a stranger can put before the product, and what reads each."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from run_records import RECORD

from trainyard.cli.plan import read_measured
from trainyard.errors import UserError
from trainyard.lint.config import settings_for
from trainyard.lint.linter import lint
from trainyard.lint.rules import RULES
from trainyard.lint.rules.linting import CHECK_FAILED
from trainyard.rehearse.local_data import read_mltable
from trainyard.render.profiles import load_profile
from trainyard.render.project import Project
from trainyard.render.settings import read_applied
from trainyard.report.run_report import write_report
from trainyard.settings.run_record import InvalidRunRecord
from trainyard.spec.diagnostic import SpecError
from trainyard.steps.data.dataset.manifest import read_manifest
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.checkpoints import commit
from trainyard.steps.training.engines.deepspeed_config import read_config_file

ROOT = Path(__file__).parents[3]
Reader = Callable[[bytes], object]


@dataclass(frozen=True)
class HostileKind:
    """Valid texts by name, what makes a reader of bytes in an empty folder, and the errors that are answers."""

    texts: Mapping[str, str]
    reader: Callable[[Path], Reader]
    refusals: tuple[type[Exception], ...] = (UserError, SpecError, StepError, OSError, InvalidRunRecord)


def _profiles(folder: Path) -> Reader:
    for name in ("profiles", "settings", "templates"):
        shutil.copytree(ROOT / name, folder / name)
    project = Project(folder)

    def read(content: bytes) -> object:
        (folder / "profiles" / "hostile.yaml").write_bytes(content)
        return load_profile(project, "hostile")

    return read


def _read_file(name: str, read: Callable[[Path], object]) -> Callable[[Path], Reader]:
    def reader(folder: Path) -> Reader:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)

        def read_content(content: bytes) -> object:
            file.write_bytes(content)
            return read(file)

        return read_content

    return reader


def _linted(files: Mapping[str, str], hostile: str) -> Callable[[Path], Reader]:
    """Lint files of which one is hostile; a check that failed by itself is a failure."""

    def reader(folder: Path) -> Reader:
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)

        def read(content: bytes) -> object:
            (folder / hostile).write_bytes(content)
            found = lint([folder / name for name in files]).diagnostics
            failed = [each.message for each in found if each.rule == CHECK_FAILED.id]
            assert not failed, failed
            return found

        return read

    return reader


def _metrics(folder: Path) -> Reader:
    (folder / "run.json").write_text(json.dumps(RECORD))
    file = folder / RECORD["jobs"]["train"]["outputs"]["metrics"] / "metrics.jsonl"
    file.parent.mkdir(parents=True)

    def read(content: bytes) -> object:
        file.write_bytes(content)
        write_report(folder)
        return read_measured(file, "", processes=None, replaces=False)

    return read


def _record(folder: Path) -> Reader:
    def read(content: bytes) -> object:
        (folder / "run.json").write_bytes(content)
        return write_report(folder)

    return read


def _commit(folder: Path) -> Reader:
    file = folder / commit.COMMIT_FILE

    def read(content: bytes) -> object:
        # Who changes a checkpoint can write its digest too.
        with contextlib.suppress(ValueError, RecursionError, AttributeError, TypeError):
            document = json.loads(content)
            document.pop("sha256", None)
            document["sha256"] = commit._digest(document)
            content = json.dumps(document).encode()
        file.write_bytes(content)
        return commit.read_commit(folder)

    return read


MANIFEST = {
    "format": "trainyard.dataset/1",
    "content": "labelled_images",
    "arrays": {"images": {"dtype": "uint8", "shape": [8, 8, 1]}, "labels": {"dtype": "int64", "shape": []}},
    "splits": {"train": {"samples": 0, "shards": []}, "test": {"samples": 0, "shards": []}},
    "classes": ["0", "1"],
    "source": {"name": "digits"},
}
COMMIT = {
    "format": commit.CHECKPOINT_FORMAT,
    "epoch": 1,
    "step": 10,
    "samples_seen": 640,
    "world_size": 2,
    "engine": "ddp",
    "identity": {"model_type": "mlp", "seed": 0},
    "scalars": {"loss": 0.5},
    "best_figure": None,
    "is_best": False,
    "settings": {"learning_rate": 0.1},
    "went_back_to": None,
    "files": {"rank0.pt": {"bytes": 10, "sha256": "0" * 64}, "rank1.pt": {"bytes": 10, "sha256": "1" * 64}},
}
METRICS = "".join(
    json.dumps(
        {"step": step, "epoch": 0, "loss": 1 / step, "learning_rate": 0.1, "step_seconds_p50": 0.1,
         "tokens_per_second": 100.0, "peak_memory_bytes": 10**9, "time": "2026-11-20T10:00:00Z"}
    ) + "\n"
    for step in range(1, 6)
)  # fmt: skip
DEEPSPEED = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3, "overlap_comm": True, "offload_optimizer": {"device": "cpu"}},
}
MLTABLE = """\
type: mltable
paths:
  - pattern: ./*.csv
  - file: ./a.csv
transformations:
  - read_delimited:
      delimiter: ","
      encoding: ascii
      header: all_files_same_headers
  - keep_columns: [a, b]
  - take: 10
"""
CONDA = """\
name: training
channels:
  - pytorch
  - conda-forge
dependencies:
  - python=3.11
  - numpy>=1.26,<3
  - pip
  - pip:
      - torch==2.13.0
      - azure-ai-ml
"""
LINT_SETTINGS = """\
[lint]
exclude = ["vendor/**"]
pedantic = true

[lint.severity]
AML410 = "off"

[lint.computes.gpus]
size = "Standard_ND96asr_v4"
max_nodes = 4
"""
TRAINING = """\
type: command
name: train
code: ./src
command: >-
  python train.py --deepspeed ds.json --data ${{inputs.table}}
inputs:
  table: {type: mltable, path: ./table}
environment:
  image: mcr.microsoft.com/azureml/openmpi5.0-ubuntu24.04
  conda_file: conda.yaml
compute: azureml:gpus
"""
_PROJECT = {
    "job.yaml": TRAINING,
    "conda.yaml": CONDA,
    "table/MLTable": MLTABLE,
    "src/ds.json": json.dumps(DEEPSPEED),
    "src/train.py": "import argparse\n",
}


def _job_with(hostile: str) -> Callable[[Path], Reader]:
    def reader(folder: Path) -> Reader:
        read = _linted({"job.yaml": TRAINING}, hostile)
        for name, text in _PROJECT.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        return read(folder)

    return reader


def _both(*readers: Callable[[Path], Reader]) -> Callable[[Path], Reader]:
    """Give the same content to several readers; refused by the first, it goes to the next nevertheless."""

    def reader(folder: Path) -> Reader:
        made = []
        for number, each in enumerate(readers):
            (folder / str(number)).mkdir()
            made.append(each(folder / str(number)))

        def read(content: bytes) -> None:
            for each in made:
                with contextlib.suppress(*HostileKind.refusals):
                    each(content)

        return read

    return reader


KINDS: Mapping[str, HostileKind] = {
    "profile": HostileKind(
        {file.stem: file.read_text() for file in sorted((ROOT / "profiles").glob("*.yaml"))}, _profiles
    ),
    "applied settings": HostileKind(
        {"settings": "nodes: 4\ntraining:\n  epochs: 3\n  learning_rate: 1e-4\n"}, _read_file("s.yaml", read_applied)
    ),
    ".trainyard.toml": HostileKind(
        {"lint": LINT_SETTINGS}, _read_file(".trainyard.toml", lambda file: settings_for([file.parent], RULES))
    ),
    "run.json": HostileKind({"record": json.dumps(RECORD)}, _record),
    "manifest.json": HostileKind(
        {"images": json.dumps(MANIFEST)}, _read_file("manifest.json", lambda file: read_manifest(file.parent))
    ),
    "commit.json": HostileKind({"checkpoint": json.dumps(COMMIT)}, _commit),
    "metrics.jsonl": HostileKind({"metrics": METRICS}, _metrics),
    "deepspeed.json": HostileKind(
        {"config": json.dumps(DEEPSPEED)}, _both(_read_file("ds.json", read_config_file), _job_with("src/ds.json"))
    ),
    "MLTable": HostileKind(
        {"table": MLTABLE},
        _both(_read_file("MLTable", lambda file: read_mltable(file.parent)), _job_with("table/MLTable")),
    ),
    "conda.yaml": HostileKind({"environment": CONDA}, _job_with("conda.yaml")),
}
