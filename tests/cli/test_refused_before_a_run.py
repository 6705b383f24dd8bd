"""What a job's own program would refuse is refused before the first process; why a job failed is told once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainyard.cli import working_folder
from trainyard.cli.entry import main

ROOT = Path(__file__).parents[2]
Run = Callable[..., Any]

JOB = """\
type: command
code: src
command: python train.py --epochs ${{inputs.epochs}} --optimizer adam
inputs:
  epochs: 2
environment: azureml:torch:3
"""
SCRIPT = """\
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, required=True)
parser.add_argument("--optimizer", choices=["adam", "sgd"])
arguments = parser.parse_args()
if arguments.epochs > 5:
    raise ValueError(f"{arguments.epochs} epochs are too many")
"""


@pytest.fixture
def own_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job and its script in a folder of their own, which is the working directory."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text(SCRIPT)
    (tmp_path / "job.yml").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "job.yml"


@pytest.mark.parametrize(
    ("right", "wrong", "words"),
    [
        ("--epochs", "--epocs", ("job.yml:3:26: error[AML501]", "no flag --epocs", "Did you mean '--epochs'?")),
        ("--epochs ${{inputs.epochs}} ", "", ("error[AML502]", "train.py requires --epochs")),
        ("adam", "lion", ("error[AML503]", "lion", "adam")),
        ("epochs: 2", "epochs: two", ("job.yml:5:11: error[AML505]", "takes a whole number, not 'two'")),
    ],
)
def test_a_flag_that_the_script_refuses(
    trainyard: Run, own_job: Path, right: str, wrong: str, words: tuple[str, ...]
) -> None:
    own_job.write_text(JOB.replace(right, wrong))

    outcome = trainyard("run", "job.yml")

    assert outcome.exit_code == 1
    for word in words:
        assert word in outcome.stderr
    assert "running" not in outcome.stderr
    assert not (own_job.parent / ".trainyard" / "runs").exists(), "nothing has started"


def test_a_value_that_set_replaces_is_not_refused(trainyard: Run, own_job: Path) -> None:
    own_job.write_text(JOB.replace("epochs: 2", "epochs: two"))

    outcome = trainyard("run", "job.yml", "--set", "inputs.epochs=3")

    assert outcome.exit_code == 0, outcome.stderr
    assert (
        "job.yml:5: the script's --epochs takes a whole number, not 'two' [AML505, not in this run]" in outcome.stderr
    )


@pytest.mark.parametrize("options", [(), ("--quiet",)])
def test_the_reason_of_a_failure_is_told_once(
    capsys: pytest.CaptureFixture[str], own_job: Path, options: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "job.yml", "--set", "inputs.epochs=6", *options])

    shown = capsys.readouterr()
    assert ended.value.code == 1
    assert (shown.out + shown.err).count("6 epochs are too many") == 1
    assert 'train.py", line 8' in shown.err, "the lines before it stay"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("inputs.global_batch_size=30",), ("--set: error[AML319] global_batch_size 30", "64; or micro_batch_size 15")),
        (
            ("inputs.micro_batch_size=7",),
            ("global_batch_size 64", "not a multiple of 7", "--set: micro_batch_size is 7"),
        ),
        (("nodes=2", "inputs.global_batch_size=100"), ("not a multiple of 16 micro × 2 × 2 processes",)),
    ],
)
def test_batches_that_do_not_divide(
    trainyard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: tuple[str, ...], words: tuple[str, ...]
) -> None:
    runs = tmp_path / ".trainyard" / "runs"
    monkeypatch.setattr(working_folder, "runs_folder", lambda run_folder=None: runs)
    given = [word for setting in settings for word in ("--set", setting)]

    outcome = trainyard("run", "pipelines/ddp.yaml", "--profile", "local", *given)

    assert outcome.exit_code == 1
    for word in words:
        assert word in outcome.stderr
    assert not runs.exists(), "nothing has started"


@pytest.mark.usefixtures("jobs_are_forked")
def test_a_first_run_of_own_steps_warns_of_no_environment(trainyard: Run, tmp_path: Path) -> None:
    """A newcomer takes a list of other versions for a broken installation; environments.txt has it."""
    run = (
        "run",
        "pipelines/ddp.yaml",
        "--profile",
        "local",
        "--run-dir",
        str(tmp_path / "run"),
        "--max-processes",
        "1",
    )

    outcome = trainyard(*run, "--set", "inputs.epochs=1", "--set", "inputs.minimum_accuracy=0")

    assert outcome.exit_code == 0, outcome.stderr
    assert "this Python differs" not in outcome.stderr
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert not [note for note in record["notes"] if "Python" in note]
    assert "for export_model" in (tmp_path / "run" / "environments.txt").read_text()


def test_only_jobs_that_run_are_held_to_what_they_are_given(trainyard: Run, tmp_path: Path) -> None:
    uneven = ("--profile", "local", "--set", "inputs.global_batch_size=30", "--run-dir", str(tmp_path / "run"))

    outcome = trainyard("run", "pipelines/ddp.yaml", *uneven, "--only", "prepare_images")

    assert outcome.exit_code == 0, outcome.stderr


@pytest.mark.usefixtures("jobs_are_forked")
def test_a_default_is_named_as_such_and_not_by_the_macro_that_writes_it(
    trainyard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("profiles", "settings", "templates", "src"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "profiles" / "mine.yaml").write_text(
        "extends: local\npipelines: {ddp: {format: folder, source: pictures}}\n"
    )
    for name in ("cat", "dog"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        (tmp_path / "pictures" / name / "1.png").write_text("no image")
    monkeypatch.chdir(tmp_path)

    outcome = trainyard("run", "pipelines/ddp.yaml", "--profile", "mine", "--only", "prepare_images")

    assert outcome.exit_code == 1
    setting = "jobs.prepare_images.inputs.skip_undecodable"
    assert f"--skip-undecodable is {setting}, false by default" in outcome.stdout
    assert f"--set {setting}=VALUE" in outcome.stdout
    assert "templates/" not in outcome.stdout


# What a whole pipeline needs of this machine, and of earlier runs -----------------------------------------------------


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """A Python without any package, as after `pip install` of no extra."""
    venv.create(tmp_path / "bare", with_pip=False)
    return tmp_path / "bare" / "bin" / "python"


@pytest.mark.parametrize(
    ("pipeline", "words"),
    [
        ("ddp", ("lacks numpy, torch, safetensors", "train_ddp, evaluate", 'pip install "trainyard-azureml[train]"')),
        ("horovod", ("lacks horovod, which train_horovod needs; build it with `make setup-horovod`",)),
        ("lightning", ('lacks lightning, which train_lightning needs; pip install "trainyard-azureml[lightning]"',)),
        (
            "tensorflow",
            ('lacks tensorflow, which train_tensorflow needs; pip install "trainyard-azureml[tensorflow]"',),
        ),
    ],
)
def test_packages_of_a_whole_pipeline_are_looked_for_first(
    trainyard: Run, tmp_path: Path, bare_python: Path, pipeline: str, words: tuple[str, ...]
) -> None:
    run = ("run", f"pipelines/{pipeline}.yaml", "--profile", "local", "--run-dir", str(tmp_path / "run"))

    outcome = trainyard(*run, "--python", str(bare_python))

    assert outcome.exit_code == 1
    for word in words:
        assert word in outcome.stderr
    assert not (tmp_path / "run").exists(), "nothing has started"


def test_data_that_another_pipeline_writes_is_named_with_the_run_that_does(
    trainyard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("profiles", "settings", "templates", "src"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)

    outcome = trainyard("run", "pipelines/finetune.yaml", "--profile", "local")

    assert outcome.exit_code == 1
    first = "trainyard run pipelines/fsdp.yaml --profile local --name base"
    assert f"run what writes it first: {first}" in outcome.stderr
    assert f"| `{first}` |" in (ROOT / "README.md").read_text(), "README says so, too"


def test_a_run_reports_the_same_with_one_processor_as_with_several(own_job: Path) -> None:
    """With several, a copy of the process checks the file."""
    own_job.write_text(JOB.replace("--epochs", "--epocs"))
    (allowed, *_), command = sorted(os.sched_getaffinity(0)), [sys.executable, "-m", "trainyard", "run", "job.yml"]

    several = subprocess.run(command, capture_output=True, text=True, timeout=120)
    one = subprocess.run(
        command, capture_output=True, text=True, timeout=120, preexec_fn=lambda: os.sched_setaffinity(0, {allowed})
    )

    assert "job.yml:3:26: error[AML501]" in several.stderr
    assert (several.returncode, several.stderr) == (one.returncode, one.stderr)
