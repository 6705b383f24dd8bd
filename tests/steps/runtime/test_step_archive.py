"""The steps' code as one file: reproducible, complete, and every step starts from it as from files."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from rank_processes import SOURCE, training_arguments

from trainyard.render.copies import archive_of_steps, changed_files
from trainyard.resources import STEP_ARCHIVE
from trainyard.settings.steps import STEP_CONFIGS
from trainyard.spec.uploads import ignore_rule


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """A job's working directory: the archive, and a task of the user's own beside it."""
    folder = tmp_path / "snapshot"
    folder.mkdir()
    (folder / STEP_ARCHIVE).write_bytes(archive_of_steps())
    return folder


def python(
    snapshot: Path, *arguments: object, executable: str | Path = sys.executable
) -> subprocess.CompletedProcess[str]:
    """Run Python as the rendered command of a project does."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [executable, *map(str, arguments)], cwd=snapshot, capture_output=True, text=True, timeout=400, check=False,
        env={**inherited, "PYTHONPATH": f"{STEP_ARCHIVE}:"},
    )  # fmt: skip


def test_the_archive_holds_what_this_repository_uploads_for_a_job(snapshot: Path) -> None:
    is_ignored, _ = ignore_rule(SOURCE)
    files = (file.relative_to(SOURCE).as_posix() for file in SOURCE.rglob("*.py"))
    with zipfile.ZipFile(snapshot / STEP_ARCHIVE) as archive:
        assert set(archive.namelist()) == {file for file in files if not is_ignored(file)}
        assert archive.namelist() == sorted(archive.namelist())
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {entry.compress_type for entry in archive.infolist()} == {zipfile.ZIP_STORED}
    assert archive_of_steps() == (snapshot / STEP_ARCHIVE).read_bytes()


def test_what_differs_between_archives_is_named(snapshot: Path) -> None:
    old = snapshot / "old.zip"
    with zipfile.ZipFile(snapshot / STEP_ARCHIVE) as archive, zipfile.ZipFile(old, "w") as other:
        for name in archive.namelist():
            content = archive.read(name)
            other.writestr(name, content if name != "trainyard/tasks.py" else b"changed = True\n")
    before, after = changed_files(old.read_bytes(), archive_of_steps())
    assert [text.split()[0] for text in (before, after)] == ["trainyard/tasks.py"] * 2
    assert len(before.splitlines()) == len(after.splitlines()) == 1
    assert changed_files(b"PK no", archive_of_steps())[0].startswith("(not written by Trainyard) ")


@pytest.mark.parametrize("step", STEP_CONFIGS)
def test_every_step_starts_from_the_archive(snapshot: Path, step: str) -> None:
    outcome = python(snapshot, "-m", f"trainyard.steps.{step}", "--help")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert f"usage: python -m trainyard.steps.{step}" in outcome.stdout
    assert len(list((snapshot / "__pycache__").glob("trainyard-*"))) == 1


def let_nothing_be_unpacked(snapshot: Path) -> None:
    (snapshot / "__pycache__").write_text("a file, where a folder would be")


@pytest.mark.parametrize("is_unpacked", [True, False])
def test_a_traceback_shows_source_lines_of_the_archive(snapshot: Path, is_unpacked: bool) -> None:
    if not is_unpacked:
        let_nothing_be_unpacked(snapshot)
    (snapshot / "fails.py").write_text("from trainyard.settings.quantities import duration\nduration('many')\n")
    said = python(snapshot, "-m", "fails").stderr
    assert ("__pycache__/trainyard-" in said) == is_unpacked
    assert said.endswith("TypeError: must be real number, not str\n")
    assert "\n    if seconds is None or not math.isfinite(seconds * 1000):\n" in said


def test_another_archive_is_unpacked_again(snapshot: Path) -> None:
    python(snapshot, "-c", "import trainyard.settings")
    archive = snapshot / STEP_ARCHIVE
    status = archive.stat()
    with zipfile.ZipFile(archive) as before:
        contents = {name: before.read(name) for name in before.namelist()}
    with zipfile.ZipFile(archive, "w") as after:
        for name, content in contents.items():
            after.writestr(name, content.replace(b'__version__ = "0.1.0"', b'__version__ = "9.9.9"'))
    os.utime(archive, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    probe = "import trainyard.settings; print(trainyard.__version__, trainyard.settings.__file__)"
    version, place = python(snapshot, "-c", probe).stdout.split()
    assert version == "9.9.9"
    assert [folder.name for folder in (snapshot / "__pycache__").glob("trainyard-*")] == [Path(place).parts[-4]]


def test_where_nothing_can_be_written_the_archive_itself_is_imported(snapshot: Path) -> None:
    let_nothing_be_unpacked(snapshot)
    outcome = python(snapshot, "-c", "import trainyard.settings; print(trainyard.settings.__file__)")
    assert outcome.stdout.strip() == str(snapshot / STEP_ARCHIVE / "trainyard/settings/__init__.py")


TASK = """
from dataclasses import dataclass
from trainyard.tasks import ImageClassification, ImageClassificationSettings, parameter

@dataclass(frozen=True, kw_only=True)
class Settings(ImageClassificationSettings):
    flavour: str = parameter("none")
    '''A setting of the task's own.'''

class Own(ImageClassification):
    Settings = Settings
"""


@pytest.mark.slow
def test_a_task_of_ones_own_is_trained_and_exported_from_the_archive_itself(
    snapshot: Path, digits: Path, tmp_path: Path, forked_python: Path
) -> None:
    """As tests/cli/test_new_project.py does with one that is unpacked, which it evaluates too."""
    let_nothing_be_unpacked(snapshot)
    (snapshot / "own.py").write_text(TASK)
    trained = tmp_path / "trained"
    flags = training_arguments(digits, trained, "own:Own", "--max-steps", 2, "--flavour", "plain", "--restarts", 1)
    outcome = python(snapshot, "-m", "trainyard.steps.train_ddp", *flags, executable=forked_python)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    found = ("--data", digits, "--model", trained / "model")
    exported = (*found, "--mlflow-model", tmp_path / "exported", "--files", tmp_path / "files")
    outcome = python(snapshot, "-m", "trainyard.steps.export_model", *exported, executable=forked_python)
    assert outcome.returncode == 0, outcome.stderr
    assert (tmp_path / "exported/code/served_image_classifier.py").is_file()
